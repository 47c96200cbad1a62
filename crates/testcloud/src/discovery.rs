//! Checks a request against Google's own description of its APIs (the discovery files): the method, its query, and
//! every field of its body. What Google would ignore or refuse as unknown is found here.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::requests::Recorded;

#[derive(Debug)]
struct Method {
    id: String,
    verb: String,
    path: String,
    /// Of the query, with their description.
    parameters: Map<String, Value>,
    /// The schema of the body.
    body: Option<String>,
    /// Which file it is of.
    api: usize,
}

/// The methods and schemas of one or more APIs.
#[derive(Debug, Default)]
pub struct Discovery {
    methods: Vec<Method>,
    schemas: Vec<Map<String, Value>>,
}

impl Discovery {
    pub fn load(files: &[&Path]) -> Result<Discovery> {
        let mut discovery = Discovery::default();
        for file in files {
            let text = fs::read(file).with_context(|| format!("read {}", file.display()))?;
            let api: Value = serde_json::from_slice(&text)
                .with_context(|| format!("{} is not JSON", file.display()))?;
            let root = api["servicePath"].as_str().unwrap_or_default().to_owned();
            let number = discovery.schemas.len();
            let schemas = api["schemas"].as_object().cloned().unwrap_or_default();
            discovery.schemas.push(schemas);
            discovery.add(&api["resources"], &root, number);
        }
        Ok(discovery)
    }

    fn add(&mut self, resources: &Value, root: &str, api: usize) {
        for resource in resources.as_object().into_iter().flat_map(Map::values) {
            let methods = resource["methods"].as_object();
            for method in methods.into_iter().flat_map(Map::values) {
                let text = |value: &Value| value.as_str().map(str::to_owned);
                let path = text(&method["flatPath"]).or_else(|| text(&method["path"]));
                let parameters = method["parameters"].as_object().cloned();
                let mut parameters = parameters.unwrap_or_default();
                parameters.retain(|_, about| about["location"] == "query");
                self.methods.push(Method {
                    id: text(&method["id"]).unwrap_or_default(),
                    verb: text(&method["httpMethod"]).unwrap_or_default(),
                    path: format!("/{root}{}", path.unwrap_or_default()),
                    parameters,
                    body: text(&method["request"]["$ref"]),
                    api,
                });
            }
            self.add(&resource["resources"], root, api);
        }
    }

    /// The method's id; else what is wrong with the request.
    pub fn check(&self, request: &Recorded) -> Result<String, String> {
        let fits = |method: &&Method| {
            method.verb == request.method && matches(&method.path, &request.path)
        };
        let method = self.methods.iter().find(fits);
        let method =
            method.ok_or_else(|| format!("no method is {} {}", request.method, request.path))?;
        let wrong = |what: String| format!("{}: {what}", method.id);
        for (name, _) in &request.query {
            if !method.parameters.contains_key(name) {
                return Err(wrong(format!("it has no parameter {name}")));
            }
        }
        for (name, about) in &method.parameters {
            let given = request.query.iter().any(|(known, _)| known == name);
            if about["required"] == true && !given {
                return Err(wrong(format!("the parameter {name} is missing")));
            }
        }
        match (&method.body, &request.body) {
            (_, Value::Null) => {}
            (None, _) => return Err(wrong("it takes no body".to_owned())),
            (Some(schema), body) => {
                let checked = self.check_schema(method.api, schema, body);
                checked.map_err(|what| wrong(format!("body{what}")))?;
            }
        }
        Ok(method.id.clone())
    }

    fn check_schema(&self, api: usize, name: &str, value: &Value) -> Result<(), String> {
        let schemas = self.schemas.get(api);
        let schema = schemas.and_then(|schemas| schemas.get(name));
        let schema = schema.ok_or_else(|| format!(": there is no schema {name}"))?;
        self.check_value(api, schema, value)
    }

