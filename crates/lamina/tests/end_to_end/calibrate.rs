//! `lamina calibrate --writes`: what is written to, and what is left alone.

use crate::rig::{Place, text};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A disk for the shell, in whole microseconds: 2000 tracks of 200 sectors, one head, 6 ms a turn, skews of 900 us;
/// seeks take 500 us and one more for each track. The file `written` has the sectors that were written to.
const DISK: &str = r#"
now=0 at=0
while read op lbn n think; do
  if [ $((lbn + n)) -gt 400000 ]; then echo beyond; continue; fi
  if [ $op = W ]; then echo $lbn >> written; fi
  track=$((lbn / 200)) last=$(((lbn + n - 1) / 200))
  moved=$((track > at ? track - at : at - track)) at=$last
  least=$((now + think + 100 + (moved ? 500 + moved : 0) + n * 30))
  end=$((least + (6000 + ((lbn + n) * 30 + last * 900 - least) % 6000) % 6000))
  echo $((end - now - think))
  now=$end
done
"#;

#[test]
fn a_program_is_written_to_if_asked_for() {
    let place = Place::new();
    place.write("disk.sh", DISK);
    let calibrate = ["calibrate", "--probe", "sh disk.sh", "--size", "204800000", "--samples", "200"];
    let read = place.lamina(&calibrate);
    let (model, said) = (text(&read.stdout), text(&read.stderr));
    assert_eq!(read.status.code(), Some(0), "{said}");
    assert!(model.contains("rotation-ms = 6.0") && model.contains("sectors-per-track = 200.0"), "{model}");
    assert_eq!(place.names(), ["disk.sh"], "nothing was written");

    let written = place.lamina(&[&calibrate[..], &["--writes"]].concat());
    let said = text(&written.stderr);
    assert_eq!(written.status.code(), Some(0), "{said}");
    assert!(said.contains("writes      end on the medium"), "{said}");
    assert!(said.contains("flush       not taken by the drive"), "{said}");
    let sectors = std::fs::read_to_string(place.path("written")).expect("the sectors");
    assert!(sectors.lines().count() > 10, "{sectors}");
}

/// What `lamina calibrate --writes` comes to on a device.
fn calibrated(place: &Place, device: &Path, more: &[&str]) -> Output {
    let device = device.to_str().expect("text");
    let few = ["calibrate", device, "--writes", "--samples", "1000", "--time", "10ms"];
    place.lamina(&[&few[..], more].concat())
}

/// A device of 64 MiB that is empty, carries a volume, and is empty again.
fn refuses_what_is_used(place: &Place, device: &Path, below: &Path) {
    let bytes = || std::fs::read(below).expect("its bytes");
    let file = std::fs::OpenOptions::new().write(true).open(device).expect("the device");
    let put =
        |bytes: &[u8], at| file.write_all_at(bytes, at).and_then(|()| file.sync_all()).expect("written");

    let empty = calibrated(place, device, &[]);
    let (model, said) = (text(&empty.stdout), text(&empty.stderr));
    assert_eq!(empty.status.code(), Some(0), "{said}");
    assert!(model.contains("[ssd]") && said.contains("nothing was written"), "{model}{said}");

    // A header of LUKS, version 2, and data.
    put(b"LUKS\xba\xbe\x00\x02", 0);
    put(&crate::rig::pattern(1 << 20, 7), 32 << 20);
    let before = bytes();
    let refused = calibrated(place, device, &[]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("LUKS") && said.contains("--force writes to it"), "{said}");
    assert!(bytes() == before, "a refusal leaves every byte as it was");

    let forced = calibrated(place, device, &["--force"]);
    assert_eq!(forced.status.code(), Some(0), "{}", text(&forced.stderr));
    assert!(text(&forced.stdout).contains("[ssd]"));

    put(&[0; 8], 0);
    let again = calibrated(place, device, &[]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
}

/// An empty file in `place`.
fn empty_file(place: &Place) -> PathBuf {
    let path = place.path("below");
    std::fs::File::create(&path).and_then(|file| file.set_len(64 << 20)).expect("a file");
    path
}

#[test]
fn a_file_that_carries_a_volume_is_left_as_it_is() {
    let place = Place::new();
    let file = empty_file(&place);
    refuses_what_is_used(&place, &file, &file);
}

#[test]
fn a_device_that_carries_a_volume_is_left_as_it_is() {
    let place = Place::new();
    let file = empty_file(&place);
    let Some(device) = Loop::over(&file) else {
        eprintln!("skipped: no loop devices here");
        return;
    };
    refuses_what_is_used(&place, &device.0, &file);
}

#[test]
fn a_device_in_use_is_not_written_to() {
    let place = Place::new();
    let file = empty_file(&place);
    let owner = std::fs::File::open(&file).expect("the file");
    owner.lock().expect("the lock");
    let refused = calibrated(&place, &file, &["--force"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("in use"), "{said}");
}

/// A loop device over a file, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None` where this machine gives none (no root, no loop devices).
    fn over(file: &Path) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let path = String::from_utf8(made.stdout).ok()?;
        made.status.success().then(|| Loop(path.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
