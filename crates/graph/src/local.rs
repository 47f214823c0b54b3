//! Places outside of a hierarchy that its file names: paths of this host, addresses.
//!
//! Some of them are part of the stored state: the path of a read-only file with data, the server of an export. The
//! others only this host needs: files with keys and certificates, sockets, listeners. Members carry both, so that
//! `lamina assemble` can print a whole file; but the latter need not agree with a file, and the file counts. The path
//! of a member is neither: a member is found by its superblock.
//!
//! The kind of a device tells which keys these are ([`lamina_block::Traits::outside`]); the keys of an export are here.

use crate::description::written;
use lamina_block::{Kind, Outside};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The keys of an export that name places.
const EXPORT: [Outside; 5] = [
    Outside { key: "nbd", stored: false, address: true, names: &[] },
    Outside::local("vhost-user"),
    Outside::local("tls.certificate"),
    Outside::local("tls.key"),
    Outside::local("tls.client-ca"),
];

/// The part of a description that a file and its members must have in common.
pub(crate) fn agreed(description: &str, kinds: &[Kind]) -> String {
    common(description, kinds, |device| {
        for (before, now) in kind_of(device, kinds).map_or(&[][..], |kind| kind.traits.renamed) {
            if let Some(value) = device.remove(*before) {
                set(device, now, value.into_inner());
            }
        }
    })
}

/// A description without the keys that concern one host only, after `change` of each device.
fn common(description: &str, kinds: &[Kind], change: impl Fn(&mut DeTable<'_>)) -> String {
    let Ok(document) = DeTable::parse(description) else { return description.to_owned() };
    let mut root = document.into_inner();
    root.remove("export");
    for (_, device) in tables(&mut root, "device") {
        for outside in outside(device, kinds).iter().filter(|outside| !outside.stored) {
            remove(device, outside.key);
        }
        change(device);
    }
    written(&root)
}

/// A fingerprint of the part of a description that all hosts agree on. Members keep them while a change is under way,
/// so keys count under the names that the description has.
pub(crate) fn fingerprint(description: &str, kinds: &[Kind]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(common(description, kinds, |_| ()).as_bytes()))
}

/// Makes the places that a device names absolute, which began at `base`.
pub(crate) fn root_device(device: &mut DeTable<'_>, kinds: &[Kind], base: &Path) {
    root_places(device, outside(device, kinds), base);
}

/// Makes absolute the places in a device's keys that only this host needs.
pub(crate) fn root_keys(device: &mut DeTable<'_>, kinds: &[Kind], base: &Path) {
    let local: Vec<Outside> = outside(device, kinds).iter().filter(|place| !place.stored).copied().collect();
    root_places(device, &local, base);
}

/// Makes the places that an export names absolute, which began at `base`.
pub(crate) fn root_export(export: &mut DeTable<'_>, base: &Path) {
    root_places(export, &EXPORT, base);
}

fn root_places(table: &mut DeTable<'_>, places: &[Outside], base: &Path) {
    for place in places {
        if let Some(DeValue::String(text)) = find(table, place.key) {
            *text = Cow::Owned(absolute(text, place, base));
        }
    }
}

/// The value of a key that names a place, without what is relative to `base`.
pub(crate) fn absolute(text: &str, place: &Outside, base: &Path) -> String {
    let joined = |path: &str| base.join(path).display().to_string();
    match (place.address, text.strip_prefix("unix:")) {
        _ if place.is_name(text) => text.to_owned(),
        (false, _) => joined(text),
        (true, Some(path)) => format!("unix:{}", joined(path)),
        (true, None) => text.to_owned(),
    }
}

/// Gives a device what a file says of this host.
pub(crate) fn take_over<'a>(device: &mut DeTable<'a>, from: &DeTable<'a>, kinds: &[Kind]) {
    for place in outside(device, kinds).iter().filter(|place| !place.stored) {
        remove(device, place.key);
        if let Some(value) = find(&mut from.clone(), place.key) {
            set(device, place.key, value.clone());
        }
    }
}

