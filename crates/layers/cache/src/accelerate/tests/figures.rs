//! What is declared of figures and notices that there is not always something to say of.

use super::super::Keys;
use super::DISK;
use super::report::made;
use crate::flash::SLOT;
use crate::redo::tests::{disk, put_disks, redo};
use crate::testing::*;
use lamina_block::{Begin, Config, Error};
use lamina_sim::{Loss, Presence, SimEnv, Simulation};
use std::time::Duration;

/// A volume over a `redo`, whose flash is perhaps absent.
async fn volume(env: &Rc<SimEnv>, begin: Begin, has_flash: bool) -> Rc<Node> {
    let store = redo(env, begin).await.expect("made");
    let flash = match has_flash {
        true => {
            let kind = Kind::of::<crate::flash::Keys>();
            made(env, begin, &kind, "flash", json!({}), vec![disk(env, "nvme")]).await
        }
        false => Node::absent("flash", Rc::clone(env) as _, Error::offline("it was taken away")),
    };
    let keys = json!({ "store-timeout": "1s" });
    made(env, begin, &Kind::of::<Keys>(), "top", keys, vec![store, flash]).await
}

async fn write(top: &Rc<Node>) {
    for block in 0..10 {
        let data = Buf::from_vec(vec![7; SLOT]);
        top.submit(Io::write(2 * block * SLOT as u64, data, Durability::Fua)).await.expect("written");
    }
}

/// Every figure is a number at one of the moments of a life, and everything that is to be said is said at one.
#[test]
fn what_is_null_at_times_is_there_at_others() {
    let world = Simulation::new(1);
    let env = world.env();
    put_disks(&env, &[("store", DISK), ("log", 4 << 20), ("nvme", DISK)]);
    let written = async move {
        let top = volume(&env, Begin::Format, true).await;
        env.disk("store").expect("a disk").set_presence(Presence::Failing);
        write(&top).await;
        env.images(Loss::ALL[0], 1)
    };
    let images = world.run(written).expect("it ends");

    let world = Simulation::from_images(2, &images);
    let env = world.env();
    let lived = async move {
        let top = volume(&env, Begin::Open, true).await;
        let mut moments = vec![top.info()];
        top.control(Command { name: "drain".into(), args: json!({}) }).await.expect("drained");
        top.submit(Io::read(0, Buf::zeroed(SLOT))).await.expect("read");
        moments.push(top.info());
        env.disk("store").expect("a disk").set_presence(Presence::Failing);
        write(&top).await;
        env.sleep(Duration::from_secs(400)).await;
        moments.push(top.info());
        env.disk("nvme").expect("a disk").set_presence(Presence::Failing);
        env.sleep(Duration::from_secs(10)).await;
        moments.push(top.info());
        drop(top);
        env.disk("store").expect("a disk").set_presence(Presence::Here);
        moments.push(volume(&env, Begin::Open, false).await.info());
        moments
    };
    let mut moments = world.run(lived).expect("it ends");
    moments.push(super::hosts::fenced());
    moments.extend(super::peers::without_and_with());
    for figure in Keys::TRAITS.figures.iter().filter(|figure| figure.unit.is_number()) {
        let is_there = |info: &Value| info.pointer(figure.at).is_some_and(Value::is_number);
        assert!(moments.iter().any(is_there), "{} is never a number: {moments:#?}", figure.at);
    }
    for notice in Keys::TRAITS.notices {
        let said = |info: &Value| notice.of("top", info, |at| at.into()).is_some();
        assert!(moments.iter().any(said), "never said: {}", notice.says);
    }
}
