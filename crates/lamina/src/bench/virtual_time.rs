//! A load in virtual time: the real layers of a hierarchy on simulated disks that take the time of models.
//!
//! The disks are blank and as large as those that the file names, of which nothing but the size is looked at. Layers
//! that remember begin as after their creation: reads of what was never written may not reach a disk at all.
//!
//! The time of the processor deliberately counts for nothing; a request takes a microsecond if nothing else takes time.

use super::load::Clock;
use super::report::Report;
use super::target::Target;
use super::{load, nodes, size, workload};
use crate::cli;
use crate::exit::Failure;
use crate::files;
use crate::predict::drives::{Models, Named, put, twice};
use crate::predict::log::{Counted, Log};
use crate::predict::world::{World, kinds};
use lamina_block::Env;
use lamina_graph::{Hierarchy, Plan};
use lamina_sim::Simulation;
use std::path::Path;
use std::rc::Rc;

/// Loads the target in virtual time.
pub fn measure(args: &cli::Bench) -> Result<Report, Failure> {
    if args.target.contains("://") {
        return Err(Failure::usage("--virtual is for hierarchy files: a server has its own time"));
    }
    let models = models(&args.model)?;
    let Target { plan, devices } = Target::of_file(Path::new(&args.target), &args.device, &kinds())?;
    let simulation = Simulation::measuring(args.seed);
    let env = simulation.env();
    let remembers = plan.devices().iter().any(|device| device.kind.traits.keeps);
    put(&models.drives(&plan)?, &env, args.seed, remembers);
    // A log that never begins: only a prediction has one.
    let log = Log::new(Counted { warmup: 0, requests: 0 });
    let world: Rc<dyn Env> = World::new(env, log, None, Default::default());
    let hierarchy = simulation.run(open(plan, Rc::clone(&world))).map_err(Failure::failed)??;
    let nodes = nodes(&hierarchy, &devices)?;
    let clock = Clock::Virtual(Rc::clone(&world));
    let loaded = nodes.clone();
    let report = match &args.workload {
        Some(text) => {
            let prepared = workload::prepare(args, text, &nodes)?;
            simulation.run(workload::run(world, clock, nodes, prepared, workload::Options::of(args)))
        }
        None => {
            let node = &nodes[0];
            let size = size(&node.geometry(), args);
            let size = size.map_err(|wrong| Failure::usage(format!("{}: {wrong}", node.name())))?;
            simulation.run(load(args, size).run(world, clock, Rc::clone(node)))
        }
    };
    let report = report.map_err(Failure::failed)?;
    let shown = loaded.into_iter().map(|node| (node.name().to_owned(), node.info()));
    let devices = shown.filter(|(_, info)| !info.is_null()).collect();
    simulation
        .run(async move { hierarchy.close().await })
        .map_err(Failure::failed)?
        .map_err(Failure::failed)?;
    Ok(Report { virtual_time: true, devices, ..report })
}

/// Makes the hierarchy, if it remembers, and opens it.
async fn open(plan: Plan, world: Rc<dyn Env>) -> Result<Hierarchy, Failure> {
    let failed = |report| Failure::File(files::shown(&report));
    if plan.persistent().is_some() {
        plan.create(Rc::clone(&world), 0).await.map_err(failed)?;
    }
    Hierarchy::build(plan, world).await.map_err(failed)
}

