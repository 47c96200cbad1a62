//! Which pools a sweep has to read a second time: those with an entry whose owner is not plainly alive.
//!
//! A pool is dropped as soon as its page was read, for its owners are read after all pools. Of each entry eight bytes stay,
//! so that 200,000 entries take 1.6 MB.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::liveness::{Verdict, judge_pod};
use super::observed::{Note, Owners, PodRef};

/// The owners that one pool names.
#[derive(Debug, Default)]
pub(crate) struct OwnerDigests {
    by_name: Vec<u64>,
    by_uid: Vec<u64>,
}

impl OwnerDigests {
    pub fn add(&mut self, pod: &PodRef, uid: Option<&str>) {
        match uid {
            None => self.by_name.push(digest(pod, None)),
            Some(uid) => self.by_uid.push(digest(pod, Some(uid))),
        }
    }

    pub fn names_uids(&self) -> bool {
        !self.by_uid.is_empty()
    }

    /// Whether one of them is not plainly alive.
    pub fn may_be_gone(&self, judged: &JudgedOwners) -> bool {
        self.by_name.iter().any(|one| judged.gone.contains(one))
            || self.by_uid.iter().any(|one| !judged.alive.contains(one))
    }
}

/// All pods that were read, judged by their names.
#[derive(Debug, Default)]
pub(crate) struct JudgedOwners {
    /// By name alone.
    gone: HashSet<u64>,
    /// By name and UID.
    alive: HashSet<u64>,
}

impl JudgedOwners {
    pub fn of(owners: &Owners, with_uids: bool) -> JudgedOwners {
        let mut judged = JudgedOwners::default();
        for (pod, state) in &owners.pods {
            if judge_pod(pod, &Note::default(), owners) != Verdict::Alive {
                judged.gone.insert(digest(pod, None));
                continue;
            }
            let uids = state.present().filter(|_| with_uids);
            let uids = uids.into_iter().flat_map(|pod| &pod.uids);
            judged.alive.extend(uids.map(|uid| digest(pod, Some(uid))));
        }
        judged
    }
}

fn digest(pod: &PodRef, uid: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (pod, uid).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::observed::{Phase, Pod, PodState};
    use super::*;

    #[test]
    fn a_pool_is_read_again_only_for_an_owner_that_may_be_gone() {
        let present = |uid: &str, phase| {
            PodState::Present(Pod {
                uids: vec![uid.to_owned()],
                phase,
                node: None,
            })
        };
        let owners = Owners {
            pods: HashMap::from([
                (PodRef::new("ns", "lives"), present("u1", Phase::Open)),
                (PodRef::new("ns", "done"), present("u2", Phase::Succeeded)),
                (PodRef::new("ns", "gone"), PodState::Absent),
            ]),
            ..Owners::default()
        };
        let judged = JudgedOwners::of(&owners, true);
        let may_be_gone = |name: &str, uid: Option<&str>| {
            let mut digests = OwnerDigests::default();
            digests.add(&PodRef::new("ns", name), uid);
            digests.may_be_gone(&judged)
        };
        assert!(!may_be_gone("lives", None) && !may_be_gone("lives", Some("u1")));
        assert!(may_be_gone("lives", Some("u0")), "another pod of that name");
        assert!(may_be_gone("done", None) && may_be_gone("done", Some("u2")));
        assert!(may_be_gone("gone", None) && may_be_gone("gone", Some("u3")));
    }
}
