//! Arguments of `lamina cluster` and `lamina vault`.

use super::Daemon;
use clap::{Args, Subcommand};
use lamina_cluster::vault::Place;
use std::path::PathBuf;

/// Arguments of `cluster`.
#[derive(Args, Debug)]
pub struct Cluster {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON, as the control API answers at /v1/cluster.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `vault`.
#[derive(Args, Debug)]
pub struct Vault {
    /// The vault: as the key `vault` of devices has it, a folder, or etcd:HOST:PORT,HOST:PORT,HOST:PORT; or, where the
    /// store keeps it, the URI of that, such as nbd://HOST:PORT/EXPORT.
    #[arg(value_name = "VAULT")]
    pub place: Place,
    /// The authorities that certificates of etcd, or of the store, must come from: a PEM file. With it the connection
    /// is encrypted.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The certificate to show to it.
    #[arg(long, value_name = "FILE", requires = "key", requires = "ca")]
    pub certificate: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub action: Option<VaultAction>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What is done to a vault.
#[derive(Subcommand, Debug)]
pub enum VaultAction {
    /// Say that a host is dead: that it is off, or cut off from the stores. Others may take its volumes then.
    ///
    /// A host that only seems to be dead, and still writes to a store, would write there beside the next one: see to it
    /// first that the host is off.
    HostIsDead {
        /// The host.
        host: String,
    },
    /// Give up the writes of a volume that only a lost flash has: its store counts as it is.
    AcceptLoss {
        /// The volume.
        volume: String,
        /// Do not ask for confirmation.
        #[arg(long)]
        force: bool,
    },
}
