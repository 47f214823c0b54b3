//! A load in virtual time: the real layers of a hierarchy on simulated disks that take the time of models.
//!
//! The disks are blank and as large as those that the file names, of which nothing but the size is looked at. Layers that
//! remember begin as after their creation: reads of what was never written may not reach a disk at all.
//!
//! The time of the processor deliberately counts for nothing; a request takes a microsecond if nothing else takes time.

use super::load::Clock;
use super::report::Report;
use super::target::Target;
use super::{load, size};
use crate::cli;
use crate::exit::Failure;
use crate::files;
use crate::predict::clients::{Counted, Log};
use crate::predict::drives::{Models, Named};
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
    let Target { plan, device } = Target::of_file(Path::new(&args.target), args.device.as_deref(), &kinds())?;
    let simulation = Simulation::measuring(args.seed);
    let env = simulation.env();
    let remembers = plan.devices().iter().any(|device| device.kind.traits.keeps);
    for (number, drive) in models.drives(&plan)?.into_iter().enumerate() {
        drive.put(&env, args.seed.wrapping_add(number as u64), remembers);
    }
    // Only clients of a prediction are counted there.
    let log = Log::new(Counted { warmup: u64::MAX, requests: 0 });
    let world: Rc<dyn Env> = World::new(env, log, None, Default::default());
    let hierarchy = simulation.run(open(plan, Rc::clone(&world))).map_err(Failure::failed)??;
    let node = hierarchy.node(&device).ok_or_else(|| Failure::failed(format!("no device {device:?}")))?;
    let size = size(&node.geometry(), args).map_err(|wrong| Failure::usage(format!("{device}: {wrong}")))?;
    let clock = Clock::Virtual(Rc::clone(&world));
    let report = simulation.run(load(args, size).run(world, clock, node)).map_err(Failure::failed)?;
    simulation
        .run(async move { hierarchy.close().await })
        .map_err(Failure::failed)?
        .map_err(Failure::failed)?;
    Ok(Report { virtual_time: true, ..report })
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
        let twice = match text.split_once('=') {
            Some((device, model)) => models.of.insert(device.into(), Named::read(model)?).is_some(),
            None => models.all.replace(Named::read(text)?).is_some(),
        };
        if twice {
            return Err(Failure::usage(format!("--model {text}: another model is given for the same")));
        }
    }
    Ok(models)
}
