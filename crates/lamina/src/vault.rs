//! `lamina vault`: the volumes of a vault, which hosts have them, and what only a person can settle.

use crate::cli::{self, VaultAction};
use crate::confirm::confirm;
use crate::exit::Failure;
use crate::show;
use lamina_block::{Env, Manage, Result, far_end};
use lamina_cluster::amend::{accept_loss, declare_dead, is_awaited};
use lamina_cluster::host::Name;
use lamina_cluster::vault::{Certificates, Holder, Mode, Place, Record, StoreVault, Vault};
use lamina_host::{Options, Reactor};
use lamina_nbd::client;
use lamina_tls::ClientTls;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

const TITLES: [&str; 5] = ["VOLUME", "HOST", "GENERATION", "ONLY ON FLASH", "LAST HELD BY"];
/// Columns that hold text.
const TEXT_COLUMNS: usize = 5;

/// Runs `lamina vault`.
pub fn run(args: &cli::Vault) -> std::result::Result<(), Failure> {
    let reactor = Reactor::new(Options::default())
        .map_err(|e| Failure::failed(format!("the reactor cannot start: {e}")))?;
    let env: Rc<dyn Env> = reactor.env();
    let place = match &args.place {
        Place::Folder(folder) => Place::Folder(std::path::absolute(folder)?),
        elsewhere => elsewhere.clone(),
    };
    let told = |e: lamina_block::Error| Failure::failed(format!("{}: {e}", args.place));
    let own = args.certificate.clone().zip(args.key.clone());
    let vault = match &place {
        Place::Store(uri) => reactor.run(of_store(&env, uri, args.ca.as_deref(), own)).map_err(told)?,
        place => {
            let certificates = args.ca.clone().map(|ca| Certificates { ca, own });
            place.open(&env, certificates.as_ref()).map_err(told)?
        }
    };
    let mut out = std::io::stdout().lock();
    match &args.action {
        None => {
            let records = reactor.run(records(&*vault)).map_err(told)?;
            match args.json {
                true => {
                    writeln!(out, "{}", serde_json::to_string_pretty(&records).map_err(Failure::failed)?)?
                }
                false if records.is_empty() => writeln!(out, "{} has no volume", place)?,
                false => write!(out, "{}", table(&records))?,
            }
        }
        Some(VaultAction::HostIsDead { host }) => {
            let freed = reactor.run(free(&*vault, &*env, host)).map_err(told)?;
            if freed.is_empty() {
                return Err(Failure::failed(format!("host {host:?} has no volume in {}", place)));
            }
            for record in freed {
                match &record.holder {
                    None => writeln!(out, "volume {:?} is free: {}", record.name, whereabouts(&record))?,
                    // It waited for that only to bring everything to the store.
                    Some(holder) => writeln!(
                        out,
                        "volume {:?}: {holder} has it, and waits for no late writes any more",
                        record.name
                    )?,
                }
            }
        }
        Some(VaultAction::AcceptLoss { volume, force }) => {
            let record = reactor.run(vault.read(Name::new(volume).uuid)).map_err(told)?;
            let Some(record) = record else {
                return Err(Failure::failed(format!("{} has no volume {volume:?}", place)));
            };
            if record.mode == Mode::Through {
                writeln!(out, "volume {volume:?}: {}: nothing is lost", whereabouts(&record))?;
                return Ok(());
            }
            if !force {
                confirm(&format!("volume {volume:?}: {}; those writes are lost", whereabouts(&record)))?;
            }
            reactor.run(accept_loss(&*vault, &*env, Name::new(volume).uuid)).map_err(told)?;
            writeln!(out, "volume {volume:?}: its store counts as it is")?;
        }
    }
    Ok(())
}

/// The vault that a store keeps.
async fn of_store(
    env: &Rc<dyn Env>,
    uri: &str,
    ca: Option<&Path>,
    own: Option<(PathBuf, PathBuf)>,
) -> Result<Rc<dyn Vault>> {
    let target: client::Target = uri.parse()?;
    let own = own.as_ref().map(|(certificate, key)| (&**certificate, &**key));
    let tls = ca.map(|ca| ClientTls::load(ca, own, target.host())).transpose()?;
    let options = client::Options { tls, reconnect: Duration::ZERO, ..client::Options::default() };
    let store = client::Client::connect(env, target, options).await?;
    Ok(Rc::new(StoreVault::new(far_end(store.shared())?)))
}

/// The newest records of all volumes, by name.
async fn records(vault: &dyn Vault) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for volume in vault.volumes().await? {
        records.extend(vault.read(volume).await?);
    }
    records.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(records)
}

/// Frees the volumes of a dead host.
async fn free(vault: &dyn Vault, env: &dyn Env, host: &str) -> Result<Vec<Record>> {
    let mut freed = Vec::new();
    for record in records(vault).await? {
        let has_it = record.holder.as_ref().is_some_and(|holder| holder.host == host);
        if has_it || is_awaited(&record, host) {
            freed.push(declare_dead(vault, env, record.volume, host).await?);
        }
    }
    Ok(freed)
}

fn flashes(mode: &Mode) -> String {
    mode.members().iter().map(|flash| flash.to_string()).collect::<Vec<_>>().join(", ")
}

/// Where the writes of a volume are.
fn whereabouts(record: &Record) -> String {
    match record.mode {
        Mode::Through => "its store has everything".into(),
        Mode::Back { .. } | Mode::Recovering { .. } => {
            format!("only flash {} has some of its writes", flashes(&record.mode))
        }
    }
}

fn table(records: &[Record]) -> String {
    let host = |holder: &Option<Holder>| holder.as_ref().map_or("-".to_owned(), |holder| holder.host.clone());
    let row = |record: &Record| {
        let only = flashes(&record.mode);
        let only = if only.is_empty() { "-".into() } else { only };
        let (holder, before) = (host(&record.holder), host(&record.previous));
        vec![record.name.clone(), holder, record.generation.to_string(), only, before]
    };
    show::table(&TITLES, TEXT_COLUMNS, &records.iter().map(row).collect::<Vec<_>>())
}
