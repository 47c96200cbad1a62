//! The merge patch (RFC 7396) that makes one JSON value of another.

use serde_json::{Map, Value};

/// What `after` has that `before` has not, and null for what is gone; none if they are equal. A list is one value.
pub(super) fn merge_patch(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut patch = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        let changed = match old.get(key) {
            Some(before) => merge_patch(before, value),
            None => Some(value.clone()),
        };
        if let Some(changed) = changed {
            patch.insert(key.clone(), changed);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_differs_is_in_the_patch() {
        let before = json!({ "a": { "1": "x", "2": "y" }, "b": [1, 2], "c": 1 });
        let after = json!({ "a": { "1": "x", "3": "z" }, "b": [1], "c": 1 });
        let patch = json!({ "a": { "2": null, "3": "z" }, "b": [1] });
        assert_eq!(merge_patch(&before, &after), Some(patch));
        assert_eq!(merge_patch(&before, &before), None);
        assert_eq!(merge_patch(&json!(1), &json!({})), Some(json!({})));
    }
}
