//! Where a vault is: a folder, etcd, or the store itself.

use super::etcd::{EtcdVault, Member};
use super::{FolderVault, Vault};
use lamina_block::{Env, Error, Result};
use lamina_tls::ClientTls;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;

/// What a vault in etcd begins with.
pub const ETCD: &str = "etcd:";
/// The beginning of its keys, if none is said.
const PREFIX: &str = "lamina";

/// Where a vault is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `PATH`: a folder.
    Folder(PathBuf),
    /// `etcd:HOST:PORT,HOST:PORT/PREFIX`: the members of etcd, and what keys begin with.
    Etcd {
        /// `HOST:PORT`, each.
        members: Vec<String>,
        /// Without slashes around it.
        prefix: String,
    },
    /// `nbd://HOST:PORT/EXPORT`, or another URI of NBD: the export whose server keeps the records.
    Store(String),
}

/// The PEM files with which etcd and its clients know each other.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authorities that etcd's certificates must come from.
    pub ca: PathBuf,
    /// The certificate that this client shows, if etcd wants one, and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// True for a URI of NBD.
fn is_uri(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| ["nbd", "nbds", "nbd+unix", "nbds+unix"].contains(&scheme))
}

fn is_member(member: &str) -> bool {
    member.rsplit_once(':').is_some_and(|(host, port)| {
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-_.:[]".contains(c);
        !host.is_empty() && host.chars().all(is_host) && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Place> {
        if is_uri(text) {
            return Ok(Place::Store(text.into()));
        }
        let Some(rest) = text.strip_prefix(ETCD) else {
            return match text {
                "" => Err(Error::invalid("a vault is a folder, or \"etcd:HOST:PORT,HOST:PORT,HOST:PORT\"")),
                folder => Ok(Place::Folder(folder.into())),
            };
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, PREFIX));
        let members: Vec<String> = members.split(',').map(str::to_owned).collect();
        if let Some(wrong) = members.iter().find(|member| !is_member(member)) {
            let message = format!(
                "{wrong:?} is no member of etcd: write \"etcd:HOST:PORT,HOST:PORT,HOST:PORT\", or, with another \
                 beginning of keys than \"{PREFIX}\", \"etcd:HOST:PORT,HOST:PORT,HOST:PORT/PREFIX\""
            );
            return Err(Error::invalid(message));
        }
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if prefix.is_empty() || prefix.ends_with('/') || !prefix.chars().all(is_valid) {
            let message = format!(
                "{prefix:?} is no beginning of etcd's keys: letters, digits, \"-\", \"_\", \".\", \"/\""
            );
            return Err(Error::invalid(message));
        }
        Ok(Place::Etcd { members, prefix: prefix.into() })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Folder(folder) => write!(f, "{}", folder.display()),
            Place::Etcd { members, prefix } => write!(f, "{ETCD}{}/{prefix}", members.join(",")),
            Place::Store(uri) => f.write_str(uri),
        }
    }
}

impl Place {
    /// The same place, with a folder that begins at `base` if it is not absolute.
    pub fn from(self, base: impl Fn(&Path) -> PathBuf) -> Place {
        match self {
            Place::Folder(folder) => Place::Folder(base(&folder)),
            elsewhere @ (Place::Etcd { .. } | Place::Store(_)) => elsewhere,
        }
    }

    /// The vault there. Nothing is asked of it yet. A store is reached by its sink ([`super::StoreVault`]).
    pub fn open(&self, env: &Rc<dyn Env>, certificates: Option<&Certificates>) -> Result<Rc<dyn Vault>> {
        match self {
            Place::Folder(_) if certificates.is_some() => {
                Err(Error::invalid("a vault in a folder needs no certificates: those are for one in etcd"))
            }
            Place::Store(_) => Err(Error::invalid("a store keeps the vault of those who reach it")),
            Place::Folder(folder) => {
                Ok(Rc::new(FolderVault::new(Rc::clone(env), env.folder(folder.clone())?)))
            }
            Place::Etcd { members, prefix } => {
                let member = |address: &String| {
                    let tls = certificates.map(|files| files.load(&**env, address)).transpose()?;
                    Ok(Member { address: address.clone(), tls })
                };
                let members = members.iter().map(member).collect::<Result<_>>()?;
                Ok(Rc::new(EtcdVault::new(Rc::clone(env), members, prefix.clone())))
            }
        }
    }
}

impl Certificates {
    /// Reads the files, for the member at `address`.
    fn load(&self, env: &dyn Env, address: &str) -> Result<ClientTls> {
        let own = self.own.as_ref().map(|(certificate, key)| (&**certificate, &**key));
        own.into_iter().for_each(|(_, key)| env.guard_key(key));
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        ClientTls::load(&self.ca, own, host.trim_matches(['[', ']']))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_what_they_say() {
        let etcd = |members: &[&str], prefix: &str| Place::Etcd {
            members: members.iter().map(|member| (*member).to_owned()).collect(),
            prefix: prefix.into(),
        };
        let cases = [
            ("/mnt/vault", Place::Folder("/mnt/vault".into())),
            ("etcd:a:2379", etcd(&["a:2379"], "lamina")),
            ("etcd:10.0.0.1:2379,[fd00::2]:2379,c.example:2379", {
                etcd(&["10.0.0.1:2379", "[fd00::2]:2379", "c.example:2379"], "lamina")
            }),
            ("nbd://store:10809/disk", Place::Store("nbd://store:10809/disk".into())),
            ("nbds+unix:///disk?socket=/s", Place::Store("nbds+unix:///disk?socket=/s".into())),
            ("etcd:a:2379/site-1/lamina", etcd(&["a:2379"], "site-1/lamina")),
        ];
        for (text, place) in cases {
            assert_eq!(text.parse(), Ok(place.clone()));
            assert_eq!(place.to_string().parse(), Ok(place));
        }
    }

    #[test]
    fn what_is_no_place_is_refused_with_the_right_form() {
        for wrong in ["", "etcd:", "etcd:a", "etcd:a:2379,", "etcd:http://a:2379", "etcd:a:0", "etcd:a:70000"]
        {
            let e = wrong.parse::<Place>().expect_err(wrong);
            assert!(e.message().contains("etcd:HOST:PORT,HOST:PORT"), "{wrong:?}: {e}");
        }
        for wrong in ["etcd:a:1/", "etcd:a:1/x/", "etcd:a:1/x y"] {
            assert!(wrong.parse::<Place>().is_err_and(|e| e.message().contains("no beginning")), "{wrong:?}");
        }
    }
}
