//! The cluster's own certificate authority, in memory; its certificates and keys are files.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// Signs what a test asks for.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

/// A certificate and its key, as text and as files.
#[derive(Clone)]
pub(crate) struct Identity {
    pub certificate: String,
    pub key: String,
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
}

impl Authority {
    pub fn new(dir: &Path) -> Result<Authority> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "berth-testkit");
        let key = KeyPair::generate().context("make the key of the test authority")?;
        let issuer = CertifiedIssuer::self_signed(params, key)
            .context("make the certificate of the test authority")?;
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let authority = Authority {
            issuer,
            dir: dir.to_owned(),
        };
        secret(&authority.file(), &authority.pem())?;
        Ok(authority)
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub fn file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// A certificate for a server at these names and addresses; its client use is allowed too.
    pub fn server(&self, name: &str, hosts: &[&str]) -> Result<Identity> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        self.sign(name, name, None, hosts)
    }

    /// A certificate that Kubernetes maps to this user and group.
    pub fn client(&self, file: &str, user: &str, group: Option<&str>) -> Result<Identity> {
        self.sign(file, user, group, Vec::new())
    }

    fn sign(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
        hosts: Vec<String>,
    ) -> Result<Identity> {
        let mut params = CertificateParams::new(hosts)
            .with_context(|| format!("names of the certificate {file}"))?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().with_context(|| format!("make the key of {file}"))?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("sign the certificate {file}"))?;
        let identity = Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            certificate_file: self.dir.join(format!("{file}.crt")),
            key_file: self.dir.join(format!("{file}.key")),
        };
        secret(&identity.certificate_file, &identity.certificate)?;
        secret(&identity.key_file, &identity.key)?;
        Ok(identity)
    }

    /// The pair that signs service-account tokens: files of the private and the public key.
    pub fn token_keys(&self) -> Result<(PathBuf, PathBuf)> {
        let key = KeyPair::generate().context("make the key of service-account tokens")?;
        let (private, public) = (self.dir.join("token.key"), self.dir.join("token.pub"));
        secret(&private, &key.serialize_pem())?;
        secret(&public, &key.public_key_pem())?;
        Ok((private, public))
    }
}

/// Writes a file that only its owner can read.
pub(crate) fn secret(path: &Path, content: &str) -> Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("write {}", path.display()))
}
