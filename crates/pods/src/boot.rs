//! Which boot a machine is in: no container outlives it.

use std::fs;

/// The kernel's name for the present boot; empty where it has none, and then nothing is ever taken for rebooted.
pub fn current() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_boot_has_one_name() {
        let boot = super::current();
        assert!(!boot.is_empty());
        assert_eq!(boot, super::current());
    }
}
