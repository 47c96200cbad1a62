//! The slice machines of `berth_core::slice::machine`, run by the checker: two nodes, a desk on the plain pool and the
//! controller, with crashes, lost and late answers, files and servers that go back in time, and objects deleted by hand.
//!
//! The code is the product's; the model is the API server, the files and the order of events. A precaution is taken away
//! by an executor that does not carry it out ([`Careless`]), never by a flag in the machine.

pub mod executor;
pub mod quiescence;
pub mod server;
pub mod steps;
pub mod world;

use berth_core::Address;
use stateright::{Model, Property};

pub use steps::Step;
pub use world::{Budget, Careless, World};

pub const ALLOCATOR: &str = "one allocator per address (S)";
pub const OWNER: &str = "one owner per address (I1)";
pub const RECLAIMED: &str = "everything is reclaimed at quiescence";
pub const PLAIN: &str = "a pod of the plain pool beside a slice";

/// One search.
#[derive(Clone, Debug)]
pub struct Slices {
    pub start: World,
    pub careless: Careless,
}

impl Model for Slices {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![self.start.clone()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Step>) {
        actions.extend(self.steps(world));
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        self.act(&mut next, step);
        next.wire.sort_unstable();
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ALLOCATOR, |_, world: &World| {
                let one = |address: &Address| world.allocators(*address) <= 1;
                world.addresses().iter().all(one)
            }),
            Property::always(OWNER, |_, world: &World| {
                let one = |address: &Address| world.owners(*address) <= 1;
                world.addresses().iter().all(one)
            }),
            Property::always(RECLAIMED, |model: &Slices, world: &World| {
                // A run to the end of every state would take hours: one in 16, chosen by its content.
                !quiescence::is_sampled(world) || quiescence::leftovers(model, world).is_empty()
            }),
            Property::sometimes(PLAIN, |_, world: &World| {
                !world.server.plain.is_empty() && !world.server.leases.is_empty()
            }),
        ]
    }
}
