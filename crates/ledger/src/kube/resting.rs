//! Released addresses that wait for their next owner (I10), kept in one annotation of the pool.
//!
//! The kind has no field for them and other programs write it; they keep annotations. The text is
//! JSON: offset -> {since, until, owner}, times in milliseconds since 1970. Kubernetes takes 256 KiB
//! of annotations: past [`MOST`] the rests that end first give way, with a warning, because an
//! address that could not be released would be worse.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use berth_core::{Address, Change, Moment, Prefix, Rest};

use super::base::Notes;

/// Bytes of the annotation. The rest of the 256 KiB is for others.
const MOST: usize = 192 * 1024;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Resting(BTreeMap<u128, Rest>);

impl Resting {
    pub fn read(notes: &Notes) -> Result<Self, String> {
        let Notes::Resting(text) = notes else {
            return Ok(Self::default());
        };
        let unreadable = |why: String| {
            format!(
                "its annotation {} is not what Berth writes there ({why}); remove it, or mend it",
                super::base::RESTING
            )
        };
        let texts: BTreeMap<String, Rest> =
            serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?;
        let read = |(key, rest): (String, Rest)| match key.parse() {
            Ok(offset) => Ok((offset, rest)),
            Err(_) => Err(unreadable(format!("{key:?} is no offset"))),
        };
        Ok(Self(texts.into_iter().map(read).collect::<Result<_, _>>()?))
    }

    pub fn iter(&self, network: Prefix) -> impl Iterator<Item = (Address, &Rest)> {
        self.0
            .iter()
            .filter_map(move |(offset, rest)| Some((network.network().plus(*offset)?, rest)))
    }

    /// Whether the change would give an address to somebody else while it rests (I10).
    pub fn forbids(&self, network: Prefix, change: &Change, now: Moment) -> bool {
        let Change::Claim { address, record } = change else {
            return false;
        };
        address
            .distance_from(network.network())
            .and_then(|offset| self.0.get(&offset))
            .is_some_and(|rest| rest.until > now && rest.owner != record.owner)
    }

    /// What is left after the changes; `None` if they leave it as it was.
    pub fn after(&self, network: Prefix, changes: &[Change], now: Moment) -> Option<Self> {
        let mut next = self.clone();
        for change in changes {
            let Some(offset) = change.address().distance_from(network.network()) else {
                continue;
            };
            match change {
                Change::Claim { .. } => {
                    next.0.remove(&offset);
                }
                Change::Release {
                    rest: Some(rest), ..
                } => {
                    next.0.insert(offset, rest.clone());
                }
                Change::Release { .. } | Change::Update { .. } => {}
            }
        }
        if next == *self {
            return None;
        }
        next.0.retain(|_, rest| rest.until > now);
        Some(next)
    }

    /// The annotation's text; `None` if nothing rests.
    pub fn text(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let text = encode(self.0.iter());
        if text.len() <= MOST {
            return Some(text);
        }
        let mut latest: Vec<(&u128, &Rest)> = self.0.iter().collect();
        latest.sort_by_key(|(_, rest)| std::cmp::Reverse(rest.until));
        let mut room = MOST;
        let fits = latest
            .iter()
            .take_while(|one| {
                // Two of the bytes are the outer braces: never more than the whole text has.
                let needed = encode(std::iter::once(**one)).len();
                room = room.saturating_sub(needed);
                room > 0
            })
            .count();
        tracing::warn!(
            resting = latest.len(),
            kept = fits,
            "more addresses rest than an object's annotations can hold; those that end first are given again early"
        );
        latest.truncate(fits);
        Some(encode(latest.into_iter()))
    }
}

fn encode<'a>(rests: impl Iterator<Item = (&'a u128, &'a Rest)>) -> String {
    let texts: BTreeMap<String, &Rest> = rests
        .map(|(offset, rest)| (offset.to_string(), rest))
        .collect();
    // Strings and numbers under text keys: there is nothing in it that JSON can't hold.
    serde_json::to_string(&texts).unwrap_or_default()
}

pub(super) fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let millis = since.unwrap_or_default().as_millis();
    Moment(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use berth_core::{Handle, Owner, Record};

    use super::*;

    fn mk_network() -> Prefix {
        "10.0.0.0/16".parse().unwrap()
    }

    fn mk_rest(name: &str, until: u64) -> Rest {
        Rest {
            since: Moment(1),
            until: Moment(until),
            owner: Owner::new(format!("default/{name}"), "net1"),
        }
    }

    fn release(address: &str, rest: Option<Rest>) -> Change {
        Change::Release {
            address: address.parse().unwrap(),
            expected: Record::default(),
            rest,
        }
    }

    fn claim(address: &str) -> Change {
        Change::Claim {
            address: address.parse().unwrap(),
            record: Record::new(Owner::new("a", "b"), Handle::new("c")),
        }
    }

    fn reread(resting: &Resting) -> Resting {
        Resting::read(&resting.text().map_or(Notes::Bare, Notes::Resting)).unwrap()
    }

    #[test]
    fn a_release_begins_a_rest_a_claim_ends_it_and_time_does() {
        let begun = Resting::default()
            .after(
                mk_network(),
                &[
                    release("10.0.0.1", Some(mk_rest("a", 100))),
                    release("10.0.0.2", Some(mk_rest("b", 9))),
                    release("10.0.0.3", Some(mk_rest("c", 100))),
                ],
                Moment(5),
            )
            .unwrap();
        let begun = reread(&begun);
        assert_eq!(begun.iter(mk_network()).count(), 3);
        let ended = begun
            .after(mk_network(), &[claim("10.0.0.3")], Moment(10))
            .unwrap();
        let left: Vec<_> = ended
            .iter(mk_network())
            .map(|(a, _)| a.to_string())
            .collect();
        assert_eq!(left, ["10.0.0.1"]);
    }

    #[test]
    fn what_does_not_concern_rests_leaves_the_text_alone() {
        let one = Resting::default()
            .after(
                mk_network(),
                &[release("10.0.0.1", Some(mk_rest("a", 9)))],
                Moment(5),
            )
            .unwrap();
        let unconcerned = [claim("10.0.0.7"), release("10.0.0.8", None)];
        // Even when a rest is over: the text is a precondition of other writers.
        assert_eq!(one.after(mk_network(), &unconcerned, Moment(50)), None);
    }

    #[test]
    fn what_is_not_ours_is_named() {
        for bad in [
            "",
            "[]",
            r#"{"x":{"since":1,"until":2,"owner":{"subject":"a"}}}"#,
        ] {
            let error = Resting::read(&Notes::Resting(bad.into())).unwrap_err();
            assert!(error.contains("berth.dev/resting"), "{error}");
        }
    }

    #[test]
    fn the_annotation_never_outgrows_its_limit() {
        let many: Vec<Change> = (1..60_000u32)
            .map(|n| Change::Release {
                address: mk_network().network().plus(n.into()).unwrap(),
                expected: Record::default(),
                rest: Some(mk_rest("some-longish-name", 1000 + u64::from(n))),
            })
            .collect();
        let resting = Resting::default()
            .after(mk_network(), &many, Moment(5))
            .unwrap();
        let text = resting.text().unwrap();
        assert!(text.len() <= MOST, "{}", text.len());
        let kept = Resting::read(&Notes::Resting(text)).unwrap();
        assert!(kept.0.contains_key(&59_999), "the one that ends last");
        assert!(!kept.0.contains_key(&1), "the one that ends first");
    }
}
