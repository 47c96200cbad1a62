//! Kubernetes Events on this node's Node object, for what its administrator has to know.

use berth_kube::events::{Events, Tone, of_node};

use crate::world::World;

const LOST: &str = "SliceLost";

impl World {
    /// Tells that a slice is not this node's any more. Nobody waits for it.
    pub fn tell_of_loss(&self, message: String) {
        let node = self.node.as_str();
        let (client, timeout) = (self.connection.client.clone(), self.connection.timeout);
        let events = Events::new(client, timeout, "berth-agent", node);
        let about = of_node(node, "");
        tokio::spawn(async move { events.tell(about, Tone::Warning, LOST, &message).await });
    }
}
