//! How an allocation by hand is written into whereabouts' objects: `podref` is empty, and `id` has the mark, the owner's
//! name and the note.
//!
//! whereabouts' reconciler skips a pool's entry without a pod, and so does every Berth that does not know the mark. A
//! reservation without a pod is deleted by whereabouts' reconciler; Berth's collector creates it again.

use std::borrow::Cow;

use berth_core::{Handle, Owner, Record};

/// The `id` of an entry, the `containerid` of a reservation.
pub(super) fn id(record: &Record) -> Cow<'_, str> {
    let handle = record.handle.as_str();
    match record.note().filter(|_| record.is_by_hand()) {
        Some(note) => format!("{handle} {note}").into(),
        None => handle.into(),
    }
}

pub(super) fn podref(record: &Record) -> &str {
    match record.is_by_hand() {
        true => "",
        false => &record.owner.subject,
    }
}

/// The record that these fields are of.
pub(super) fn record(id: String, podref: String, ifname: String) -> Record {
    if podref.is_empty() {
        let (mark, note) = match id.split_once(' ') {
            Some((mark, note)) => (mark, Some(note)),
            None => (id.as_str(), None),
        };
        let owner = Owner::new(mark, "");
        let read = owner
            .by_hand()
            .and_then(|name| Record::by_hand(name, ifname.as_str(), note).ok());
        if let Some(read) = read {
            return read;
        }
    }
    Record::new(Owner::new(podref, ifname), Handle::new(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reread(record: &Record) -> Record {
        super::record(
            id(record).into_owned(),
            podref(record).to_owned(),
            record.owner.part.clone(),
        )
    }

    #[test]
    fn an_allocation_by_hand_names_no_pod_and_is_read_as_it_was() {
        for note in [None, Some("the printer: second  floor")] {
            let record = Record::by_hand("default/printer", "net1", note).unwrap();
            assert_eq!(podref(&record), "");
            assert_eq!(reread(&record), record);
        }
    }

    #[test]
    fn what_is_not_marked_is_read_as_it_stands() {
        for (container, pod) in [("c1", "ns/p"), ("c1", ""), ("", ""), ("by-hand: x", "")] {
            let record = Record::new(Owner::new(pod, "net1"), Handle::new(container));
            assert_eq!(reread(&record), record);
        }
        // A pod's entry stays a pod's, whatever its container is called.
        let odd = super::record("by-hand:x".into(), "ns/p".into(), String::new());
        assert_eq!(odd.owner.subject, "ns/p");
    }
}
