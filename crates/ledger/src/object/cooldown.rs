//! Cooldowns (I10): released addresses that wait for their next owner, kept as one text of a pool's object.
//!
//! Kinds of other programs have no field for them; programs keep annotations that they do not know. The text is
//! JSON: offset -> {since, until, owner}, times in milliseconds since 1970. Kubernetes takes 256 KiB
//! of annotations: past [`MOST`] the cooldowns that end first give way, with a warning, because an
//! address that could not be released would be worse.
//!
//! A text that can't be read is kept as it is (I5) and costs allocations alone: no address of the pool is allocated while it
//! is there, because any of them might cool down. The pool is read, and addresses are released.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use berth_core::{Address, Change, Cooldown, Moment, Pool, Prefix, Unparsed};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Bytes of the annotation. The rest of the 256 KiB is for others.
const MOST: usize = 192 * 1024;

/// The longest cooldown that a network may have, in milliseconds. Other programs can write the annotation too: what they put
/// there costs an address for no longer than this.
const LONGEST: u64 = 86_400_000;

#[derive(Clone, Debug, PartialEq)]
pub enum Cooldowns {
    Known(BTreeMap<u128, Noted>),
    /// The annotation is there and can't be read, for this reason.
    Unreadable(String),
}

impl Default for Cooldowns {
    fn default() -> Self {
        Self::Known(BTreeMap::new())
    }
}

/// A cooldown as the text has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noted {
    #[serde(flatten)]
    cooldown: Cooldown,
    /// What a newer version says of it (I7).
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

impl Cooldowns {
    /// Reads the text that is kept at `place`, which is named if it can't be read.
    pub fn read(text: Option<&str>, place: &str) -> Self {
        let Some(text) = text else {
            return Self::default();
        };
        match read(text) {
            Ok(cooldowns) => Self::Known(cooldowns),
            Err(why) => Self::Unreadable(format!(
                "the pool's {place} is not what Berth writes there ({why}), so no address of it is allocated; remove it, or mend it"
            )),
        }
    }

    /// Puts them into a pool whose allocations are in it already. Another program may have allocated an address without
    /// knowing of its cooldown: then it has none.
    pub fn restore(&self, network: Prefix, place: &str, pool: &mut Pool) {
        if let Self::Unreadable(why) = self {
            pool.restore_unparsed(Unparsed {
                key: place.to_owned(),
                why: why.clone(),
            });
        }
        for (address, cooldown) in self.iter(network) {
            if !pool.is_held(address) {
                pool.restore_cooldown(address, cooldown.clone());
            }
        }
    }

    /// Why none of the changes' addresses may be allocated, where that is so.
    pub fn bars(&self, changes: &[Change]) -> Option<&str> {
        let claims = |change: &Change| matches!(change, Change::Allocate { .. });
        match self {
            Self::Unreadable(why) if changes.iter().any(claims) => Some(why),
            _ => None,
        }
    }

    pub fn iter(&self, network: Prefix) -> impl Iterator<Item = (Address, &Cooldown)> {
        let known = match self {
            Self::Known(cooldowns) => Some(cooldowns),
            Self::Unreadable(_) => None,
        };
        known
            .into_iter()
            .flatten()
            .filter_map(move |(offset, noted)| {
                Some((network.network().plus(*offset)?, &noted.cooldown))
            })
    }

    /// Whether the change would give an address to somebody else while it cools down (I10).
    pub fn forbids(&self, network: Prefix, change: &Change, now: Moment) -> bool {
        let Change::Allocate { address, record } = change else {
            return false;
        };
        let Self::Known(cooldowns) = self else {
            return true;
        };
        address
            .distance_from(network.network())
            .and_then(|offset| cooldowns.get(&offset))
            .is_some_and(|noted| noted.cooldown.until > now && noted.cooldown.owner != record.owner)
    }

