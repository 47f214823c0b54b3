//! What a calibration found, for people: each parameter, and how sure it is.

use lamina_calibrate::Score;
use lamina_calibrate::active::linear::Line;
use lamina_calibrate::active::{Answers, Cache, Found, Measured, Writes};
use lamina_calibrate::passive::Quality;
use lamina_calibrate::trace::Think;
use lamina_drive::HeadOrder;
use std::io::{self, Write};

/// Seeks that are shown: about so many.
const SEEKS_SHOWN: usize = 12;

/// Shows what a drive's answers came to.
pub fn answers(out: &mut dyn Write, answers: &Answers, line: Option<&Line>, sectors: u64) -> io::Result<()> {
    writeln!(
        out,
        "{} requests, {:.1} s of the drive's time; {sectors} sectors",
        answers.requests,
        answers.time_us / 1e6
    )?;
    match &answers.disk {
        Some(disk) => hard_disk(out, disk)?,
        None if answers.turns => writeln!(out, "a disk turns; its parts were not found, or not looked for")?,
        None => writeln!(
            out,
            "no rotation: the times between readings of a sector are not whole turns of any period"
        )?,
    }
    if let Some(line) = line {
        let (constant, slope) = (line.constant_us / 1e3, line.slope_us / 1e3);
        let (count, off) = (line.readings, line.residual_us / 1e3);
        writeln!(
            out,
            "line        {constant:.3} + {slope:.3} d/D ms, of {count} random pages; they are {off:.3} ms off (rms)"
        )?;
    }
    Ok(())
}

/// Shows what a trace came to.
pub fn fitted(out: &mut dyn Write, think: Think, quality: &Quality, unseen: &Score) -> io::Result<()> {
    let column = match think {
        Think::Before => "before",
        Think::After => "after",
    };
    let turn = &quality.rotation;
    let percent = |share: f64| share * 100.0;
    writeln!(out, "think times  pauses {column} their requests")?;
    writeln!(
        out,
        "rotation     {:.6} ms ± {:.1e} of it, {:.1} standard deviations above chance",
        turn.period_us / 1e3,
        turn.uncertainty_us / turn.period_us,
        turn.significance
    )?;
    writeln!(
        out,
        "angles       {:.1}% of {} reads agree with the map; median error {:.4} turns",
        percent(quality.agreeing),
        quality.points,
        quality.angle_spread
    )?;
    writeln!(out, "tracks       {:.1}% agree (below 20%: not known)", percent(quality.tracks))?;
    writeln!(out, "cache        {:.1}% of reads are predicted wrongly", percent(quality.cache_wrong))?;
    score(out, "the unseen half", unseen)
}

fn hard_disk(out: &mut dyn Write, disk: &Found) -> io::Result<()> {
    let turn = disk.turn_us;
    let rpm = 60e6 / turn.value;
    writeln!(
        out,
        "rotation    {:.6} ms ± {:.2e} of it ({rpm:.2} turns a minute)",
        turn.value / 1e3,
        turn.uncertainty / turn.value
    )?;
    let heads = if disk.heads == 1 { " (or nothing tells heads apart)" } else { "" };
    writeln!(
        out,
        "layout      {} heads{heads}, {} cylinders, {} zones",
        disk.heads,
        disk.cylinders,
        disk.zones.len()
    )?;
    if let Some(order) = disk.head_order {
        writeln!(out, "            heads follow each other in {} order", head_order(order))?;
    }
    writeln!(out, "  zone   first lbn  sectors/track  first cylinder  skew: track  cylinder  spares")?;
    for (n, zone) in disk.zones.iter().enumerate() {
        let sure = if zone.is_confirmed { "" } else { "  (its first tracks were not seen)" };
        let (track, cylinder) = (zone.track_skew, zone.cylinder_skew);
        writeln!(
            out,
            "  {n:4}  {:10}  {:13}  {:14}  {track:11.5}  {cylinder:8.5}  {:6}{sure}",
            zone.first_lbn, zone.sectors_per_track, zone.first_cylinder, zone.spare_sectors
        )?;
    }
    measured(out, "access      a sector on the track of the arm, at least", disk.access_us.as_ref())?;
    measured(out, "head switch beyond that", disk.head_switch_us.as_ref())?;
    let step = disk.seeks_us.len().div_ceil(SEEKS_SHOWN).max(1);
    let last = disk.seeks_us.last();
    for (distance, seek) in disk.seeks_us.iter().step_by(step).chain(last) {
        measured(out, &format!("seek        {distance} cylinders"), Some(seek))?;
    }
    match &disk.cache {
        Some(found) => cache(out, found)?,
        None => writeln!(out, "cache       none: data that was just read is read from the medium again")?,
    }
    disk.writes.as_ref().map_or(Ok(()), |found| writes(out, found))
}

fn head_order(order: HeadOrder) -> &'static str {
    match order {
        HeadOrder::Ascending => "ascending",
        HeadOrder::Serpentine => "serpentine",
    }
}

/// Shows how well the model tells what `what` took.
pub fn score(out: &mut dyn Write, what: &str, score: &Score) -> io::Result<()> {
    let percent = |share: f64| 100.0 * share;
    writeln!(
        out,
        "residuals    {what} beside the model: demerit {:.3} ms, {:.3} ms rms; {} far reads: median error {:.3} ms, \
         {:.1}% within 0.5 ms, {:.1}% a turn off",
        score.demerit_ms,
        score.rms_ms,
        score.far,
        score.median_ms,
        percent(score.within_half_ms),
        percent(score.whole_turn_off)
    )
}

fn measured(out: &mut dyn Write, name: &str, found: Option<&Measured>) -> io::Result<()> {
    match found {
        Some(us) => writeln!(out, "{name}: {:.3} ± {:.3} ms", us.value / 1e3, us.uncertainty / 1e3),
        None => writeln!(out, "{name}: not found"),
    }
}

fn writes(out: &mut dyn Write, found: &Writes) -> io::Result<()> {
    match &found.buffer {
        Some(buffer) => writeln!(
            out,
            "writes      a buffer of {} sectors ({}), {:.3} ms, and {:.2} us for each further sector; settling is not \
             seen",
            buffer.sectors.0,
            if buffer.sectors.1 { "confirmed" } else { "not confirmed: at least" },
            buffer.write_us / 1e3,
            buffer.sector_us
        )?,
        None => {
            writeln!(out, "writes      end on the medium")?;
            measured(out, "settling    beyond that of a read", found.settle_us.as_ref())?;
        }
    }
    match found.flush_us {
        Some(us) => writeln!(out, "flush       {:.3} ms after a write of one sector", us / 1e3),
        None => writeln!(out, "flush       not taken by the drive"),
    }
}

fn cache(out: &mut dyn Write, cache: &Cache) -> io::Result<()> {
    let sure = |is_confirmed: bool| if is_confirmed { "confirmed" } else { "not confirmed" };
    writeln!(
        out,
        "hit         {:.3} ms, and {:.2} us for each further sector",
        cache.hit_us / 1e3,
        cache.sector_us
    )?;
    writeln!(out, "cache       {} segments ({})", cache.segments.0, sure(cache.segments.1))?;
    match cache.segment_sectors {
        Some((sectors, is_confirmed)) => {
            writeln!(out, "            of {sectors} sectors ({})", sure(is_confirmed))?
        }
        None => writeln!(out, "            of more sectors than were tried")?,
    }
    writeln!(out, "            {} sectors are read ahead ({})", cache.prefetch.0, sure(cache.prefetch.1))
}