/// The drives that options name.
fn models(options: &[String]) -> Result<Models, Failure> {
    let mut models = Models::default();
    for text in options {
        match text.split_once('=') {
            Some((device, model)) => models.give(device, model)?,
            None if models.all.is_some() => return Err(twice(text)),
            None => models.all = Some(Named::read(text)?),
        }
    }
    Ok(models)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const FILE: &str = "[device.disk]\ntype = \"file\"\npath = \"disk.img\"\nsize = \"8GiB\"\n\
        [device.half]\ntype = \"linear\"\nover = \"disk\"\nsize = \"4GiB\"\n\
        [device.ram]\ntype = \"memory\"\nsize = \"1MiB\"\n\
        [export.x]\ndevice = \"half\"\nnbd = \"unix:x\"\n";

    fn bench(file: &str, words: &[&str]) -> Result<Report, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.toml");
        std::fs::write(&path, file).expect("a file");
        let path = path.to_str().expect("a path in UTF-8");
        let line = ["lamina", "bench", path, "--virtual"].into_iter().chain(words.iter().copied());
        let cli::Command::Bench(args) = cli::Cli::try_parse_from(line).map_err(|e| e.to_string())?.command
        else {
            return Err("it is not bench".into());
        };
        let report = measure(&args).map_err(|e| format!("{e:?}"));
        assert!(!folder.path().join("disk.img").exists(), "the disk is simulated");
        report
    }

    #[test]
    fn requests_take_the_time_of_the_drive() {
        let words = ["--model", "cheetah-15k4", "--depth", "1", "--time", "20s", "--ramp", "0s"];
        let report = bench(FILE, &words).expect("a report");
        let read = report.read.expect("reads");
        // The paper's line over places of which two are a third of 4 GiB apart on average.
        let expected = 4.25e6 + 5.25e6 * 4.0 * f64::from(1 << 30) / 3.0 / 73.4e9;
        assert!((read.mean_ns / expected - 1.0).abs() < 0.02, "{} of {expected}", read.mean_ns);
        assert!((report.seconds - 20.0).abs() < 0.1 && report.virtual_time, "{}", report.seconds);
        let deep =
            bench(FILE, &["--model", "disk=cheetah-15k4", "--rw", "mixed", "--depth", "8", "--time", "20s"]);
        let deep = deep.expect("a report").read.expect("reads");
        assert!((deep.mean_ns / read.mean_ns - 8.0).abs() < 0.5, "one queue: {} ns", deep.mean_ns);
    }

    #[test]
    fn what_ends_after_the_time_takes_none_of_it() {
        let words = ["--model", "cheetah-15k4", "--depth", "64", "--time", "50ms", "--ramp", "0s"];
        let report = bench(FILE, &words).expect("a report");
        assert_eq!(report.seconds, 0.05);
        assert!((50.0..250.0).contains(&report.iops), "{} requests a second", report.iops);
    }

    #[test]
    fn a_load_that_only_memory_answers_ends() {
        let words =
            ["--model", "cheetah-15k4", "--device", "ram", "--depth", "2", "--time", "10ms", "--ramp", "0s"];
        assert_eq!(bench(FILE, &words).expect("a report").read.expect("reads").p50_ns, 1000);
    }

    #[test]
    fn layers_that_remember_are_made_first() {
        let file = format!(
            "[hierarchy]\nname = \"x\"\n{}",
            FILE.replace("type = \"linear\"", "type = \"snapshot\"")
                .replace("size = \"4GiB\"\n", "size = \"1GiB\"\n")
        );
        let file = file.replace("[device.ram]\ntype = \"memory\"\nsize = \"1MiB\"\n", "");
        let words = ["--model", "ssd-sata", "--rw", "write", "--depth", "4", "--time", "200ms"];
        let report = bench(&file, &words).expect("a report");
        assert!(report.write.expect("writes").requests > 100);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        for (words, says) in [
            (&[][..], "--model"),
            (&["--model", "no-such"], "neither a model that comes with Lamina nor a model file"),
            (&["--model", "diks=cheetah-15k4"], "no disk is called"),
            (&["--model", "cheetah-15k4", "--model", "san"], "another model is given for the same"),
            (&["--model", "san", "--server-pid", "1"], "--server-pid"),
        ] {
            let message = bench(FILE, words).expect_err("it does not fit");
            assert!(message.contains(says), "{words:?}: {message}");
        }
    }
}
