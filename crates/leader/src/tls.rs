//! The leader's certificate: made at its start and published on its Lease.
//!
//! Guarantees: the key never leaves the process, and a client with the certificate accepts that one and no other:
//! no authority can vouch for a second leader.

use std::fmt;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

/// The name in every leader's certificate. Addresses change, and say nothing about who is there.
pub(crate) const NAME: &str = "desk.berth.dev";

#[derive(Debug, Error)]
pub enum TlsError {
    #[error("the certificate of the leader's desk can't be made")]
    Make(#[source] rcgen::Error),
    #[error("the certificate of the leader's desk can't be used")]
    Use(#[source] rustls::Error),
}

/// A leader's certificate and key.
#[derive(Clone)]
pub struct TlsIdentity {
    certificate: CertificateDer<'static>,
    server: Arc<ServerConfig>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").finish_non_exhaustive()
    }
}

impl TlsIdentity {
    pub fn make() -> Result<TlsIdentity, TlsError> {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed([NAME.to_owned()]).map_err(TlsError::Make)?;
        let certificate = cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Use)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .map_err(TlsError::Use)?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsIdentity {
            certificate,
            server: Arc::new(server),
        })
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}

/// What a client needs to know the leader by.
pub(crate) fn trusting(certificate: CertificateDer<'static>) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).map_err(TlsError::Use)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Use)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
