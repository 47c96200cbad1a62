//! The VM pools over HTTP and JSON: on the agent's socket, and on TCP for clients with the token.
//!
//! Guarantees: every response is JSON; every failure states what failed and whether a retry helps; every route is in
//! the OpenAPI document that is served with them. An error of the state is never shown as an empty pool.

mod auth;
mod error_response;
mod routes;

use axum::Router;
use axum::middleware::map_response;
use axum::routing::MethodRouter;

pub use auth::{TcpError, serve_tcp};
pub use error_response::Failure;
pub use routes::{Allocations, Deallocated, Recoveries, Statuses};

use crate::Fleet;

/// The document that describes the API.
pub const OPENAPI: &str = include_str!("openapi.json");

/// The routes, to be nested under `/v1/vms`.
pub fn router(fleet: Fleet) -> Router {
    let table = routes::table().into_iter();
    let routes = table.fold(Router::new(), |router, Route { path, methods, .. }| {
        router.route(path, methods)
    });
    routes
        .fallback(error_response::no_route)
        .method_not_allowed_fallback(error_response::no_method)
        .layer(map_response(error_response::with_form))
        .with_state(fleet)
}

/// A path with its methods, named so that a test can compare them with the document.
struct Route {
    path: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the comparison alone"))]
    names: &'static [&'static str],
    methods: MethodRouter<Fleet>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_document_describes_every_route_and_no_other() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(operation["summary"].is_string(), "{method} {path}");
                assert!(operation["responses"].is_object(), "{method} {path}");
                described.insert(format!("{method} {path}"));
            }
        }
        let mut served = BTreeSet::new();
        for route in routes::table() {
            for method in route.names {
                served.insert(format!("{method} {}", route.path));
            }
        }
        assert_eq!(described, served);
    }

    #[test]
    fn every_reference_of_the_document_leads_somewhere() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(fields) => {
                    for (key, value) in fields {
                        match value.as_str() {
                            Some(target) if key == "$ref" => found.push(target.into()),
                            _ => references(value, found),
                        }
                    }
                }
                Value::Array(items) => items.iter().for_each(|item| references(item, found)),
                _ => {}
            }
        }
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for target in found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
    }
}
