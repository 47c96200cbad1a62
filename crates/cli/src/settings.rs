//! `berth settings`: docs/settings.md, from the same tables that the programs read.
//!
//! Hidden: `cargo xtask settings` writes the page with it, and a test compares the two.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Write as _;

use berth_pods::config::keys::{self, Key};
use clap::{Arg, ArgAction, Command};

const HEAD: &str = "\
# Settings

Generated from the code by `cargo xtask settings`; do not edit.

A flag wins over its environment variable. `berth COMMAND --help` prints the same. [Network
configuration](#network-configuration) lists the keys of a network's `ipam` object.
";

const NETWORK: &str = "
## Network configuration

Keys of the `ipam` object of a network, inline or in the node's flat file. Inline values win. Keys match in any case;
unknown keys are ignored, and the controller raises an event on the definition.
";

pub fn print(program: Command) -> anyhow::Result<()> {
    Ok(std::io::stdout().write_all(page(program).as_bytes())?)
}

/// The page, for the program with these commands.
fn page(mut program: Command) -> String {
    program.build();
    let mut page = HEAD.to_owned();
    section(&mut page, "Flags of every command", &program);
    commands(&mut page, "berth", &program);
    page.push_str(NETWORK);
    table(&mut page, "Keys of whereabouts", keys::WHEREABOUTS);
    table(&mut page, "Keys of Berth", keys::BERTH);
    table(&mut page, "Keys of each item of ipRanges", keys::RANGE);
    table(&mut page, "Keys of each item of addresses", keys::ADDRESS);
    page
}

fn commands(page: &mut String, name: &str, command: &Command) {
    for sub in command.get_subcommands() {
        if sub.is_hide_set() || sub.get_name() == "help" {
            continue;
        }
        let name = format!("{name} {}", sub.get_name());
        section(page, &name, sub);
        commands(page, &name, sub);
    }
}

/// One command: its flags by heading, those without one first.
fn section(page: &mut String, title: &str, command: &Command) {
    let is_of_all = title == "Flags of every command";
    let mut tables: Vec<(Option<&str>, Vec<&Arg>)> = vec![(None, Vec::new())];
    for arg in command.get_arguments() {
        let is_shown = !arg.is_hide_set()
            && arg.is_global_set() == is_of_all
            && !matches!(arg.get_id().as_str(), "help" | "version");
        if !is_shown {
            continue;
        }
        let heading = arg.get_help_heading();
        match tables.iter_mut().find(|(known, _)| *known == heading) {
            Some((_, args)) => args.push(arg),
            None => tables.push((heading, vec![arg])),
        }
    }
    tables.retain(|(_, args)| !args.is_empty());
    if tables.is_empty() {
        return;
    }
    let _ = writeln!(page, "\n## {title}");
    if let Some(about) = command.get_about().filter(|_| !is_of_all) {
        let _ = writeln!(page, "\n{}", wrapped(&sentence(&about.to_string())));
    }
    for (heading, args) in tables {
        if let Some(heading) = heading {
            let _ = writeln!(page, "\n### {heading}");
        }
        let _ = writeln!(
            page,
            "\n| flag | environment | default | meaning |\n|---|---|---|---|"
        );
        for arg in args {
            let _ = writeln!(page, "{}", Row::of(arg));
        }
    }
}

/// A flag's row.
struct Row {
    flag: String,
    env: String,
    default: String,
    meaning: String,
}

impl Row {
    fn of(arg: &Arg) -> Self {
        let value = arg.get_value_names().and_then(<[_]>::first);
        let takes = !matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse);
        let flag = match (arg.get_long(), value) {
            (Some(long), Some(value)) if takes => format!("`--{long} {value}`"),
            (Some(long), _) => format!("`--{long}`"),
            (None, _) => format!("`{}`", arg.get_id().as_str().to_uppercase()),
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let (help, noted) = notes(&help.replace('\n', " "));
        let mut meaning = sentence(&help);
        let values = arg.get_possible_values();
        let values: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        if takes && !values.is_empty() && arg.get_long().is_some() {
            let _ = write!(meaning, " One of: {}.", values.join(", "));
        }
        let defaults = arg.get_default_values().iter();
        let defaults: Vec<String> = defaults
            .filter(|_| takes)
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .collect();
        let env = arg
            .get_env()
            .map(|name| name.to_string_lossy().into_owned());
        let quoted = |name: &String| match name.contains([' ', ',']) {
            true => name.clone(),
            false => format!("`{name}`"),
        };
        Row {
            flag,
            env: env
                .or(noted.get("env").cloned())
                .iter()
                .map(quoted)
                .collect(),
            default: match defaults.is_empty() {
                true => noted.get("default").map(quoted).unwrap_or_default(),
                false => defaults.join(", "),
            },
            meaning,
        }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cells = [&self.flag, &self.env, &self.default, &self.meaning];
        f.write_str("|")?;
        for cell in cells {
            write!(f, " {} |", cell.replace('|', "\\|"))?;
        }
        Ok(())
    }
}

/// `[env: X]` and `[default: Y]` in a help text, and the text without them: what clap can't say itself.
fn notes(help: &str) -> (String, BTreeMap<&'static str, String>) {
    let mut text = help.to_owned();
    let mut found = BTreeMap::new();
    for name in ["env", "default"] {
        let begin = format!(" [{name}: ");
        let Some(at) = text.find(&begin) else {
            continue;
        };
        let Some(end) = text[at..].find(']') else {
            continue;
        };
        found.insert(name, text[at + begin.len()..at + end].to_owned());
        text.replace_range(at..=at + end, "");
    }
    (text, found)
}

fn sentence(text: &str) -> String {
    let text = text.trim();
    match text.ends_with(['.', '?', ':']) || text.is_empty() {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

/// Lines as short as those of all documents.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let wide = word.chars().count();
        if length > 0 && length + 1 + wide > 120 {
            lines.push('\n');
            length = 0;
        } else if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(word);
        length += wide;
    }
    lines
}

fn table(page: &mut String, title: &str, keys: &[Key]) {
    let _ = writeln!(
        page,
        "\n### {title}\n\n| key | default | meaning |\n|---|---|---|"
    );
    for key in keys {
        let _ = writeln!(page, "| `{}` | {} | {} |", key.name, key.default, key.help);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_taken_out_of_the_help() {
        let (text, notes) = notes("The file [env: FILE] [default: none, yet]. More");
        assert_eq!(text, "The file. More");
        assert_eq!(notes["env"], "FILE");
        assert_eq!(notes["default"], "none, yet");
    }

    #[test]
    fn a_paragraph_has_short_lines() {
        let text = "word ".repeat(100);
        assert!(wrapped(&text).lines().all(|line| line.len() <= 120));
        assert_eq!(wrapped(&text).split_whitespace().count(), 100);
    }
}