/// The places that a table of a kind names.
fn outside(device: &DeTable<'_>, kinds: &[Kind]) -> &'static [Outside] {
    kind_of(device, kinds).map_or(&[], |kind| kind.traits.outside)
}

fn kind_of<'a>(device: &DeTable<'_>, kinds: &'a [Kind]) -> Option<&'a Kind> {
    let name = device.get("type").and_then(|kind| kind.get_ref().as_str());
    kinds.iter().find(|kind| Some(kind.name) == name)
}

/// The tables `[kind.NAME]` of a file.
pub(crate) fn tables<'r, 'a>(root: &'r mut DeTable<'a>, kind: &str) -> BTreeMap<String, &'r mut DeTable<'a>> {
    let Some(DeValue::Table(named)) = root.get_mut(kind).map(|value| value.get_mut()) else {
        return BTreeMap::new();
    };
    let table = |(name, value): (&Spanned<Cow<'a, str>>, &'r mut Spanned<DeValue<'a>>)| {
        let name = name.get_ref().to_string();
        match value.get_mut() {
            DeValue::Table(table) => Some((name, table)),
            _ => None,
        }
    };
    named.iter_mut().filter_map(table).collect()
}

/// The value at a dotted key.
fn find<'r, 'a>(table: &'r mut DeTable<'a>, key: &str) -> Option<&'r mut DeValue<'a>> {
    match key.split_once('.') {
        None => table.get_mut(key).map(|value| value.get_mut()),
        Some((top, rest)) => match table.get_mut(top)?.get_mut() {
            DeValue::Table(inner) => find(inner, rest),
            _ => None,
        },
    }
}

/// Takes out what is at a dotted key, and tables that are empty without it.
pub(crate) fn remove(table: &mut DeTable<'_>, key: &str) {
    let Some((top, rest)) = key.split_once('.') else { return drop(table.remove(key)) };
    let Some(DeValue::Table(inner)) = table.get_mut(top).map(|value| value.get_mut()) else { return };
    remove(inner, rest);
    if inner.is_empty() {
        table.remove(top);
    }
}

/// Puts a value at a dotted key.
pub(crate) fn set<'a>(table: &mut DeTable<'a>, key: &str, value: DeValue<'a>) {
    let name = |key: &str| Spanned::new(0..0, Cow::Owned(key.to_owned()));
    let Some((top, rest)) = key.split_once('.') else {
        table.insert(name(key), Spanned::new(0..0, value));
        return;
    };
    if !table.contains_key(top) {
        table.insert(name(top), Spanned::new(0..0, DeValue::Table(DeTable::new())));
    }
    if let Some(DeValue::Table(inner)) = table.get_mut(top).map(|value| value.get_mut()) {
        set(inner, rest, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::with_places;
    use lamina_layers::KINDS;

    const VAULT: &str = "[hierarchy]\nname = \"x\"\n\n[device.a]\ntype = \"file\"\n\n\
                         [device.v]\nkey-file = \"key\"\nover = \"a\"\ntype = \"crypt\"\n";

    #[test]
    fn members_need_not_agree_on_keys_and_exports() {
        let same = |other: &str| fingerprint(VAULT, &KINDS) == fingerprint(other, &KINDS);
        assert!(same(&VAULT.replace("\"key\"", "\"/etc/new\"")));
        assert!(same(&VAULT.replace("key-file", "passphrase-file")));
        assert!(same(&format!("{VAULT}\n[export.v]\ndevice = \"v\"\nnbd = \"unix:v.sock\"\n")));
        assert!(!same(&VAULT.replace("over = \"a\"", "over = \"b\"")));
        assert!(!same(&VAULT.replace("over", "discard = true\nover")));
    }

    #[test]
    fn what_is_in_a_table_of_its_own_leaves_no_empty_one() {
        let far =
            "[device.far]\naddress = \"unix:s\"\ntls = { ca = \"ca.pem\", key = \"k\" }\ntype = \"nbd\"\n";
        let kinds = [lamina_nbd::client::KIND.clone()];
        assert_eq!(agreed(far, &kinds).trim_start(), "[device.far]\naddress = \"unix:s\"\ntype = \"nbd\"\n");
        let mut root = DeTable::parse(far).expect("a file").into_inner();
        tables(&mut root, "device")
            .into_values()
            .for_each(|device| root_device(device, &kinds, Path::new("/srv")));
        let text = written(&root);
        for place in ["\"unix:/srv/s\"", "ca = \"/srv/ca.pem\"", "key = \"/srv/k\""] {
            assert!(text.contains(place), "{text}");
        }
    }

    #[test]
    fn a_host_may_begin_to_encrypt_or_cease_to() {
        let file = |tls: &str| {
            format!("[device.s]\nover = \"a\"\ntls = {tls}\ntype = \"reservation\"\nvault = \"v\"\n")
        };
        let [off, on] =
            ["\"off\"", "{ ca = \"ca.pem\", certificate = \"c.pem\", key = \"k.pem\" }"].map(file);
        assert_eq!(agreed(&off, &KINDS), agreed(&on, &KINDS));
        let rooted = |file: &str| with_places(file, Some(Path::new("/srv")), &KINDS).expect("a file");
        assert!(rooted(&off).contains("tls = \"off\""), "{}", rooted(&off));
        for file in ["ca = \"/srv/ca.pem\"", "certificate = \"/srv/c.pem\"", "key = \"/srv/k.pem\""] {
            assert!(rooted(&on).contains(file), "{}", rooted(&on));
        }
    }

    #[test]
    fn a_name_of_what_comes_with_lamina_is_no_place() {
        for (model, rooted) in [("cheetah-15k4", "cheetah-15k4"), ("m.toml", "/srv/m.toml")] {
            let file = format!("[device.d]\nmodel = \"{model}\"\nover = \"a\"\ntype = \"emulate\"\n");
            assert!(!agreed(&file, &KINDS).contains("model"), "members need not agree on it");
            let rooted = format!("model = \"{rooted}\"\n");
            let text = with_places(&file, Some(Path::new("/srv")), &KINDS).expect("a file");
            assert!(text.contains(&rooted), "{text}");
        }
    }

    #[test]
    fn what_is_in_etcd_is_no_path() {
        for (vault, rooted) in [("etcd:a:1,b:1", "etcd:a:1,b:1"), ("v", "/srv/v"), ("etcd", "/srv/etcd")] {
            let file = format!("[device.s]\nover = \"a\"\ntype = \"reservation\"\nvault = \"{vault}\"\n");
            let text = with_places(&file, Some(Path::new("/srv")), &KINDS).expect("a file");
            assert!(text.contains(&format!("vault = \"{rooted}\"\n")), "{text}");
        }
    }

    #[test]
    fn a_key_that_has_another_name_now_is_the_same_key() {
        let old = "[device.a]\nsize = \"1MiB\"\ntype = \"memory\"\n\n[device.b]\nsize = \"1MiB\"\ntype = \"memory\"\n\n\
                   [device.m]\nover = [\"a\", \"b\"]\npatience = \"5s\"\ntype = \"mirror\"\n\n\
                   [export.m]\ndevice = \"m\"\nnbd = \"unix:m.sock\"\n";
        let new = old.replace("patience", "leg-timeout");
        assert_eq!(agreed(old, &KINDS), agreed(&new, &KINDS));
        let plan = |text: &str| crate::Plan::parse(text, "f.toml", Path::new("/"), &KINDS).expect("a plan");
        assert!(plan(&new).warnings().is_empty());
        let warned = plan(old).warnings().to_string();
        assert!(
            warned.contains("11: warning: device \"m\": key \"patience\": is called leg-timeout now"),
            "{warned}"
        );
        let wrong = crate::Plan::parse(&old.replace("5s", "5 parsecs"), "f.toml", Path::new("/"), &KINDS);
        let wrong = wrong.err().expect("no time").to_string();
        assert!(wrong.contains("11: ") && wrong.contains("\"patience\": "), "{wrong}");
    }
}
