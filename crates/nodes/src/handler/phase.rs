//! How far an enactment is, as the conditions that kubernetes-nmstate writes.

/// The states of an enactment. A new generation of the policy begins at [`Phase::New`] again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is decided: all five conditions are Unknown.
    #[default]
    New,
    /// It waits: for a pool, for the node to be Ready, or because enough nodes are unavailable already.
    Pending,
    /// It is being applied.
    Progressing,
    /// It is applied.
    Available,
    /// It could not be generated or applied.
    Failing,
    /// It was not started, because another node failed.
    Aborted,
}

/// A phase with what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub phase: Phase,
    pub reason: &'static str,
    pub message: String,
}

/// The condition types of an enactment, in upstream's order.
const TYPES: [(Phase, &str); 5] = [
    (Phase::Failing, "Failing"),
    (Phase::Available, "Available"),
    (Phase::Progressing, "Progressing"),
    (Phase::Pending, "Pending"),
    (Phase::Aborted, "Aborted"),
];

impl Shown {
    pub fn new(phase: Phase, reason: &'static str, message: impl Into<String>) -> Shown {
        Shown {
            phase,
            reason,
            message: message.into(),
        }
    }

    /// The five conditions: type, status, reason and message.
    pub fn conditions(&self) -> [(&'static str, &'static str, &'static str, &str); 5] {
        TYPES.map(|(phase, name)| match self.phase {
            Phase::New => (name, "Unknown", "", ""),
            own if own == phase => (name, "True", self.reason, self.message.as_str()),
            _ => (name, "False", self.reason, ""),
        })
    }
}

impl Phase {
    /// The phase that a condition of status True stands for.
    pub fn of_condition(name: &str) -> Option<Phase> {
        let found = TYPES.iter().find(|(_, known)| *known == name);
        found.map(|(phase, _)| *phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_condition_is_true_and_the_others_are_not() {
        let shown = Shown::new(Phase::Failing, "FailedToConfigure", "no free address");
        let conditions = shown.conditions();
        assert_eq!(
            conditions[0],
            ("Failing", "True", "FailedToConfigure", "no free address")
        );
        assert!(conditions[1..].iter().all(|one| one.1 == "False"));
        let fresh = Shown::new(Phase::New, "", "");
        assert!(fresh.conditions().iter().all(|one| one.1 == "Unknown"));
        assert_eq!(Phase::of_condition("Aborted"), Some(Phase::Aborted));
        assert_eq!(Phase::of_condition("Ready"), None);
    }
}
