//! Completion scripts and manual pages, made from the command line's own description.

use crate::cli::{Cli, Completions, Man};
use crate::complete;
use crate::exit::Failure;
use clap::CommandFactory;
use std::io::Write;

/// `lamina completions`: prints the script of a shell.
pub fn completions(args: &Completions) -> Result<(), Failure> {
    Ok(std::io::stdout().write_all(&complete::script(args.shell)?)?)
}

/// `lamina man`: writes one page for the program and one for each command.
pub fn man(args: &Man) -> Result<(), Failure> {
    let wrong = |e| Failure::failed(format!("cannot write manual pages to {}: {e}", args.folder.display()));
    std::fs::create_dir_all(&args.folder).map_err(wrong)?;
    clap_mangen::generate_to(Cli::command(), &args.folder).map_err(wrong)
}
