//! The SFTP side of the test VM: a directory that nothing leads out of.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use russh_sftp::protocol::{
    Attrs, FileAttributes, Handle, Name, OpenFlags, Packet, Status, StatusCode, Version,
};

use super::{Switches, is_reboot_file};

const POSIX_RENAME: &str = "posix-rename@openssh.com";

pub struct Served {
    root: PathBuf,
    switches: Arc<Switches>,
    open: HashMap<String, (PathBuf, File)>,
    uploaded: usize,
}

impl Served {
    pub fn new(root: &Path, switches: Arc<Switches>) -> Self {
        Self {
            root: root.to_path_buf(),
            switches,
            open: HashMap::new(),
            uploaded: 0,
        }
    }

    fn inside(&self, path: &str) -> Result<PathBuf, StatusCode> {
        let mut inside = self.root.clone();
        for part in Path::new(path).components() {
            match part {
                Component::Normal(name) => inside.push(name),
                Component::RootDir | Component::CurDir => {}
                _ => return Err(StatusCode::PermissionDenied),
            }
        }
        Ok(inside)
    }
}

fn ok(id: u32) -> Status {
    Status {
        id,
        status_code: StatusCode::Ok,
        error_message: "Ok".into(),
        language_tag: "en".into(),
    }
}

fn code(error: std::io::Error) -> StatusCode {
    match error.kind() {
        std::io::ErrorKind::NotFound => StatusCode::NoSuchFile,
        std::io::ErrorKind::PermissionDenied => StatusCode::PermissionDenied,
        _ => StatusCode::Failure,
    }
}

/// The strings of an extension's request, each behind its length.
fn strings(mut data: &[u8]) -> Vec<String> {
    let mut out = Vec::new();
    while let Some((len, rest)) = data.split_first_chunk::<4>() {
        let len = u32::from_be_bytes(*len) as usize;
        out.push(String::from_utf8(rest[..len].to_vec()).unwrap());
        data = &rest[len..];
    }
    out
}

impl russh_sftp::server::Handler for Served {
    type Error = StatusCode;

    fn unimplemented(&self) -> StatusCode {
        StatusCode::OpUnsupported
    }

    async fn init(&mut self, _: u32, _: HashMap<String, String>) -> Result<Version, StatusCode> {
        let mut version = Version::new();
        if !self.switches.no_posix_rename.load(Ordering::SeqCst) {
            version.extensions.insert(POSIX_RENAME.into(), "1".into());
        }
        Ok(version)
    }

    async fn open(
        &mut self,
        id: u32,
        filename: String,
        flags: OpenFlags,
        _: FileAttributes,
    ) -> Result<Handle, StatusCode> {
        let path = self.inside(&filename)?;
        let file = File::options()
            .read(flags.contains(OpenFlags::READ))
            .write(flags.contains(OpenFlags::WRITE))
            .create(flags.contains(OpenFlags::CREATE))
            .truncate(flags.contains(OpenFlags::TRUNCATE))
            .open(&path)
            .map_err(code)?;
        let handle = format!("h{}", self.open.len());
        self.open.insert(handle.clone(), (path, file));
        Ok(Handle { id, handle })
    }

    async fn write(
        &mut self,
        id: u32,
        handle: String,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<Status, StatusCode> {
        let cut = self.switches.cut_upload_at.load(Ordering::SeqCst);
        self.uploaded += data.len();
        if cut > 0 && self.uploaded > cut {
            // Power cut: the loop drops this connection with the listener.
            self.switches.reboot.notify_one();
            std::future::pending::<()>().await;
        }
        let (_, file) = self.open.get_mut(&handle).ok_or(StatusCode::Failure)?;
        file.seek(SeekFrom::Start(offset)).map_err(code)?;
        file.write_all(&data).map_err(code)?;
        Ok(ok(id))
    }

    async fn close(&mut self, id: u32, handle: String) -> Result<Status, StatusCode> {
        let (path, _) = self.open.remove(&handle).ok_or(StatusCode::Failure)?;
        if is_reboot_file(&path) {
            self.switches.reboot.notify_one();
        }
        Ok(ok(id))
    }

    async fn rename(&mut self, id: u32, from: String, to: String) -> Result<Status, StatusCode> {
        let (from, to) = (self.inside(&from)?, self.inside(&to)?);
        if to.exists() {
            return Err(StatusCode::Failure);
        }
        std::fs::rename(from, to).map_err(code)?;
        Ok(ok(id))
    }

    async fn remove(&mut self, id: u32, filename: String) -> Result<Status, StatusCode> {
        std::fs::remove_file(self.inside(&filename)?).map_err(code)?;
        Ok(ok(id))
    }

    async fn stat(&mut self, id: u32, path: String) -> Result<Attrs, StatusCode> {
        let found = std::fs::metadata(self.inside(&path)?).map_err(code)?;
        let attrs = FileAttributes::from(&found);
        Ok(Attrs { id, attrs })
    }

    async fn realpath(&mut self, id: u32, _: String) -> Result<Name, StatusCode> {
        Ok(Name {
            id,
            files: vec![russh_sftp::protocol::File::dummy("/")],
        })
    }

    async fn extended(
        &mut self,
        id: u32,
        request: String,
        data: Vec<u8>,
    ) -> Result<Packet, StatusCode> {
        match (request.as_str(), strings(&data).as_slice()) {
            (POSIX_RENAME, [from, to]) => {
                std::fs::rename(self.inside(from)?, self.inside(to)?).map_err(code)?;
                Ok(Packet::Status(ok(id)))
            }
            _ => Err(StatusCode::OpUnsupported),
        }
    }
}
