//! Peers of the fault domains that are asked for, and no others.

use super::cluster::*;
use super::*;
use crate::testing::history::{Checked, told};
use lamina_block::Begin;

const RACKS: [(&str, &str); 4] = [("a", "r1"), ("b", "r1"), ("c", "r2"), ("d", "r2")];

/// The hosts whose flashes have every write.
fn peers(of: &Serves) -> Vec<String> {
    let mut hosts: Vec<String> = of.vm.info()["peers"]["connected"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|peer| peer["host"].as_str().expect("a name").into())
        .collect();
    hosts.sort();
    hosts
}

/// Host `a` with these peers, beside the others: which it gets, and which when the first of these dies.
fn chosen(rule: Value, number: usize) -> (Vec<String>, std::result::Result<Vec<String>, String>) {
    let world = world(3);
    let env = world.env();
    let run = async move {
        create(&env, &RACKS.map(|(host, _)| host)).await?;
        let more = || json!({ "peers": number, "peer-domain": rule });
        let open = async |(host, rack): (&'static str, &str)| {
            let of = json!({ "domain": rack });
            Serves::open_with(&env, host, more(), of, Begin::Open).await.map_err(told("opened"))
        };
        let mut hosts = Vec::new();
        for of in RACKS {
            hosts.push(open(of).await?);
        }
        hosts[0].vm.submit(Io::read(0, Buf::zeroed(4096))).await.map_err(told("read"))?;
        hosts[0].paired().await?;
        let first = peers(&hosts[0]);
        hosts.iter().find(|host| host.name == first[0]).expect("one of them").kill();
        let next = match hosts[0].paired_within(Duration::from_secs(30)).await {
            Ok(()) => Ok(peers(&hosts[0])),
            Err(_) => Err(hosts[0].vm.info()["peers"]["waits"].as_str().unwrap_or_default().into()),
        };
        Ok::<_, String>((first, next))
    };
    world.run(run).expect("it ends").unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_rule_holds_before_and_after_a_loss() {
    let domains = |hosts: &[String]| {
        let rack = |host: &String| RACKS.iter().find(|(name, _)| name == host).expect("it is there").1;
        let mut racks: Vec<&str> = hosts.iter().map(rack).collect();
        racks.sort_unstable();
        racks
    };
    let (first, next) = chosen(json!("other"), 1);
    let next = next.expect("there is another one");
    assert_eq!((domains(&first), domains(&next)), (vec!["r2"], vec!["r2"]));
    assert_ne!(first, next);

    let (first, next) = chosen(json!("same"), 1);
    assert_eq!(first, ["b"]);
    let why = next.expect_err("there is no other one in its rack");
    assert!(why.contains("wanted are 1 in the fault domain \"r1\""), "{why}");

    let (first, next) = chosen(json!({ "same": 1, "other": 1 }), 2);
    assert_eq!((domains(&first), first.contains(&"b".into())), (vec!["r1", "r2"], true));
    let why = next.expect_err("the only one of its rack is dead");
    assert!(why.contains("1 in the fault domain \"r1\" and 1 in others"), "{why}");
}

#[test]
fn a_host_without_a_domain_cannot_ask_for_one() {
    let world = world(4);
    let env = world.env();
    let run = async move {
        let keys = json!({ "peers": 1, "peer-domain": "other" });
        let refused = Serves::open_with(&env, "a", keys, json!({}), Begin::Format).await.err();
        refused.ok_or("it is opened".into())
    };
    let e: std::result::Result<lamina_block::Error, String> = world.run(run).expect("it ends");
    assert!(e.is_ok_and(|e| e.message().contains("peer-domain") && e.message().contains("`domain`")));
}

impl Serves {
    /// Waits until writes are acknowledged from flash, after they were not, for so long.
    async fn paired_within(&self, limit: Duration) -> Checked {
        let world = self.env.world();
        let began = world.now();
        let mut was_lost = false;
        while world.now().since(began) < limit {
            was_lost |= !self.is_write_back();
            if was_lost && self.is_write_back() {
                return Ok(());
            }
            world.sleep(Duration::from_millis(20)).await;
        }
        Err("no peers".into())
    }
}
