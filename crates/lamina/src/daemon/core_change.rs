//! A hierarchy of a core becomes another one: its stages, its exports.
//!
//! Exports that go are closed first and those that are new opened last, so that no client ever meets a device that is
//! not there. An export with clients is not closed.

use super::core_thread::{Core, Served};
use super::exports::listen;
use crate::files;
use crate::inspect;
use lamina_block::{Error, Result};
use lamina_graph::{Export, Hierarchy, MemberPlan, Plan, Stage};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

impl Core {
    /// The steps that change the hierarchy of `device` to `plan`, or the reasons against the change.
    pub async fn steps(self: Rc<Self>, device: String, plan: Plan) -> Result<Vec<String>> {
        let (_, served) = self.find(&device)?;
        let stages = stages(&served.hierarchy, &plan)?;
        self.unused(&served.hierarchy, &plan)?;
        Ok(stages.into_iter().flat_map(|(_, steps)| steps).collect())
    }

    /// Refuses to change the hierarchy that has `device` to `plan` if its data would not fit; `sizes` are those of new
    /// members.
    pub async fn fits(
        self: Rc<Self>,
        device: String,
        plan: Plan,
        sizes: BTreeMap<String, u64>,
    ) -> Result<()> {
        let (_, served) = self.find(&device)?;
        served.hierarchy.fits(&plan, &sizes, &self.env()).map_err(|report| files::failed(&report))
    }

    /// The devices that would become members, if the hierarchy that has `device` were changed to `plan`.
    pub async fn new_members(self: Rc<Self>, device: String, plan: Plan) -> Result<Vec<MemberPlan>> {
        Ok(self.find(&device)?.1.hierarchy.new_members(&plan))
    }

    /// The data on other machines that the change of the hierarchy that has `device` to `plan` would overwrite: a line
    /// for each device. A device that cannot be opened is the change's to report.
    pub async fn overwritten(self: Rc<Self>, device: String, plan: Plan) -> Result<Vec<String>> {
        let (_, served) = self.find(&device)?;
        let mut lines = Vec::new();
        for sink in served.hierarchy.overwrites(&plan) {
            let Ok(node) = plan.opened_alone(sink, &self.env()).await else { continue };
            let found = inspect::scan_device(&node).await;
            let closed = node.close().await;
            // What cannot be read may be anything.
            for found in found.and_then(|found| closed.map(|()| found)).map_err(|e| e.on(&sink.name))? {
                lines.push(format!("device {:?}: it carries {}", sink.name, found.as_text()));
            }
        }
        Ok(lines)
    }

    /// Changes the hierarchy that has `device` to `plan`. Returns the failures after the change was made.
    pub async fn change(self: Rc<Self>, device: String, plan: Plan) -> Result<Vec<String>> {
        let (_, before) = self.find(&device)?;
        let stages = stages(&before.hierarchy, &plan)?;
        self.unused(&before.hierarchy, &plan)?;
        for export in gone(&before.hierarchy, &plan) {
            let removed = self.exports.borrow_mut().remove(&export.name);
            removed.close().await;
        }
        let staged = self.stages(&device, stages).await;
        // All exports of the present hierarchy are open, also after an error.
        let opened = match self.find(&device) {
            Ok((_, served)) => self.open_exports(&served.hierarchy).await,
            Err(e) => Err(e),
        };
        self.watch_jobs();
        let mut warnings = staged?;
        warnings.extend(opened.err().map(|e| e.to_string()));
        Ok(warnings)
    }

