//! Calibration from a trace.

mod map;
mod media;
mod numbers;
mod parts;
mod period;
mod simplex;
mod tracks;
mod zones;

pub use period::Rotation;
use crate::Sample;

/// For exploration.
pub fn explore(samples: &[Sample]) -> Option<Rotation> {
    let mut points = media::points(samples);
    points.retain(|p| !p.write);
    eprintln!("{} points", points.len());
    let rotation = period::rotation(&points)?;
    if rotation.significance < 12.0 { return None }
    let rotation = zones::narrowed(&points, &rotation);
    let transfer = zones::transfer_us(&points, rotation.period_us);
    eprintln!("{rotation:?} transfer {transfer}");
    let seen = zones::seen(&points, rotation.period_us, transfer);
    let spans = zones::zones(&seen);
    let width = seen.last().unwrap().lbn / 64.0;
    let t = std::time::Instant::now();
    let found = parts::parts(&seen, &spans, width);
    eprintln!("heads {} share {:.3} {:?}", found.heads, found.share, t.elapsed());
    for p in &found.parts { let l = &p.layout; eprintln!("{:.0} {:.0} S {:.4} tau {:.4} kappa {:.4}", p.from, p.to, l.sectors, l.track_skew, l.cylinder_skew()); }
    let t = std::time::Instant::now();
    let map = map::map(&seen, &found.parts, 1.2 * width);
    eprintln!("agreeing {:.3} spread {:.4} zones {} {:?}", map.agreeing, map.spread, map.zones.len(), t.elapsed());
    for z in &map.zones { eprintln!("  {z:?}"); }
    Some(rotation)
}
