//! Answers as tables for people and JSON for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Json,
}

/// Something with a heading per column and a text per cell.
pub trait Row: Serialize {
    const COLUMNS: &'static [&'static str];

    fn cells(&self) -> Vec<String>;
}

/// Prints rows; an empty table says so, an empty JSON list is `[]`.
pub fn print<R: Row>(format: Format, rows: &[R]) -> anyhow::Result<()> {
    let text = match format {
        Format::Json => serde_json::to_string_pretty(rows)?,
        Format::Table if rows.is_empty() => "none".to_owned(),
        Format::Table => table(rows),
    };
    print_line(&text)
}

pub fn table<R: Row>(rows: &[R]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(R::COLUMNS.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row.cells());
    }
    let text = table.to_string();
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.trim_end().trim_start_matches(' '))
        .collect();
    lines.join("\n")
}

/// Prints for a person what the answer does not contain; programs read stdout.
#[allow(clippy::print_stderr)]
pub fn note(text: &str) {
    eprintln!("berth: {text}");
}

/// Writes a line to stdout. A reader that stops reading (`| head`) is not a failure.
pub fn print_line(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
