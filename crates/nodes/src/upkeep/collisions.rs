//! Finds addresses that are in two places.

use std::collections::BTreeMap;

use berth_core::Address;

use super::plan::{Claim, Observed, Seen};
use crate::pool::Collision;

/// The first collision, by address: two enactments that claim one address, two nodes that show it, or a probe that another machine answered.
pub(super) fn find(observed: &Observed<'_>) -> Option<Collision> {
    // The enactment of a node that is gone claims nothing.
    let living = observed.claims.iter();
    let living = living.filter(|claim| observed.nodes.contains(&claim.node));
    let claimed = by_address(living.map(|claim| (claim.address, claim)));
    let shown = by_address(observed.shown.iter().map(|seen| (seen.address, seen)));
    let mut all: Vec<Collision> = Vec::new();
    all.extend(
        claimed
            .iter()
            .filter_map(|(address, claims)| of_claims(observed, *address, claims)),
    );
    all.extend(
        shown
            .iter()
            .filter_map(|(address, seen)| of_shown(observed, *address, seen)),
    );
    all.extend(observed.answered.iter().map(|one| Collision {
        address: one.address,
        node: one.node.clone(),
        interface: one.interface.clone(),
        other: one.other.clone(),
    }));
    all.into_iter().min_by_key(|collision| collision.address)
}

fn by_address<T>(pairs: impl Iterator<Item = (Address, T)>) -> BTreeMap<Address, Vec<T>> {
    let mut map: BTreeMap<Address, Vec<T>> = BTreeMap::new();
    for (address, value) in pairs {
        map.entry(address).or_default().push(value);
    }
    map
}

/// The owner in the pool comes first; the enactment that claims it too is the other.
fn of_claims(observed: &Observed<'_>, address: Address, claims: &[&Claim]) -> Option<Collision> {
    let owner = owner(observed, address);
    let first = owner
        .clone()
        .or_else(|| claims.first().map(|claim| claim.node.clone()))?;
    let mut others = claims.iter().filter(|claim| claim.node != first);
    let other = others.next()?;
    let (_, interface) = place(observed, address);
    Some(Collision {
        address,
        node: first,
        interface,
        other: other.node.clone(),
    })
}

fn of_shown(observed: &Observed<'_>, address: Address, seen: &[&Seen]) -> Option<Collision> {
    let owner = owner(observed, address);
    let of_owner = |one: &&&Seen| owner.as_ref() == Some(&one.node);
    let first = seen.iter().find(of_owner).or_else(|| seen.first())?;
    let other = seen.iter().find(|one| one.node != first.node)?;
    Some(Collision {
        address,
        node: first.node.clone(),
        interface: first.interface.clone(),
        other: other.node.clone(),
    })
}

fn owner(observed: &Observed<'_>, address: Address) -> Option<String> {
    let mut described = observed.recorded.described.iter();
    let found = described.find(|one| one.address == address);
    found.map(|one| one.node.clone())
}

/// Where an address is shown, for the message.
fn place(observed: &Observed<'_>, address: Address) -> (String, String) {
    let seen = observed.shown.iter().find(|seen| seen.address == address);
    let node = seen
        .map(|seen| seen.node.clone())
        .or_else(|| owner(observed, address));
    let interface = seen.map(|seen| seen.interface.clone());
    let unknown = || "unknown".to_owned();
    (
        node.unwrap_or_else(unknown),
        interface.unwrap_or_else(unknown),
    )
}
