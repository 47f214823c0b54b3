//! All cores, as the control plane sees them.

use super::change;
use super::core_thread::{self, Ended, Handle, Thread};
use super::exports::Terms;
use super::placement::Placement;
use super::tap::WAITING_MAX;
use super::usage;
use crate::api::{Applied, Apply, ByteMap, Job, Snapshot, Steer, Why};
use crate::control::server::{Answer, Daemon};
use crate::control::{End, Tracing};
use crate::exit::Failure;
use crate::verbs::Denied;
use lamina_block::{Command, Error};
use lamina_host::Options;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The cores of a daemon. Everything asked of them goes out at once and is collected afterwards.
pub struct Cores {
    handles: Vec<Handle>,
    started: Instant,
    draining: AtomicBool,
    /// Held while hierarchies change.
    changing: Arc<tokio::sync::Mutex<()>>,
    /// This is the rest of an interrupted change.
    going_on: Arc<AtomicBool>,
}

impl Cores {
    /// Starts so many cores, with nothing on them, each with a part of the memory.
    pub async fn start(
        count: usize,
        options: Options,
        terms: Terms,
    ) -> Result<(Cores, Vec<Thread>), Failure> {
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        let terms = Terms { memory: terms.memory / count.max(1), ..terms };
        for index in 0..count {
            let (handle, thread) = core_thread::start(index, options.clone(), terms).await?;
            handles.push(handle);
            threads.push(thread);
        }
        let (changing, going_on) = (Arc::default(), Arc::default());
        let (started, draining) = (Instant::now(), AtomicBool::new(false));
        Ok((Cores { handles, started, draining, changing, going_on }, threads))
    }

    /// Opens all devices, if `degraded` also without members that are missing, and when that went well all exports.
    /// After an error, [`Cores::close`] what was opened.
    pub async fn open(&self, placement: Placement, degraded: bool) -> Result<(), Failure> {
        let build = |(handle, plans): (&Handle, _)| handle.ask(move |core| core.build(plans, degraded));
        let building: Vec<_> = self.handles.iter().zip(placement).map(build).collect();
        let built = collect(building).await?;
        if !built.is_empty() {
            return Err(Failure::File(built.concat()));
        }
        let opening: Vec<_> = self.handles.iter().map(|handle| handle.ask(|core| core.open())).collect();
        match collect(opening).await? {
            wrong if wrong.is_empty() => Ok(()),
            wrong => Err(Failure::failed(wrong.join("\n"))),
        }
    }

    /// Goes on with changes that were interrupted, beside everything else.
    pub fn go_on(&self) {
        let Ok(alone) = Arc::clone(&self.changing).try_lock_owned() else { return };
        let (handles, going_on) = (self.handles.clone(), Arc::clone(&self.going_on));
        going_on.store(true, Ordering::Relaxed);
        tokio::spawn(async move {
            let _alone = alone;
            change::go_on(&handles).await;
            going_on.store(false, Ordering::Relaxed);
        });
    }

    /// Waits until all cores have answered; false if one has ended.
    pub async fn answer(&self) -> bool {
        let asked: Vec<_> = self.handles.iter().map(|handle| handle.ask(|_| async {})).collect();
        futures_util::future::join_all(asked).await.iter().all(Result::is_ok)
    }

    /// Drains and closes all cores; the number of hierarchies that could not be closed well.
    pub async fn close(&self) -> usize {
        self.draining.store(true, Ordering::Relaxed);
        let closing: Vec<_> = self.handles.iter().map(|handle| handle.ask(|core| core.close())).collect();
        let mut wrong = 0;
        for core in closing {
            wrong += core.await.map_or(1, |errors| errors.len());
        }
        wrong
    }
}

/// The messages of all cores that failed.
async fn collect<E: std::fmt::Display>(
    asked: Vec<impl Future<Output = Result<Result<(), E>, Ended>>>,
) -> Result<Vec<String>, Failure> {
    let mut wrong = Vec::new();
    for answer in asked {
        match answer.await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => wrong.push(e.to_string()),
            Err(Ended) => return Err(Failure::failed("a core has ended; the log says why")),
        }
    }
    Ok(wrong)
}

/// The answer of the core that has what is asked for; the others answer at once.
fn first<T: Send + 'static>(
    asked: Vec<impl Future<Output = Result<Option<T>, Ended>> + Send + 'static>,
) -> Answer<Option<T>> {
    Box::pin(async move {
        for core in asked {
            if let Ok(Some(found)) = core.await {
                return Some(found);
            }
        }
        None
    })
}

