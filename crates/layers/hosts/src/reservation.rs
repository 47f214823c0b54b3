//! `reservation`: a store that several hosts reach, of which one at a time reads and writes it.
//!
//! ```text
//!      host a: vm ─▶ reservation ─┐                ┌─ vault: "vm1": host a, generation 4
//!                                 ├─▶ the store ◀──┤
//!      host b: vm ─▶ reservation ─┘  (refused)     └─ host a has it, and is alive
//! ```
//!
//! The *vault* is what all hosts reach: the store itself, if that is an export of Lamina with the key `vault`; or a
//! folder on a file system of their own choice, or etcd. It has a record for each volume: which host has it, and
//! whether only a flash has some of its writes. The record is compared and set, and
//! no lock: a host that was paused finds that its record was followed by another one. The format is in
//! `docs/formats/vault.md`.
//!
//! A host takes the volume with its first request, or when a device of kind `accelerate` or `tier` directly above is
//! opened, and gives it back when the device is closed. If the store has failed a write before, that may still be done:
//! the store has to answer a flush first. Such a device says to the vault that its flash has what the store lacks
//! before the first write is acknowledged from there. Until all of it is on the store, the volume is for the host that
//! has this flash: other hosts are refused, in words that name both. What was on a flash before another host had the
//! volume is forgotten there, and never read.
//!
//! A host beats four times in a lease. One that has been silent for a lease may be dead; or it is cut off from the
//! vault alone, and still writes to the store. So its volume is not taken away from it unless the program of
//! `lamina serve --fence PROGRAM` has switched it off, or a person says that it is dead: `lamina vault VAULT
//! host-is-dead HOST`. A store that is the vault needs no such word: before it answers that another host has the
//! volume, all requests of the one before have ended, and later ones are refused. If a host was not dead, it notices
//! within a quarter of a lease, and all its requests fail from then on (*fenced*), until the device is opened again.
//! `lamina cluster` shows the hosts, and what the volume survives now.
//!
//! Keys:
//! * `over`: the store. No superblock may be on it, as two hosts would write that: a sink of kind `nbd`, or a `file`
//!   that is no member of the hierarchy.
//! * `vault` (none: the store itself, an export of Lamina with the key `vault`): the folder, or
//!   `"etcd:HOST:PORT,HOST:PORT,HOST:PORT"`: the members of etcd 3.4 or later, which are asked one after the other
//!   until one answers. Keys begin with `lamina/`, or with `PREFIX/` if `/PREFIX` follows. etcd
//!   keeps old revisions of beats until its quota is full: give it `--auto-compaction-retention=1h`.
//! * `vault-tls` (none): for a vault in etcd that speaks TLS: a table with `ca`, and `certificate` and `key` of this
//!   client if etcd asks for them (`--client-cert-auth`), PEM files all. Members show certificates for their `HOST`.
//! * `volume`: the name of the volume in the vault, the same on all hosts: 1 to 64 letters, digits, `-`, `_`, `.`.
//! * `host`: the name of this host, another one on each host; the same characters.
//! * `domain` (none): the fault domain of this host, such as the name of its rack: hosts of a domain may fail together.
//!   Devices above can ask for peers in other ones. The same characters.
//! * `listen` (none): where this host takes the writes of other hosts, `"tcp:ADDRESS:PORT"`; the vault tells them that.
//!   Port 0 lets the system choose.
//! * `tls` (none): for `listen`, a table with `ca`, `certificate` and `key`, PEM files all. What hosts say to each
//!   other is encrypted (TLS 1.3), and each shows a certificate of that authority, good for servers and clients, with
//!   its `host` as a DNS name. All hosts of a volume have such files, which are read when the device is opened. With
//!   `"off"` nothing is encrypted, and whoever connects is believed as far as the vault bears it out: give hosts a
//!   network of their own. One of the two is needed if other machines reach the address of `listen`.
//! * `settles` (none): the store does nothing any more of a connection that ended so long ago, from 1s to 1h. With this
//!   promise, a host whose volume was taken over says so itself, after that time, when it notices it or is started
//!   again; without it, a program or a person does (`--fence`, `host-is-dead`). Until then a host with peers keeps on
//!   its flash what late writes could undo.
//! * `protocol` (2, the newest): the newest version of the protocol between hosts that this one speaks, 1 or 2. Hosts
//!   speak the newest one that both know, so they are upgraded one by one, in any order. This key keeps an upgraded
//!   host from what the others do not know yet: with 1 no volume moves by being asked for.
//! * `lease` ("10s"): how long a host is silent until others doubt that it is alive, from 1 to 300 seconds.
//!
//! While the vault does not answer, no volume changes hands, and a host that has one goes on; what needs a change of
//! the record waits: the first write from flash, and closing. With peers a host goes on for three quarters of its
//! lease, as a peer may follow it that reaches the vault: then requests wait, and fail after `store-timeout`. So do
//! reads from a flash in front of a store that is the vault and has every write.

