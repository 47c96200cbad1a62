//! The invariants of the engine as functions that all tests share.
//!
//! Each takes what can be observed and returns what is violated. They are deliberately naive, so that they share no
//! mistake with the code that they check.

use std::collections::BTreeMap;

use crate::plan::Outcome;
use crate::slice::Holding;
use crate::{Address, Answer, Change, Moment, Owner, Pool, Record, Request};

pub type Check = Result<(), String>;

/// I1: an address has at most one owner.
pub fn one_owner(pool: &Pool) -> Check {
    match pool.duplicate_holders().next() {
        Some((address, rival)) => Err(format!("I1: {address} is also held by {}", rival.owner)),
        None => Ok(()),
    }
}

/// I1 over a history of acknowledged grants and releases: no address is allocated while it is held. Returns what is
/// held at the end.
pub fn one_owner_over_time<'a>(
    history: impl IntoIterator<Item = (&'a Owner, Address, bool)>,
) -> Result<BTreeMap<Address, &'a Owner>, String> {
    let mut held: BTreeMap<Address, &Owner> = BTreeMap::new();
    for (owner, address, granted) in history {
        if granted {
            match held.insert(address, owner) {
                Some(other) if other != owner => {
                    return Err(format!(
                        "I1: {address} went to {owner} while {other} held it"
                    ));
                }
                _ => {}
            }
        } else if held.get(&address) == Some(&owner) {
            held.remove(&address);
        }
    }
    Ok(held)
}

/// I3: the same request, repeated, changes nothing and gets the same addresses.
pub fn same_answer(first: &Answer, again: &Outcome) -> Check {
    let addresses = |answer: &Answer| match answer {
        Answer::Granted(granted) => granted.iter().map(|g| g.address).collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    if !again.changes.is_empty() {
        return Err(format!(
            "I3: the repeat changed something: {:?}",
            again.changes
        ));
    }
    match again.answers.as_slice() {
        [answer] if addresses(first) == addresses(answer) => Ok(()),
        answers => Err(format!("I3: {first:?} became {answers:?}")),
    }
}

/// I1 and I6 in a plan: claims take only free addresses, releases name their holder, and the pool after the plan equals
/// the pool before it with the changes applied.
pub fn changes_explain(
    before: &BTreeMap<Address, Record>,
    changes: &[Change],
    after: &Pool,
) -> Check {
    let mut model = before.clone();
    for change in changes {
        match change {
            Change::Allocate { address, record } => {
                if model.insert(*address, record.clone()).is_some() {
                    return Err(format!("I1: {address} was claimed while held"));
                }
            }
            Change::Release {
                address, expected, ..
            } => match model.remove(address) {
                Some(held) if held.same_holder(expected) => {}
                other => return Err(format!("I6: {address} released from {other:?}")),
            },
            Change::Update {
                address,
                expected,
                record,
            } => match model.insert(*address, record.clone()) {
                Some(held) if held.same_holder(expected) => {}
                other => return Err(format!("I6: {address} updated over {other:?}")),
            },
        }
    }
    let now: BTreeMap<Address, Record> = after
        .records()
        .map(|(address, record)| (address, record.clone()))
        .collect();
    if now == model {
        Ok(())
    } else {
        Err(format!("plan and pool differ: {model:?} / {now:?}"))
    }
}

/// All or none: a claim got one address per request, each in the request's space, all different.
pub fn all_or_none(request: &Request, answer: &Answer) -> Check {
    let (Request::Allocate(claim) | Request::Exchange { claim, .. }, Answer::Granted(granted)) =
        (request, answer)
    else {
        return Ok(());
    };
    if granted.len() != claim.wants.len() {
        return Err(format!(
            "{} wants, {} addresses",
            claim.wants.len(),
            granted.len()
        ));
    }
    for (want, grant) in claim.wants.iter().zip(granted) {
        if !want.space.contains(grant.address) {
            return Err(format!(
                "{} is not in the space that was asked for",
                grant.address
            ));
        }
    }
    let mut addresses: Vec<Address> = granted.iter().map(|g| g.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.len() == granted.len() {
        Ok(())
    } else {
        Err("one address allocated twice".into())
    }
}

/// I10: an address that cools down for one owner is granted to another only after its cooldown.
pub fn cooldown_kept(
    cooldowns: &BTreeMap<Address, (Owner, Moment)>,
    owner: &Owner,
    address: Address,
    now: Moment,
) -> Check {
    match cooldowns.get(&address) {
        Some((last, until)) if last != owner && *until > now => Err(format!(
            "I10: {address} of {last} went to {owner} before {until:?}"
        )),
        _ => Ok(()),
    }
}

/// I8: held slices do not overlap.
pub fn slices_apart(holdings: &[Holding]) -> Check {
    for (place, a) in holdings.iter().enumerate() {
        for b in &holdings[place + 1..] {
            if a.slice.overlaps(b.slice) {
                return Err(format!(
                    "I8: {} of {} overlaps {} of {}",
                    a.slice, a.node, b.slice, b.node
                ));
            }
        }
    }
    Ok(())
}

/// I8: a slice that was reassigned has a higher epoch than before.
pub fn epochs_grow(before: &[Holding], after: &[Holding]) -> Check {
    for new in after {
        for old in before
            .iter()
            .filter(|old| old.slice == new.slice && old.node != new.node)
        {
            if new.epoch <= old.epoch {
                return Err(format!(
                    "I8: {} went from {} to {} without a new epoch",
                    new.slice, old.node, new.node
                ));
            }
        }
    }
    Ok(())
}
