//! The keys that open a volume, and its info.

use super::*;
use lamina_block::OpenDisk;

#[test]
fn keys_come_and_go_and_the_data_stays() {
    simulated(|world| async move {
        let (sim, disk) = (&world.sim, world.memory("2MiB").await);
        put_keys(sim);
        let wide = json!({ "header-size": "1MiB" });
        let vault = open(sim, &disk, keys(wide.clone()), Begin::Format).await.unwrap();
        put(&vault, 0, &pattern(4096)).await;
        let stored = get(&disk, 1 << 20, 1 << 20).await;
        let passphrase = json!({ "passphrase-file": "/passphrase" });
        assert_eq!(tell(&vault, "keyslot-add", passphrase.clone()).await.unwrap()["keyslot"], 1);
        // The first line alone is another secret than the whole file.
        for (file, path) in [("key-file", "/key"), ("passphrase-file", "/passphrase")] {
            let again = open(sim, &disk, of(&wide, file, path), Begin::Open).await.unwrap();
            assert_eq!(get(&again, 0, 4096).await, pattern(4096));
        }
        // Adding what is there adds nothing.
        assert_eq!(tell(&vault, "keyslot-add", passphrase).await.unwrap()["keyslot"], 1);
        let changed = tell(&vault, "key-change", json!({ "key-file": "/new" })).await.unwrap();
        assert_eq!(changed, json!({ "keyslot": 2, "removed": 0 }));
        assert!(open(sim, &disk, of(&wide, "key-file", "/key"), Begin::Open).await.is_err());
        let again = open(sim, &disk, of(&wide, "key-file", "/new"), Begin::Open).await.unwrap();
        tell(&again, "keyslot-remove", json!({ "keyslot": 1 })).await.unwrap();
        let error =
            open(sim, &disk, of(&wide, "passphrase-file", "/passphrase"), Begin::Open).await.err().unwrap();
        assert_eq!(error.message(), "passphrase-file: wrong key: /passphrase does not open the only keyslot");
        let list = tell(&again, "keyslots", json!({})).await.unwrap();
        let argon = json!({ "keyslot": 2, "kdf": "argon2id", "passes": 4, "memory": 32768, "lanes": 4,
            "opened": true });
        assert_eq!(list, json!({ "keyslots": [argon] }));
        assert_eq!(get(&disk, 1 << 20, 1 << 20).await, stored, "data was written");
    });
}

/// The header on the disk is destroyed: its backup opens the volume, beside it or put back.
#[test]
fn a_backup_of_the_header_opens_the_volume() {
    simulated(|world| async move {
        let (sim, disk) = (&world.sim, world.memory("2MiB").await);
        put_keys(sim);
        let wide = json!({ "header-size": "1MiB" });
        let vault = open(sim, &disk, keys(wide.clone()), Begin::Format).await.unwrap();
        put(&vault, 0, &pattern(4096)).await;
        let backup = json!({ "to": "header.backup" });
        let told = tell(&vault, "header-backup", backup.clone()).await.unwrap();
        assert_eq!(told, json!({ "backup": "header.backup", "bytes": 1 << 20 }));
        let error = tell(&vault, "header-backup", backup).await.unwrap_err();
        assert_eq!(error.message(), "to: header.backup is there already: a backup goes to a new file");
        tell(&vault, "key-change", json!({ "key-file": "/new" })).await.unwrap();
        vault.close().await.unwrap();
        put(&disk, 0, &vec![0x55; 1 << 20]).await;
        assert!(open(sim, &disk, keys(wide.clone()), Begin::Open).await.is_err(), "the header is gone");

        let kept = OpenDisk {
            path: "header.backup".into(),
            read_only: false,
            direct: false,
            create: None,
            block: None,
        };
        let env: Rc<dyn Env> = Rc::clone(sim) as _;
        let header = Node::new("header", "file", Rc::clone(&env), sim.open_disk(kept).await.unwrap());
        let beside = Some(Rc::clone(&header));
        let again =
            open_with(sim, &disk, beside, keys(json!({})), Begin::Open).await.expect("the key of its time");
        assert_eq!(get(&again, 0, 4096).await, pattern(4096));
        again.close().await.unwrap();
        put(&disk, 0, &get(&header, 0, 1 << 20).await).await;
        let again = open(sim, &disk, keys(wide), Begin::Open).await.expect("put back");
        assert_eq!(get(&again, 0, 4096).await, pattern(4096));
    });
}

#[test]
fn keyslots_need_room() {
    with_volume(json!({}), |_, _, vault| async move {
        let error = tell(&vault, "keyslot-add", json!({ "key-file": "/new" })).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    });
}

