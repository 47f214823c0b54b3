//! `lamina check`: is the file right, and which hierarchy does it describe? Opens no device, unless asked to look at
//! [metadata](crate::offline).

use crate::cli;
use crate::exit::Failure;
use crate::files;
use lamina_graph::Plan;
use std::io::Write;

/// Runs `lamina check`. Files that one daemon could not serve together are refused as well.
pub fn run(args: &cli::Check) -> Result<(), Failure> {
    if args.metadata {
        return crate::offline::run_check(&args.files);
    }
    let plans = files::load(&args.files)?;
    plans.iter().try_for_each(tls_files)?;
    plans.iter().try_for_each(|plan| crate::daemon::check_groups(plan).map_err(Failure::File))?;
    let mut out = std::io::stdout().lock();
    for plan in &plans {
        if plans.len() > 1 {
            writeln!(out, "{}", plan.file())?;
        }
        out.write_all(plan.tree().as_bytes())?;
    }
    crate::daemon::check_together(&plans)
}

/// A listener cannot begin without the files of its TLS.
fn tls_files(plan: &Plan) -> Result<(), Failure> {
    for export in plan.exports() {
        let Some(tls) = &export.tls else { continue };
        let client_ca = tls.client_ca.as_ref().map(|path| ("client-ca", path));
        for (key, path) in [("certificate", &tls.certificate), ("key", &tls.key)].into_iter().chain(client_ca)
        {
            if let Err(e) = std::fs::File::open(path) {
                let (file, name, path) = (plan.file(), &export.name, path.display());
                return Err(Failure::usage(format!(
                    "{file}: export {name:?}: key \"tls.{key}\": {path}: {e}"
                )));
            }
        }
    }
    Ok(())
}