mod tls;

use lamina_block::{
    Address, Build, Config, Consent, Effect, Error, Figure, Geometry, Interval, Io, Layer, Made, Manage,
    Node, Notice, Op, Outside, Over, Passthrough, Pending, Result, Step, Traits, Unit, far_end,
};
use lamina_cluster::host::{Fence, Host, Name};
use lamina_cluster::promise::Keeps;
use lamina_cluster::report::Own;
use lamina_cluster::reservation::Reservation;
use lamina_cluster::vault::{Certificates, ETCD, Holder, Place, StoreVault, Vault, is_name};
use lamina_cluster::wire::VERSIONS;
use lamina_tls::MutualTls;
use serde::Deserialize;
use serde_json::{Value, json};
use std::any::Any;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tls::Tls;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    vault: Option<String>,
    vault_tls: Option<VaultTls>,
    volume: String,
    host: String,
    domain: Option<String>,
    listen: Option<String>,
    tls: Option<Tls>,
    settles: Option<Interval>,
    #[serde(default = "newest")]
    protocol: u16,
    #[serde(default = "lease")]
    lease: Interval,
}

/// PEM files, for a vault that is reached over a network.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct VaultTls {
    ca: PathBuf,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl VaultTls {
    fn certificates(&self, path: impl Fn(&Path) -> PathBuf) -> Result<Certificates> {
        let own = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((path(certificate), path(key))),
            (None, None) => None,
            _ => return Err(Error::invalid("vault-tls: `certificate` and `key` belong together")),
        };
        Ok(Certificates { ca: path(&self.ca), own })
    }
}

/// The kind of a store that can keep its vault.
const STORE: &str = "nbd";

fn newest() -> u16 {
    *VERSIONS.end()
}

fn lease() -> Interval {
    Interval(Duration::from_secs(10))
}

