//! `lamina replace`: another disk takes the place of a member, while clients work.
//!
//! The file that the daemon was started with is written anew, with a device over the other disk wherever the file has
//! the old one, and applied as by `lamina apply --write`. Everything else in the file stays, comments too.

use crate::api::{Applied, Apply, Hierarchy, Snapshot};
use crate::apply;
use crate::cli;
use crate::control::Client;
use crate::exit::Failure;
use crate::files;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, TableLike, Value};

/// Runs `lamina replace`.
pub fn run(args: &cli::Replace) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let snapshot: Snapshot = client.get("/v1/hierarchy")?;
    let (hierarchy, old) = found(&snapshot.hierarchies, &args.old)?;
    let place = PathBuf::from(&hierarchy.file);
    files::regular(&place).map_err(Failure::Usage)?;
    has_no_other_changes(&client, &hierarchy.file, old)?;
    let new = std::path::absolute(&args.new).map_err(Failure::failed)?;
    let text = fs::read_to_string(&place).map_err(Failure::failed)?;
    let changed =
        replaced(&text, old, &new).map_err(|e| Failure::failed(format!("{}: {e}", place.display())))?;
    // In the same folder, where relative paths mean the same.
    let beside = Beside::write(&place, &changed)?;
    apply::run(&cli::Apply {
        daemon: cli::Daemon { control: args.daemon.control.clone() },
        file: beside.0.clone(),
        plan: args.plan,
        force: args.force,
        write: !args.plan,
    })
}

/// The device with this name, or over the disk at this path, and its hierarchy.
fn found<'a>(hierarchies: &'a [Hierarchy], old: &str) -> Result<(&'a Hierarchy, &'a str), Failure> {
    let all = || hierarchies.iter().flat_map(|one| one.devices.iter().map(move |device| (one, device)));
    let real = |path: &str| fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    let named = all().find(|(_, device)| device.name == old);
    let found = named.or_else(|| {
        let at = |path: &str| path == old || real(path) == real(old);
        all().find(|(_, device)| device.info["path"].as_str().is_some_and(at))
    });
    found.map(|(hierarchy, device)| (hierarchy, &device.name[..])).ok_or_else(|| {
        Failure::failed(format!(
            "no device of the daemon has the name or the path {old}: `lamina show` lists them"
        ))
    })
}

/// Fails if the file has other changes: they would be applied as well. A member that is missing is one that the file
/// alone brings back, or an error, and is to be replaced.
fn has_no_other_changes(client: &Client, file: &str, old: &str) -> Result<(), Failure> {
    let ask = Apply { file: file.into(), plan: true, force: false };
    let planned =
        client.post("/v1/apply", &ask).map_or_else(|_| Vec::new(), |planned: Applied| planned.steps);
    // Whole words: a device "a" is in every sentence.
    let is_of_old = |step: &str| {
        step.split(|c: char| !c.is_alphanumeric() && !"-_.".contains(c))
            .any(|word| word.trim_matches('.') == old)
    };
    let others: Vec<String> = planned.into_iter().filter(|step| !is_of_old(step)).collect();
    match others.as_slice() {
        [] => Ok(()),
        steps => Err(Failure::failed(format!(
            "{file} is not what the daemon serves: apply the file first, or make it as before ({})",
            steps.join("; ")
        ))),
    }
}

/// A file beside another one, until this is dropped.
struct Beside(PathBuf);

