//! What is left to chance.

use fastrand::Rng;

/// How the tracks follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// All heads of a cylinder from the first to the last, then the next cylinder.
    Ascending,
    /// As before, and every other cylinder from the last head to the first.
    Serpentine,
    /// One head over a band of cylinders, then the next head back over them.
    Bands,
}

/// How the drive's cache takes what was not asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReadAhead {
    /// At once, as the shadow cache of CATS has it.
    Instant,
    /// As the sectors pass under the head, until the next request arrives.
    Passing,
}

/// Which changes have a skew, of a drive that has any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skews {
    Both,
    /// Changes of head only.
    Heads,
    /// Changes of cylinder only.
    Cylinders,
}

/// A zone before it is laid out.
#[derive(Clone, Debug)]
pub struct ZoneSpec {
    pub cylinders: u32,
    pub sectors: u32,
    /// Slots that the first sector of a track stands behind the end of the track before, on the same cylinder.
    pub track_skew: u32,
    /// The same for the first track of a cylinder.
    pub cylinder_skew: u32,
}

/// A drive at random. Times are microseconds.
#[derive(Clone, Debug)]
pub struct Spec {
    pub seed: u64,
    pub turn: f64,
    pub heads: u32,
    pub order: Order,
    pub zones: Vec<ZoneSpec>,
    /// Sectors kept free at the end of each cylinder.
    pub spares: u32,
    /// Defective sectors, which addresses slip over.
    pub defects: u32,
    pub overhead: f64,
    pub seek: (f64, f64, f64),
    pub head_switch: f64,
    pub write_settle: f64,
    /// What the bus takes for a sector.
    pub bus: f64,
    pub hit: f64,
    pub segments: usize,
    pub segment_sectors: u64,
    pub prefetch: u64,
    pub read_ahead: ReadAhead,
    /// Whether a hit makes a segment young again.
    pub lru: bool,
    pub extras: Extras,
}

/// What not every drive has.
#[derive(Clone, Copy, Debug)]
pub struct Extras {
    /// Cylinders of a band; 1 except in [`Order::Bands`].
    pub band: u32,
    /// Addresses of 512 bytes in a sector: 8 in a drive with sectors of 4 KiB.
    pub block: u64,
    /// Whether such a drive answers for parts of its sectors, too.
    pub emulated: bool,
    pub skews: Skews,
    /// By how much the overhead varies.
    pub jitter: f64,
    /// Sectors that are elsewhere.
    pub remapped: u32,
    /// Whether what was read is kept.
    pub keeps_reads: bool,
    /// Sectors that the buffer of writes holds; 0 without one.
    pub buffer: u64,
}

impl Extras {
    fn random(rng: &mut Rng) -> Extras {
        let of = |rng: &mut Rng, one_of: u8| rng.u8(..one_of) == 0;
        let mut extras = Extras {
            band: if of(rng, 4) { rng.u32(20..400) } else { 1 },
            block: if of(rng, 6) { 8 } else { 1 },
            emulated: false,
            skews: Skews::Both,
            jitter: if of(rng, 4) { 20.0 * rng.f64() } else { 0.0 },
            remapped: if of(rng, 4) { rng.u32(1..20) } else { 0 },
            keeps_reads: !of(rng, 6),
            buffer: if of(rng, 2) { rng.u64(64..16_384) } else { 0 },
        };
        extras.skews = [Skews::Heads, Skews::Cylinders].get(rng.usize(..8)).copied().unwrap_or(Skews::Both);
        extras.emulated = of(rng, 6);
        extras.block = if extras.emulated { 8 } else { extras.block };
        extras
    }
}

impl Spec {
    pub fn random(seed: u64) -> Spec {
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d);
        let rng = &mut rng;
        let rpm = [5400.0, 7200.0, 10_000.0, 15_000.0][rng.usize(..4)];
        let turn = 60e6 / rpm * (1.0 + 0.004 * (rng.f64() - 0.5));
        let heads = rng.u32(1..=8);
        let cylinders = rng.u32(4_000..40_000);
        let alpha = 300.0 + 900.0 * rng.f64();
        let longest = 5_000.0 + 12_000.0 * rng.f64();
        // A part of the longest seek is linear, the rest a square root.
        let linear = 0.3 + 0.4 * rng.f64();
        let gamma = (longest - alpha) * linear / f64::from(cylinders);
        let beta = (longest - alpha) * (1.0 - linear) / f64::from(cylinders).sqrt();
        let head_switch = 250.0 + 0.8 * alpha * rng.f64();
        let segment_sectors = [64, 128, 221, 256, 512, 1000, 2048][rng.usize(..7)];
        let mut spec = Spec {
            seed,
            turn,
            heads,
            order: if rng.bool() { Order::Ascending } else { Order::Serpentine },
            zones: Vec::new(),
            spares: if rng.u8(..4) == 0 { rng.u32(1..40) } else { 0 },
            defects: if rng.u8(..3) == 0 { rng.u32(1..200) } else { 0 },
            overhead: 50.0 + 400.0 * rng.f64(),
            seek: (alpha, beta, gamma),
            head_switch,
            write_settle: 200.0 + 600.0 * rng.f64(),
            bus: 512.0 / (80.0 + 500.0 * rng.f64()),
            hit: 20.0 + 150.0 * rng.f64(),
            segments: rng.usize(1..=64),
            segment_sectors,
            prefetch: rng.u64(..segment_sectors),
            read_ahead: if rng.bool() { ReadAhead::Instant } else { ReadAhead::Passing },
            lru: rng.bool(),
            extras: Extras::random(&mut Rng::with_seed(seed ^ 0x0e87_7a5e)),
        };
        // With one head a band is nothing.
        spec.extras.band = if heads > 1 { spec.extras.band } else { 1 };
        spec.zones = zones(&spec, cylinders, rng);
        if spec.extras.band > 1 {
            spec.order = Order::Bands;
        }
        spec
    }
}

fn zones(spec: &Spec, cylinders: u32, rng: &mut Rng) -> Vec<ZoneSpec> {
    let count = rng.usize(5..=30);
    let weights: Vec<f64> = (0..count).map(|_| 0.3 + rng.f64()).collect();
    let total: f64 = weights.iter().sum();
    let outer = f64::from(rng.u32(350..1500));
    let inner = outer * (0.5 + 0.15 * rng.f64());
    let has_skew = rng.u8(..8) > 0;
    let margin = 1.0 + 0.3 * rng.f64();
    let mut zones: Vec<ZoneSpec> = Vec::new();
    for (i, weight) in weights.iter().enumerate() {
        let part = i as f64 / (count - 1) as f64;
        let ideal = (outer + (inner - outer) * part) as u32;
        let sectors = zones.last().map_or(ideal, |last| ideal.min(last.sectors - 1));
        let slots = |time: f64, other: Skews| {
            if has_skew && spec.extras.skews != other {
                (time * margin / spec.turn * f64::from(sectors)).ceil() as u32
            } else {
                0
            }
        };
        let (alpha, beta, gamma) = spec.seek;
        zones.push(ZoneSpec {
            cylinders: ((f64::from(cylinders) * weight / total).max(20.0) as u32)
                .next_multiple_of(spec.extras.band),
            sectors,
            track_skew: slots(spec.head_switch, Skews::Cylinders),
            cylinder_skew: slots(alpha + beta + gamma, Skews::Heads),
        });
    }
    zones
}
