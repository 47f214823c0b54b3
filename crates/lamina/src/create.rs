//! `lamina create`: makes the members of a persistent hierarchy.
//!
//! What is going to happen is shown first. A device that carries a known signature is refused: only `--force` overwrites
//! it. What is in use is refused in any case, because the devices are opened as they are for serving.

use crate::cli;
use crate::exit::Failure;
use crate::files;
use crate::inspect;
use crate::look::Device;
use lamina_block::{Bytes, Env};
use lamina_graph::{MemberPlan, Plan};
use lamina_host::{Options, Reactor};
use lamina_metadata::superblock::Layout;
use std::fmt::Write as _;
use std::io::Write;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs `lamina create`.
pub fn run(args: &cli::Create) -> Result<(), Failure> {
    let plan = files::load(std::slice::from_ref(&args.file))?.remove(0);
    let Some(persistent) = plan.persistent() else {
        return Err(Failure::usage(format!(
            "{}: there is no [hierarchy] with a name: only a persistent hierarchy has members to create",
            plan.file()
        )));
    };
    let name = persistent.name.clone();
    let looked = plan.members().into_iter().map(Looked::at).collect::<Result<Vec<_>, _>>()?;
    let mut out = std::io::stdout().lock();
    out.write_all(shown(&name, &looked).as_bytes())?;
    out.flush()?;
    if !args.force {
        refuse_what_is_there(&looked)?;
    }
    let made = create(&plan)?;
    writeln!(out, "created hierarchy {name:?}, {}", made)?;
    Ok(())
}

/// Writes the superblocks; the UUID of the new hierarchy.
fn create(plan: &Plan) -> Result<String, Failure> {
    let reactor = Reactor::new(Options::default())
        .map_err(|e| Failure::failed(format!("the reactor cannot start: {e}")))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let env: Rc<dyn Env> = reactor.env();
    let made = reactor.run(plan.create(env, now)).map_err(|report| Failure::File(files::shown(&report)))?;
    Ok(made.first().map(|superblock| superblock.hierarchy.to_string()).unwrap_or_default())
}

/// A device that is to become a member, and what is on it now.
struct Looked {
    member: MemberPlan,
    /// Its size; none if it has to be made.
    size: Option<u64>,
    signatures: Vec<inspect::Found>,
}

impl Looked {
    fn at(member: MemberPlan) -> Result<Looked, Failure> {
        let path = member.path.display();
        let failed = |e: std::io::Error| Failure::failed(format!("{path}: {e}"));
        match Device::open(&member.path) {
            Ok(Some(device)) => {
                let signatures = inspect::scan(&device.file, device.size).map_err(failed)?;
                Ok(Looked { size: Some(device.size), signatures, member })
            }
            Ok(None) => Err(Failure::failed(format!("{path} is neither a file nor a block device"))),
            // Whether it can be made is said when it is.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Ok(Looked { size: None, signatures: Vec::new(), member })
            }
            Err(e) => Err(failed(e)),
        }
    }
}

/// The plan, for standard output.
fn shown(name: &str, looked: &[Looked]) -> String {
    let mut out = format!("hierarchy {name:?} on {} members:\n", looked.len());
    let width = looked.iter().map(|l| l.member.device.len()).max().unwrap_or(0);
    for Looked { member, size, signatures } in looked {
        let _ = write!(out, "  {:<width$}  {}, ", member.device, member.path.display());
        match size.or(member.size) {
            Some(bytes) => {
                let new = if size.is_none() { "a new file of " } else { "" };
                let _ = write!(out, "{new}{}", Bytes(bytes));
                if let Ok(Layout { data, .. }) = Layout::of_size(bytes) {
                    let _ = write!(out, ", data {} at {}", Bytes(data.end - data.start), Bytes(data.start));
                }
            }
            None => out.push_str("missing"),
        }
        for found in signatures {
            let _ = write!(out, "; carries {}", found.in_words());
        }
        out.push('\n');
    }
    out
}

/// Refuses devices that carry something. Those that do not exist do not.
pub fn refuse_overwriting(members: Vec<MemberPlan>) -> Result<(), Failure> {
    let looked = members.into_iter().map(Looked::at).collect::<Result<Vec<_>, _>>()?;
    refuse_what_is_there(&looked)
}

fn refuse_what_is_there(looked: &[Looked]) -> Result<(), Failure> {
    let mut message = String::new();
    for Looked { member, signatures, .. } in looked {
        for found in signatures {
            let (path, what) = (member.path.display(), found.in_words());
            let _ = writeln!(message, "device {:?}: {path} carries {what}", member.device);
        }
    }
    if message.is_empty() {
        return Ok(());
    }
    message.push_str("nothing was written; --force overwrites it, and what was there is lost");
    Err(Failure::failed(message))
}
