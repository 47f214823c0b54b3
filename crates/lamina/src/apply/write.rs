//! The file that a daemon was started with is replaced by the one that was applied.
//!
//! At every moment there is a whole file at its place: the new one is written beside it, made durable, and renamed. The
//! old one stays as `NAME.orig`.

use crate::exit::Failure;
use crate::files;
use lamina_graph::Plan;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Replaces `started` by the text of `file`, which says `plan`; where the old text is now.
pub fn replace(started: &Path, file: &Path, plan: &Plan) -> Result<PathBuf, Failure> {
    let failed = |e: io::Error| Failure::failed(format!("{} is not replaced: {e}", started.display()));
    let place = fs::canonicalize(started).map_err(failed)?;
    let text = fs::read_to_string(file).map_err(failed)?;
    check(&place, &text, plan)?;
    put(&place, text.as_bytes()).map_err(failed)
}

/// Refuses what would mean something else at its new place.
fn check(place: &Path, text: &str, plan: &Plan) -> Result<(), Failure> {
    let refuse = |why: String| Err(Failure::failed(format!("{} is not replaced: {why}", place.display())));
    let folder = place.parent().unwrap_or(Path::new("/"));
    match Plan::parse(text, plan.file(), folder, &files::kinds()) {
        Ok(there) if there.means(plan) => {}
        Ok(_) => {
            return refuse(
                "relative paths of the new file begin in another folder: make them absolute".into(),
            );
        }
        Err(report) => return Err(Failure::File(files::shown(&report))),
    }
    // A file that is not understood any more describes nothing that would be lost.
    let Ok(before) = Plan::load(place, &files::kinds()) else { return Ok(()) };
    let stays = |part: &Plan| {
        part.devices().iter().any(|device| plan.devices().iter().any(|other| other.name == device.name))
    };
    match before.components().iter().find(|part| !stays(part)) {
        Some(part) => {
            let name = part.devices().first().map_or("", |device| &device.name);
            refuse(format!(
                "the old file has another hierarchy, with device {name:?}, which is not in the new file"
            ))
        }
        None => Ok(()),
    }
}

/// Writes beside, makes it durable, and renames.
fn put(place: &Path, text: &[u8]) -> io::Result<PathBuf> {
    let beside = |end: &str| {
        let mut name = OsString::from(place);
        name.push(end);
        PathBuf::from(name)
    };
    let (new, copy, kept) = (beside(".new"), beside(".orig.new"), beside(".orig"));
    fs::copy(place, &copy)?;
    File::open(&copy)?.sync_all()?;
    // A copy has the permissions of the file that it is to replace.
    fs::copy(place, &new)?;
    let mut file = File::options().write(true).truncate(true).open(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&copy, &kept)?;
    fs::rename(&new, place)?;
    File::open(place.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str) -> String {
        format!(
            "[device.a]\ntype = \"file\"\npath = \"{path}\"\n[export.a]\ndevice = \"a\"\nnbd = \"tcp:127.0.0.1:1\"\n"
        )
    }

    #[test]
    fn a_file_is_replaced_and_the_old_one_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (unit, new) = (folder.path().join("unit.toml"), folder.path().join("new.toml"));
        fs::write(&unit, text("old.img")).expect("a file");
        fs::write(&new, format!("# mine\n{}", text("new.img"))).expect("a file");
        let link = folder.path().join("link.toml");
        std::os::unix::fs::symlink(&unit, &link).expect("a link");
        let plan = Plan::load(&new, &files::kinds()).expect("a plan");
        let kept = replace(&link, &new, &plan).expect("replaced");
        assert_eq!(fs::read_to_string(&unit).expect("a file"), format!("# mine\n{}", text("new.img")));
        assert_eq!(fs::read_to_string(kept).expect("a file"), text("old.img"));
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 4);
    }

    #[test]
    fn what_would_mean_something_else_is_not_written() {
        let (here, there) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (unit, new) = (here.path().join("unit.toml"), there.path().join("new.toml"));
        fs::write(&unit, text("a.img") + &text("b.img").replace(".a]", ".b]").replace("\"a\"", "\"b\""))
            .expect("a file");
        for (of, says) in
            [("a.img", "relative paths"), ("/srv/a.img", "another hierarchy, with device \"b\"")]
        {
            fs::write(&new, text(of)).expect("a file");
            let before = fs::read_to_string(&unit).expect("a file");
            let plan = Plan::load(&new, &files::kinds()).expect("a plan");
            let said = replace(&unit, &new, &plan).expect_err("refused").into_message();
            assert!(said.contains(says), "{said}");
            assert_eq!(fs::read_to_string(&unit).expect("a file"), before);
        }
    }
}
