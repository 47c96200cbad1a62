//! Names as the values of labels, by which objects are found.

/// A label takes 63 characters: a longer name is shortened, and a hash keeps it distinct.
pub(super) fn label(name: &str) -> String {
    if name.len() <= 63 {
        return name.to_owned();
    }
    // FNV-1a: the same for everyone, for ever.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let head: String = name.chars().take(46).collect();
    format!("{head}.{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_short_enough_and_tells_long_names_apart() {
        assert_eq!(label("blue-10.0.0.0-16"), "blue-10.0.0.0-16");
        let long = |end: &str| label(&format!("{}{end}", "n".repeat(100)));
        assert!(long("-10.0.0.0-16").len() <= 63);
        assert_ne!(long("-10.0.0.0-16"), long("-10.1.0.0-16"));
    }
}