    /// What is left after the changes; `None` if they leave it as it was. One that can't be read always stays.
    pub fn after(&self, network: Prefix, changes: &[Change], now: Moment) -> Option<Self> {
        let Self::Known(cooldowns) = self else {
            return None;
        };
        let mut next = cooldowns.clone();
        for change in changes {
            let Some(offset) = change.address().distance_from(network.network()) else {
                continue;
            };
            match change {
                Change::Allocate { .. } => {
                    next.remove(&offset);
                }
                Change::Release {
                    cooldown: Some(cooldown),
                    ..
                } => {
                    let noted = Noted {
                        cooldown: cooldown.clone(),
                        unknown: Map::new(),
                    };
                    next.insert(offset, noted);
                }
                Change::Release { .. } | Change::Update { .. } => {}
            }
        }
        if next == *cooldowns {
            return None;
        }
        next.retain(|_, noted| noted.cooldown.until > now);
        Some(Self::Known(next))
    }

    /// The annotation's text; `None` if nothing cools down.
    pub fn text(&self) -> Option<String> {
        let Self::Known(cooldowns) = self else {
            return None;
        };
        if cooldowns.is_empty() {
            return None;
        }
        let text = encode(cooldowns.iter());
        if text.len() <= MOST {
            return Some(text);
        }
        let mut latest: Vec<(&u128, &Noted)> = cooldowns.iter().collect();
        latest.sort_by_key(|(_, noted)| std::cmp::Reverse(noted.cooldown.until));
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
            "more addresses cool down than an object's annotations can hold; those that end first are given again early"
        );
        latest.truncate(fits);
        Some(encode(latest.into_iter()))
    }
}

/// A cooldown ends a day after it began. One that begins more than a day from now is nobody's: no clock is that wrong, and
/// a bound that moves along with the time of reading would never end.
fn bounded(cooldown: &mut Cooldown, now: Moment) {
    if cooldown.since.0 > now.0.saturating_add(LONGEST) {
        cooldown.until = now;
    }
    let last = Moment(cooldown.since.0.saturating_add(LONGEST));
    cooldown.until = cooldown.until.min(last);
}

fn read(text: &str) -> Result<BTreeMap<u128, Noted>, String> {
    let texts: BTreeMap<String, Noted> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    let now = now();
    let read = |(key, mut noted): (String, Noted)| match key.parse() {
        Ok(offset) => {
            bounded(&mut noted.cooldown, now);
            Ok((offset, noted))
        }
        Err(_) => Err(format!("{key:?} is no offset")),
    };
    texts.into_iter().map(read).collect()
}

fn encode<'a>(cooldowns: impl Iterator<Item = (&'a u128, &'a Noted)>) -> String {
    let texts: BTreeMap<String, &Noted> = cooldowns
        .map(|(offset, cooldown)| (offset.to_string(), cooldown))
        .collect();
    // Strings and numbers under text keys: there is nothing in it that JSON can't hold.
    serde_json::to_string(&texts).unwrap_or_default()
}

