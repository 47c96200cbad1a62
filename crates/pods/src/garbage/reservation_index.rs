//! Which reservation belongs to which entry.
//!
//! A reservation is named after its address and, where the network has a name, after that: `[network-]address`. A pool
//! is named `[network-][node-]range`. The part before the range is therefore the reservation's, but for pools of
//! a node's slice, whose names do not show where the network ends and the node begins: there the owner decides, who has
//! one address per interface.

use std::collections::{HashMap, HashSet};

use berth_api::names;
use berth_collector::observed::Held;
use berth_ledger::PoolKey;
use berth_slices::sliced;

use super::plan::Reservation;

/// Some entries and reservations, indexed for each other.
pub(super) struct ReservationIndex<'a> {
    by_name: HashMap<&'a str, &'a Reservation>,
    by_subject: HashMap<&'a str, Vec<&'a Reservation>>,
    /// Places in the list of entries.
    held_by_subject: HashMap<&'a str, Vec<usize>>,
    held: &'a [Held],
}

impl<'a> ReservationIndex<'a> {
    pub fn of(held: &'a [Held], reservations: &'a [Reservation]) -> ReservationIndex<'a> {
        let mut index = ReservationIndex {
            by_name: HashMap::new(),
            by_subject: HashMap::new(),
            held_by_subject: HashMap::new(),
            held,
        };
        for reservation in reservations {
            let subject = reservation.record.owner.subject.as_str();
            index.by_name.insert(&reservation.key.name, reservation);
            let of_subject = index.by_subject.entry(subject).or_default();
            of_subject.push(reservation);
        }
        for (place, held) in held.iter().enumerate() {
            let subject = held.record.owner.subject.as_str();
            let of_subject = index.held_by_subject.entry(subject).or_default();
            of_subject.push(place);
        }
        index
    }

    /// The reservations of an entry: of its address and its owner.
    pub fn reservations_of(&self, held: &Held) -> Vec<&'a Reservation> {
        let of_subject = self.by_subject.get(held.record.owner.subject.as_str());
        let mine = of_subject.into_iter().flatten().copied();
        mine.filter(|reservation| belong(reservation, held))
            .collect()
    }

    /// The places of a reservation's entries.
    pub fn entries_of(&self, reservation: &Reservation) -> impl Iterator<Item = usize> {
        let subject = reservation.record.owner.subject.as_str();
        let of_subject = self.held_by_subject.get(subject);
        let mine = of_subject.into_iter().flatten().copied();
        mine.filter(move |place| belong(reservation, &self.held[*place]))
    }

    /// The reservation of that name.
    pub fn named(&self, name: &str) -> Option<&'a Reservation> {
        self.by_name.get(name).copied()
    }

    /// The reservations of the entry at `place` that have no entry left once those at `freed` are gone.
    pub fn left_without(&self, place: usize, freed: &HashSet<usize>) -> Vec<&'a Reservation> {
        let mine = self.reservations_of(&self.held[place]).into_iter();
        mine.filter(|reservation| {
            self.entries_of(reservation)
                .all(|other| freed.contains(&other))
        })
        .collect()
    }
}

fn belong(reservation: &Reservation, held: &Held) -> bool {
    let owner = &reservation.record.owner;
    belongs(&reservation.key.name, &owner.subject, &owner.part, held)
}

/// Whether the reservation of that name and owner is an entry's.
pub(super) fn belongs(name: &str, subject: &str, part: &str, held: &Held) -> bool {
    let ours = &held.record.owner;
    if ours.subject != subject || !names::reserves(name, held.address) {
        return false;
    }
    // Older writers did not name the interface.
    let same_part = ours.part == part || ours.part.is_empty() || part.is_empty();
    same_part && expected_name(held).as_deref() == Some(name)
        || !ours.part.is_empty() && ours.part == part
}

/// The name that an entry's reservation has, unless the pool is a node's slice. None for a pool whose name was not made
/// from its range.
pub(crate) fn expected_name(held: &Held) -> Option<String> {
    let network = network_name(&held.pool)?;
    Some(names::reservation(network, held.address))
}

/// The `network_name` of a pool's network; empty for none.
pub(crate) fn network_name(pool: &PoolKey) -> Option<&str> {
    let range = names::pool("", "", pool.network?);
    match sliced::plain_name(&pool.name).strip_suffix(&range)? {
        "" => Some(""),
        named => named.strip_suffix('-'),
    }
}

#[cfg(test)]
mod tests {
    use berth_collector::observed::Note;
    use berth_core::{Handle, Owner, Record};
    use berth_ledger::{ClaimKey, ClaimKind};

    use super::*;

    fn mk_held(pool: &str, range: &str, address: &str, part: &str) -> Held {
        Held {
            pool: PoolKey::of_network(pool, range.parse().unwrap()),
            address: address.parse().unwrap(),
            record: Record::new(Owner::new("ns/p", part), Handle::new("c1")),
            note: Note::default(),
        }
    }

    fn mk_reservation(name: &str, part: &str) -> Reservation {
        Reservation {
            key: ClaimKey::new(ClaimKind::Reservation, name),
            record: Record::new(Owner::new("ns/p", part), Handle::default()),
        }
    }

    #[test]
    fn a_reservation_has_the_network_of_its_pool() {
        let blue = mk_held("blue-10.0.0.0-24", "10.0.0.0/24", "10.0.0.7", "net1");
        assert_eq!(expected_name(&blue).as_deref(), Some("blue-10.0.0.7"));
        let plain = mk_held("fd00---64", "fd00::/64", "fd00::7", "net1");
        assert_eq!(expected_name(&plain).as_deref(), Some("fd00--7"));
        let foreign = mk_held("my-pool", "10.0.0.0/24", "10.0.0.7", "net1");
        assert_eq!(expected_name(&foreign), None);
    }

    #[test]
    fn entries_and_reservations_find_each_other() {
        let blue = mk_held("blue-10.0.0.0-24", "10.0.0.0/24", "10.0.0.7", "net1");
        let slice = mk_held("blue-node-1-10.0.0.0-26", "10.0.0.0/26", "10.0.0.7", "net1");
        for (name, part, held, match_) in [
            ("blue-10.0.0.7", "net1", &blue, true),
            // A writer that does not name the interface.
            ("blue-10.0.0.7", "", &blue, true),
            ("blue-10.0.0.7", "net2", &blue, false),
            ("blue-10.0.0.8", "net1", &blue, false),
            ("red-10.0.0.7", "", &blue, false),
            ("blue-10.0.0.7", "net1", &slice, true),
            ("blue-10.0.0.7", "", &slice, false),
        ] {
            let (held, reservations) = ([held.clone()], [mk_reservation(name, part)]);
            let index = ReservationIndex::of(&held, &reservations);
            let found = index.reservations_of(&held[0]).len() == 1;
            assert_eq!(found, match_, "{name} {part}");
            let back = index.entries_of(&reservations[0]).count() == 1;
            assert_eq!(back, match_, "{name} {part}");
        }
    }
}
