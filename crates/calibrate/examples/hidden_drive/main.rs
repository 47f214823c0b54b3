//! A hard disk that nobody has described: geometry and mechanics at random from a seed, timed over a pipe.
//!
//! ```text
//!   lamina calibrate --probe "hidden_drive --seed 7"        hidden_drive --seed 7 --truth
//!        │  R 1234567 8 500      lbn, sectors, µs since the last answer      │
//!        ▼                                                                   ▼
//!   ◀── 7312.402                 µs that the request took                what there is to find
//! ```
//!
//! `?` instead of `R` asks what the read would take, and nothing is done: for the best that a scheduler could know.
//! A request beyond the end is answered with a line that begins with `error`. The program shares no code with the
//! models of the crate `drive`: the moments of everything follow from platters that turn in absolute time. It keeps no
//! data, and deliberately has no queue: one request at a time.

mod cache;
mod disk;
mod geometry;
mod spec;

use disk::Disk;
use spec::Spec;
use std::io::{BufRead, Write};

fn main() -> Result<(), String> {
    let mut seed = 1u64;
    let mut truth = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--truth" => truth = true,
            "--seed" => {
                let value = args.next().ok_or("--seed needs a number")?;
                seed = value.parse().map_err(|e| format!("--seed {value}: {e}"))?;
            }
            other => return Err(format!("{other}: there are --seed N and --truth")),
        }
    }
    let spec = Spec::random(seed);
    let mut disk = Disk::new(spec);
    if truth {
        print!("{}", disk.truth());
        return Ok(());
    }
    serve(&mut disk).map_err(|e| e.to_string())
}

/// Answers requests until there are no more.
fn serve(disk: &mut Disk) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        match parsed(&line?).and_then(|asked| answer(disk, asked)) {
            Ok(us) => writeln!(out, "{us:.3}")?,
            Err(e) => writeln!(out, "error: {e}")?,
        }
        out.flush()?;
    }
    Ok(())
}

/// What is asked of the drive.
enum What {
    Read,
    Write,
    /// What a read would take.
    Would,
}

/// A line: an operation on sectors from an address, and the pause before it.
struct Asked {
    what: What,
    lbn: u64,
    sectors: u64,
    think: f64,
}

fn answer(disk: &mut Disk, Asked { what, lbn, sectors, think }: Asked) -> Result<f64, String> {
    match what {
        What::Read => disk.ask(false, lbn, sectors, think),
        What::Write => disk.ask(true, lbn, sectors, think),
        What::Would => disk.clone().ask(false, lbn, sectors, think),
    }
}

fn parsed(line: &str) -> Result<Asked, String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [op, lbn, sectors, think] = fields[..] else {
        return Err(format!("{line:?} is not R|W|? lbn n think"));
    };
    let what = match op {
        "R" => What::Read,
        "W" => What::Write,
        "?" => What::Would,
        other => return Err(format!("{other:?} is neither R, W nor ?")),
    };
    let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text:?}: {e}"));
    let think = think.parse::<f64>().map_err(|e| format!("{think:?}: {e}"))?;
    Ok(Asked { what, lbn: number(lbn)?, sectors: number(sectors)?, think })
}
