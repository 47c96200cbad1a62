//! The `berth` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_cli::main(std::env::args_os(), berth_cli::KINDS)
}
