//! Logs go to stderr: stdout is for answers. An event is one line: untrusted text (names, paths, messages of an API
//! server) can't add lines or terminal sequences.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Starts logging at `level`, unless `BERTH_LOG` is set.
pub fn start(level: &str, format: LogFormat) {
    let filter = EnvFilter::try_from_env("BERTH_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    // Colours are escape sequences: tracing-subscriber escapes those within values.
    let colours = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours);
    // Only a test starts it twice in one process; the first one stays.
    let _ = match format {
        LogFormat::Text => {
            let writer = move || Escaped {
                inner: io::stderr(),
                colours,
            };
            builder.with_writer(writer).try_init()
        }
        LogFormat::Json => builder.json().with_writer(io::stderr).try_init(),
    };
}

/// Writes one event at a time and escapes control characters, except the newline at its end.
struct Escaped<W> {
    inner: W,
    colours: bool,
}

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (line, end) = match text.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (text.as_ref(), ""),
        };
        let mut escaped = String::with_capacity(line.len() + 1);
        for character in line.chars() {
            match character {
                '\u{1b}' if self.colours => escaped.push(character),
                '\t' => escaped.push(character),
                _ if character.is_control() => escaped.extend(character.escape_default()),
                _ => escaped.push(character),
            }
        }
        escaped.push_str(end);
        self.inner.write_all(escaped.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(event: &str, colours: bool) -> String {
        let mut writer = Escaped {
            inner: Vec::new(),
            colours,
        };
        writer.write_all(event.as_bytes()).unwrap();
        String::from_utf8(writer.inner).unwrap()
    }

    #[test]
    fn an_event_is_one_line_with_any_text() {
        let event = "WARN range: `x\nERROR all is lost\r\u{1b}[2J\u{9b}1m` is ignored\n";
        let plain = written(event, false);
        assert_eq!(
            plain,
            "WARN range: `x\\nERROR all is lost\\r\\u{1b}[2J\\u{9b}1m` is ignored\n"
        );
        assert!(written(event, true).contains("x\\nERROR"));
        assert_eq!(written("plain é\n", false), "plain é\n");
    }
}
