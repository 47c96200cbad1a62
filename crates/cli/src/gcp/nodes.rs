//! The VMs behind a cluster's nodes, read a few at a time.

use std::collections::BTreeMap;

use anyhow::Context;
use berth_gcp::check::ObservedNode;
use tokio::task::JoinSet;

use super::cloud::CloudArgs;
use super::objects::Lists;

/// Concurrent reads of instances: a cluster of 1,000 nodes stays below the project's rate of 1,500 a minute.
const AT_ONCE: usize = 4;
const NIC: &str = "nic0";

/// Project, zone and name of `gce://project/zone/name`.
fn place(provider_id: &str) -> Option<(&str, &str, &str)> {
    let rest = provider_id.strip_prefix("gce://")?;
    let mut parts = rest.split('/');
    let place = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then_some(place)
}

/// Every node on Google Cloud with the aliases of its first NIC. Other nodes are skipped.
pub async fn observe(
    lists: &Lists,
    cloud: &CloudArgs,
) -> anyhow::Result<BTreeMap<String, ObservedNode>> {
    let mut clients = BTreeMap::new();
    let mut found = BTreeMap::new();
    let mut reads = JoinSet::new();
    for (name, provider_id) in lists.nodes().await.context("list the nodes")? {
        let Some((project, zone, instance)) = place(&provider_id) else {
            continue;
        };
        if !clients.contains_key(project) {
            clients.insert(project.to_owned(), cloud.client(project)?);
        }
        let Some(client) = clients.get(project).cloned() else {
            continue;
        };
        let (zone, instance) = (zone.to_owned(), instance.to_owned());
        if reads.len() >= AT_ONCE {
            found.extend(reads.join_next().await.transpose()?);
        }
        reads.spawn(async move {
            let read = client.instance(&zone, &instance).await;
            let aliases = read.and_then(|vm| Ok(vm.nic(NIC)?.aliases.clone()));
            let aliases = aliases.map_err(|error| error.to_string());
            (name, ObservedNode { aliases })
        });
    }
    while let Some(read) = reads.join_next().await {
        found.extend([read?]);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_id_names_the_vm_in_its_zone() {
        assert_eq!(place("gce://p/us-a/n"), Some(("p", "us-a", "n")));
        for other in ["", "aws:///eu/i-1", "gce://p/us-a", "gce://p/us-a/n/x"] {
            assert_eq!(place(other), None, "{other}");
        }
    }
}
