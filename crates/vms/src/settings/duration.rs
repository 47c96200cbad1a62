//! Durations as people write them: `30`, `30s`, `1m30s`, `500ms`. A bare number is seconds.

use std::time::Duration;

/// `Err` says what is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let wrong = || format!("{text:?} is no duration; write 30s, 1m30s or 500ms");
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.len()
            - tail
                .trim_start_matches(|c: char| c.is_ascii_alphabetic())
                .len();
        let (unit, next) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let millis = match unit {
            "ms" => Some(number),
            "s" => number.checked_mul(1_000),
            "m" => number.checked_mul(60_000),
            "h" => number.checked_mul(3_600_000),
            _ => None,
        };
        let part = Duration::from_millis(millis.ok_or_else(wrong)?);
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = next;
    }
    Ok(total)
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
