//! Reads the inline object and the flat file behind it as one.
//!
//! Inline wins. The file fills what is empty, also inside `kubernetes` and `dns`; a list comes whole from one of the
//! two. Empty text, zero and an empty list count as unset.

use berth_cni::fields::{FieldError, Fields, Path};
use serde_json::Value;

use super::ConfigError;
use super::flat::FlatFile;

const INLINE: Path<'static> = Path::Root("ipam");
const FLAT: Path<'static> = Path::Root("flat file");

/// Both objects, the stronger one first.
#[derive(Debug, Clone)]
pub struct Source<'a> {
    objects: Vec<Fields<'a>>,
}

impl<'a> Source<'a> {
    pub fn new(inline: &'a Value, flat: Option<&'a FlatFile>) -> Result<Self, ConfigError> {
        let mut objects = vec![Fields::of(&INLINE, inline)?];
        if let Some(flat) = flat {
            objects.push(
                Fields::of(&FLAT, &flat.object).map_err(|error| ConfigError::Flat {
                    path: flat.path.display().to_string(),
                    why: error.to_string(),
                })?,
            );
        }
        Ok(Source { objects })
    }

    /// The text of `key`, empty if no source sets it.
    pub fn text(&self, key: &str) -> Result<String, FieldError> {
        for object in &self.objects {
            let text = object.text_or_empty(key)?;
            if !text.is_empty() {
                return Ok(text);
            }
        }
        Ok(String::new())
    }

    /// Every text that is set for `key`, the stronger one first: for values that may turn out invalid.
    pub fn texts_in_turn(&self, key: &str) -> Result<Vec<String>, FieldError> {
        let mut texts = Vec::new();
        for object in &self.objects {
            let text = object.text_or_empty(key)?;
            if !text.is_empty() {
                texts.push(text);
            }
        }
        Ok(texts)
    }

    /// A setting that may be switched off: a value of `false` counts as set.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, FieldError> {
        for object in &self.objects {
            if let Some(flag) = object.flag(key)? {
                return Ok(Some(flag));
            }
        }
        Ok(None)
    }

    pub fn integer(&self, key: &str) -> Result<Option<i64>, FieldError> {
        for object in &self.objects {
            if let Some(number) = object.integer(key)?.filter(|number| *number != 0) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    pub fn list(&self, key: &str) -> Result<&'a [Value], FieldError> {
        for object in &self.objects {
            if let Some(list) = object.list(key)?.filter(|list| !list.is_empty()) {
                return Ok(list);
            }
        }
        Ok(&[])
    }

    pub fn strings(&self, key: &str) -> Result<Vec<String>, FieldError> {
        for object in &self.objects {
            let list = object.texts(key)?;
            if !list.is_empty() {
                return Ok(list);
            }
        }
        Ok(Vec::new())
    }

    /// The object under `key`, again inline before file.
    pub fn inner<'p>(&'p self, path: &'p Path<'p>, key: &str) -> Result<Source<'p>, FieldError> {
        let mut objects = Vec::new();
        for object in &self.objects {
            if let Some(value) = object.get(key) {
                objects.push(Fields::of(path, value)?);
            }
        }
        Ok(Source { objects })
    }

    pub fn inline_text(&self, key: &str) -> Result<String, FieldError> {
        match self.objects.first() {
            Some(inline) => inline.text_or_empty(key),
            None => Ok(String::new()),
        }
    }

    pub fn inline_flag(&self, key: &str) -> Result<Option<bool>, FieldError> {
        match self.objects.first() {
            Some(inline) => inline.flag(key),
            None => Ok(None),
        }
    }
}
