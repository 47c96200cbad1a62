//! Whether an answer of the leader is one to the request: an agent hands to a pod only an address that it asked for.
//!
//! A leader that is not what it seems, or is broken, can then refuse, and answer with what others hold; it can't answer with an address of
//! another network, one that the network excludes, or the same one to two requests.

use std::collections::BTreeSet;

use berth_core::{Address, Allocate, Answer, Granted, Request};

/// Why the answers can't be used.
pub(crate) fn fault(requests: &[Request], answers: &[Option<Answer>]) -> Option<String> {
    if requests.len() != answers.len() {
        let (got, put) = (answers.len(), requests.len());
        return Some(format!("{got} answers to {put} requests"));
    }
    let mut granted_before = BTreeSet::new();
    let pairs = requests.iter().zip(answers);
    pairs
        .filter_map(|(request, answer)| Some((request, answer.as_ref()?)))
        .find_map(|(request, answer)| one(request, answer, &mut granted_before))
}

fn one(
    request: &Request,
    answer: &Answer,
    granted_before: &mut BTreeSet<Address>,
) -> Option<String> {
    match (request, answer) {
        (_, Answer::Refused(_))
        | (Request::Release(_), Answer::Released(_))
        | (Request::Transfer { .. }, Answer::Transferred) => None,
        (Request::Allocate(claim) | Request::Exchange { claim, .. }, Answer::Granted(granted)) => {
            grants(claim, granted, granted_before)
        }
        _ => Some("an answer to another kind of request".to_owned()),
    }
}

fn grants(
    claim: &Allocate,
    granted: &[Granted],
    granted_before: &mut BTreeSet<Address>,
) -> Option<String> {
    if granted.len() != claim.wants.len() {
        let (got, asked) = (granted.len(), claim.wants.len());
        return Some(format!("{got} addresses for {asked} that were asked for"));
    }
    for (want, grant) in claim.wants.iter().zip(granted) {
        let address = grant.address;
        let wrong = if !want.space.contains(address) {
            "is not of the range that was asked for"
        } else if want.exact.is_some_and(|exact| exact != address) {
            "is not the one that was asked for"
        } else if grant.fresh && want.avoid.contains(&address) {
            "is taken elsewhere"
        } else if grant.fresh && !granted_before.insert(address) {
            "was granted twice"
        } else {
            continue;
        };
        return Some(format!("{address} {wrong}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_core::dialect::WHEREABOUTS;
    use berth_core::{AddressRequest, Block, Handle, Owner, RangeSpec, Record, Space};

    use super::*;

    fn want() -> AddressRequest {
        let spec = RangeSpec::parse("10.60.0.0/24").unwrap();
        let excluded = RangeSpec {
            exclude: vec![Block::parse("exclude", "10.60.0.128/25").unwrap()],
            ..spec
        };
        AddressRequest::any(Arc::new(Space::build(&excluded, WHEREABOUTS).unwrap().0))
    }

    fn claim(wants: Vec<AddressRequest>) -> Request {
        let record = Record::new(Owner::new("ns/p", "net1"), Handle::new("c"));
        Request::Allocate(Allocate { record, wants })
    }

    fn granted(addresses: &[&str]) -> Option<Answer> {
        let grant = |text: &&str| Granted {
            address: text.parse().unwrap(),
            fresh: true,
        };
        Some(Answer::Granted(addresses.iter().map(grant).collect()))
    }

    fn wrong(requests: &[Request], answers: &[Option<Answer>]) -> String {
        fault(requests, answers).expect("a fault is found")
    }

    /// The attack: honest pods got 10.96.0.10 on a network of 10.60.0.0/24.
    #[test]
    fn an_address_of_another_range_is_not_taken_from_the_leader() {
        let asked = [claim(vec![want()])];
        assert!(wrong(&asked, &[granted(&["10.96.0.10"])]).contains("10.96.0.10"));
        assert!(wrong(&asked, &[granted(&["10.60.0.200"])]).contains("range"));
        assert_eq!(fault(&asked, &[granted(&["10.60.0.9"])]), None);
    }

    #[test]
    fn each_request_gets_its_own_addresses_and_as_many_as_it_asked_for() {
        let (one, two) = (claim(vec![want()]), claim(vec![want(), want()]));
        for addresses in [&[][..], &["10.60.0.1", "10.60.0.2"]] {
            let message = wrong(std::slice::from_ref(&one), &[granted(addresses)]);
            assert!(message.contains("asked for"), "{message}");
        }
        let twice = [granted(&["10.60.0.1"]), granted(&["10.60.0.1"])];
        assert!(wrong(&[one.clone(), one.clone()], &twice).contains("twice"));
        let same = wrong(&[two], &[granted(&["10.60.0.1", "10.60.0.1"])]);
        assert!(same.contains("twice"), "{same}");
        assert!(wrong(std::slice::from_ref(&one), &[]).contains("0 answers"));
        let other = [Some(Answer::Released(Vec::new()))];
        assert!(wrong(&[one], &other).contains("another kind"));
        let mut exact = want();
        exact.exact = Some("10.60.0.7".parse().unwrap());
        assert!(wrong(&[claim(vec![exact])], &[granted(&["10.60.0.8"])]).contains("not the one"));
        let mut wary = want();
        wary.avoid = vec!["10.60.0.8".parse().unwrap()];
        assert!(wrong(&[claim(vec![wary])], &[granted(&["10.60.0.8"])]).contains("elsewhere"));
    }
}
