//! A measured value and its target; progress while it is measured.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

/// What a value has to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Shown for comparison; it has no target.
    None,
}

#[derive(Clone, Debug)]
pub struct Figure {
    pub what: String,
    pub value: f64,
    pub unit: &'static str,
    pub target: Target,
}

impl Figure {
    pub fn new(what: impl Into<String>, value: f64, unit: &'static str, target: Target) -> Self {
        Self {
            what: what.into(),
            value,
            unit,
            target,
        }
    }

    pub fn holds(&self) -> bool {
        match self.target {
            Target::AtLeast(least) => self.value >= least,
            Target::AtMost(most) => self.value <= most,
            Target::None => true,
        }
    }
}

pub fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["figure", "measured", "target", ""]);
    for figure in figures {
        let (target, verdict) = match figure.target {
            Target::AtLeast(least) => (format!(">= {}", number(least)), verdict(figure)),
            Target::AtMost(most) => (format!("<= {}", number(most)), verdict(figure)),
            Target::None => (String::new(), ""),
        };
        let measured = format!("{} {}", number(figure.value), figure.unit);
        table.add_row([&figure.what, &measured, &target, verdict]);
    }
    table
}

fn verdict(figure: &Figure) -> &'static str {
    if figure.holds() { "pass" } else { "FAIL" }
}

fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A progress bar to `total` on a terminal; elsewhere a line when it starts.
pub fn progress(what: &str, total: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        let _ = writeln!(std::io::stderr(), "{what} ...");
    }
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{msg:40} {bar:30} {pos}/{len}  {per_sec}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
