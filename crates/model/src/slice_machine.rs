//! Model of the slice machines of `berth_core::slice::machine`: two nodes, a desk on the plain pool and the
//! controller, with crashes, lost and late answers, files and servers that are rolled back, and objects deleted by
//! hand.
//!
//! The code is the product's; the model is the API server, the files and the order of events. A precaution is removed
//! by an executor that does not carry it out ([`Careless`]), never by a flag in the machine.

pub mod executor;
pub mod quiescence;
pub mod server;
pub mod state;
pub mod steps;

use berth_core::Address;
use stateright::{Model, Property};

pub use state::{Budget, Careless, State};
pub use steps::Step;

pub const ALLOCATOR: &str = "one allocator per address (S)";
pub const OWNER: &str = "one owner per address (I1)";
pub const RECLAIMED: &str = "everything is reclaimed at quiescence";
pub const PLAIN: &str = "a pod of the plain pool beside a slice";

/// One search.
#[derive(Clone, Debug)]
pub struct Slices {
    pub start: State,
    pub careless: Careless,
}

impl Model for Slices {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        actions.extend(self.steps(state));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.act(&mut next, step);
        next.wire.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ALLOCATOR, |_, state: &State| {
                let one = |address: &Address| state.allocators(*address) <= 1;
                state.addresses().iter().all(one)
            }),
            Property::always(OWNER, |_, state: &State| {
                let one = |address: &Address| state.owners(*address) <= 1;
                state.addresses().iter().all(one)
            }),
            Property::always(RECLAIMED, |model: &Slices, state: &State| {
                // Running every state to its end would take hours: one in 16 is run, chosen by its content.
                !quiescence::is_sampled(state) || quiescence::leftovers(model, state).is_empty()
            }),
            Property::sometimes(PLAIN, |_, state: &State| {
                !state.server.plain.is_empty() && !state.server.leases.is_empty()
            }),
        ]
    }
}
