//! `lamina create`: makes the members of a persistent hierarchy.
//!
//! The writes to come are shown first. A device that carries a known signature is refused: only `--force` overwrites
//! it. A device in use is refused in any case, because the devices are opened as they are for serving.
//!
//! Everything is tried first in a world whose disks [forget](crate::overlay): an impossible creation is refused before
//! a byte is written. Where writing fails all the same, new files are removed, and the superblock areas get their old
//! contents back, so that the next attempt starts from the same state.

use crate::cli;
use crate::exit::Failure;
use crate::files;
use crate::inspect;
use crate::look::Device;
use crate::overlay::{self, Data, Overlaid};
use crate::verbs::Denied;
use lamina_block::{Bytes, Env, Error};
use lamina_graph::{Hierarchy, MemberPlan, Plan, Report};
use lamina_host::{Asker, Options, Reactor};
use lamina_metadata::superblock::Layout;
use std::fmt::Write as _;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
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
    let looked: Result<Vec<_>, _> = plan.members().into_iter().map(Looked::at).collect();
    let looked = looked.map_err(Failure::failed)?;
    let mut out = std::io::stdout().lock();
    out.write_all(shown(&name, &looked).as_bytes())?;
    out.flush()?;
    if let Some(lost) = overwritten(&looked, &[]).filter(|_| !args.force) {
        return Err(Failure::failed(lost));
    }
    let reactor = Reactor::new(Options { asker: Some(Asker::at_terminal()), ..Options::default() })
        .map_err(|e| Failure::failed(format!("the reactor cannot start: {e}")))?;
    rehearse(&reactor, &args.file, if args.force { Data::Open } else { Data::Guarded })?;
    let before = |looked: &Looked| Before::of(&looked.member.path, looked.size);
    let before = looked.iter().map(before).collect::<Result<Vec<_>, _>>()?;
    match create(&plan, &reactor) {
        Ok(made) => {
            writeln!(out, "created hierarchy {name:?}, {made}")?;
            Ok(())
        }
        Err(e) => {
            before.into_iter().for_each(Before::restore);
            Err(e)
        }
    }
}

/// Makes the hierarchy in the world that forgets, so that every problem is reported before the first write. A device of
/// another machine is no member: whether its `data` would be overwritten is known here alone.
fn rehearse(reactor: &Reactor, file: &Path, data: Data) -> Result<(), Failure> {
    let plan = Plan::load(file, &overlay::kinds(data)).map_err(|e| Failure::File(files::shown(&e)))?;
    let world = Overlaid::over(reactor.env(), data);
    let env = Rc::clone(&world) as Rc<dyn Env>;
    let tried: Result<(), Report> = reactor.run(async move {
        plan.create(Rc::clone(&env), 0).await?;
        let made = Hierarchy::build(plan, env).await?;
        // Nothing of this lasts: the close has nothing to lose.
        let _ = made.close().await;
        Ok(())
    });
    match tried {
        // The writes exceed the memory that is set aside: only the devices can tell whether they succeed.
        Err(_) if world.is_full() => Ok(()),
        Err(report) => {
            let said = files::shown(&report);
            Err(Failure::File(format!("{}\nnothing was written\n", said.trim_end())))
        }
        Ok(()) => Ok(()),
    }
}

/// Writes the superblocks; the UUID of the new hierarchy.
fn create(plan: &Plan, reactor: &Reactor) -> Result<String, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let env: Rc<dyn Env> = reactor.env();
    let made = reactor.run(plan.create(env, now)).map_err(|report| Failure::File(files::shown(&report)))?;
    Ok(made.first().map(|superblock| superblock.hierarchy.to_string()).unwrap_or_default())
}

/// A member's device as it was before.
pub enum Before {
    /// There was no file.
    Missing(PathBuf),
    /// The contents of its superblock areas, by their offsets in bytes.
    Held(PathBuf, Vec<(u64, Vec<u8>)>),
}

impl Before {
    /// The present state of the path; an existing device has `size` bytes.
    pub fn of(path: &Path, size: Option<u64>) -> Result<Before, Failure> {
        let path = path.to_owned();
        let Some(size) = size else { return Ok(Before::Missing(path)) };
        let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", path.display()));
        let file = std::fs::File::open(&path).map_err(failed)?;
        // The open refuses a device that is too small.
        let places = Layout::of_size(size).map_or(Vec::new(), |l| vec![0..l.data.start, l.data.end..size]);
        let mut held = Vec::new();
        for place in places {
            let mut bytes = vec![0; (place.end - place.start) as usize];
            file.read_exact_at(&mut bytes, place.start).map_err(failed)?;
            held.push((place.start, bytes));
        }
        Ok(Before::Held(path, held))
    }

    /// Restores that state as far as possible. Errors are dropped: the reason why the creation failed is reported.
    pub fn restore(self) {
        match self {
            Before::Missing(path) => drop(std::fs::remove_file(path)),
            Before::Held(path, held) => {
                let Ok(file) = std::fs::OpenOptions::new().write(true).open(path) else { return };
                for (at, bytes) in held {
                    let _ = file.write_all_at(&bytes, at);
                }
                let _ = file.sync_all();
            }
        }
    }
}

/// A device that is to become a member, and its present contents.
struct Looked {
    member: MemberPlan,
    /// Its size; `None` if the file has to be made.
    size: Option<u64>,
    signatures: Vec<inspect::Found>,
}

impl Looked {
    fn at(member: MemberPlan) -> Result<Looked, Error> {
        let path = member.path.display();
        let failed = |e: std::io::Error| {
            let message = format!("{path}: {e}");
            Error::new(Error::from(e).kind(), message)
        };
        match Device::open(&member.path) {
            Ok(Some(device)) => {
                let signatures = inspect::scan(&device.file, device.size).map_err(failed)?;
                Ok(Looked { size: Some(device.size), signatures, member })
            }
            Ok(None) => Err(Error::invalid(format!("{path} is neither a file nor a block device"))),
            // The creation itself tells whether the file can be made.
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
            let _ = write!(out, "; carries {}", found.as_text());
        }
        out.push('\n');
    }
    out
}

/// Refuses members that carry something, and data `elsewhere`, a line for each. Devices that do not exist carry none.
pub fn refuse_overwriting(members: Vec<MemberPlan>, elsewhere: Vec<String>) -> Result<(), Denied> {
    let looked = members.into_iter().map(Looked::at).collect::<Result<Vec<_>, _>>()?;
    overwritten(&looked, &elsewhere).map_or(Ok(()), |lost| Err(Denied::Unconfirmed(lost)))
}

/// The text about data that would be overwritten.
fn overwritten(looked: &[Looked], elsewhere: &[String]) -> Option<String> {
    let mut message = String::new();
    elsewhere.iter().for_each(|line| message.push_str(&format!("{line}\n")));
    for Looked { member, signatures, .. } in looked {
        for found in signatures {
            let (path, what) = (member.path.display(), found.as_text());
            let _ = writeln!(message, "device {:?}: {path} carries {what}", member.device);
        }
    }
    if message.is_empty() {
        return None;
    }
    message.push_str("nothing was written; --force overwrites it, and the data there is lost");
    Some(message)
}
