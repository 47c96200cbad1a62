//! `{{ path }}` in a text: what it names, and the text with it replaced.

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    /// What stands between the braces, without blanks around it.
    Template(&'a str),
}

/// Takes a text apart. Braces that do not close are text.
pub(super) fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut left = text;
    while let Some((before, rest)) = left.split_once("{{") {
        let Some((inside, after)) = rest.split_once("}}") else {
            break;
        };
        if !before.is_empty() {
            parts.push(Part::Text(before));
        }
        parts.push(Part::Template(inside.trim()));
        left = after;
    }
    if !left.is_empty() {
        parts.push(Part::Text(left));
    }
    parts
}

/// The capture and the path under it that a template names.
pub(super) fn capture_path(template: &str) -> Option<(&str, &str)> {
    let rest = template.strip_prefix("capture.")?;
    Some(rest.split_once('.').unwrap_or((rest, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_taken_apart() {
        use Part::{Template, Text};
        for (text, expected) in [
            ("plain", vec![Text("plain")]),
            ("{{ capture.a.ip }}", vec![Template("capture.a.ip")]),
            (
                "{{capture.a.ip}}/{{ b }}",
                vec![Template("capture.a.ip"), Text("/"), Template("b")],
            ),
            ("br-{{ x }}-1", vec![Text("br-"), Template("x"), Text("-1")]),
            ("{{ open", vec![Text("{{ open")]),
            ("", vec![]),
        ] {
            assert_eq!(parts(text), expected, "{text}");
        }
        assert_eq!(capture_path("capture.a.dns.0"), Some(("a", "dns.0")));
        assert_eq!(capture_path("capture.a"), Some(("a", "")));
        assert_eq!(capture_path("interfaces.a"), None);
    }
}
