//! Rewrites Berth's own annotations and keeps the fields that this version does not know: a newer one wrote them (I7).

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The text of `next`, with the unknown fields of the text before.
pub(super) fn rewritten<T: Serialize + DeserializeOwned>(
    before: Option<&str>,
    next: &T,
) -> Result<String, serde_json::Error> {
    let mut next = serde_json::to_value(next)?;
    if let Value::Object(known) = &mut next {
        // At the end: policies check the form of what goes before.
        for (field, value) in before.map(unknown::<T>).unwrap_or_default() {
            known.entry(field).or_insert(value);
        }
    }
    Ok(next.to_string())
}

/// The fields of an annotation that are none of `T`'s; none where it can't be read as one.
fn unknown<T: Serialize + DeserializeOwned>(text: &str) -> Map<String, Value> {
    let read = |text: &str| -> Result<_, serde_json::Error> {
        let object: Map<String, Value> = serde_json::from_str(text)?;
        let known: T = serde_json::from_str(text)?;
        Ok((object, serde_json::to_value(known)?))
    };
    let Ok((mut object, known)) = read(text) else {
        return Map::new();
    };
    object.retain(|field, _| known.get(field).is_none());
    object
}

#[cfg(test)]
mod tests {
    use berth_core::slice::elastic::Mark;

    use super::*;

    #[test]
    fn known_fields_are_replaced_and_unknown_ones_kept() {
        let before = r#"{"state":"sliced","size":26,"unreserved":true,"generation":{"n":7}}"#;
        let text = rewritten(Some(before), &Mark::sliced(28)).unwrap();
        let now: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(now["generation"]["n"], 7);
        assert_eq!((&now["size"], now.get("unreserved")), (&28.into(), None));
        for unreadable in [None, Some("null"), Some("{")] {
            let text = rewritten(unreadable, &Mark::sliced(28)).unwrap();
            assert_eq!(
                serde_json::from_str::<Mark>(&text).unwrap(),
                Mark::sliced(28)
            );
        }
    }
}