    fn check_value(&self, api: usize, schema: &Value, value: &Value) -> Result<(), String> {
        if let Some(name) = schema["$ref"].as_str() {
            return self.check_schema(api, name, value);
        }
        let fits = match schema["type"].as_str().unwrap_or_default() {
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "array" => {
                let list = value.as_array().ok_or(": a list is expected")?;
                for (at, entry) in list.iter().enumerate() {
                    let checked = self.check_value(api, &schema["items"], entry);
                    checked.map_err(|what| format!("[{at}]{what}"))?;
                }
                true
            }
            "object" => return self.check_object(api, schema, value),
            _ => true,
        };
        if !fits {
            return Err(format!(": {value} is not of type {}", schema["type"]));
        }
        match (schema["enum"].as_array(), value) {
            (Some(known), Value::String(_)) if !known.contains(value) => {
                Err(format!(": {value} is none of {known:?}"))
            }
            _ => Ok(()),
        }
    }

    fn check_object(&self, api: usize, schema: &Value, value: &Value) -> Result<(), String> {
        let fields = value.as_object().ok_or(": an object is expected")?;
        for (name, field) in fields {
            let about = &schema["properties"][name];
            let about = match about.is_null() {
                true => &schema["additionalProperties"],
                false => about,
            };
            if about.is_null() {
                return Err(format!(".{name}: there is no such field"));
            }
            if about["readOnly"] == true {
                return Err(format!(".{name}: it is set by the server alone"));
            }
            let checked = self.check_value(api, about, field);
            checked.map_err(|what| format!(".{name}{what}"))?;
        }
        Ok(())
    }
}

/// Whether a path is of this template: `{…}` is one segment.
fn matches(template: &str, path: &str) -> bool {
    let (template, path) = (template.split('/'), path.split('/'));
    let same = |(known, given): (&str, &str)| match known.starts_with('{') {
        true => !given.is_empty(),
        false => known == given,
    };
    template.clone().count() == path.clone().count() && template.zip(path).all(same)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    fn discovery() -> Discovery {
        let dir = std::env::temp_dir().join(format!("berth-discovery-{}", std::process::id()));
        let api = json!({
            "servicePath": "compute/v1/",
            "resources": { "things": { "methods": { "patch": {
                "id": "compute.things.patch", "httpMethod": "PATCH", "flatPath": "projects/{project}/things/{thing}",
                "parameters": {
                    "project": { "location": "path" }, "requestId": { "location": "query" },
                    "nic": { "location": "query", "required": true },
                },
                "request": { "$ref": "Thing" },
            } } } },
            "schemas": { "Thing": { "type": "object", "properties": {
                "kind": { "type": "string", "enum": ["A", "B"] },
                "list": { "type": "array", "items": { "$ref": "Thing" } },
                "made": { "type": "string", "readOnly": true },
                "size": { "type": "integer" },
            } } },
        });
        fs::write(&dir, api.to_string()).unwrap();
        let loaded = Discovery::load(&[&dir]).unwrap();
        fs::remove_file(&dir).unwrap();
        loaded
    }

    #[test]
    fn a_request_that_google_would_not_know_is_named() {
        let discovery = discovery();
        let check = |path: &str, query: &[&str], body: Value| {
            discovery.check(&Recorded {
                call: "things.patch".to_owned(),
                method: "PATCH".to_owned(),
                path: path.to_owned(),
                query: query
                    .iter()
                    .map(|name| ((*name).to_owned(), "x".to_owned()))
                    .collect(),
                body,
                at: Instant::now(),
                code: None,
            })
        };
        let path = "/compute/v1/projects/p/things/t";
        let good = json!({ "kind": "A", "size": 1, "list": [{ "kind": "B" }] });
        assert_eq!(
            check(path, &["nic", "requestId"], good).unwrap(),
            "compute.things.patch"
        );
        for (path, query, body, expected) in [
            (
                "/compute/v1/projects/p/things",
                &["nic"][..],
                json!({}),
                "no method",
            ),
            (path, &[], json!({}), "nic is missing"),
            (path, &["nic", "id"], json!({}), "no parameter id"),
            (
                path,
                &["nic"],
                json!({ "other": 1 }),
                "body.other: there is no such field",
            ),
            (path, &["nic"], json!({ "size": "1" }), "body.size"),
            (path, &["nic"], json!({ "kind": "C" }), "body.kind"),
            (
                path,
                &["nic"],
                json!({ "made": "x" }),
                "by the server alone",
            ),
            (
                path,
                &["nic"],
                json!({ "list": [{}, { "x": 1 }] }),
                "body.list[1].x",
            ),
        ] {
            let refusal = check(path, query, body).unwrap_err();
            assert!(refusal.contains(expected), "{refusal}");
        }
    }
}
