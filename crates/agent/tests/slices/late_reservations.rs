//! Reservations that follow an address which was allocated while the API server was away.

use std::time::Duration;

use berth_api::whereabouts::OverlappingRangeIPReservation;
use berth_core::{Handle, Owner, Record};
use berth_ledger::{ClaimKind, Records};
use kube::api::DeleteParams;
use serde_json::json;

use crate::cni_call::fast;
use crate::test_node::{Site, quick, until};
use crate::without_agent::Bare;

const RESERVATIONS: &str = "/overlappingrangeipreservations";

/// A refused ADD has left its reservation on an address that was allocated unchecked to another pod since; its DEL
/// comes later. Until then the other's reservation is tried now and then, and not at every pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_held_by_another_pod_is_tried_again_after_a_pause() {
    let site = Site::shared().await;
    let settings = berth_slices::SliceSettings {
        look: Duration::from_millis(100),
        ..quick()
    };
    let node = Bare::start(&site, "later", settings).await;
    let ipam = fast("10.27.0.0/24");
    node.add("any", &ipam).await;
    let name = "10.28.0.5";
    site.create::<OverlappingRangeIPReservation>(json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation",
        "metadata": { "name": name }, "spec": { "podref": "ns/refused", "ifname": "net1" },
    }))
    .await;
    let holder = Record::new(
        Owner::new("ns/given", "net1"),
        Handle::new("given-container"),
    );
    node.slices.reserve_later(name, &holder).await.unwrap();
    until("it is another's", async || {
        let tries = node.made(RESERVATIONS);
        let refused = tries.iter().any(|(_, code)| *code == Some(409));
        refused.then_some(()).ok_or(format!("{tries:?}"))
    })
    .await;
    let reservations = site.api::<OverlappingRangeIPReservation>();
    let params = DeleteParams::default();
    reservations.delete(name, &params).await.unwrap();
    until("reserved after all", async || {
        let now = reservations.get_opt(name).await.unwrap();
        let podref = now.map(|now| now.spec.podref);
        let ours = podref.as_deref() == Some("ns/given");
        ours.then_some(()).ok_or(format!("{podref:?}"))
    })
    .await;
    // The answer arrives here a moment after the object exists.
    let tries = until("answered", async || {
        let tries = node.made(RESERVATIONS);
        match tries.iter().all(|(_, code)| code.is_some()) {
            true => Ok(tries),
            false => Err(format!("{tries:?}")),
        }
    })
    .await;
    let codes: Vec<u16> = tries.iter().filter_map(|(_, code)| *code).collect();
    let (last, refused) = codes.split_last().unwrap();
    assert_eq!(
        (*last, refused.iter().all(|code| *code == 409)),
        (201, true)
    );
    for pair in tries.windows(2) {
        let pause = pair[1].0.at - pair[0].0.at;
        // From the start of an attempt on, not from its answer.
        assert!(pause > Duration::from_secs(9), "{pause:?}");
    }
    until("the note goes", async || {
        let mut notes = node.local.list(ClaimKind::Slice).await.unwrap();
        notes.retain(|(note, _)| note.name.contains(name));
        notes.is_empty().then_some(()).ok_or(format!("{notes:?}"))
    })
    .await;
}
