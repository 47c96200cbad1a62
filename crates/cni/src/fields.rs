//! A JSON object read as CNI plugins read theirs: keys match in any case, unknown keys are ignored, `null` is absence,
//! and a value of the wrong type is an error with its path.

use std::fmt;

use serde_json::{Map, Value};

use crate::error::{CniError, Code};

/// A value does not have the type that its key needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path} must be {expected}, found {found}")]
pub struct FieldError {
    pub path: String,
    pub expected: &'static str,
    pub found: String,
}

impl From<FieldError> for CniError {
    fn from(error: FieldError) -> CniError {
        CniError::new(Code::Decode, error.to_string())
    }
}

/// One object and its position in the document.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    path: &'a Path<'a>,
    map: &'a Map<String, Value>,
}

/// A position in a document, kept as a chain on the stack: it is turned into text only for an error.
#[derive(Clone, Copy, Debug)]
pub enum Path<'a> {
    Root(&'a str),
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root(name) => f.write_str(name),
            Path::Key(parent, key) => write!(f, "{parent}.{key}"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without values: a configuration may contain credentials.
        write!(f, "Fields({})", self.path)
    }
}

impl<'a> Fields<'a> {
    /// Reads `value` as the object at `path`.
    pub fn of(path: &'a Path<'a>, value: &'a Value) -> Result<Fields<'a>, FieldError> {
        match value {
            Value::Object(map) => Ok(Fields { path, map }),
            other => Err(mismatch(path.to_string(), "an object", other)),
        }
    }

    /// Whether the key is present, even with `null`.
    pub fn has(&self, key: &str) -> bool {
        self.raw(key).is_some()
    }

    /// The value of `key`: the exact spelling first, then any other case.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.raw(key).filter(|value| !value.is_null())
    }

    fn raw(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).or_else(|| {
            self.map
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(key))
                .map(|(_, value)| value)
        })
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, FieldError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// The text of `key`, empty when absent.
    pub fn text_or_empty(&self, key: &str) -> Result<String, FieldError> {
        Ok(self.text(key)?.unwrap_or_default().to_owned())
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, FieldError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn integer(&self, key: &str) -> Result<Option<i64>, FieldError> {
        self.typed(key, "a whole number", Value::as_i64)
    }

    pub fn list(&self, key: &str) -> Result<Option<&'a [Value]>, FieldError> {
        self.typed(key, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// A list of strings, empty when absent.
    pub fn texts(&self, key: &str) -> Result<Vec<String>, FieldError> {
        let Some(items) = self.list(key)? else {
            return Ok(Vec::new());
        };
        items
            .iter()
            .enumerate()
            .map(|(index, item)| match item {
                Value::String(text) => Ok(text.clone()),
                other => Err(mismatch(
                    format!("{}.{key}[{index}]", self.path),
                    "a string",
                    other,
                )),
            })
            .collect()
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(mismatch(format!("{}.{key}", self.path), expected, value)),
        }
    }
}

fn mismatch(path: String, expected: &'static str, found: &Value) -> FieldError {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        // The text itself could be a secret in the wrong place.
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    FieldError {
        path,
        expected,
        found,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ROOT: Path<'static> = Path::Root("ipam");

    #[test]
    fn keys_match_without_regard_to_case_and_the_exact_one_wins() {
        let value = json!({"RANGE": "a", "Range_Start": "b", "range": "c"});
        let fields = Fields::of(&ROOT, &value).unwrap();
        assert_eq!(fields.text("range").unwrap(), Some("c"));
        assert_eq!(fields.text("range_start").unwrap(), Some("b"));
        assert_eq!(fields.text("range_end").unwrap(), None);
    }

    #[test]
    fn null_is_absent() {
        let value = json!({"gateway": null});
        let fields = Fields::of(&ROOT, &value).unwrap();
        assert_eq!(fields.text("gateway").unwrap(), None);
        assert!(fields.has("gateway"));
    }

    #[test]
    fn a_wrong_type_is_named_with_its_path() {
        let value = json!({"range": 5, "exclude": ["a", true], "password": {"x": "y"}});
        let fields = Fields::of(&ROOT, &value).unwrap();
        assert_eq!(
            fields.text("range").unwrap_err().to_string(),
            "ipam.range must be a string, found 5"
        );
        assert_eq!(
            fields.texts("exclude").unwrap_err().to_string(),
            "ipam.exclude[1] must be a string, found true"
        );
        assert_eq!(
            fields.flag("password").unwrap_err().to_string(),
            "ipam.password must be true or false, found an object"
        );
    }
}
