//! The file that is proposed, with its reasons.

use super::choose::{Design, Leg, Spread};
use lamina_block::{Bytes, Config};
use lamina_layers::address::stripe;
use lamina_layers::digest::integrity;
use lamina_layers::redundancy::{mirror, parity};
use lamina_layers::sinks::file;
use lamina_layers::{crypt, snapshot};
use std::fmt::Write;

/// The longest line of a comment.
const WIDTH: usize = 100;

/// The hierarchy file.
pub fn of(design: &Design) -> String {
    let mut file = String::new();
    let wish = &design.wish;
    let says = |what: bool, word: &'static str| what.then_some(word);
    let extras = [
        says(wish.encrypt, "encrypted"),
        says(wish.snapshots, "with snapshots"),
        says(wish.checksums, "with checksums"),
    ];
    let extras: String = extras.into_iter().flatten().map(|word| format!(", {word}")).collect();
    comment(
        &mut file,
        &format!(
            "Proposed by `lamina design`: {} on {}; {} may be lost{extras}.",
            Bytes(wish.size),
            devices(wish.legs.len()),
            match wish.survive {
                0 => "none".into(),
                n => format!("any {n} of them"),
            }
        ),
    );
    file.push_str("#\n");
    for reason in reasons(design) {
        comment(&mut file, &reason);
    }
    file.push_str("#\n");
    comment(&mut file, &format!("Next: {}lamina create THIS-FILE; lamina serve THIS-FILE", make_key(design)));
    let _ = write!(file, "\n[hierarchy]\nname = {}\n", text(&wish.name));
    let top = tables(design, &mut file);
    let name = &wish.name;
    let socket = |ending: &str| text(&format!("{name}{ending}"));
    let _ = write!(
        file,
        "\n[export.{}]\ndevice = {}\nvhost-user = {}\nnbd = {}\n",
        key(name),
        text(&top),
        socket(".sock"),
        text(&format!("unix:{name}-nbd.sock"))
    );
    file
}

fn devices(count: usize) -> String {
    if count == 1 { "one device".into() } else { format!("{count} devices") }
}

/// A TOML string. TOML reads the escapes of JSON.
fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

/// A name as a key: one with a dot would be a table inside of another.
fn key(name: &str) -> String {
    if name.contains('.') { text(name) } else { name.to_owned() }
}

fn list(names: &[String]) -> String {
    names.iter().map(|name| text(name)).collect::<Vec<_>>().join(", ")
}

fn comment(file: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            file.push_str(line.trim_end());
            file.push_str("\n#  ");
            line.clear();
        }
        line.push(' ');
        line.push_str(word);
    }
    file.push_str(&line);
    file.push('\n');
}

fn make_key(design: &Design) -> String {
    if !design.wish.encrypt {
        return String::new();
    }
    let key = format!("{}.key", design.wish.name);
    format!(
        "(umask 077; head -c 64 /dev/urandom > {key}); keep a copy of it elsewhere: without the key nothing can be \
         read; "
    )
}

/// The reason for each layer, its costs, and the properties that were given up.
fn reasons(design: &Design) -> Vec<String> {
    let wish = &design.wish;
    let (count, each) = (wish.legs.len(), Bytes(design.each));
    let mut all =
        vec![format!("Space: {each} on each device, {} in all.", Bytes(design.each * count as u64))];
    if wish.checksums {
        all.push(
            "integrity, on each device: a block that comes back with other bytes than were written is an error instead \
             of data, and layers above then know which copy is wrong. Costs 16 bytes for each 4 KiB, a checksum for \
             every block read and written, and reading a block before a part of it is written."
                .into(),
        );
    }
    all.push(spread(design));
    if wish.encrypt {
        all.push(
            "crypt, above the layer that stores blocks several times, so that each is encrypted once: AES-XTS in the \
             LUKS2 format. Costs 16 MiB, and the time of the cipher, some gigabytes a second on one core. It hides the \
             data of a write, not its place and time; the checksums below it are of the encrypted data."
                .into(),
        );
    }
    if wish.snapshots {
        all.push(
            "snapshot, on top: `lamina ctl` takes, reads, rolls back and deletes them at any time. A fifth of the disk \
             is added for changes after a snapshot; when that is used up, writes fail and say so. The first write into \
             an extent after a snapshot costs about ten others, later ones nearly nothing."
                .into(),
        );
    }
    all.push(given_up(design));
    all
}

fn spread(design: &Design) -> String {
    let count = design.wish.legs.len();
    match design.spread {
        Spread::Alone => {
            "One device, no layer over it that stores blocks twice: its loss is the loss of the disk.".into()
        }
        Spread::Stripe => format!(
            "stripe over {count} devices (RAID 0): all of their space, and the speed of all for requests that are \
             large or many. It survives no failure: the loss of any device is the loss of the disk, which is {count} \
             times as likely as with one."
        ),
        Spread::Mirror { legs } => {
            let spares = match count - legs {
                0 => String::new(),
                n => format!(
                    " {} spare: it replaces a failed device, by itself.",
                    if n == 1 { "One is a".into() } else { format!("{n} are") }
                ),
            };
            format!(
                "mirror over {legs} devices (RAID 1): each has every byte, any {} may be lost. Reads come from all of \
                 them, a write is as fast as the slowest. The space of one is usable.{spares}",
                legs - 1
            )
        }
        Spread::Pairs => format!(
            "stripe over {} mirrors of two (RAID 1+0): any one device may be lost, and more as long as they are of \
             different pairs. Half of the space is usable; small writes cost two writes and no read, which is why it \
             was preferred to parity.",
            count / 2
        ),
        Spread::Parity { parity } => format!(
            "parity over {count} devices (RAID {}): any {parity} may be lost, and {} of {count} parts of the space \
             are usable, where a mirror that survives as much would leave one of {}. A small write costs {} reads and \
             as many writes; whole stripes cost no read. While a device is missing, its blocks are computed from all \
             others (`--prefer speed` avoids both, and takes more space).",
            if parity == 1 { 5 } else { 6 },
            count - parity,
            parity + 1,
            parity + 1
        ),
    }
}

