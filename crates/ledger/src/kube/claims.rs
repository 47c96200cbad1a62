//! Claims by name: the CREATE of an object is the claim, and etcd lets one of two win.
//!
//! A reservation is whereabouts' object: the owner as pod and interface, and the handle as the
//! container, a field that whereabouts has, never writes and never reads. So one of whereabouts' has an
//! empty handle; what that means, its reader decides.
//!
//! Slices are not claimed so: who looks for them does by range and network, which a name and a holder do not tell
//! ([`super::slices`]).

use berth_api::whereabouts::{OverlappingRangeIPReservation, OverlappingRangeIPReservationSpec};
use berth_core::{Handle, Owner, Record};
use kube::api::{Patch, Preconditions};
use serde_json::{Value, json};

use super::resource::{RESERVATIONS, Resource};
use super::status::{Failure, Verb};
use super::wire::Wire;
use crate::{ClaimKey, ClaimKind, LedgerError, Rejection};

/// Objects of a claim, in one answer of a list.
const PAGE: u32 = 500;

/// Looks at a claim that changes under our hands, before the caller has to.
const TRIES: usize = 3;

fn resource(kind: ClaimKind) -> Result<&'static Resource, LedgerError> {
    match kind {
        ClaimKind::Reservation => Ok(&RESERVATIONS),
        ClaimKind::Slice => Err(LedgerError::Rejected {
            operation: "claim by name",
            target: format!("{kind}s"),
            rejection: Rejection::Storage(
                "slices of a cluster are claimed with their range and network (kube::slices)"
                    .into(),
            ),
        }),
    }
}

struct Found {
    record: Record,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl Wire {
    pub async fn create_claim(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        let resource = resource(key.kind)?;
        let object = self.object(key, record)?;
        for _ in 0..TRIES {
            match self.create(resource, &object).await {
                Ok(_) => return Ok(()),
                Err(Failure::Refused(refusal)) if refusal.is_taken_name() => {}
                Err(failure) => {
                    return Err(failure.into_error(self.ask(Verb::Create, resource, &key.name)));
                }
            }
            match self.find(key).await? {
                Some(found) if found.record.same_holder(record) => return Ok(()),
                Some(found) => return Err(taken(key, Some(&found.record))),
                // Removed in between: the name is free again.
                None => {}
            }
        }
        Err(self.restless(resource, key))
    }

    pub async fn remove_claim(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        let resource = resource(key.kind)?;
        for _ in 0..TRIES {
            let found = match self.find(key).await? {
                None => return Ok(()),
                Some(found) if !found.record.same_holder(expected) => {
                    return Err(taken(key, Some(&found.record)));
                }
                Some(found) => found,
            };
            // Exactly the object that was looked at: another may have taken the name since (I6).
            let preconditions = Preconditions {
                uid: found.uid,
                resource_version: found.resource_version,
            };
            match self.delete(resource, &key.name, preconditions).await {
                Err(LedgerError::Conflict { .. }) => {}
                done => return done,
            }
        }
        Err(self.restless(resource, key))
    }

    pub async fn pass_claim(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        let resource = resource(key.kind)?;
        let object = self.object(key, record)?;
        for _ in 0..TRIES {
            let found = match self.find(key).await? {
                Some(found) if found.record.same_holder(record) => return Ok(()),
                Some(found) if found.record.same_holder(expected) => found,
                found => return Err(taken(key, found.map(|found| found.record).as_ref())),
            };
            // Exactly the object that was looked at, and what others wrote beside stays (I7).
            let patch = Patch::Merge(json!({
                "metadata": { "uid": found.uid, "resourceVersion": found.resource_version },
                "spec": object["spec"],
            }));
            match self.patch(resource, &key.name, &patch).await {
                Ok(_) => return Ok(()),
                Err(Failure::Refused(refusal))
                    if refusal.code == 409 || refusal.is_absence_of(&key.name) => {}
                Err(failure) => {
                    return Err(failure.into_error(self.ask(Verb::Patch, resource, &key.name)));
                }
            }
        }
        Err(self.restless(resource, key))
    }

    pub async fn claim(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        Ok(self.find(key).await?.map(|found| found.record))
    }

    pub async fn claims(&self, kind: ClaimKind) -> Result<Vec<(ClaimKey, Record)>, LedgerError> {
        let resource = resource(kind)?;
        let mut claims = Vec::new();
        for object in self.list(resource, "", PAGE).await? {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let key = ClaimKey::new(kind, name);
            // One that can't be read is somebody's claim all the same: it must not hide the others.
            match read(&object) {
                Ok(record) => claims.push((key, record)),
                Err(why) => tracing::warn!(claim = %key, why, "a claim can't be read"),
            }
        }
        Ok(claims)
    }

    async fn find(&self, key: &ClaimKey) -> Result<Option<Found>, LedgerError> {
        let resource = resource(key.kind)?;
        let Some(fetched) = self.get(resource, &key.name).await? else {
            return Ok(None);
        };
        let text = |field: &str| {
            fetched.object["metadata"][field]
                .as_str()
                .map(str::to_owned)
        };
        let record = read(&fetched.object).map_err(|why| LedgerError::Unreadable {
            target: self.ask(Verb::Get, resource, &key.name).target(),
            why,
        })?;
        Ok(Some(Found {
            record,
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        }))
    }

    fn object(&self, key: &ClaimKey, record: &Record) -> Result<Value, LedgerError> {
        let spec = OverlappingRangeIPReservationSpec {
            containerid: record.handle.as_str().to_owned(),
            podref: record.owner.subject.clone(),
            ifname: record.owner.part.clone(),
        };
        let object = serde_json::to_value(OverlappingRangeIPReservation::new(&key.name, spec));
        object.map_err(|error| LedgerError::Rejected {
            operation: Verb::Create.name(),
            target: key.to_string(),
            rejection: Rejection::Invalid {
                code: 422,
                message: error.to_string(),
            },
        })
    }

    fn restless(&self, resource: &'static Resource, key: &ClaimKey) -> LedgerError {
        LedgerError::Conflict {
            pool: self.ask(Verb::Get, resource, &key.name).target(),
            held: Vec::new(),
        }
    }
}

fn read(object: &Value) -> Result<Record, String> {
    let spec = object.get("spec").cloned().unwrap_or_default();
    let spec: OverlappingRangeIPReservationSpec = serde_json::from_value(spec)
        .map_err(|error| format!("its spec is not readable: {error}"))?;
    Ok(Record::new(
        Owner::new(spec.podref, spec.ifname),
        Handle::new(spec.containerid),
    ))
}

fn taken(key: &ClaimKey, found: Option<&Record>) -> LedgerError {
    LedgerError::Taken {
        name: key.to_string(),
        by: found.map_or_else(|| "nobody".into(), |found| found.owner.to_string()),
    }
}
