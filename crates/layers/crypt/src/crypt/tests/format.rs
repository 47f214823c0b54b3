//! Headers that are damaged, hostile, or as an older version left them: `tests/golden/luks2-1.bin`.

use super::*;
use aws_lc_rs::digest;

const LENGTH: usize = 16 << 10;

/// A volume's first bytes, and what opens over others.
fn with_header<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(Rc<SimEnv>, Rc<Node>, Vec<u8>) -> F + 'static,
) {
    with_volume(json!({}), |sim, below, vault| async move {
        put(&vault, 0, &pattern(512)).await;
        drop(vault);
        let header = get(&below, 0, 2 * LENGTH).await;
        test(sim, below, header).await;
    });
}

/// Gives a copy the checksum that it ought to have.
fn seal(copy: &mut [u8]) {
    copy[448..512].fill(0);
    let sum = digest::digest(&digest::SHA256, copy);
    copy[448..480].copy_from_slice(sum.as_ref());
}

async fn tried(sim: &Rc<SimEnv>, below: &Rc<Node>) -> Result<Rc<Node>> {
    open(sim, below, keys(json!({})), Begin::Open).await
}

#[test]
fn a_damaged_copy_is_not_used_and_can_be_repaired() {
    with_header(|sim, below, header| async move {
        for (at, used) in [(0, "second"), (4096 + 100, "second"), (LENGTH, "first"), (LENGTH + 4096, "first")]
        {
            put(&below, 0, &header).await;
            let sector = at / 512 * 512;
            let mut bytes = header[sector..sector + 512].to_vec();
            bytes[at % 512] ^= 0x20;
            put(&below, sector as u64, &bytes).await;
            let vault = tried(&sim, &below).await.expect("it opens");
            assert_eq!(get(&vault, 0, 512).await, pattern(512));
            let said = vault.info()["header"].as_str().unwrap().to_owned();
            assert!(said.starts_with(&format!("the {used} copy is used")), "{said}");
            assert!(vault.check(false).await.unwrap()[0].is_damage());
            assert!(!vault.check(true).await.unwrap()[0].is_damage());
            assert_eq!(vault.info()["header"], "both copies are whole");
            let again = tried(&sim, &below).await.unwrap();
            assert_eq!(again.info()["header"], "both copies are whole");
        }
        put(&below, 0, &[0; 512]).await;
        put(&below, LENGTH as u64 + 4096, &[1; 512]).await;
        let error = tried(&sim, &below).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("both copies of the LUKS header are damaged"), "{error}");
    });
}

#[test]
fn a_stale_copy_is_not_used() {
    with_header(|sim, below, header| async move {
        let mut newer = header[LENGTH..].to_vec();
        newer[23] += 1;
        seal(&mut newer);
        put(&below, LENGTH as u64, &newer).await;
        let vault = tried(&sim, &below).await.unwrap();
        assert_eq!(vault.info()["header"], "the second copy is used: of the first, it is stale");
    });
}

/// Changes the JSON of both copies, and says what opening says.
async fn with_json(sim: &Rc<SimEnv>, below: &Rc<Node>, header: &[u8], change: impl Fn(&mut Value)) -> String {
    for (at, copy) in [(0, &header[..LENGTH]), (LENGTH, &header[LENGTH..])] {
        let text = copy[4096..].split(|byte| *byte == 0).next().unwrap();
        let mut json: Value = serde_json::from_slice(text).unwrap();
        change(&mut json);
        let mut copy = copy[..4096].to_vec();
        copy.extend(json.to_string().as_bytes());
        copy.resize(LENGTH, 0);
        seal(&mut copy);
        put(below, at as u64, &copy).await;
    }
    tried(sim, below).await.map_or_else(|e| e.to_string(), |_| "it opens".into())
}

