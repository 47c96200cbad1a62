//! Where the leader is: written by it on its Lease, read by every agent.
//!
//! On the Lease, because the leader writes that anyway: an endpoint can't outlive its leadership by more than the
//! Lease does, and no second object can contradict it.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use rustls::pki_types::CertificateDer;

use crate::TlsIdentity;

/// Where the leader listens: `host:port`.
const ADDRESS: &str = "berth.dev/desk-address";
/// The only certificate that it may show, DER in base64.
const CERTIFICATE: &str = "berth.dev/desk-certificate";

/// No Lease counts for longer after it was renewed, whatever it says.
const LONGEST: Duration = Duration::from_secs(300);

/// How far the clocks of two machines may be apart.
const SKEW: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `host:port`.
    pub address: String,
    pub certificate: CertificateDer<'static>,
}

impl Endpoint {
    pub fn of(address: impl Into<String>, identity: &TlsIdentity) -> Endpoint {
        Endpoint {
            address: address.into(),
            certificate: identity.certificate().clone(),
        }
    }

    /// The annotations that say so.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (ADDRESS.to_owned(), self.address.clone()),
            (CERTIFICATE.to_owned(), STANDARD.encode(&self.certificate)),
        ])
    }

    /// Reads it back; none if there is no leader, the leader has no desk, or what is there can't be read.
    pub fn read(lease: &Lease, now: Timestamp) -> Option<Endpoint> {
        let spec = lease.spec.as_ref()?;
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let lasts = Duration::from_secs(spec.lease_duration_seconds?.try_into().ok()?);
        let lasts = lasts.min(LONGEST);
        let renewed = spec.renew_time.as_ref()?.0;
        let end = renewed.checked_add(lasts + SKEW).ok()?;
        // One that says it was renewed in the future would count for as long as it likes.
        let ahead = renewed > now.checked_add(SKEW).ok()?;
        if holder.is_empty() || end < now || ahead {
            return None;
        }
        let annotations = lease.metadata.annotations.as_ref()?;
        let certificate = STANDARD.decode(annotations.get(CERTIFICATE)?).ok()?;
        Some(Endpoint {
            address: annotations
                .get(ADDRESS)
                .filter(|text| !text.is_empty())?
                .clone(),
            certificate: CertificateDer::from(certificate),
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

    use super::*;

    fn mk_lease(holder: &str, renewed: Timestamp, endpoint: &Endpoint) -> Lease {
        Lease {
            metadata: ObjectMeta {
                annotations: Some(endpoint.annotations()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(15),
                renew_time: Some(MicroTime(renewed)),
                ..LeaseSpec::default()
            }),
        }
    }

    #[test]
    fn only_a_living_leaders_notice_counts() {
        let identity = TlsIdentity::make().unwrap();
        let endpoint = Endpoint::of("10.0.0.1:9444", &identity);
        let now = Timestamp::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let read = |lease: &Lease| Endpoint::read(lease, now);
        assert_eq!(
            read(&mk_lease("one", now, &endpoint)),
            Some(endpoint.clone())
        );
        assert_eq!(read(&mk_lease("one", ago(3600), &endpoint)), None);
        assert_eq!(read(&mk_lease("", now, &endpoint)), None);
        // Sixty-eight years, says a Lease that another program wrote.
        let mut endless = mk_lease("one", ago(400), &endpoint);
        endless.spec.as_mut().unwrap().lease_duration_seconds = Some(i32::MAX);
        assert_eq!(read(&endless), None);
        let ahead = |seconds| now.checked_add(Duration::from_secs(seconds)).unwrap();
        let soon = mk_lease("one", ahead(SKEW.as_secs()), &endpoint);
        assert!(read(&soon).is_some(), "clocks differ");
        let later = mk_lease("one", ahead(SKEW.as_secs() + 1), &endpoint);
        assert_eq!(read(&later), None);
        let mut torn = mk_lease("one", now, &endpoint);
        let annotations = torn.metadata.annotations.as_mut().unwrap();
        annotations.insert(CERTIFICATE.into(), "?".into());
        assert_eq!(read(&torn), None);
        assert_eq!(read(&Lease::default()), None);
    }
}