/// The time that cooldowns are compared with.
pub fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let millis = since.unwrap_or_default().as_millis();
    Moment(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use berth_core::{Handle, Owner, Record};

    use super::*;

    const PLACE: &str = "annotation berth.dev/resting";

    fn mk_network() -> Prefix {
        "10.0.0.0/16".parse().unwrap()
    }

    fn mk_cooldown(name: &str, until: u64) -> Cooldown {
        Cooldown {
            since: Moment(1),
            until: Moment(until),
            owner: Owner::new(format!("default/{name}"), "net1"),
        }
    }

    fn release(address: &str, cooldown: Option<Cooldown>) -> Change {
        Change::Release {
            address: address.parse().unwrap(),
            expected: Record::default(),
            cooldown,
        }
    }

    fn claim(address: &str) -> Change {
        Change::Allocate {
            address: address.parse().unwrap(),
            record: Record::new(Owner::new("a", "b"), Handle::new("c")),
        }
    }

    fn reread(resting: &Cooldowns) -> Cooldowns {
        Cooldowns::read(resting.text().as_deref(), PLACE)
    }

    #[test]
    fn a_release_begins_a_rest_a_claim_ends_it_and_time_does() {
        let begun = Cooldowns::default()
            .after(
                mk_network(),
                &[
                    release("10.0.0.1", Some(mk_cooldown("a", 100))),
                    release("10.0.0.2", Some(mk_cooldown("b", 9))),
                    release("10.0.0.3", Some(mk_cooldown("c", 100))),
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
        let one = Cooldowns::default()
            .after(
                mk_network(),
                &[release("10.0.0.1", Some(mk_cooldown("a", 9)))],
                Moment(5),
            )
            .unwrap();
        let unconcerned = [claim("10.0.0.7"), release("10.0.0.8", None)];
        // Even when a rest is over: the text is a precondition of other writers.
        assert_eq!(one.after(mk_network(), &unconcerned, Moment(50)), None);
    }

    #[test]
    fn berth_15_24_unknown_fields_of_a_rest_are_kept() {
        let newer =
            r#"{"1":{"since":1,"until":90,"owner":{"subject":"a","part":"b"},"why":"moved"}}"#;
        let resting = Cooldowns::read(Some(newer), PLACE);
        let another = [release("10.0.0.2", Some(mk_cooldown("b", 90)))];
        let after = resting.after(mk_network(), &another, Moment(5)).unwrap();
        assert_eq!(reread(&after), after);
        let text: Value = serde_json::from_str(&after.text().unwrap()).unwrap();
        assert_eq!(text["1"]["why"], "moved");
        assert_eq!(text["2"].get("why"), None);
    }

    #[test]
    fn what_is_not_ours_is_named_kept_and_allocates_nothing() {
        for bad in [
            "",
            "[]",
            r#"{"x":{"since":1,"until":2,"owner":{"subject":"a"}}}"#,
            r#"{"1":{"since":1,"until":02,"owner":{"subject":"a"}}}"#,
        ] {
            let resting = Cooldowns::read(Some(bad), PLACE);
            let claims = [release("10.0.0.8", None), claim("10.0.0.7")];
            let why = resting.bars(&claims).unwrap();
            assert!(why.contains("berth.dev/resting"), "{why}");
            assert!(resting.forbids(mk_network(), &claims[1], Moment(5)));
            let releases = [release("10.0.0.7", Some(mk_cooldown("a", 100)))];
            assert_eq!(resting.bars(&releases), None);
            assert_eq!(resting.after(mk_network(), &releases, Moment(5)), None);
            assert_eq!(resting.iter(mk_network()).count(), 0);
        }
    }

    #[test]
    fn berth_16_1_a_cooldown_that_is_read_ends_within_a_day_of_its_beginning() {
        let now = now().0;
        for (since, until, last) in [
            (now, now + 60_000, now + 60_000),
            (now, u64::MAX, now + 86_400_000),
            (1, u64::MAX, 86_400_001),
            (now + 60_000, u64::MAX, now + 86_460_000),
        ] {
            let text = format!(
                r#"{{"1":{{"since":{since},"until":{until},"owner":{{"subject":"a","part":"b"}}}}}}"#
            );
            let read = read(&text).unwrap();
            assert_eq!(read[&1].cooldown.until, Moment(last), "{text}");
        }
        let text = r#"{"1":{"since":18446744073709551615,"until":18446744073709551615,"owner":{"subject":"a","part":"b"}}}"#;
        assert!(read(text).unwrap()[&1].cooldown.until <= super::now());
    }

    #[test]
    fn the_annotation_never_outgrows_its_limit() {
        let many: Vec<Change> = (1..60_000u32)
            .map(|n| Change::Release {
                address: mk_network().network().plus(n.into()).unwrap(),
                expected: Record::default(),
                cooldown: Some(mk_cooldown("some-longish-name", 1000 + u64::from(n))),
            })
            .collect();
        let resting = Cooldowns::default()
            .after(mk_network(), &many, Moment(5))
            .unwrap();
        let text = resting.text().unwrap();
        assert!(text.len() <= MOST, "{}", text.len());
        let kept = read(&text).unwrap();
        assert!(kept.contains_key(&59_999), "the one that ends last");
        assert!(!kept.contains_key(&1), "the one that ends first");
    }
}
