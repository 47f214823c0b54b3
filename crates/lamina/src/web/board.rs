//! The newest view of a daemon, for all viewers of the page.
//!
//! The cores are asked at most once a second, and each text is made once: five viewers cost as much as one.

use super::history::{History, STEP};
use super::{HEAT_MAP, has_map, state, volume};
use crate::api::Snapshot;
use crate::control::server::Daemon;
use crate::events::Journal;
use crate::files;
use crate::show::Rates;
use crate::verbs::Denied;
use axum::body::Bytes;
use lamina_block::{Command, Kind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How old a view may be that is shown once more. A page that asks each second finds a new one each time.
const AGE_MAX: Duration = Duration::from_millis(950);

/// Cells of a heat map of a device.
const CELLS: u32 = 96;
/// How old a heat map may be that is shown once more: to make one is work for the device.
const MAP_AGE_MAX: Duration = Duration::from_secs(5);

/// A daemon at one moment.
pub struct View {
    taken: Instant,
    /// Everything, copied from the cores.
    pub snapshot: Snapshot,
    /// The activity since the view before.
    pub rates: Rates,
    /// The text that the page shows of it, as JSON.
    pub state: Bytes,
    /// The same of volumes that were opened.
    volumes: Mutex<BTreeMap<String, Bytes>>,
}

/// The newest view, and the last hour.
pub struct Board {
    daemon: Arc<dyn Daemon>,
    journal: Arc<Journal>,
    kinds: Vec<Kind>,
    may_steer: bool,
    newest: tokio::sync::Mutex<Option<Arc<View>>>,
    history: Mutex<History>,
    /// By device. One is made at a time.
    maps: tokio::sync::Mutex<BTreeMap<String, (Instant, Value)>>,
}

impl Board {
    /// The board of a daemon.
    pub fn new(daemon: Arc<dyn Daemon>, journal: Arc<Journal>, may_steer: bool) -> Board {
        let (newest, history, maps) = (tokio::sync::Mutex::new(None), Mutex::default(), Default::default());
        Board { daemon, journal, kinds: files::kinds(), may_steer, newest, history, maps }
    }

    /// The daemon.
    pub fn daemon(&self) -> &Arc<dyn Daemon> {
        &self.daemon
    }

    /// Its events.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The last hour.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("nobody panics while it is locked")
    }

    /// A view that is not old. Several who ask at once wait for the same one.
    pub async fn view(&self) -> Arc<View> {
        let mut newest = self.newest.lock().await;
        if let Some(view) = newest.as_ref().filter(|view| view.taken.elapsed() < AGE_MAX) {
            return Arc::clone(view);
        }
        let snapshot = self.daemon.snapshot().await;
        let taken = Instant::now();
        let rates = Rates::between(newest.as_ref().map_or(&snapshot, |before| &before.snapshot), &snapshot);
        let moment = state::Moment {
            snapshot: &snapshot,
            rates: &rates,
            kinds: &self.kinds,
            may_steer: self.may_steer,
            is_draining: self.daemon.draining(),
            last_event: self.journal.last(),
        };
        let state = Bytes::from(state::text(&moment));
        let view = Arc::new(View { taken, snapshot, rates, state, volumes: Mutex::default() });
        *newest = Some(Arc::clone(&view));
        view
    }

    /// An export with the tree below it, as JSON; `None` if there is no such export.
    pub async fn volume(&self, export: &str) -> Option<Bytes> {
        let view = self.view().await;
        let made = || view.volumes.lock().expect("nobody panics while it is locked");
        if let Some(text) = made().get(export) {
            return Some(text.clone());
        }
        view.snapshot.exports().find(|known| known.name == export)?;
        let why = self.daemon.why(export.to_owned()).await;
        let text = Bytes::from(volume::text(&view.snapshot, &view.rates, &self.kinds, export, why.as_ref())?);
        made().insert(export.to_owned(), text.clone());
        Some(text)
    }

    /// The heat map of a device; `None` if there is no such device, or its kind has none.
    pub async fn map(&self, device: &str) -> Option<Result<Value, Denied>> {
        let view = self.view().await;
        let found = view.snapshot.devices().find(|known| known.name == device)?;
        self.kinds.iter().find(|kind| kind.name == found.kind && has_map(kind))?;
        let mut maps = self.maps.lock().await;
        maps.retain(|_, (made, _)| made.elapsed() < MAP_AGE_MAX);
        if let Some((_, map)) = maps.get(device) {
            return Some(Ok(map.clone()));
        }
        let command = Command { name: HEAT_MAP.into(), args: json!({ "cells": CELLS }) };
        let answer = self.daemon.control(device.to_owned(), command).await?;
        if let Ok(map) = &answer {
            maps.insert(device.to_owned(), (Instant::now(), map.clone()));
        }
        Some(answer)
    }

    /// Takes a sample every ten seconds.
    pub async fn take_samples(&self) -> Infallible {
        let mut before = self.view().await;
        loop {
            tokio::time::sleep(STEP).await;
            let now = self.view().await;
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.history().add(time.as_millis() as u64, &before.snapshot, &now.snapshot);
            before = now;
        }
    }
}
