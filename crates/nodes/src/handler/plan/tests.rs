use berth_api::nmstate::{NodeIPPoolSpec, Range};
use serde_json::{Value, json};

use super::*;

fn space(cidr: &str) -> PoolSpace {
    let range = Range {
        cidr: cidr.to_owned(),
        ..Range::default()
    };
    PoolSpace::read(&NodeIPPoolSpec {
        range,
        ..Default::default()
    })
    .unwrap()
}

fn at(text: &str) -> Address {
    text.parse().unwrap()
}

/// What is observed, as a test says it: one capture `a` of pool `p`, 10.0.0.0/24, on node `n`.
#[derive(Clone)]
struct Case {
    ready: bool,
    mode: Mode,
    spec: Option<Value>,
    held: Option<&'static str>,
    pool: bool,
    allocates: bool,
    refused: bool,
    changed: bool,
    enactment: Option<(i64, Phase, u32, Option<&'static str>)>,
    peers: Peers,
    backoff: Backoff,
}

fn case() -> Case {
    Case {
        ready: true,
        mode: Mode::Host,
        spec: Some(
            json!({ "capture": { "a": "ippool.p.allocate" }, "desiredState": { "x": "{{ capture.a.ip }}" } }),
        ),
        held: None,
        pool: true,
        allocates: true,
        refused: false,
        changed: false,
        enactment: None,
        peers: Peers {
            unavailable: 0,
            max_unavailable: 1,
            failed: None,
        },
        backoff: Backoff::Over,
    }
}

/// Held by the pool and recorded in the enactment under generation 2.
fn recorded(phase: Phase, tries: u32) -> Case {
    Case {
        held: Some("10.0.0.5"),
        enactment: Some((2, phase, tries, Some("10.0.0.5"))),
        ..case()
    }
}

impl Case {
    /// The steps in a few words each.
    fn steps(&self) -> Vec<String> {
        let space = space("10.0.0.0/24");
        let read = self.spec.as_ref().map(PoolPolicy::read);
        let policy = match &read {
            None => PolicyState::Gone,
            Some(read) => PolicyState::Selecting {
                generation: 2,
                spec: read.as_ref().map_err(Clone::clone),
            },
        };
        let claimed = self.enactment.iter().filter_map(|one| one.3);
        let claimed = claimed.map(|text| ("a".to_owned(), at(text)));
        let claimed = claimed.filter(|(_, address)| space.offset(*address).is_some());
        let view = PoolView {
            space: Ok(&space),
            held: self
                .held
                .iter()
                .map(|text| ("a".to_owned(), at(text)))
                .collect(),
            claimed: claimed.collect(),
            allocates: self.allocates,
            refused: self.refused,
            changed: self.changed,
        };
        let enactment = self
            .enactment
            .as_ref()
            .map(|(generation, phase, tries, claim)| {
                let mut claims = Claims::default();
                if let Some(text) = claim {
                    claims.set("p", "a", at(text));
                }
                Enactment {
                    generation: *generation,
                    phase: *phase,
                    tries: *tries,
                    claims,
                }
            });
        let observed = Observed {
            node: "n",
            ready: self.ready,
            mode: self.mode,
            policy,
            enactment,
            pools: if self.pool {
                BTreeMap::from([("p", view)])
            } else {
                BTreeMap::new()
            },
            peers: self.peers.clone(),
            backoff: self.backoff,
        };
        plan(&observed).iter().map(words).collect()
    }
}

fn words(step: &Step) -> String {
    match step {
        Step::CreateEnactment => "create".to_owned(),
        Step::Allocate { address: None, .. } => "allocate any".to_owned(),
        Step::Allocate {
            address: Some(address),
            ..
        } => format!("allocate {address}"),
        Step::Record(Record {
            generation, claims, ..
        }) => {
            format!(
                "record {} under {generation}",
                claims.address("p", "a").unwrap()
            )
        }
        Step::Show(shown) => format!("show {:?} {}: {}", shown.phase, shown.reason, shown.message),
        Step::Apply(rendered) => format!("apply {}", rendered.desired_state["x"].as_str().unwrap()),
        Step::RenderPolicy(rendered) => {
            format!("policy {}", rendered.desired_state["x"].as_str().unwrap())
        }
        Step::Withdraw { addresses } => format!("withdraw {addresses:?}"),
        Step::DeleteEnactment => "delete".to_owned(),
        Step::Wait(wait) => format!("wait {wait:?}"),
    }
}

const PROGRESS: &str = "show Progressing ConfigurationProgressing: Applying desired state";

#[test]
fn an_address_goes_from_the_pool_to_the_enactment_to_the_host() {
    assert_eq!(case().steps(), ["create", "allocate any"]);
    let held = Case {
        held: Some("10.0.0.5"),
        ..case()
    };
    assert_eq!(
        held.steps(),
        [
            "create",
            "record 10.0.0.5 under 2",
            PROGRESS,
            "apply 10.0.0.5"
        ]
    );
    let begun = Case {
        held: Some("10.0.0.5"),
        enactment: Some((2, Phase::New, 0, None)),
        ..case()
    };
    assert_eq!(
        begun.steps(),
        ["record 10.0.0.5 under 2", PROGRESS, "apply 10.0.0.5"]
    );
    assert_eq!(
        recorded(Phase::New, 0).steps(),
        [PROGRESS, "apply 10.0.0.5"]
    );
    assert_eq!(recorded(Phase::Progressing, 0).steps(), ["apply 10.0.0.5"]);
    assert_eq!(recorded(Phase::Available, 1).steps(), Vec::<String>::new());
}

#[test]
fn what_is_named_already_is_used_again() {
    // The pool was re-created or reset; the enactment, or its annotation, still names the address.
    let lost = Case {
        held: None,
        ..recorded(Phase::Available, 1)
    };
    assert_eq!(lost.steps(), ["allocate 10.0.0.5"]);
    // On a node that is not Ready too: the address is not a new one.
    assert_eq!(
        Case {
            ready: false,
            ..lost.clone()
        }
        .steps(),
        ["allocate 10.0.0.5"]
    );
    // While the pool takes its addresses back it allocates no new ones, but this is none.
    assert_eq!(
        Case {
            allocates: false,
            ..lost.clone()
        }
        .steps(),
        ["allocate 10.0.0.5"]
    );
    // The enactment was deleted; the pool still names it.
    let forgotten = Case {
        enactment: None,
        ..recorded(Phase::New, 0)
    };
    assert_eq!(
        forgotten.steps(),
        [
            "create",
            "record 10.0.0.5 under 2",
            PROGRESS,
            "apply 10.0.0.5"
        ]
    );
    // The two differ: the pool decides, because only one owner can have it there (I1).
    let edited = Case {
        enactment: Some((2, Phase::Available, 1, Some("10.0.0.9"))),
        ..recorded(Phase::New, 0)
    };
    assert_eq!(
        edited.steps(),
        ["record 10.0.0.5 under 2", PROGRESS, "apply 10.0.0.5"]
    );
    // A larger pool that no longer has it: a new one.
    let foreign = Case {
        held: None,
        enactment: Some((2, Phase::Available, 1, Some("10.9.9.9"))),
        ..case()
    };
    assert_eq!(foreign.steps(), ["allocate any"]);
    // A new generation keeps the address.
    let newer = Case {
        enactment: Some((1, Phase::Available, 1, Some("10.0.0.5"))),
        ..recorded(Phase::New, 0)
    };
    assert_eq!(
        newer.steps(),
        ["record 10.0.0.5 under 2", PROGRESS, "apply 10.0.0.5"]
    );
}

#[test]
fn only_a_ready_node_gets_a_new_address() {
    let steps = Case {
        ready: false,
        ..case()
    }
    .steps();
    assert_eq!(
        steps[1..],
        [
            "show Pending NodeNotReady: node n is not Ready; it gets an address when it is",
            "wait NodeReady"
        ]
    );
}

#[test]
fn a_pool_that_is_absent_exhausted_or_busy_is_waited_for() {
    let steps = Case {
        pool: false,
        ..case()
    }
    .steps();
    assert_eq!(
        steps[1..],
        [
            "show Pending NodeIPPoolNotFound: NodeIPPool p does not exist; the policy is applied when it is created",
            "wait Pool(\"p\")"
        ]
    );
    let steps = Case {
        refused: true,
        ..case()
    }
    .steps();
    assert_eq!(
        steps[1..],
        [
            "show Failing FailedToConfigure: failure generating desiredState and capturedStates: NodeIPPool p has no free address for node n",
            "wait Pool(\"p\")",
        ]
    );
    assert_eq!(
        Case {
            allocates: false,
            ..case()
        }
        .steps(),
        ["create", "wait Pool(\"p\")"]
    );
    // The pool of an applied policy is deleted: the address stays.
    assert_eq!(
        Case {
            pool: false,
            ..recorded(Phase::Available, 1)
        }
        .steps(),
        Vec::<String>::new()
    );
}

#[test]
fn a_policy_that_can_not_be_rendered_touches_nothing() {
    let steps = Case {
        spec: Some(json!({ "capture": { "a": "ippool.p.alocate" } })),
        ..case()
    }
    .steps();
    assert_eq!(steps[0], "create");
    assert!(steps[1].starts_with("show Failing FailedToConfigure: failure generating desiredState and capturedStates: spec.capture.a"), "{steps:?}");
    assert_eq!(steps[2], "wait PolicyChange");
    let unknown = json!({ "capture": { "a": "ippool.p.allocate" }, "desiredState": { "x": "{{ capture.a.ipx }}" } });
    let steps = Case {
        spec: Some(unknown),
        ..case()
    }
    .steps();
    assert!(steps[1].contains("capture.a.ipx"), "{steps:?}");
    // A policy without pools is left to the other handler.
    let plain = json!({ "desiredState": { "x": "y" } });
    assert_eq!(
        Case {
            spec: Some(plain),
            ..case()
        }
        .steps(),
        Vec::<String>::new()
    );
}

#[test]
fn five_tries_then_it_stays_failing_until_policy_or_pool_change() {
    let retry = "show Progressing Retrying: Applying desired state, try 5 of 5";
    assert_eq!(
        recorded(Phase::Failing, 4).steps(),
        [retry, "apply 10.0.0.5"]
    );
    assert_eq!(recorded(Phase::Failing, 5).steps(), ["wait PolicyChange"]);
    assert_eq!(
        Case {
            changed: true,
            ..recorded(Phase::Failing, 5)
        }
        .steps(),
        [PROGRESS, "apply 10.0.0.5"]
    );
    let waiting = Case {
        backoff: Backoff::Left(Duration::from_secs(3)),
        ..recorded(Phase::Failing, 1)
    };
    assert_eq!(waiting.steps(), ["wait Backoff(3s)"]);
    let seconds: Vec<u64> = (1..=7)
        .map(|tries| Backoff::after(tries).as_secs())
        .collect();
    assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30]);
}

