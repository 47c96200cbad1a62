//! Passes a call to another IPAM plugin of this machine: the process becomes that plugin.
//!
//! The plugin is searched in `CNI_PATH`, as a runtime would, and next to the running program. It must run where the
//! runtime started us, with the host's files and the call's environment, so an agent in a container only names it.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{CniError, Code};
use crate::ids::shown;
use crate::wire::Delegate;

/// Becomes the plugin. Returns only if that fails, with the reason.
pub fn exec(delegate: &Delegate, cni_path: &str) -> CniError {
    let name = &delegate.plugin;
    // The name comes from the agent: it must not leave the plugins' directories.
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        let message = format!("{} is not the name of an IPAM plugin", shown(name));
        return CniError::new(Code::Config, message);
    }
    let Some(path) = find(name, cni_path) else {
        let message = format!(
            "the IPAM plugin {name}, which serves this pod, is not in CNI_PATH ({cni_path})"
        );
        return CniError::new(Code::Config, message).details(format!(
            "install {name} where it was before gcp-ipam took its place"
        ));
    };
    let error = match stdin(&delegate.stdin) {
        Ok(stdin) => Command::new(&path).stdin(stdin).exec(),
        Err(error) => error,
    };
    CniError::new(
        Code::Io,
        format!("{} cannot be run: {error}", path.display()),
    )
}

/// A file in memory to be read as stdin: no process is left to feed a pipe.
pub fn stdin(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("stdin", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

fn find(name: &str, cni_path: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    let named = std::env::split_paths(cni_path).filter(|dir| dir.is_absolute());
    let mut places = named.chain(beside).map(|dir| dir.join(name));
    places.find(|path| {
        fs::metadata(path)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_never_leads_out_of_the_plugins_directories() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host-local");
        fs::write(&path, "").unwrap();
        let places = dir.path().display().to_string();
        assert_eq!(find("host-local", &places), None, "it can't be executed");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find("host-local", &places), Some(path));
        for name in ["", "../host-local", "..", "a/b"] {
            let delegate = Delegate {
                plugin: name.to_owned(),
                stdin: String::new(),
            };
            assert_eq!(exec(&delegate, &places).code, Code::Config, "{name}");
        }
        let absent = Delegate {
            plugin: "no-such-plugin".to_owned(),
            stdin: String::new(),
        };
        let error = exec(&absent, &places);
        assert!(error.msg.contains("no-such-plugin") && error.msg.contains(&places));
    }
}