    /// Goes through all stages, or to the first that fails.
    async fn stages(&self, device: &str, stages: Vec<(Stage, Vec<String>)>) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        for (done, (stage, _)) in stages.into_iter().enumerate() {
            let (_, served) = self.find(device)?;
            let stays = stays(&stage, done);
            let passed = self.stage(device, &served, stage).await;
            warnings.extend(passed.map_err(|e| Error::new(e.kind(), format!("{e}{stays}")))?);
            tracing::info!(file = served.file, "a stage of the change is done");
        }
        Ok(warnings)
    }

    async fn stage(&self, device: &str, served: &Served, stage: Stage) -> Result<Vec<String>> {
        let plan = match stage {
            Stage::Change(plan) => plan,
            Stage::Move { device, from } => {
                let Some(node) = served.hierarchy.node(&device) else { return Ok(Vec::new()) };
                tracing::info!(device, from = from.join(", "), "moving data away");
                return node.evacuate(from).await.map(|()| Vec::new());
            }
        };
        let file = plan.file().to_owned();
        let alone = self.changing.lock().await;
        let changed = served.hierarchy.change(plan, &self.env()).await;
        let (hierarchy, wrong) = changed.map_err(|report| files::failed(&report))?;
        // Looked for again: a signal may have come meanwhile, and everything been closed.
        match self.find(device) {
            Ok((at, before)) => {
                let started = before.started.clone();
                self.served.borrow_mut()[at] = Rc::new(Served { file, started, hierarchy });
            }
            Err(_) => hierarchy.close().await?,
        }
        drop(alone);
        Ok(wrong.iter().map(|e| e.to_string()).collect())
    }

    /// The hierarchies that were opened in the middle of a change: one device of each, and the plan of its end.
    pub async fn unfinished(self: Rc<Self>) -> Vec<(String, Plan)> {
        let served = self.served.borrow().clone();
        let found = |served: &Rc<Served>| {
            let destination = served.hierarchy.destination()?;
            Some((served.hierarchy.nodes().first()?.name().to_owned(), destination))
        };
        served.iter().filter_map(found).collect()
    }

    /// The file that the daemon was started with for the hierarchy that has `device`.
    pub async fn started(self: Rc<Self>, device: String) -> Option<PathBuf> {
        self.find(&device).ok()?.1.started.clone()
    }

    /// Records `plan`, the present content of that file; true if it is the served hierarchy.
    pub async fn confirm(self: Rc<Self>, device: String, plan: Plan) -> Result<bool> {
        let (_, served) = self.find(&device)?;
        served.hierarchy.confirm(&plan).await
    }

    /// Refuses to close exports that have clients.
    fn unused(&self, hierarchy: &Hierarchy, plan: &Plan) -> Result<()> {
        for export in gone(hierarchy, plan) {
            let clients = self.exports.borrow().clients_of(&export.name);
            if !clients.is_empty() {
                return Err(Error::busy(format!(
                    "export {:?} is in use by {}: it can be closed without users",
                    export.name,
                    clients.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// Opens those exports of a hierarchy that are not open.
    async fn open_exports(&self, hierarchy: &Hierarchy) -> Result<()> {
        for export in hierarchy.exports() {
            if self.exports.borrow().is_open(&export.name) {
                continue;
            }
            let added = self.exports.borrow_mut().add(&self.host, hierarchy, export);
            let address = self.exports.borrow().to_listen(export);
            let listener = match (added, address) {
                (Err(e), _) => Err(e),
                (Ok(()), None) => Ok(None),
                (Ok(()), Some(address)) => listen(&self.host, export, address).await.map(Some),
            };
            match listener {
                Ok(listener) => self.exports.borrow_mut().listening(&self.host, export, listener),
                Err(e) => {
                    let removed = self.exports.borrow_mut().remove(&export.name);
                    removed.close().await;
                    return Err(e);
                }
            }
        }
        Ok(())
    }
}

/// The message after `stage` has failed, when `done` stages before it had passed.
fn stays(stage: &Stage, done: usize) -> &'static str {
    match (stage, done) {
        (Stage::Move { .. }, _) => {
            "\ndata that was moved stays in its new place, and everything is served, from the devices before and the \
             new ones; the same file leads on from there. The earlier file leads back: at once if nothing was moved, \
             else when all data was"
        }
        (Stage::Change(_), 0) => "",
        (Stage::Change(_), _) => {
            "\nall data was moved, and everything is served; the same file leads on from there, the file from before \
             leads back"
        }
    }
}

fn stages(hierarchy: &Hierarchy, plan: &Plan) -> Result<Vec<(Stage, Vec<String>)>> {
    hierarchy.stages(plan, &files::kinds()).map_err(|report| files::failed(&report))
}

/// The exports of a hierarchy that are not in `plan`.
fn gone(hierarchy: &Hierarchy, plan: &Plan) -> Vec<Export> {
    let is_gone = |export: &&Export| plan.exports().iter().all(|other| other.name != export.name);
    hierarchy.exports().iter().filter(is_gone).cloned().collect()
}
