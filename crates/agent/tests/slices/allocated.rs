//! The addresses that pods got, in every mode: no address is allocated twice (I1).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cni_call::bare;
use crate::test_cluster::World;
use crate::test_node::{Machine, until};

/// Addresses, and the pods that have them.
#[derive(Debug, Default)]
pub struct Given(BTreeMap<String, String>);

impl Given {
    /// All addresses of a pod.
    pub fn note(&mut self, ips: &[String], pod: &str) {
        for ip in ips {
            let twice = self.0.insert(bare(ip), pod.to_owned());
            assert_eq!(twice, None, "{ip} is allocated to {pod} too");
        }
    }

    /// A pod is gone.
    pub fn forget(&mut self, pod: &str) {
        self.0.retain(|_, one| one != pod);
    }

    pub fn all(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    pub async fn add(&mut self, machine: &Machine, world: &World<'_>, pod: &str, ipam: &Value) {
        let ips = machine.try_add_in(world.namespace(), pod, ipam).await;
        self.note(&ips.unwrap(), pod);
    }

    /// The first pod of a network: other modes have to make room, or a controller has to assign slices.
    pub async fn first(&mut self, machine: &Machine, world: &World<'_>, pod: &str, ipam: &Value) {
        let ips = until("slices are allocated from", async || {
            let given = machine.try_add_in(world.namespace(), pod, ipam).await;
            given.map_err(|refused| format!("{refused:?}"))
        })
        .await;
        self.note(&ips, pod);
    }

    /// So many pods, or fewer if the node has no more addresses.
    pub async fn fill(&mut self, machine: &Machine, world: &World<'_>, name: &str, ipam: &Value) {
        for n in 0..64 {
            let pod = format!("{name}-{n}");
            match machine.try_add_in(world.namespace(), &pod, ipam).await {
                Ok(ips) => self.note(&ips, &pod),
                Err((code, why)) => {
                    assert_eq!(code, 11, "{why}");
                    return;
                }
            }
        }
    }
    /// One node claims slices of a /25 by itself, five and more, so that some lie in what is assigned to another node
    /// after that.
    pub async fn claim_and_assign(
        &mut self,
        world: &World<'_>,
        network: &str,
        (claimer, claimed): (&Machine, &Value),
        (other, assigned): (&Machine, &Value),
    ) {
        for n in 0..70 {
            let pod = format!("claimed-{n}");
            self.add(claimer, world, &pod, claimed).await;
        }
        world.define(network, assigned).await;
        self.first(other, world, "b", assigned).await;
        self.fill(other, world, "assigned", assigned).await;
    }
}
