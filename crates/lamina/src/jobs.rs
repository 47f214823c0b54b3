//! `lamina jobs`: the background work of a daemon's devices.

use crate::api::Job;
use crate::cli;
use crate::control::Client;
use crate::exit::Failure;
use crate::show;
use lamina_block::Bytes;
use std::io::Write;

const TITLES: [&str; 8] = ["DEVICE", "JOB", "STATE", "DONE", "OF", "RATE", "LEFT", "LIMIT"];
/// Columns that hold text, from the left; the others are numbers and stand to the right.
const TEXT_COLUMNS: usize = 3;

/// Runs `lamina jobs`.
pub fn run(args: &cli::Jobs) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let jobs: Vec<Job> = client.get("/v1/jobs")?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let text = serde_json::to_string_pretty(&jobs).map_err(Failure::failed)?;
        writeln!(out, "{text}")?;
    } else if jobs.is_empty() {
        writeln!(out, "no device works in the background")?;
    } else {
        write!(out, "{}", table(&jobs))?;
    }
    Ok(())
}

/// A line for each job, and below one for each that could not go on.
pub fn table(jobs: &[Job]) -> String {
    let rows: Vec<Vec<String>> = jobs.iter().map(cells).collect();
    let mut out = show::table(&TITLES, TEXT_COLUMNS, &rows);
    for (job, error) in jobs.iter().filter_map(|job| Some((job, job.error.as_ref()?))) {
        out.push_str(&format!("{} {} cannot go on: {error}\n", job.device, job.name));
    }
    out
}

/// The part that is done: never 100 before the end.
pub fn percent(job: &Job) -> String {
    let percent = if job.total == 0 { 100.0 } else { job.done as f64 * 100.0 / job.total as f64 };
    format!("{:.1}%", (percent * 10.0).floor() / 10.0)
}

fn cells(job: &Job) -> Vec<String> {
    let rate = |bytes: u64| format!("{:.1} MiB/s", bytes as f64 / 1048576.0);
    vec![
        job.device.clone(),
        job.name.clone(),
        job.state.clone(),
        percent(job),
        Bytes(job.total).rounded(),
        rate(job.rate),
        job.seconds_left.map_or("-".into(), show::duration),
        job.limit.map_or("none".into(), rate),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamina_block::Env;
    use std::rc::Rc;

    #[test]
    fn a_job_is_a_line() {
        let job = |name: &str, done, limit, seconds_left| Job {
            device: "san".into(),
            name: name.into(),
            state: "running".into(),
            done,
            total: 10 << 30,
            rate: 100 << 20,
            limit,
            seconds_left,
            error: limit.map(|_| "d2: gone".into()),
        };
        let text =
            table(&[job("reclaim", (10 << 30) - 1, Some(50 << 20), Some(93)), job("move", 0, None, None)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "DEVICE  JOB      STATE     DONE     OF         RATE   LEFT       LIMIT");
        assert_eq!(lines[1], "san     reclaim  running  99.9%  10GiB  100.0 MiB/s  1m33s  50.0 MiB/s");
        assert_eq!(lines[3..], ["san reclaim cannot go on: d2: gone"]);
        assert_eq!(lines[2], "san     move     running   0.0%  10GiB  100.0 MiB/s      -        none");
    }

    #[test]
    fn a_job_of_a_device_has_all_figures() {
        let simulation = lamina_sim::Simulation::new(1);
        let env: Rc<dyn Env> = simulation.env();
        let job = lamina_block::Job::new(&env, "move", 100, Some(7));
        job.set_progress(30, 100);
        job.pause();
        let shown = Job::of("san", &job);
        assert_eq!(
            (shown.device.as_str(), shown.name.as_str(), shown.state.as_str()),
            ("san", "move", "paused")
        );
        assert_eq!((shown.done, shown.total, shown.limit, shown.seconds_left), (30, 100, Some(7), None));
        assert_eq!(shown.error, None);
        job.resume();
        job.fail(&lamina_block::Error::media("unreadable"));
        assert_eq!(Job::of("san", &job).error, Some("unreadable".into()));
    }
}