fn given_up(design: &Design) -> String {
    let wish = &design.wish;
    let mut lacks = Vec::new();
    if wish.survive == 0 {
        lacks.push("the loss of any device (`--survive 1`)");
    }
    if !wish.checksums {
        lacks.push("a device that returns wrong bytes without an error (`--checksums`)");
    }
    if !wish.encrypt {
        lacks.push("a thief who reads a device (`--encrypt`)");
    }
    if !wish.snapshots {
        lacks.push("a guest that destroys its own data (`--snapshots`)");
    }
    lacks.push("the loss of this host, or of all devices at once (only a backup elsewhere helps)");
    format!("Not protected against: {}.", lacks.join("; "))
}

/// Writes the tables of all devices; the name of the one on top.
fn tables(design: &Design, file: &mut String) -> String {
    let wish = &design.wish;
    let legs: Vec<String> =
        wish.legs.iter().enumerate().map(|(n, leg)| leg_tables(design, n, leg, file)).collect();
    let mut table = |name: &str, kind: &str, over: &[String], keys: &str| {
        let over = if let [one] = over { text(one) } else { format!("[{}]", list(over)) };
        let _ = write!(file, "\n[device.{name}]\ntype = {}\nover = {over}\n{keys}", text(kind));
        name.to_owned()
    };
    let mut top = match design.spread {
        Spread::Alone => legs[0].clone(),
        Spread::Stripe => table("striped", stripe::Keys::KIND, &legs, "unit = \"64KiB\"\n"),
        Spread::Mirror { legs: active } => {
            let spares = legs.len() - active;
            table(
                "mirrored",
                mirror::Keys::KIND,
                &legs,
                &if spares > 0 { format!("spares = {spares}\n") } else { String::new() },
            )
        }
        Spread::Pairs => {
            let pairs: Vec<String> = legs
                .chunks(2)
                .enumerate()
                .map(|(n, pair)| table(&format!("pair{}", n + 1), mirror::Keys::KIND, pair, ""))
                .collect();
            table("striped", stripe::Keys::KIND, &pairs, "unit = \"64KiB\"\n")
        }
        Spread::Parity { parity } => table(
            "protected",
            parity::Keys::KIND,
            &legs,
            &if parity > 1 { format!("parity = {parity}\n") } else { String::new() },
        ),
    };
    if wish.encrypt {
        let key = format!("key-file = {}\n", text(&format!("{}.key", wish.name)));
        top = table("encrypted", crypt::Keys::KIND, &[top], &key);
    }
    if wish.snapshots {
        top = table("volume", snapshot::Keys::KIND, &[top], &format!("size = \"{}\"\n", Bytes(wish.size)));
    }
    top
}

/// Writes the tables of a device and of the layers on it alone; returns the name of the upper one.
fn leg_tables(design: &Design, number: usize, leg: &Leg, out: &mut String) -> String {
    let disk = format!("disk{}", number + 1);
    let (kind, path) = (text(file::Keys::KIND), text(&leg.path));
    let _ = write!(out, "\n[device.{disk}]\ntype = {kind}\npath = {path}\n");
    if leg.size.is_none() {
        let _ = writeln!(out, "size = \"{}\"", Bytes(design.each));
    }
    if leg.is_block_device {
        out.push_str("direct = true\n");
    }
    if !design.wish.checksums {
        return disk;
    }
    let sums = format!("sums{}", number + 1);
    let (kind, over) = (text(integrity::Keys::KIND), text(&disk));
    let _ = write!(out, "\n[device.{sums}]\ntype = {kind}\nover = {over}\n");
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Prefer;
    use crate::design::choose::Wish;
    use lamina_graph::Plan;

    /// Every combination is a file that `lamina check` accepts, and says why.
    #[test]
    fn every_proposal_is_a_good_file() {
        for case in 0..4 * 3 * 2 * 8 {
            let (count, survive, prefer, extras) = (1 + case % 4, case / 4 % 3, case / 12 % 2, case / 24);
            let leg = |n| Leg { path: format!("d \"{n}\".img"), size: None, is_block_device: n == 2 };
            let wish = Wish {
                name: "vm1".into(),
                size: 20 << 30,
                survive,
                prefer: if prefer == 0 { Prefer::Space } else { Prefer::Speed },
                encrypt: extras & 1 > 0,
                snapshots: extras & 2 > 0,
                checksums: extras & 4 > 0,
                legs: (0..count).map(leg).collect(),
            };
            let Ok(design) = Design::of(wish) else {
                assert!(count <= survive);
                continue;
            };
            let file = of(&design);
            let plan = Plan::parse(&file, "vm1.toml", std::path::Path::new("/srv"), &crate::files::kinds());
            let plan = plan.unwrap_or_else(|report| panic!("{report}\n{file}"));
            assert_eq!(plan.members().len(), count, "{file}");
            assert!(file.contains("Not protected against"), "{file}");
            assert!(file.lines().all(|line| line.len() < 120), "{file}");
        }
    }
}