impl Beside {
    fn write(place: &Path, text: &str) -> Result<Beside, Failure> {
        let mut name = place.as_os_str().to_owned();
        name.push(".replace");
        let path = PathBuf::from(name);
        let failed = |e: std::io::Error| Failure::failed(format!("{} is not written: {e}", path.display()));
        let mut file = File::create_new(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::failed(format!(
                "{} is there: another `lamina replace` is at work, or one was killed; then remove that file",
                path.display()
            )),
            _ => failed(e),
        })?;
        let beside = Beside(path.clone());
        file.write_all(text.as_bytes()).map_err(failed)?;
        Ok(beside)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The text with a device over `new` wherever it has the device `old`.
fn replaced(text: &str, old: &str, new: &Path) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|e: toml_edit::TomlError| e.to_string())?;
    if let Some(exports) = document.get("export").and_then(Item::as_table_like)
        && let Some((name, _)) =
            exports.iter().find(|(_, export)| export.get("device").and_then(Item::as_str) == Some(old))
    {
        return Err(format!("export {name:?} shows {old:?} itself: another disk does not have its data"));
    }
    let path = new.to_str().ok_or("the path of the new disk is not UTF-8")?;
    let devices =
        document.get_mut("device").and_then(Item::as_table_like_mut).ok_or("there are no devices")?;
    let mut device = devices.get(old).cloned().ok_or_else(|| format!("there is no [device.{old}]"))?;
    let keys = device.as_table_like_mut().filter(|keys| keys.contains_key("path"));
    let keys = keys.ok_or_else(|| {
        format!("device {old:?} has no path: change a copy of the file, and use `lamina apply --write`")
    })?;
    keys.insert("path", toml_edit::value(path));
    let name = name_for(new, devices);
    devices.remove(old);
    devices.insert(&name, device);
    for (_, device) in devices.iter_mut() {
        let Some(keys) = device.as_table_like_mut() else { continue };
        for key in ["over", "metadata"] {
            keys.get_mut(key)
                .and_then(Item::as_value_mut)
                .into_iter()
                .for_each(|value| rename(value, old, &name));
        }
    }
    Ok(document.to_string())
}

fn rename(value: &mut Value, old: &str, new: &str) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| rename(value, old, new)),
        Value::String(name) if name.value() == old => {
            let decor = name.decor().clone();
            *value = Value::from(new);
            *value.decor_mut() = decor;
        }
        _ => {}
    }
}

/// A name for the device at `path` that no device has.
fn name_for(path: &Path, devices: &dyn TableLike) -> String {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("disk");
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    let name: String = stem.chars().map(fits).collect();
    let mut names = std::iter::once(name.clone()).chain((2..).map(|n| format!("{name}-{n}")));
    names.find(|name| !devices.contains_key(name)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# The disks of vm1.
[device.sdc]
type = \"file\"
path = \"/dev/sdc\" # on the left

# This one is old.
[device.sdd]
type = \"file\"
direct = true
path = \"/dev/sdd\"

[device.log]
type = \"file\"
path = \"log.img\"

[device.vm1]
type = \"mirror\"
over = [\"sdc\", \"sdd\"] # two
metadata = \"log\"

[export.vm1]
device = \"vm1\"
nbd = \"unix:vm1.sock\"
";

    #[test]
    fn the_other_disk_stands_where_the_old_one_stood() {
        let text = replaced(TEXT, "sdd", Path::new("/dev/disk/by-id/new disk.1")).expect("replaced");
        let wanted = TEXT
            .replace("[device.sdd]", "[device.new-disk]")
            .replace("/dev/sdd", "/dev/disk/by-id/new disk.1")
            .replace("\"sdd\"", "\"new-disk\"");
        assert_eq!(text, wanted);
        let text = replaced(TEXT, "log", Path::new("/srv/sdc")).expect("replaced");
        assert!(text.contains("[device.sdc-2]\ntype = \"file\"\npath = \"/srv/sdc\"\n"), "{text}");
        assert!(text.contains("metadata = \"sdc-2\"\n"), "{text}");
    }

    #[test]
    fn what_cannot_be_replaced_is_refused() {
        for (old, words) in
            [("none", "there is no [device.none]"), ("vm1", "export \"vm1\" shows \"vm1\" itself")]
        {
            let error = replaced(TEXT, old, Path::new("/dev/sde")).expect_err("refused");
            assert!(error.contains(words), "{error}");
        }
        let text = TEXT.replace("device = \"vm1\"", "device = \"log\"");
        let error = replaced(&text, "vm1", Path::new("/dev/sde")).expect_err("refused");
        assert!(error.contains("has no path"), "{error}");
    }
}