impl Config for Keys {
    const KIND: &'static str = "reservation";
    const SUMMARY: &'static str = "a store that several hosts reach: one at a time has it";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        reserves: true,
        outside: &[
            Outside::local("vault").or(&[ETCD]),
            Outside::local("vault-tls.ca"),
            Outside::local("vault-tls.certificate"),
            Outside::local("vault-tls.key"),
            // A flash that is moved to another host takes its hierarchy along.
            Outside { key: "host", stored: false, address: true, names: &[] },
            Outside { key: "listen", stored: false, address: true, names: &[] },
            Outside { key: "protocol", stored: false, address: true, names: &[] },
            Outside::local("tls").or(&["off"]),
            Outside::local("tls.ca"),
            Outside::local("tls.certificate"),
            Outside::local("tls.key"),
        ],
        elsewhere: &["exclusive-lock", "sanlock", "lease"],
        figures: &[
            Figure::shown("/volume", Unit::Text, "The volume in the vault.").column("VOLUME"),
            Figure::shown("/state", Unit::Text, "Whether this host has it.").column("STATE"),
            Figure::gauge("generation", "/generation", Unit::Count, "How often it has changed hands.")
                .column("GENERATION")
                .nullable(),
            Figure::gauge("hosts", "/hosts/known", Unit::Count, "Hosts with the volume, this one included.")
                .column("HOSTS"),
            Figure::gauge(
                "hosts_silent",
                "/hosts/silent",
                Unit::Count,
                "Other hosts that have not beaten for their lease.",
            )
            .column("SILENT"),
            Figure::gauge(
                "hosts_unreachable",
                "/hosts/unreachable",
                Unit::Count,
                "Other hosts that beat, and could not be reached over the network.",
            ),
            Figure::gauge(
                "host_heard_seconds",
                "/hosts/heard_seconds",
                Unit::Seconds,
                "Time since a new beat was seen of the other host that has been silent for longest.",
            )
            .nullable(),
            Figure::gauge(
                "vault_seconds",
                "/hosts/vault_seconds",
                Unit::Seconds,
                "Time since the vault was asked what it has answered last.",
            )
            .column("VAULT")
            .nullable(),
            Figure::counter(
                "takeovers_total",
                "/hosts/takeovers",
                Unit::Count,
                "Times that this host has taken the volume from one that was silent.",
            ),
            Figure::counter(
                "received_total",
                "/hosts/received",
                Unit::Count,
                "Times that another host has given the volume to this one.",
            ),
            Figure::counter(
                "given_total",
                "/hosts/given",
                Unit::Count,
                "Times that this host has given the volume to one that asked for it.",
            ),
        ],
        notices: &[
            Notice::new("/fenced", "{device} is fenced: {}"),
            Notice::new("/vault_trouble", "the vault of {device} does not answer: {}"),
            Notice::new("/promise", "{device}: {}"),
        ],
        ..Traits::NONE
    };

    fn check(&self, over: &Over<'_>) -> Result<()> {
        let domain = self.domain.iter().map(|domain| ("domain", domain));
        for (key, name) in [("volume", &self.volume), ("host", &self.host)].into_iter().chain(domain) {
            if !is_name(name) {
                let message =
                    format!("{key}: {name:?} has to be 1 to 64 letters, digits, \"-\", \"_\" and \".\"");
                return Err(Error::invalid(message));
            }
        }
        let wrong = |e: Error| Error::invalid(format!("vault: {}", e.message()));
        match (self.vault.as_deref().map(str::parse).transpose().map_err(wrong)?, &self.vault_tls) {
            (Some(Place::Store(_)), _) => {
                let message =
                    "vault: a vault that the store keeps is found below this device: leave the key out";
                return Err(Error::invalid(message));
            }
            (None, _) if over.kinds.first().is_some_and(|kind| kind.name != STORE) => {
                let message = format!(
                    "vault: is missing: a folder, or \"etcd:HOST:PORT,HOST:PORT,HOST:PORT\"; only a store of kind \
                     \"{STORE}\" can keep the vault itself"
                );
                return Err(Error::invalid(message));
            }
            (Some(Place::Folder(_)) | None, Some(_)) => {
                return Err(Error::invalid("vault-tls: is for a vault in etcd, and this one is not"));
            }
            (_, Some(tls)) => drop(tls.certificates(Path::to_path_buf)?),
            (_, None) => {}
        }
        if let Some(listen) = &self.listen {
            let wrong = |e: Error| Error::invalid(format!("listen: {}", e.message()));
            let address = listen.parse::<Address>().map_err(wrong)?;
            if self.tls.is_none() && !address.is_local() {
                let message = format!(
                    "listen: other machines reach {address}, where nothing would be encrypted and everybody believed: \
                     name the files of this host with tls = {{ ca = \"...\", certificate = \"...\", key = \"...\" }}, \
                     or, on a network of these hosts alone, say tls = \"off\""
                );
                return Err(Error::invalid(message));
            }
        }
        if self.tls.is_some() && self.listen.is_none() {
            return Err(Error::invalid("tls: is for `listen`, which this device does not have"));
        }
        if let Some(Tls::On(_)) = &self.tls {
            MutualTls::check_name(&self.host)
                .map_err(|e| Error::invalid(format!("host: with `tls`, {}", e.message())))?;
        }
        if self.settles.is_some_and(|settles| !(1..=3600).contains(&settles.0.as_secs())) {
            return Err(Error::invalid("settles: is from 1s to 1h"));
        }
        if !VERSIONS.contains(&self.protocol) {
            let message =
                format!("protocol: this Lamina speaks versions {} to {}", VERSIONS.start(), VERSIONS.end());
            return Err(Error::invalid(message));
        }
        match self.lease.0.as_secs() {
            1..=300 => Ok(()),
            _ => Err(Error::invalid("lease: is from 1s to 300s")),
        }
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let tls = match &self.tls {
                Some(Tls::On(files)) => Some(files.load(&with, &self.host)?),
                Some(Tls::Off) | None => None,
            };
            let (name, child) = (with.name.clone(), with.child());
            let mut store = None;
            let (place, vault) = match &self.vault {
                Some(place) => {
                    let place = place.parse::<Place>()?.from(|folder| with.path(folder));
                    let certificates =
                        self.vault_tls.as_ref().map(|tls| tls.certificates(|path| with.path(path)));
                    let vault = place.open(&with.env, certificates.transpose()?.as_ref())?;
                    (place.to_string(), vault)
                }
                None => {
                    let end = far_end(child.shared())?;
                    let vault = Rc::new(StoreVault::new(Rc::clone(&end))) as Rc<dyn Vault>;
                    let place = end.place();
                    store = Some(end);
                    (place, vault)
                }
            };
            let holder = Holder { host: self.host, flash: None };
            let volume = Name::new(&self.volume);
            let host =
                Host::start(Rc::clone(&with.env), vault, volume, holder, self.lease.0, Fence::Confirmed);
            host.is_in(self.domain);
            host.speaks(self.protocol);
            tls.into_iter().for_each(|tls| host.secure(tls));
            let listen = self.listen.as_deref().map(str::parse).transpose()?.map(|address| match address {
                Address::Unix(path) => Address::Unix(with.path(&path)),
                tcp @ Address::Tcp(_) => tcp,
            });
            let reservation = Reservation::new(host, place, listen, self.settles.map(|settles| settles.0));
            reservation.set_store(&child, store);
            Ok(Rc::new(Reserved { name, child, volume: self.volume, reservation }) as Made)
        })
    }
}