/// A copy of everything.
async fn snapshot(handles: &[Handle], started: Instant) -> Snapshot {
    let asked: Vec<_> =
        handles.iter().map(|handle| handle.ask(|core| async move { core.snapshot() })).collect();
    let mut hierarchies = Vec::new();
    for core in asked {
        hierarchies.extend(core.await.unwrap_or_default());
    }
    Snapshot {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_ns: started.elapsed().as_nanos() as u64,
        cpu_ns: usage::cpu_ns(),
        resident_bytes: usage::resident_bytes(),
        hierarchies,
    }
}

/// Begins a trace on the core that has the device; `None` if none has.
async fn trace(handles: Vec<Handle>, device: String) -> Option<Result<Tracing, Error>> {
    let (sender, asked) = tokio::sync::mpsc::channel(WAITING_MAX);
    for handle in handles {
        let (name, sender) = (device.clone(), sender.clone());
        match handle.ask(|core| async move { core.trace(&name, sender) }).await {
            Ok(Some(Ok(()))) => {
                // The order is on its way when this returns; nobody waits for its end.
                let end = move || drop(handle.ask(|core| async move { core.end_trace(&device) }));
                return Some(Ok(Tracing { asked, end: End(Some(Box::new(end))) }));
            }
            Ok(Some(Err(e))) => return Some(Err(e)),
            Ok(None) | Err(Ended) => {}
        }
    }
    None
}

impl Daemon for Cores {
    fn snapshot(&self) -> Answer<Snapshot> {
        let (handles, started) = (self.handles.clone(), self.started);
        Box::pin(async move { snapshot(&handles, started).await })
    }

    fn control(&self, device: String, command: Command) -> Answer<Option<Result<Value, Denied>>> {
        // Only one core has it; the others answer at once.
        let ask = |handle: &Handle| {
            let (device, command) = (device.clone(), command.clone());
            handle.ask(|core| core.control(device, command))
        };
        first(self.handles.iter().map(ask).collect())
    }

    fn steer(&self, device: String, job: String, steer: Steer) -> Answer<Option<Result<Job, Error>>> {
        let ask = |handle: &Handle| {
            let (device, job, steer) = (device.clone(), job.clone(), steer.clone());
            handle.ask(|core| async move { core.steer(&device, &job, &steer) })
        };
        first(self.handles.iter().map(ask).collect())
    }

    fn why(&self, export: String) -> Answer<Option<Why>> {
        let ask = |handle: &Handle| {
            let export = export.clone();
            handle.ask(|core| async move { core.why(&export) })
        };
        first(self.handles.iter().map(ask).collect())
    }

    fn map(&self, device: String, at: u64) -> Answer<Option<Result<ByteMap, Error>>> {
        let ask = |handle: &Handle| {
            let device = device.clone();
            handle.ask(move |core| async move { core.map(&device, at).await })
        };
        first(self.handles.iter().map(ask).collect())
    }

    fn trace(&self, device: String) -> Answer<Option<Result<Tracing, Error>>> {
        // A task of its own: a client that goes away drops the answer, and that ends a trace that has begun.
        let begun = tokio::spawn(trace(self.handles.clone(), device));
        Box::pin(async move {
            begun.await.unwrap_or_else(|e| Some(Err(Error::offline(format!("the trace ended: {e}")))))
        })
    }

    fn apply(&self, apply: Apply) -> Answer<Result<Applied, Denied>> {
        let changing = Arc::clone(&self.changing);
        let alone = Arc::clone(&changing).try_lock_owned().ok();
        if alone.is_none() && !self.going_on.load(Ordering::Relaxed) {
            return Box::pin(async {
                Err(Error::busy("another change is under way: try again when that is done").into())
            });
        }
        let (handles, started) = (self.handles.clone(), self.started);
        // A task of its own: a client that goes away must not let another change begin beside this one.
        let work = tokio::spawn(async move {
            let _alone = match alone {
                Some(alone) => alone,
                None => changing.lock_owned().await,
            };
            let now = snapshot(&handles, started).await;
            change::apply(&handles, &now, &apply).await
        });
        Box::pin(async move {
            work.await.unwrap_or_else(|e| Err(Error::offline(format!("the change ended: {e}")).into()))
        })
    }

    fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_core_that_hangs_does_not_answer_until_it_goes_on() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (cores, threads) = Cores::start(2, Options::default(), Terms { memory: 1 << 20, samples: 0 })
                .await
                .expect("two cores");
            assert!(cores.answer().await);
            let (go_on, wait) = mpsc::channel::<()>();
            let hangs = cores.handles[1].ask(|_| async move { wait.recv().is_ok() });
            let late = tokio::time::timeout(Duration::from_millis(200), cores.answer()).await;
            assert!(late.is_err(), "a core that hangs has answered");
            drop(go_on);
            hangs.await.expect("the core goes on");
            assert!(cores.answer().await);
            cores.close().await;
            threads.into_iter().for_each(Thread::join);
            assert!(!cores.answer().await, "cores that have ended have answered");
        });
    }
}
