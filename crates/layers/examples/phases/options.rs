//! What is asked of the program.

use super::load::{Load, Places};
use lamina_block::{Bytes, Command};
use lamina_drive::{Mechanism, Model, Seek};
use serde_json::json;
use std::ops::Range;
use std::str::FromStr;

/// Bytes of a slot of a flash.
const SLOT: u64 = 4096;

/// What the volumes stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Tier,
    Disk,
    Ssd,
}

/// All options.
pub struct Wanted {
    pub volumes: usize,
    pub on: On,
    pub placement: String,
    pub load: Load,
    fast_percent: u64,
    pub depth: u32,
    pub disk: Model,
    pub ssd: Model,
    pub seed: u64,
}

fn number<T: FromStr>(word: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{word}: {text:?} is not what is wanted there"))
}

/// The model called so, or in the file called so.
fn model(name: &str) -> Result<Model, String> {
    if let Some(model) = Model::named(name) {
        return Ok(model);
    }
    let text = std::fs::read_to_string(name).map_err(|e| format!("{name}: {e}"))?;
    Model::parse(&text).map_err(|e| format!("{name}: {e}"))
}

/// Makes seeks over a part of `1/scale` of a disk as long as over all of it, and its buffer of writes as much smaller.
fn scale(mut model: Model, scale: u64) -> Model {
    if let Mechanism::Rotational(disk) = &mut model.mechanism {
        if let Some(buffer) = &mut disk.write_buffer {
            buffer.size = Bytes((buffer.size.0 / scale).max(SLOT));
        }
        if let Seek::Points(points) = &mut disk.seek {
            // A seek to the next cylinder stays what it is.
            let nearer = points.iter().map(|[far, ms]| [(far / scale as f64).round(), *ms]);
            let nearer = nearer.filter(|[far, _]| *far > 1.0);
            let mut scaled: Vec<[f64; 2]> = points.iter().copied().take(1).chain(nearer).collect();
            scaled.dedup_by_key(|[far, _]| *far as u64);
            *points = scaled;
        }
    }
    model
}

impl Wanted {
    /// What `words`, all of them options, say.
    pub fn parse(words: &[String]) -> Result<Wanted, String> {
        let mut of = Wanted {
            volumes: 1,
            on: On::Tier,
            placement: "heat".into(),
            load: Load::default(),
            fast_percent: 50,
            depth: 1,
            disk: model("disk-7200")?,
            ssd: model("ssd-sata")?,
            seed: 1,
        };
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("--volumes", text) => of.volumes = number(word, text)?,
                ("--on", "tier") => of.on = On::Tier,
                ("--on", "disk") => of.on = On::Disk,
                ("--on", "ssd") => of.on = On::Ssd,
                ("--placement", text) => of.placement = text.into(),
                ("--load", name) => {
                    of.load.kind = Load::named(name).ok_or_else(|| format!("{word}: web, oltp or mixed"))?;
                }
                ("--places", "zipf") => of.load.places = Places::Zipf,
                ("--places", "uniform") => of.load.places = Places::Uniform,
                ("--reads", text) => of.load.reads = Some(number::<f64>(word, text)? / 100.0),
                ("--scale", text) => of.load.scale = number(word, text)?,
                ("--fast", text) => of.fast_percent = number(word, text)?,
                ("--depth", text) => of.depth = number(word, text)?,
                ("--disk", name) => of.disk = model(name)?,
                ("--ssd", name) => of.ssd = model(name)?,
                ("--seed", text) => of.seed = number(word, text)?,
                _ => return Err(format!("{word}: there is no such option")),
            }
        }
        of.check()
    }

    fn check(mut self) -> Result<Wanted, String> {
        if self.volumes == 0 || self.depth == 0 || self.load.scale == 0 {
            return Err("--volumes, --depth and --scale are 1 at least".into());
        }
        self.disk = scale(self.disk, self.load.scale);
        Ok(self)
    }

    /// Slots of the flash that all volumes together have.
    pub fn slots(&self) -> u64 {
        self.volumes as u64 * self.load.size() * self.fast_percent / 100 / SLOT
    }
}

/// A step.
pub enum Step {
    /// All requests of the load.
    All,
    For {
        seconds: f64,
        window: f64,
    },
    Shift {
        volume: usize,
    },
    Command {
        volumes: Range<usize>,
        command: Command,
    },
}

impl Step {
    /// What `word` says, of so many volumes.
    pub fn parse(word: &str, volumes: usize) -> Result<Step, String> {
        let volume = |text| match number::<usize>(word, text)? {
            volume if volume < volumes => Ok(volume),
            _ => Err(format!("{word}: there is no such volume")),
        };
        let duration = |text| match number::<f64>(word, text)? {
            seconds if seconds.is_finite() && seconds > 0.0 => Ok(seconds),
            _ => Err(format!("{word}: more than no seconds")),
        };
        let parts: Vec<&str> = word.split(':').collect();
        match parts[..] {
            ["all"] => Ok(Step::All),
            ["for", seconds, window] => {
                Ok(Step::For { seconds: duration(seconds)?, window: duration(window)? })
            }
            ["shift", text] => Ok(Step::Shift { volume: volume(text)? }),
            ["weight", text, weight] => {
                let (volume, weight) = (volume(text)?, number::<u32>(word, weight)?);
                let command = Command { name: "set-weight".into(), args: json!({ "weight": weight }) };
                Ok(Step::Command { volumes: volume..volume + 1, command })
            }
            ["place", ..] => {
                let args = json!({ "placement": parts[1..].join(":") });
                let command = Command { name: "set-placement".into(), args };
                Ok(Step::Command { volumes: 0..volumes, command })
            }
            _ => Err(format!("{word}: there is no such step")),
        }
    }
}
