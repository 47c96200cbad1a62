//! Claims of slices with what the protocol of slices needs beyond a name (docs/decisions/0006-slices.md): guarded
//! changes.
//!
//! Every write names the version that it was planned on: one that lost the race changes nothing.

use berth_api::claim::{NETWORK, NODE, RANGE, SliceClaim, SliceClaimSpec, SliceOffer};
use berth_api::names;
use berth_core::Prefix;
use berth_core::slice::elastic::{Claimed, Offer};
use berth_core::slice::{Epoch, NodeName};
use berth_kube::{Failure, KubeError, Verb};
use kube::api::{Patch, Preconditions};
use rand::RngExt;
use serde::Deserialize;
use serde_json::{Value, json};

use super::KubeLedger;
use super::file::{FILE, FileMark};
use super::label::label;
use super::resource::SLICES;
use berth_ledger::LedgerError;

/// Claims in one answer of a list.
const PAGE: u32 = 500;

/// The annotation of a claim that makes every write of it one.
const WRITTEN: &str = "berth.dev/written";

/// A claim and the version that it was read at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceObject {
    pub name: String,
    pub network: String,
    pub claim: Claimed,
    uid: String,
    resource_version: String,
    /// The label of the range that it was claimed of.
    whole: String,
    /// The file of its node that it is kept in, where the claim names it.
    pub file: Option<FileMark>,
    pub(super) file_text: Option<String>,
    /// As it was read: what a newer version says beside is kept at every write (I7).
    spec: SliceClaimSpec,
}

impl SliceObject {
    /// Whether it was claimed of that range, and not of another that covers it too.
    pub fn is_of(&self, network: &str, whole: Prefix) -> bool {
        self.network == network && self.whole == label(&names::pool(network, "", whole))
    }

    /// The range that it was claimed of; none where the name of that is too long for a label.
    pub fn whole(&self) -> Option<Prefix> {
        let whole = names::range_of_pool(&self.network, &self.whole)?;
        whole.covers(self.claim.range).then_some(whole)
    }
}

/// The claims of a list, and those that can't be read: each is somebody's (I5), and hides no other.
#[derive(Debug, Default)]
pub struct SliceList {
    pub claims: Vec<SliceObject>,
    pub unreadable: Vec<UnreadableSlice>,
}

/// A claim that says nothing that this version understands.
#[derive(Debug)]
pub struct UnreadableSlice {
    pub name: String,
    /// The label of its network.
    network: String,
    /// By its name, where that label tells the whole network.
    pub slice: Option<Prefix>,
    pub why: LedgerError,
}

impl SliceList {
    /// All of them: for those who must know of every claim. One that can't be read is an error.
    pub fn complete(self) -> Result<Vec<SliceObject>, LedgerError> {
        match self.unreadable.into_iter().next() {
            Some(unreadable) => Err(unreadable.why),
            None => Ok(self.claims),
        }
    }

    /// Whether a claim that can't be read may be of an address of that range.
    pub fn may_hide(&self, network: &str, range: Prefix) -> bool {
        let network = label(network);
        let unreadable = self.unreadable.iter();
        let mut of_network = unreadable.filter(|one| one.network == network);
        of_network.any(|one| one.slice.is_none_or(|slice| slice.overlaps(range)))
    }
}

impl KubeLedger {
    /// The claim of a sub-range, read so that a completed write is seen.
    pub async fn slice(
        &self,
        network: &str,
        range: Prefix,
    ) -> Result<Option<SliceObject>, LedgerError> {
        self.slice_named(&names::slice(network, range)).await
    }

    /// Whether there is one, as it was a moment ago: this costs no read of etcd.
    pub async fn has_slice(&self, network: &str, range: Prefix) -> Result<bool, LedgerError> {
        let name = names::slice(network, range);
        let found = self.client.get_cached_metadata(&SLICES, &name).await?;
        Ok(found.is_some())
    }

    /// The same by the claim's name.
    pub async fn slice_named(&self, name: &str) -> Result<Option<SliceObject>, LedgerError> {
        match self.client.get(&SLICES, name).await? {
            Some(fetched) => self.slice_of(name, &fetched.object).map(Some),
            None => Ok(None),
        }
    }

    /// All claims of a range, or of a node, or of both. One that can't be read is an error: it is somebody's (I5).
    pub async fn slices(
        &self,
        of_range: Option<(&str, Prefix)>,
        of_node: Option<&NodeName>,
    ) -> Result<Vec<SliceObject>, LedgerError> {
        self.list_slices(of_range, of_node).await?.complete()
    }