fn of(more: &Value, file: &str, path: &str) -> Value {
    let mut keys = keys(more.clone());
    keys.as_object_mut().unwrap().remove("key-file");
    keys[file] = path.into();
    keys
}

#[test]
fn the_keyslot_that_opened_the_device_stays() {
    with_volume(json!({}), |_, _, vault| async move {
        let error = tell(&vault, "keyslot-remove", json!({ "keyslot": 0 })).await.unwrap_err();
        assert!(error.message().contains("`key-change` replaces it"), "{error}");
        let error = tell(&vault, "keyslot-remove", json!({ "keyslot": 7 })).await.unwrap_err();
        assert!(error.message().contains("there is no keyslot 7; there is 0"), "{error}");
        let error = tell(&vault, "key-change", json!({ "key-file": "/key" })).await.unwrap_err();
        assert!(error.message().contains("nothing to change"), "{error}");
    });
}

#[test]
fn secrets_are_shown_nowhere() {
    with_volume(json!({}), |_, _, vault| async move {
        let list = tell(&vault, "keyslots", json!({})).await.unwrap();
        let said = format!("{} {list}", vault.info());
        for secret in ["the key", "and more", "/key"] {
            assert!(!said.contains(secret), "{said}");
        }
        assert_eq!(vault.info()["cipher"], "aes-xts");
        assert_eq!(vault.info()["header"], "both copies are whole");
    });
}

#[test]
fn what_cannot_be_is_refused_at_its_key() {
    simulated(|world| async move {
        let sim = &world.sim;
        put_keys(sim);
        sim.put_file("/empty", b"\n");
        let below = world.memory("1MiB").await;
        for (more, begin, says) in [
            (json!({ "key-file": null }), Begin::Format, "key-file: is missing"),
            (
                json!({ "passphrase-file": "/passphrase" }),
                Begin::Format,
                "passphrase-file: there is a key-file",
            ),
            (json!({ "key-file": "/none" }), Begin::Format, "key-file: there is no file /none"),
            (
                json!({ "key-file": null, "passphrase-file": "/empty" }),
                Begin::Format,
                "passphrase-file: /empty is empty",
            ),
            (json!({ "cipher": "des" }), Begin::Format, "cipher: des protects nobody"),
            (json!({ "sector-size": 1024 }), Begin::Format, "sector-size: is 512 or 4096"),
            (json!({ "header-size": "64KiB" }), Begin::Format, "header-size: is at least"),
            (json!({ "kdf-memory": "1GiB" }), Begin::Format, "kdf-memory: is between"),
            (json!({}), Begin::Adopt, "cannot be encrypted as it is"),
            (json!({}), Begin::Open, "there is no LUKS header on \"memory\""),
        ] {
            let error = open(sim, &below, keys(more), begin).await.err().expect(says);
            assert!(error.message().contains(says), "{error}: {says}");
        }
        let vault = open(sim, &below, keys(json!({})), Begin::Format).await.unwrap();
        for (more, says) in [
            (
                json!({ "cipher": "blowfish", "allow-legacy": true }),
                "cipher: the volume was made with aes-xts",
            ),
            (json!({ "sector-size": 4096 }), "sector-size: the volume was made with 512"),
            (json!({ "key-file": "/new" }), "key-file: wrong key: /new "),
        ] {
            let error = open(sim, &below, keys(more), Begin::Open).await.err().expect(says);
            assert!(error.message().contains(says), "{error}: {says}");
        }
        drop(vault);
    });
}

#[test]
fn format_makes_a_volume_only_where_there_is_nothing() {
    simulated(|world| async move {
        put_keys(&world.sim);
        let below = world.memory("1MiB").await;
        put(&below, HEADER - 512, &[1; 512]).await;
        let made = || keys(json!({ "format": true }));
        let error = open(&world.sim, &below, made(), Begin::Open).await.err().unwrap();
        assert!(error.message().starts_with("format: there is something on \"memory\""), "{error}");
        put(&below, HEADER - 512, &[0; 512]).await;
        let vault = open(&world.sim, &below, made(), Begin::Open).await.unwrap();
        put(&vault, 0, &pattern(512)).await;
        let again = open(&world.sim, &below, made(), Begin::Open).await.unwrap();
        assert_eq!(get(&again, 0, 512).await, pattern(512));
        // With a header elsewhere, what is on the data's device counts, too.
        let (header, used) = (world.memory("512KiB").await, world.memory("1MiB").await);
        put(&used, 0, &pattern(512)).await;
        let detached = open_with(&world.sim, &used, Some(Rc::clone(&header)), made(), Begin::Open).await;
        assert!(detached.err().unwrap().message().contains("there is something"));
    });
}
