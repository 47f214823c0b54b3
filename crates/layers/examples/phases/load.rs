//! The loads of the paper's virtual machines.

use fastrand::Rng;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Sectors of a page of a database, at least: what is asked for often lies in the same page.
const PAGE: u64 = 8;
/// The golden ratio: its multiples are spread evenly over the places.
const GOLDEN: f64 = 0.618_033_988_749_894_8;
/// How far a shift goes, as a share of the places: the root of 2, so that no rank gets to the place of one near it.
const SHIFT: f64 = std::f64::consts::SQRT_2 - 1.0;

/// What a client asks for in all, and in which requests.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Bytes of the volume.
    size: u64,
    /// Bytes of all requests.
    bytes: u64,
    /// The share of reads in the requests.
    reads: f64,
    /// Places are multiples of so many sectors; no request leaves its page.
    unit: u64,
    /// The most units of a read and of a write; each number is as likely.
    longest: [u64; 2],
}

/// Which places are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// All alike.
    Uniform,
    /// Some pages more often than others, scattered over the volume.
    Zipf,
}

/// A load, and the part of it that is made.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub kind: Kind,
    pub places: Places,
    /// Instead of those of the kind.
    pub reads: Option<f64>,
    pub scale: u64,
}

impl Default for Load {
    fn default() -> Load {
        Load { kind: WEB, places: Places::Zipf, reads: None, scale: 64 }
    }
}

/// Table III (a): reads of 8 KiB, 65.8 GB of them; 8 MB are written.
const WEB: Kind = Kind {
    size: 16_700_000_000,
    bytes: 65_808_000_000,
    reads: 65_800.0 / 65_808.0,
    unit: 16,
    longest: [1, 1],
};
/// Table III (b): 25% reads, 512 bytes to 2 KiB. 2.6 GB are read and 14 GB written, so that a read is 0.56 times as
/// long as a write: reads have up to 2 sectors here, and writes up to 4.
const OLTP: Kind = Kind { size: 3_600_000_000, bytes: 16_600_000_000, reads: 0.25, unit: 1, longest: [2, 4] };
/// Reads and writes of 4 KiB, 70 to 30, as often as the web's.
const MIXED: Kind = Kind { reads: 0.7, unit: 8, ..WEB };

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub is_write: bool,
    pub at: u64,
    pub len: u64,
}

impl Load {
    pub fn named(name: &str) -> Option<Kind> {
        [("web", WEB), ("oltp", OLTP), ("mixed", MIXED)]
            .into_iter()
            .find(|(of, _)| *of == name)
            .map(|(_, kind)| kind)
    }

    /// Bytes of a volume: whole MiB.
    pub fn size(&self) -> u64 {
        (self.kind.size / self.scale).next_multiple_of(1 << 20)
    }

    fn reads(&self) -> f64 {
        self.reads.unwrap_or(self.kind.reads)
    }

    /// How many requests have the bytes of the load.
    pub fn requests(&self) -> u64 {
        let mean = |longest: u64| (longest + 1) as f64 / 2.0 * (self.kind.unit * SECTOR) as f64;
        let [read, write] = self.kind.longest.map(mean);
        let bytes = self.reads() * read + (1.0 - self.reads()) * write;
        (self.kind.bytes as f64 / self.scale as f64 / bytes) as u64
    }

    /// A request of a client whose places have been shifted so often.
    pub fn draw(&self, random: &mut Rng, shifts: u32) -> Ask {
        let is_write = random.f64() >= self.reads();
        let unit = self.kind.unit * SECTOR;
        let count = random.u64(1..=self.kind.longest[usize::from(is_write)]);
        let page = unit.max(PAGE * SECTOR);
        let pages = self.size() / page;
        let rank = match self.places {
            Places::Uniform => random.u64(0..pages),
            Places::Zipf => zipf(random, pages),
        };
        let within = random.u64(0..=page / unit - count) * unit;
        Ask { is_write, at: scattered(rank, pages, shifts) * page + within, len: count * unit }
    }
}

/// Zipf over 0 … n−1 by the continuous approximation F(x) = log(x+1) / log(n+1), as in `lamina-workload`.
fn zipf(random: &mut Rng, n: u64) -> u64 {
    (((n as f64 + 1.0).powf(random.f64()) - 1.0) as u64).min(n - 1)
}

/// Where the place of a rank is: ranks beside each other are far apart, and no two are at the same place.
fn scattered(rank: u64, places: u64, shifts: u32) -> u64 {
    let mut step = (places as f64 * GOLDEN) as u64 | 1;
    while step > 1 && common_divisor(step, places) != 1 {
        step += 2;
    }
    let shift = (f64::from(shifts) * SHIFT).fract() * places as f64;
    // The product needs more than 64 bits only beyond 2^32 places, which are none of a load's.
    (rank * step + shift as u64) % places
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_those_of_the_table() {
        for (kind, reads, read, written) in [(WEB, 0.999, 65.8, 0.008), (OLTP, 0.25, 2.7, 13.9)] {
            let load = Load { kind, ..Load::default() };
            let mut random = Rng::with_seed(1);
            let asked: Vec<Ask> = (0..100_000).map(|_| load.draw(&mut random, 0)).collect();
            let each = load.requests() as f64 * load.scale as f64 / asked.len() as f64 / 1e9;
            let bytes = |is_write| {
                asked.iter().filter(|ask| ask.is_write == is_write).map(|ask| ask.len as f64).sum::<f64>()
                    * each
            };
            let count = asked.iter().filter(|ask| !ask.is_write).count() as f64 / asked.len() as f64;
            assert!((count - reads).abs() < 0.01, "{count} are reads");
            assert!((bytes(false) / read - 1.0).abs() < 0.03, "{} GB read", bytes(false));
            assert!((bytes(true) - written).abs() < 0.03 * written + 0.01, "{} GB written", bytes(true));
            assert!(asked.iter().all(|ask| ask.at + ask.len <= load.size()));
        }
    }

    #[test]
    fn each_rank_has_a_place_and_others_after_a_shift() {
        for places in [1, 7, 4096, 100_000] {
            for shifts in [0, 1, 2] {
                let mut found: Vec<u64> = (0..places).map(|rank| scattered(rank, places, shifts)).collect();
                found.sort_unstable();
                assert!(found.into_iter().eq(0..places), "{places} places after {shifts}");
            }
        }
        let hot = |shifts| (0..100).map(move |rank| scattered(rank, 100_000, shifts));
        assert!(hot(0).all(|place| hot(1).all(|other| other != place)));
    }
}