struct Reserved {
    name: String,
    child: Rc<Node>,
    volume: String,
    reservation: Rc<Reservation>,
}

impl Layer for Reserved {
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if self.reservation.is_held() {
            return match self.reservation.fenced() {
                Some(why) => why.into(),
                None => Step::Forward(Rc::clone(&self.child)),
            };
        }
        if matches!(io.op, Op::Flush) {
            // What somebody has written before is no less durable then, and nothing of this host is under way.
            return Step::Forward(Rc::clone(&self.child));
        }
        let io = io.take();
        Step::control(async move {
            self.reservation.take(None).await?;
            self.child.submit(io).await
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            self.reservation.end().await;
            Ok(())
        })
    }
}

impl Manage for Reserved {
    /// Nothing is remembered of what is below.
    fn consent(self: Rc<Self>, _child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Agrees
    }

    fn shared(&self) -> Option<Rc<dyn Any>> {
        Some(Rc::clone(&self.reservation) as Rc<dyn Any>)
    }

    fn info(&self) -> Value {
        let record = self.reservation.held().map(|held| held.record());
        let fenced = self.reservation.fenced();
        let state = match (&record, &fenced) {
            (_, Some(_)) => "fenced",
            (Some(_), None) => "held",
            (None, None) => "not taken",
        };
        // A device above knows more of the volume, and says that.
        let cluster = (!self.reservation.is_reported_above()).then(|| {
            let through = Keeps { is_through: true, ..Keeps::default() };
            self.reservation.report(Own { device: self.name.clone(), keeps: through, ..Own::default() })
        });
        let view = self.reservation.host().view();
        json!({
            "volume": self.volume,
            "state": state,
            "generation": view.record.map(|record| record.generation),
            "record": record,
            "fenced": fenced.map(|why| why.to_string()),
            "hosts": self.reservation.figures(),
            "vault_trouble": view.trouble,
            "promise": cluster.as_ref().map(|cluster| cluster.promise.sentence.clone()),
            "cluster": cluster,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
