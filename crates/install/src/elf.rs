//! Does an executable need a dynamic linker? One that does runs on the host only if the host has the same C library
//! as the image it came from.

use std::fs::File;
use std::io::Read;
use std::path::Path;

const PT_INTERP: u32 = 3;
/// Program headers follow the file header; this much has them all.
const HEAD: u64 = 64 * 1024;

/// Whether the file asks for a dynamic linker; none if it is no ELF file of this kind of machine.
pub(crate) fn needs_linker(path: &Path) -> Option<bool> {
    let mut head = Vec::new();
    File::open(path)
        .ok()?
        .take(HEAD)
        .read_to_end(&mut head)
        .ok()?;
    parse(&head)
}

fn parse(head: &[u8]) -> Option<bool> {
    // 64 bits, little-endian: what Berth is built for.
    if head.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = head.get(at..at.checked_add(size)?)?;
        let value = bytes
            .iter()
            .rev()
            .fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        usize::try_from(value).ok()
    };
    let (offset, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let header = offset.checked_add(index.checked_mul(size)?)?;
        if number(header, 4)? == PT_INTERP as usize {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_linked_dynamically_and_busybox_is_not() {
        let own = std::env::current_exe().unwrap();
        let expected = cfg!(target_env = "gnu");
        assert_eq!(needs_linker(&own), Some(expected));
        assert_eq!(needs_linker(Path::new("/bin/busybox")), Some(false));
    }

    #[test]
    fn what_is_no_program_is_not_judged() {
        assert_eq!(needs_linker(Path::new("/etc/passwd")), None);
        assert_eq!(parse(b"\x7fELF\x02\x01"), None);
    }
}
