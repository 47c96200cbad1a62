//! The host keys that VMs may show. Guarantees that a key is accepted by fingerprint only, that an unreadable list
//! accepts nothing, and that no list accepts nothing unless the settings allow any key. Does not bind a key to one
//! VM: images of a pool share keys.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use russh::keys::ssh_key::{Fingerprint, authorized_keys::AuthorizedKeys};
use russh::keys::{Algorithm, HashAlg, PublicKey};

use super::VmError;

/// More keys than this in one list are a wrong mount, not a pool.
pub const MAX_KEYS: usize = 100;
/// A public key file is well under a kilobyte; the limit keeps a wrong mount from being read.
pub const MAX_FILE_BYTES: u64 = 16 * 1024;

/// How to judge the key that a VM shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostKeyRule {
    /// Only keys of the `*.pub` files in this directory. It is read at each connection, so that
    /// a rotated key needs no restart.
    AllowList(PathBuf),
    /// Any key is accepted. Only where the network itself is trusted, and only if the settings say so.
    AcceptAny,
    /// Neither was set: no VM is contacted.
    Unset,
}

/// The keys of one directory, as they were when it was read.
#[derive(Debug, Clone, Default)]
pub struct AllowList {
    fingerprints: BTreeSet<String>,
    algorithms: Vec<Algorithm>,
}

impl AllowList {
    /// Reads every `*.pub` file of `dir`. One bad file makes the list unusable: a missing key would show much later,
    /// as a VM that can't be used.
    pub fn read(dir: &Path) -> Result<Self, VmError> {
        let refuse = |path: &Path, reason: String| VmError::AllowList {
            path: path.to_path_buf(),
            reason,
        };
        let mut files = Vec::new();
        let entries = std::fs::read_dir(dir).map_err(|e| refuse(dir, e.to_string()))?;
        for entry in entries {
            let path = entry.map_err(|e| refuse(dir, e.to_string()))?.path();
            if path.extension().is_some_and(|ext| ext == "pub") {
                files.push(path);
            }
        }
        files.sort();
        let mut list = Self::default();
        for path in files {
            // Follows links: a mounted Secret or ConfigMap is a directory of them.
            let size = std::fs::metadata(&path)
                .map_err(|e| refuse(&path, e.to_string()))?
                .len();
            if size > MAX_FILE_BYTES {
                return Err(refuse(
                    &path,
                    format!("{size} bytes, at most {MAX_FILE_BYTES} are read"),
                ));
            }
            let text = std::fs::read_to_string(&path).map_err(|e| refuse(&path, e.to_string()))?;
            for entry in AuthorizedKeys::new(&text) {
                let entry = entry
                    .map_err(|e| refuse(&path, format!("not in authorized_keys format: {e}")))?;
                list.add(entry.public_key());
                if list.len() > MAX_KEYS {
                    return Err(refuse(dir, format!("more than {MAX_KEYS} keys")));
                }
            }
        }
        if list.is_empty() {
            return Err(refuse(dir, "no *.pub file with a key in it".into()));
        }
        Ok(list)
    }

    fn add(&mut self, key: &PublicKey) {
        self.fingerprints.insert(fingerprint(key));
        if !self.algorithms.contains(&key.algorithm()) {
            self.algorithms.push(key.algorithm());
        }
    }

    /// The number of different keys.
    pub fn len(&self) -> usize {
        self.fingerprints.len()
    }

    pub fn is_empty(&self) -> bool {
        self.fingerprints.is_empty()
    }

    /// Whether a VM may show this key.
    pub fn allows(&self, key: &PublicKey) -> bool {
        self.fingerprints.contains(&fingerprint(key))
    }

    /// The order in which to ask for key algorithms: a server shows one key only, so the ones
    /// that can be on the list come first.
    pub(super) fn prefer(&self, defaults: &[Algorithm]) -> Vec<Algorithm> {
        let known = |a: &Algorithm| self.algorithms.iter().any(|k| same_key_type(k, a));
        let (first, rest): (Vec<_>, Vec<_>) = defaults.iter().cloned().partition(known);
        first.into_iter().chain(rest).collect()
    }
}

/// RSA keys are one type, whichever hash signs with them.
fn same_key_type(a: &Algorithm, b: &Algorithm) -> bool {
    match (a, b) {
        (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }) => true,
        _ => a == b,
    }
}

/// `SHA256:...`, as `ssh-keygen -l` prints it.
pub(super) fn fingerprint(key: &PublicKey) -> String {
    let print: Fingerprint = key.fingerprint(HashAlg::Sha256);
    print.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::keys::PrivateKey;

    fn mk_key() -> PublicKey {
        PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519)
            .unwrap()
            .public_key()
            .clone()
    }

    fn line(key: &PublicKey) -> String {
        format!("{}\n", key.to_openssh().unwrap())
    }

    #[test]
    fn a_key_is_allowed_by_fingerprint_with_any_comment() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, other) = (mk_key(), mk_key());
        let text = format!("# the image of May\n\n{} vm@image", line(&mine).trim());
        std::fs::write(dir.path().join("image.pub"), text).unwrap();
        std::fs::write(dir.path().join("notes.txt"), line(&other)).unwrap();
        let list = AllowList::read(dir.path()).unwrap();
        assert_eq!(list.len(), 1);
        assert!(list.allows(&mine));
        assert!(!list.allows(&other), "only *.pub files count");
    }

    #[test]
    fn what_cannot_be_read_accepts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |what: &str| {
            let error = AllowList::read(dir.path()).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        refused("no *.pub file");
        std::fs::write(dir.path().join("a.pub"), "ssh-ed25519 nonsense\n").unwrap();
        refused("a.pub\": not in authorized_keys format");
        std::fs::write(
            dir.path().join("a.pub"),
            "#".repeat(MAX_FILE_BYTES as usize + 1),
        )
        .unwrap();
        refused("16385 bytes, at most 16384");
        let error = AllowList::read(&dir.path().join("absent")).unwrap_err();
        assert!(error.to_string().contains("absent"), "{error}");
    }

    #[test]
    fn at_most_a_hundred_keys() {
        let dir = tempfile::tempdir().unwrap();
        let keys: Vec<_> = (0..=MAX_KEYS).map(|_| mk_key()).collect();
        for (i, key) in keys.iter().take(MAX_KEYS).enumerate() {
            std::fs::write(dir.path().join(format!("{i}.pub")), line(key)).unwrap();
        }
        assert_eq!(AllowList::read(dir.path()).unwrap().len(), MAX_KEYS);
        std::fs::write(dir.path().join("last.pub"), line(&keys[MAX_KEYS])).unwrap();
        let error = AllowList::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("more than 100 keys"), "{error}");
    }

    #[test]
    fn the_server_is_asked_for_a_key_that_can_be_on_the_list() {
        let mut list = AllowList::default();
        list.add(&mk_key());
        let rsa = |hash| Algorithm::Rsa { hash };
        let order = list.prefer(&[
            rsa(Some(HashAlg::Sha512)),
            Algorithm::Ed25519,
            rsa(Some(HashAlg::Sha256)),
        ]);
        assert_eq!(order[0], Algorithm::Ed25519);
        assert_eq!(
            order.len(),
            3,
            "the others stay, for a clear refusal by fingerprint"
        );
    }
}
