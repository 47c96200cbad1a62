//! A VM pool in one ConfigMap.

mod document;
mod gojson;

pub use document::{Allocation, Document, DocumentError};