#[test]
fn what_a_header_says_is_checked() {
    with_header(|sim, below, header| async move {
        type Change = fn(&mut Value);
        let cases: &[(Change, &str)] = &[
            (|_| {}, "it opens"),
            (|j| j["tokens"]["0"] = json!({ "type": "x", "keyslots": ["0"] }), "it opens"),
            (|j| j["keyslots"]["0"]["area"]["offset"] = "0".into(), "keyslot 0 is where it cannot be"),
            (
                |j| j["keyslots"]["0"]["area"]["offset"] = "18446744073709547520".into(),
                "is where it cannot be",
            ),
            (|j| j["keyslots"]["0"]["area"]["size"] = "4096".into(), "does not fit into its 4096 bytes"),
            (|j| j["keyslots"]["0"]["area"]["offset"] = "-1".into(), "is no number"),
            (|j| j["keyslots"]["0"]["key_size"] = 65.into(), "a length that no key has"),
            (|j| j["keyslots"]["0"]["key_size"] = 32.into(), "wrong key"),
            (|j| j["keyslots"]["0"]["af"]["stripes"] = 4_000_000_000_u64.into(), "does not fit"),
            (|j| j["keyslots"]["0"]["af"]["stripes"] = 0.into(), "does not fit"),
            (
                |j| j["keyslots"]["0"]["kdf"]["memory"] = 4_000_000_000_u64.into(),
                "kdf-memory-max: a keyslot needs",
            ),
            (|j| j["keyslots"]["0"]["kdf"]["time"] = 4_000_000_000_u64.into(), "would take for ever"),
            (|j| j["keyslots"]["0"]["kdf"]["type"] = "scrypt".into(), "unknown variant"),
            (|j| j["keyslots"]["32"] = j["keyslots"]["0"].clone(), "keyslot 32 is where it cannot be"),
            (|j| j["keyslots"]["1"] = j["keyslots"]["0"].clone(), "two keyslots share space"),
            (|j| j["keyslots"]["01"] = j["keyslots"]["0"].clone(), "\"01\" is no number"),
            (|j| j["keyslots"]["0"]["type"] = "reencrypt".into(), "wrong key"),
            (|j| j["segments"]["0"]["offset"] = "32768".into(), "data and keyslots share space"),
            (|j| j["segments"]["0"]["offset"] = "18446744073709551104".into(), "data are missing"),
            (|j| j["segments"]["0"]["size"] = "18446744073709551104".into(), "beyond every device"),
            (|j| j["segments"]["0"]["size"] = "1048576".into(), "data are missing"),
            (|j| j["segments"]["0"]["sector_size"] = 1000.into(), "sectors of 1000 bytes cannot be"),
            (|j| j["segments"]["0"]["encryption"] = "cipher_null-ecb".into(), "is not known here"),
            (|j| j["segments"]["0"]["type"] = "linear".into(), "\"linear\" is not known here"),
            (|j| j["segments"]["0"]["integrity"] = json!({ "type": "hmac" }), "checksums beside its data"),
            (|j| j["segments"]["1"] = j["segments"]["0"].clone(), "2 segments of data"),
            (|j| j["digests"] = json!({}), "no digest of the key"),
            (|j| j["digests"]["0"]["iterations"] = 4_000_000_000_u64.into(), "would take for ever"),
            (|j| j["digests"]["0"]["digest"] = "".into(), "a length that it cannot have"),
            (|j| j["config"]["json_size"] = "12289".into(), "the sizes in its JSON cannot be"),
            (
                |j| j["config"]["keyslots_size"] = "18446744073709551615".into(),
                "the sizes in its JSON cannot be",
            ),
            (
                |j| j["config"]["requirements"] = json!({ "mandatory": ["online-reencrypt"] }),
                "\"online-reencrypt\"",
            ),
            (|j| *j = Value::Null, "config: invalid type"),
        ];
        for (change, says) in cases {
            let said = with_json(&sim, &below, &header, change).await;
            assert!(said.contains(says), "{said}: {says}");
        }
    });
}

#[test]
fn what_others_put_into_the_header_survives_a_change() {
    simulated(|world| async move {
        put_keys(&world.sim);
        let below = world.memory("2MiB").await;
        let wide = keys(json!({ "header-size": "1MiB" }));
        open(&world.sim, &below, wide.clone(), Begin::Format).await.unwrap();
        let header = get(&below, 0, 2 * LENGTH).await;
        let token = json!({ "type": "systemd-tpm2", "keyslots": ["0"], "extra": [1, 2] });
        let also = token.clone();
        with_json(&world.sim, &below, &header, move |json| json["tokens"]["3"] = also.clone()).await;
        let vault = open(&world.sim, &below, wide, Begin::Open).await.unwrap();
        tell(&vault, "keyslot-add", json!({ "key-file": "/new" })).await.unwrap();
        let json = |bytes: &[u8]| -> Value {
            serde_json::from_slice(bytes[4096..].split(|byte| *byte == 0).next().unwrap()).unwrap()
        };
        let now = json(&get(&below, 0, LENGTH).await);
        assert_eq!(now["tokens"]["3"], token);
        // With the keyslot goes what refers to it.
        tell(&vault, "key-change", json!({ "key-file": "/new" })).await.unwrap();
        let now = json(&get(&below, LENGTH as u64, LENGTH).await);
        assert_eq!(now["tokens"]["3"]["keyslots"], json!([]));
        assert_eq!(now["digests"]["0"]["keyslots"], json!(["1"]));
    });
}

/// A volume that version 1 of this reader wrote, with few stripes so that it is small: it is opened, and its two copies
/// are written byte for byte again.
#[test]
fn the_golden_volume_opens() {
    const GOLDEN: &[u8] = include_bytes!("../../../tests/golden/luks2-1.bin");
    simulated(|world| async move {
        put_keys(&world.sim);
        let below = world.memory("64KiB").await;
        put(&below, 0, GOLDEN).await;
        let keys = json!({ "key-file": "/key", "kdf-memory": "32KiB", "kdf-memory-max": "64KiB" });
        let vault = open(&world.sim, &below, keys, Begin::Open).await.unwrap();
        assert_eq!(vault.info()["uuid"], "9b5f2c0a-4d1e-4a7b-8c3d-2e1f0a9b8c7d");
        assert_eq!(get(&vault, 0, 1024).await, pattern(1024));
        assert_eq!(vault.info()["header"], "both copies are whole");
    });
    super::super::luks::written_again(GOLDEN);
}
