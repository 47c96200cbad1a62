//! Durations as people write them: `30`, `30s`, `1m30s`, `500ms`. A bare number is seconds.

use std::time::Duration;

use jiff::SignedDuration;

/// `Err` describes what is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let wrong = || format!("{text:?} is no duration; write 30s, 1m30s or 500ms");
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    // Go's form of a duration: jiff's friendly format is wider.
    let plain = |c: char| c.is_ascii_digit() || "hms".contains(c);
    if !text.chars().all(plain) {
        return Err(wrong());
    }
    let parsed: SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(parsed).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_durations_in_many_ways() {
        for (text, millis) in [
            ("30", 30_000),
            ("30s", 30_000),
            (" 5m ", 300_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1h1ms", 3_600_001),
            ("0", 0),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text:?}"
            );
        }
        for text in [
            "",
            "s",
            "30 s",
            "1.5s",
            "-1",
            "5x",
            "30s30",
            "99999999999999999999",
            "ümlaut",
        ] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains("is no duration"), "{text:?}: {error}");
        }
    }
}
