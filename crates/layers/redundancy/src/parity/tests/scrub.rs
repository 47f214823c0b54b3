//! Bytes that are silently wrong.

use super::*;

async fn damage(open: &Open, leg: usize, at: u64) {
    let bytes = Buf::from_vec(vec![0xDB; 512]);
    open.legs[leg].submit(Io::write(at, bytes, Durability::Fua)).await.expect("written");
}

#[test]
fn with_one_parity_it_is_reported() {
    simulate(|env| async move {
        let (open, _) = filled(&env).await;
        damage(&open, 0, 8192).await;
        scrubbed(&open).await;
        assert_eq!((open.found("healed"), open.found("different")), (0, 1));
        assert_eq!(open.node.info()["found"]["places"][0]["start"], 8192);
        let e = open.command("scrub", json!({"trust": "a"})).await.unwrap_err();
        assert!(e.message().starts_with("trust"), "{e}");
    });
}

#[test]
fn with_two_parities_it_is_healed() {
    simulate(|env| async move {
        let keys = json!({ "unit": "4KiB", "region": "16KiB", "parity": 2 });
        let open = open(&env, &["a", "b", "c", "d", "e"], keys, Begin::Format).await.expect("made");
        let bytes = pattern(open.node.geometry().size as usize);
        put(&open, 0, &bytes).await;
        // Data, P and Q, each in a stripe of its own.
        for (leg, at) in [(0, 0), (1, 4096), (2, 8192), (3, 12288), (4, 16384), (0, 20480 + 512), (0, 24576)]
        {
            damage(&open, leg, at).await;
        }
        scrubbed(&open).await;
        assert_eq!((open.found("healed"), open.found("different")), (7, 0));
        assert_eq!(all_of(&open).await, bytes);
        // Two wrong cells of a stripe cannot be told from one another.
        damage(&open, 0, 4096).await;
        damage(&open, 3, 4096).await;
        scrubbed(&open).await;
        assert_eq!(open.found("healed") + open.found("different"), 8);
    });
}