    /// The same, where one that can't be read hides no other.
    pub async fn list_slices(
        &self,
        of_range: Option<(&str, Prefix)>,
        of_node: Option<&NodeName>,
    ) -> Result<SliceList, LedgerError> {
        let range = of_range.map(|(network, range)| (RANGE, names::pool(network, "", range)));
        let node = of_node.map(|node| (NODE, node.to_string()));
        let selector: Vec<String> = range
            .into_iter()
            .chain(node)
            .map(|(key, value)| format!("{key}={}", label(&value)))
            .collect();
        self.slices_by(&selector.join(",")).await
    }

    /// All claims of a network, but for those of that range.
    pub async fn slices_beside(
        &self,
        network: &str,
        range: Prefix,
    ) -> Result<SliceList, LedgerError> {
        let (network, range) = (label(network), label(&names::pool(network, "", range)));
        self.slices_by(&format!("{NETWORK}={network},{RANGE}!={range}"))
            .await
    }

    async fn slices_by(&self, selector: &str) -> Result<SliceList, LedgerError> {
        let mut list = SliceList::default();
        let keep = |object: Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            match self.slice_of(name, &object) {
                Ok(claim) => list.claims.push(claim),
                Err(why) => {
                    // A long name has another label: then the range is not known.
                    let network = object["metadata"]["labels"][NETWORK].as_str();
                    let network = network.unwrap_or_default();
                    list.unreadable.push(UnreadableSlice {
                        name: name.to_owned(),
                        network: network.to_owned(),
                        slice: names::range_of_pool(network, name),
                        why,
                    });
                }
            }
        };
        self.client.reduce(&SLICES, selector, PAGE, keep).await?;
        Ok(list)
    }

    /// Makes a claim of a part of `whole`: the CREATE is the claim. None: the name is taken. By whom is not asked: for
    /// whoever knows all claims in its own name.
    pub async fn claim_new_slice(
        &self,
        network: &str,
        whole: Prefix,
        claim: &Claimed,
    ) -> Result<Option<SliceObject>, LedgerError> {
        let name = names::slice(network, claim.range);
        let spec = spec_of(network, claim, &SliceClaimSpec::default());
        let ask = self.client.ask(Verb::Create, &SLICES, &name);
        let mut object = serde_json::to_value(SliceClaim::new(&name, spec))
            .map_err(|error| unreadable(ask.target(), &error.to_string()))?;
        object["metadata"]["labels"] = json!({
            NODE: label(claim.node.as_str()),
            RANGE: label(&names::pool(network, "", whole)),
            NETWORK: label(network),
        });
        if let Some(mark) = self.mark_after(None, &claim.node).get(FILE) {
            object["metadata"]["annotations"][FILE] = mark.clone();
        }
        match self.client.create(&SLICES, &object).await {
            Ok(created) => self.slice_of(&name, &created).map(Some),
            Err(Failure::Refused(refusal)) if refusal.is_taken_name() => Ok(None),
            Err(failure) => Err(failure.into_error(ask).into()),
        }
    }

    /// The same, or a claim of before in the same name. None: it is another's, or our own of another epoch.
    pub async fn claim_slice(
        &self,
        network: &str,
        whole: Prefix,
        claim: &Claimed,
    ) -> Result<Option<SliceObject>, LedgerError> {
        if let Some(made) = self.claim_new_slice(network, whole, claim).await? {
            return Ok(Some(made));
        }
        let found = self.slice(network, claim.range).await?;
        let ours = found.filter(|found| {
            found.claim.node == claim.node
                && found.claim.node_uid == claim.node_uid
                && found.claim.epoch == claim.epoch
        });
        match ours {
            // A DELETE may be on its way to it.
            Some(found) => {
                let taken_up = Claimed {
                    recalled: false,
                    ..found.claim.clone()
                };
                self.amend_slice(&found, &taken_up).await
            }
            None => Ok(None),
        }
    }

    /// Writes holder, offers and wants of a claim, and whether it is recalled, if it is still as it was read. None: it is not.
    pub async fn amend_slice(
        &self,
        object: &SliceObject,
        claim: &Claimed,
    ) -> Result<Option<SliceObject>, LedgerError> {
        let spec = spec_of(&object.network, claim, &object.spec);
        let mut merge = spec.merge();
        let metadata = &mut merge["metadata"];
        metadata["resourceVersion"] = json!(object.resource_version);
        metadata["labels"] = json!({ NODE: label(claim.node.as_str()) });
        // Always a change: what was sent before, and may still arrive, finds another version.
        let other = rand::rng().random_range(0..u64::MAX);
        metadata["annotations"][WRITTEN] = json!(format!("{other:x}"));
        if let Some(mark) = self.mark_after(Some(object), &claim.node).get(FILE) {
            metadata["annotations"][FILE] = mark.clone();
        }
        let patched = self
            .client
            .patch(&SLICES, &object.name, &Patch::Merge(merge))
            .await;
        match patched {
            Ok(patched) => {
                let text = |field: &str| {
                    let value = patched["metadata"][field].as_str();
                    value.unwrap_or_default().to_owned()
                };
                Ok(Some(SliceObject {
                    claim: claim.clone(),
                    resource_version: text("resourceVersion"),
                    file: FileMark::read(&patched["metadata"]),
                    file_text: file_text(&patched),
                    spec,
                    ..object.clone()
                }))
            }
            Err(Failure::Refused(refusal)) if refusal.code == 409 => Ok(None),
            Err(Failure::Refused(refusal)) if refusal.is_absence_of(&object.name) => Ok(None),
            Err(failure) => Err(failure
                .into_error(self.client.ask(Verb::Patch, &SLICES, &object.name))
                .into()),
        }
    }

    /// Ends a claim, if it is still as it was read. False: it is not. One that is gone already is no error.
    pub async fn end_slice(&self, object: &SliceObject) -> Result<bool, LedgerError> {
        let preconditions = Preconditions {
            uid: Some(object.uid.clone()),
            resource_version: Some(object.resource_version.clone()),
        };
        match self
            .client
            .delete(&SLICES, &object.name, preconditions)
            .await
        {
            Ok(()) => Ok(true),
            Err(KubeError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn slice_of(&self, name: &str, object: &Value) -> Result<SliceObject, LedgerError> {
        read_slice(name, object)
            .map_err(|why| unreadable(self.client.ask(Verb::Get, &SLICES, name).target(), &why))
    }
}

fn unreadable(target: String, why: &str) -> LedgerError {
    LedgerError::Unreadable {
        target,
        why: why.to_owned(),
    }
}

fn file_text(object: &Value) -> Option<String> {
    let text = object["metadata"]["annotations"][FILE].as_str();
    text.map(str::to_owned)
}

/// What a claim says, with what this version does not know of the spec before.
fn spec_of(network: &str, claim: &Claimed, before: &SliceClaimSpec) -> SliceClaimSpec {
    let offer = |offer: &Offer| {
        let (range, node) = (offer.range.to_string(), offer.node.to_string());
        let mut known = before.offers.iter();
        let known = known.find(|known| known.range == range && known.node == node);
        let unknown = known.map(|known| known.unknown.clone());
        SliceOffer {
            range,
            node,
            unknown: unknown.unwrap_or_default(),
        }
    };
    SliceClaimSpec {
        network: network.to_owned(),
        range: claim.range.to_string(),
        node: claim.node.to_string(),
        node_uid: claim.node_uid.clone(),
        epoch: u32::try_from(claim.epoch.0).unwrap_or(u32::MAX),
        offers: claim.offers.iter().map(offer).collect(),
        wants: claim.wants.iter().map(NodeName::to_string).collect(),
        recalled: claim.recalled,
        unknown: before.unknown.clone(),
    }
}

fn read_slice(name: &str, object: &Value) -> Result<SliceObject, String> {
    let SliceClaim { metadata, spec } =
        SliceClaim::deserialize(object).map_err(|error| error.to_string())?;
    let range = |text: &str| -> Result<Prefix, String> {
        text.parse().map_err(|_| format!("{text:?} is no CIDR"))
    };
    let mut offers = Vec::new();
    for offer in &spec.offers {
        offers.push(Offer {
            range: range(&offer.range)?,
            node: NodeName::new(&offer.node),
        });
    }
    let labels = metadata.labels.unwrap_or_default();
    Ok(SliceObject {
        name: name.to_owned(),
        network: spec.network.clone(),
        claim: Claimed {
            range: range(&spec.range)?,
            node: NodeName::new(&spec.node),
            node_uid: spec.node_uid.clone(),
            epoch: Epoch(spec.epoch.into()),
            offers,
            wants: spec.wants.iter().map(NodeName::new).collect(),
            recalled: spec.recalled,
        },
        uid: metadata.uid.unwrap_or_default(),
        resource_version: metadata.resource_version.unwrap_or_default(),
        whole: labels.get(RANGE).cloned().unwrap_or_default(),
        file: FileMark::read(&object["metadata"]),
        file_text: file_text(object),
        spec,
    })
}
