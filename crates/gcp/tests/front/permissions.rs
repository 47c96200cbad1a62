//! After every test: what the front asked of the cloud is what Google describes, and docs/gcp.md names the permissions for it.

use std::collections::BTreeSet;

use berth_parts::Parts;
use berth_testcloud::{assert_described, documented, permissions_of};

use crate::scene::Scene;

const DOCS: &str = include_str!("../../../../docs/gcp.md");

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let requests = self.cloud.requests();
        let [compute, ranges] = Parts::find().unwrap().google_apis();
        assert_described(&requests, &[&compute, &ranges]);
        let (used, granted) = (permissions_of(&requests), agents_permissions());
        assert!(used.is_subset(&granted), "{used:?} of {granted:?}");
    }
}

/// The permissions that docs/gcp.md gives the agent.
pub fn agents_permissions() -> BTreeSet<String> {
    documented(DOCS, "The agent, on the project of the nodes")
}
