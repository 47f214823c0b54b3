//! The places that a hierarchy reaches besides its members: files, servers, listeners.
//!
//! Every user who can write to a disk can write a superblock. So places of this host that a description from a disk
//! names are not opened before the administrator allows that: a read-only "member" could be any file, and a listener
//! lets any client in. Members themselves are known by their superblocks, wherever they are. A socket in the folder
//! where the program was started does no harm.

use crate::local;
use crate::persistent::is_member;
use crate::plan::Plan;
use crate::report::{printable, quoted};
use lamina_block::Address;
use std::path::Path;

impl Plan {
    /// The places that need trust if the text of the plan is from a disk: each with its device or export and its key,
    /// safe to print. Sockets in `folder` do not.
    pub fn reaches(&self, folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut say = |subject: &str, name: &str, key: &str, place: &str| {
            found.push(format!("{subject} {}: key \"{key}\": {}", quoted(name), printable(place, 4096)));
        };
        for device in &self.devices {
            for outside in device.kind.traits.outside {
                let value = outside.key.split('.').try_fold(&device.keys, |at, key| at.get(key));
                let Some(text) = value.and_then(|value| value.as_str()) else { continue };
                let is_member = outside.key == "path" && is_member(&device.kind, &device.keys);
                if !is_member && !outside.names.contains(&text) {
                    let place = local::absolute(text, outside, &device.base);
                    say("device", &device.name, outside.key, &place);
                }
            }
        }
        for export in &self.exports {
            let unix = match &export.nbd {
                Some(Address::Unix(path)) => Some(("nbd", path)),
                Some(Address::Tcp(host)) => {
                    say("export", &export.name, "nbd", &format!("tcp:{host}"));
                    None
                }
                None => None,
            };
            let sockets = unix.into_iter().chain(export.vhost_user.iter().map(|path| ("vhost-user", path)));
            for (key, path) in sockets.filter(|(_, path)| path.parent() != Some(folder)) {
                say("export", &export.name, key, &path.display().to_string());
            }
            if let Some(tls) = &export.tls {
                let files = [("tls.certificate", Some(&tls.certificate)), ("tls.key", Some(&tls.key))];
                for (key, path) in files.into_iter().chain([("tls.client-ca", tls.client_ca.as_ref())]) {
                    path.into_iter()
                        .for_each(|path| say("export", &export.name, key, &path.display().to_string()));
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::testing::KINDS;
    use std::path::Path;

    #[test]
    fn sockets_elsewhere_and_listeners_are_named() {
        let text = "[device.a]\ntype='store'\npath='a.img'\n[export.here]\ndevice='a'\nnbd='unix:here.sock'\n\
                    [export.away]\ndevice='a'\nvhost-user='/run/x.sock'\n\
                    [export.net]\ndevice='a'\nnbd='tcp:0.0.0.0:10809'\ntls={certificate='c',key='k'}\n";
        let plan = Plan::parse(text, "f.toml", Path::new("/base"), KINDS).unwrap_or_else(|e| panic!("{e}"));
        let expected = [
            "export \"away\": key \"vhost-user\": /run/x.sock",
            "export \"net\": key \"nbd\": tcp:0.0.0.0:10809",
            "export \"net\": key \"tls.certificate\": /base/c",
            "export \"net\": key \"tls.key\": /base/k",
        ];
        assert_eq!(plan.reaches(Path::new("/base")), expected);
        assert_eq!(plan.reaches(Path::new("/other")).len(), 5);
    }
}