#[test]
fn not_more_nodes_than_allowed_and_none_after_a_failure() {
    let busy = Peers {
        unavailable: 1,
        max_unavailable: 1,
        failed: None,
    };
    let steps = Case {
        peers: busy.clone(),
        ..recorded(Phase::New, 0)
    }
    .steps();
    assert_eq!(
        steps,
        [
            "show Pending MaxUnavailableLimitReached: 1 nodes apply the policy, and maxUnavailable is 1",
            "wait MaxUnavailable"
        ]
    );
    // One that has begun is counted already.
    assert_eq!(
        Case {
            peers: busy,
            ..recorded(Phase::Progressing, 0)
        }
        .steps(),
        ["apply 10.0.0.5"]
    );
    let failed = Peers {
        unavailable: 0,
        max_unavailable: 1,
        failed: Some("m".to_owned()),
    };
    let steps = Case {
        peers: failed,
        ..recorded(Phase::Pending, 0)
    }
    .steps();
    assert_eq!(
        steps,
        [
            "show Aborted ConfigurationAborted: policy has failed on node m; it is not applied here",
            "wait PolicyChange"
        ]
    );
    assert_eq!(recorded(Phase::Aborted, 0).steps(), ["wait PolicyChange"]);
}

#[test]
fn a_policy_that_is_gone_leaves_the_host_before_the_enactment_goes() {
    let gone = Case {
        spec: None,
        ..recorded(Phase::Available, 1)
    };
    assert_eq!(gone.steps(), ["withdraw [10.0.0.5]", "delete"]);
    assert_eq!(
        Case {
            mode: Mode::Policy,
            ..gone.clone()
        }
        .steps(),
        ["delete"]
    );
    // Policy and enactment went while no handler ran: the pool still names what was applied.
    let forgotten = Case {
        enactment: None,
        ..gone
    };
    assert_eq!(forgotten.steps(), ["withdraw [10.0.0.5]"]);
    let nothing = Case {
        held: None,
        ..forgotten
    };
    assert_eq!(nothing.steps(), Vec::<String>::new());
}

#[test]
fn the_other_modes_do_not_touch_the_host() {
    assert_eq!(
        Case {
            mode: Mode::Policy,
            ..recorded(Phase::New, 0)
        }
        .steps(),
        ["policy 10.0.0.5"]
    );
    assert_eq!(
        Case {
            mode: Mode::Off,
            ..case()
        }
        .steps(),
        Vec::<String>::new()
    );
}
