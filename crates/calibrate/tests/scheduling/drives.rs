//! The drives.

use crate::child::{Hidden, program};
use crate::disk::{Disk, Modelled};
use lamina_block::Bytes;
use lamina_drive::{Cache, Curve, Mechanism, Model, Rotational, SECTOR, Seek, Zone};
use std::process::Command;

/// A drive: how it behaves.
pub enum Kind {
    /// As a model says.
    Modelled(Box<Model>),
    /// As the example `hidden_drive` does with this seed, and so many sectors.
    Hidden(u64, u64),
}

impl Kind {
    /// The model of that name that comes with Lamina.
    pub fn named(name: &str) -> Kind {
        Kind::Modelled(Box::new(Model::named(name).expect("a model")))
    }

    /// The hidden drive of a seed.
    pub fn hidden(seed: u64) -> Kind {
        let mut command = Command::new(program());
        let output = command.args(["--truth", "--seed", &seed.to_string()]).output().expect("the drive");
        let text = String::from_utf8(output.stdout).expect("text");
        let sectors = text.lines().find_map(|line| line.strip_prefix("sectors "));
        Kind::Hidden(seed, sectors.and_then(|sectors| sectors.parse().ok()).expect("a size"))
    }

    /// The drive, switched on. Of a modelled one `seed` decides how its platters stand.
    pub fn on(&self, seed: u64) -> Box<dyn Disk> {
        match self {
            Kind::Modelled(model) => Box::new(Modelled::new(model, seed)),
            Kind::Hidden(seed, sectors) => Box::new(Hidden::start(*seed, *sectors)),
        }
    }
}

/// A disk of 1999 with 10,000 turns a minute, in size, zones and times about a Quantum Atlas 10K: an arm that is a
/// little early or late, writes that end on the medium, and no skew to spare.
pub fn atlas_10k() -> Model {
    const HEADS: u32 = 6;
    const ZONES: u64 = 24;
    const CYLINDERS: u64 = 418;
    let (mut first_lbn, mut zones) = (0, Vec::new());
    for n in 0..ZONES {
        let sectors = 334 - n * 105 / (ZONES - 1);
        let (sectors_per_track, track_skew, cylinder_skew) = (sectors as f64, 0.14, 0.19);
        zones.push(Zone { first_lbn, sectors_per_track, track_skew, cylinder_skew, ..Zone::default() });
        first_lbn += sectors * u64::from(HEADS) * CYLINDERS;
    }
    let disk = Rotational {
        rotation_ms: 5.985,
        heads: HEADS,
        overhead_ms: 0.2,
        completion_ms: 0.05,
        head_switch_ms: 0.8,
        write_settle_ms: 0.6,
        arrival_spread_ms: 0.01,
        hit_ms: 0.2,
        bus_rate: Some(Bytes(80_000_000)),
        seek: Seek::Curve(Curve { alpha_ms: 1.0, beta_ms: 0.055, gamma_ms: 0.000_35 }),
        cache: Some(Cache { segments: 10, segment_sectors: 334, prefetch_sectors: 200 }),
        zones,
        ..Rotational::default()
    };
    let mechanism = Mechanism::Rotational(Box::new(disk));
    Model { name: "about an Atlas 10K".into(), size: Bytes(first_lbn * SECTOR), mechanism }
}
