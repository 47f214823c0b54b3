//! Passphrases that a person types.

use super::*;
use lamina_block::{Occasion, Question};

/// The keys of a volume whose passphrase is asked for.
fn asked(more: Value) -> Value {
    let mut keys = keys(more);
    keys.as_object_mut().unwrap().remove("key-file");
    keys["ask-passphrase"] = true.into();
    keys
}

/// The occasions of the questions since the last call.
fn occasions(sim: &SimEnv) -> Vec<Occasion> {
    sim.take_questions().iter().map(|question| question.occasion).collect()
}

#[test]
fn a_person_has_three_attempts() {
    simulated(|world| async move {
        let (sim, below) = (&world.sim, world.memory("1MiB").await);
        sim.put_answers(&["correct horse"]);
        let vault = open(sim, &below, asked(json!({})), Begin::Format).await.expect("it is made");
        put(&vault, 0, &pattern(512)).await;
        vault.close().await.unwrap();
        let of = "passphrase of device vault".to_owned();
        assert_eq!(sim.take_questions(), [Question { of, max: 512, occasion: Occasion::New }]);
        let (needed, wrong) = (Occasion::Needed, Occasion::Wrong);
        for (answers, questions) in [
            (&["correct horse"][..], &[needed][..]),
            (&["wrong", "correct horse"], &[needed, wrong]),
            (&["wrong", "Correct horse", "correct horse"], &[needed, wrong, wrong]),
        ] {
            sim.put_answers(answers);
            let vault = open(sim, &below, asked(json!({})), Begin::Open).await.expect("it opens");
            assert_eq!(get(&vault, 0, 512).await, pattern(512));
            assert_eq!(occasions(sim), questions);
        }
        sim.put_answers(&["wrong", "", "wrong", "correct horse"]);
        let error = open(sim, &below, asked(json!({})), Begin::Open).await.err().expect("no attempt is left");
        let says = "ask-passphrase: wrong key: the passphrase does not open the only keyslot";
        assert_eq!(error.message(), says);
        assert_eq!(occasions(sim), [needed, wrong, wrong]);
        // As a file, it is the same passphrase.
        sim.put_file("/typed", b"correct horse\n");
        let keys = keys(json!({ "key-file": null, "passphrase-file": "/typed" }));
        assert!(open(sim, &below, keys, Begin::Open).await.is_ok());
    });
}

#[test]
fn a_person_is_asked_only_if_the_answer_is_of_use() {
    simulated(|world| async move {
        let (sim, below) = (&world.sim, world.memory("1MiB").await);
        for (more, begin, says) in [
            (json!({}), Begin::Open, "there is no LUKS header on \"memory\""),
            (json!({ "cipher": "des" }), Begin::Format, "cipher: des protects nobody"),
            (json!({ "header-size": "64KiB" }), Begin::Format, "header-size: is at least"),
            (json!({ "key-file": "/key" }), Begin::Format, "ask-passphrase: there is a key-file already"),
            (json!({ "ask-passphrase": false }), Begin::Format, "and ask-passphrase = true asks for one"),
        ] {
            let mut keys = asked(json!({}));
            keys.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            let error = open(sim, &below, keys, begin).await.err().expect(says);
            assert!(error.message().contains(says), "{error}: {says}");
        }
        put(&below, 0, &[1; 512]).await;
        let made = asked(json!({ "format": true }));
        let error = open(sim, &below, made.clone(), Begin::Open).await.err().expect("there is something");
        assert!(error.message().starts_with("format: there is something"), "{error}");
        assert_eq!(occasions(sim), []);
        put(&below, 0, &[0; 512]).await;
        sim.put_answers(&[""]);
        let error = open(sim, &below, made.clone(), Begin::Open).await.err().expect("no passphrase");
        assert!(error.message().contains("ask-passphrase: the passphrase is empty"), "{error}");
        assert_eq!(get(&below, 0, 512).await, [0; 512], "the device was written");
        sim.put_answers(&["new"]);
        open(sim, &below, made, Begin::Open).await.expect("it is made");
        assert_eq!(occasions(sim), [Occasion::New, Occasion::New]);
    });
}

#[test]
fn where_nobody_can_be_asked_the_error_says_what_to_do() {
    simulated(|world| async move {
        let below = world.memory("1MiB").await;
        let error = open(&world.sim, &below, asked(json!({})), Begin::Format).await.err().expect("nobody");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for says in [
            "ask-passphrase: there is no person",
            "write passphrase-file = \"PATH\"",
            "LoadCredentialEncrypted=",
        ] {
            assert!(error.message().contains(says), "{error}");
        }
    });
}

#[test]
fn a_command_brings_a_passphrase() {
    simulated(|world| async move {
        let (sim, below) = (&world.sim, world.memory("2MiB").await);
        sim.put_answers(&["old"]);
        let wide = json!({ "header-size": "1MiB" });
        let vault = open(sim, &below, asked(wide.clone()), Begin::Format).await.expect("it is made");
        let typed = |text: &str| json!({ "passphrase": text });
        assert_eq!(tell(&vault, "keyslot-add", typed("second")).await.unwrap(), json!({ "keyslot": 1 }));
        let changed = tell(&vault, "key-change", typed("new")).await.unwrap();
        assert_eq!(changed, json!({ "keyslot": 2, "removed": 0 }));
        for (typed, opens) in [("old", false), ("second", true), ("new", true)] {
            sim.put_answers(&[typed, "x", "x"]);
            assert_eq!(open(sim, &below, asked(wide.clone()), Begin::Open).await.is_ok(), opens, "{typed}");
        }
        let both = json!({ "key-file": "/key", "passphrase": "x" });
        for (args, says) in [
            (both, "passphrase: there is a key-file already"),
            (json!({}), "passphrase alone asks for one"),
            (typed(""), "passphrase: the passphrase is empty"),
            (typed(&"x".repeat(513)), "passphrase: is longer than 512 bytes"),
        ] {
            let error = tell(&vault, "keyslot-add", args).await.unwrap_err();
            assert!(error.message().contains(says), "{error}");
        }
    });
}
