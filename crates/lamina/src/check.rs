//! `lamina check`: is the file right, and what does it describe? Opens no device, unless asked to look at
//! [metadata](crate::offline).

use crate::cli;
use crate::exit::Failure;
use crate::files;
use std::io::Write;

/// Runs `lamina check`. What one daemon could not serve together is refused as well.
pub fn run(args: &cli::Check) -> Result<(), Failure> {
    if args.metadata {
        return crate::offline::run_check(&args.files);
    }
    let plans = files::load(&args.files)?;
    let mut out = std::io::stdout().lock();
    for plan in &plans {
        if plans.len() > 1 {
            writeln!(out, "{}", plan.file())?;
        }
        out.write_all(plan.tree().as_bytes())?;
    }
    crate::daemon::check_together(&plans)
}
