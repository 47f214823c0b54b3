//! What a tier's monitor knows after the device was closed, or a crash.

use super::*;
use lamina_sim::Loss;

/// The tier, its flash, and their disks, as `begin` says.
async fn devices(env: &Rc<SimEnv>, begin: Begin) -> [Rc<Node>; 2] {
    let kind = Kind::of::<crate::flash::Keys>();
    let flash = made(env, begin, &kind, "flash", json!({}), vec![disk(env, "flash")]).await;
    let over = vec![disk(env, "store"), Rc::clone(&flash)];
    [made(env, begin, &Kind::of::<Keys>(), "top", json!({}), over).await, flash]
}

async fn close(devices: &[Rc<Node>; 2]) {
    for device in devices {
        device.close().await.expect("closed");
    }
}

async fn extents(top: &Rc<Node>) -> Value {
    ctl(top, "top", json!({ "count": 1000 })).await["extents"].clone()
}

/// Reads and writes some places, so that the monitor has something to know.
async fn use_it(top: &Rc<Node>) {
    for n in 0..8 {
        read(top, n << 18, 8192).await;
        write(top, (n << 18) + 4096, 4096, n as u8).await;
    }
}

#[test]
fn what_is_known_is_known_when_it_is_opened_again() {
    run(|env| async move {
        let open = devices(&env, Begin::Format).await;
        use_it(&open[0]).await;
        env.sleep(Duration::from_secs(1)).await;
        let (before, cached) = (extents(&open[0]).await, figure(&open[0], "cached_bytes"));
        close(&open).await;
        let open = devices(&env, Begin::Open).await;
        assert_eq!(extents(&open[0]).await, before);
        // One whose read took no longer than one of the flash costs nothing, and is not listed.
        let known = before.as_array().map(Vec::len);
        assert!(known >= Some(6), "{before}");
        // Notes are no part of the volume, which was not forgotten for their sake.
        assert!(figure(&open[0], "cached_bytes") >= cached, "{cached} bytes were there");
        assert_eq!(read(&open[0], 4096, 4096).await, [0; 4096]);
        // Closed without a use, and again.
        close(&open).await;
        let open = devices(&env, Begin::Open).await;
        assert_eq!(extents(&open[0]).await.as_array().map(Vec::len), known);
    });
}

#[test]
fn a_crash_forgets_some_minutes() {
    let world = Simulation::new(1);
    put_disks(&world.env(), &[("store", SLOW), ("flash", 4 << 20)]);
    let env = world.env();
    let making = async move {
        let open = devices(&env, Begin::Format).await;
        read(&open[0], 1 << 20, 8192).await;
        env.sleep(Duration::from_secs(400)).await;
        ctl(&open[0], "drain", json!({})).await;
        open[0].submit(Io::flush()).await.expect("flushed");
        read(&open[0], 1 << 18, 8192).await;
        env.images(Loss::All, 1)
    };
    let images = world.run(making).expect("it ends");
    let world = Simulation::from_images(2, &images);
    let env = world.env();
    let opened = async move {
        let open = devices(&env, Begin::Open).await;
        let known = extents(&open[0]).await;
        assert_eq!((known[0]["offset"].clone(), known[1].clone()), (json!(1 << 20), Value::Null), "{known}");
    };
    world.run(opened).expect("it ends");
}

#[test]
fn notes_are_written_at_most_every_few_minutes_and_not_while_nothing_is_used() {
    run(|env| async move {
        let open = devices(&env, Begin::Format).await;
        write(&open[0], 0, 4096, 1).await;
        let written = |open: &[Rc<Node>; 2]| figure(&open[1], "written_bytes");
        let before = written(&open);
        for _ in 0..250 {
            read(&open[0], 0, 4096).await;
            env.sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(written(&open), before);
        env.sleep(Duration::from_secs(100)).await;
        let noted = written(&open) - before;
        assert!((8192..=64 << 10).contains(&noted), "{noted} bytes");
        env.sleep(Duration::from_secs(1000)).await;
        assert_eq!(written(&open) - before, noted);
    });
}

/// Whatever is on the flash where notes are, the tier opens, cold, and works.
#[test]
fn notes_that_are_damaged_are_none() {
    for damage in [0..8u64, 24..28, 4000..4096] {
        run(|env| async move {
            let open = devices(&env, Begin::Format).await;
            use_it(&open[0]).await;
            close(&open).await;
            let flash = disk(&env, "flash");
            for slot in 0..1024u64 {
                let page = read(&flash, slot * 4096, 4096).await;
                if page.starts_with(b"LAMTIERM") {
                    let at = slot * 4096 + damage.start / 512 * 512;
                    let mut sector = read(&flash, at, 512).await;
                    sector[damage.start as usize % 512] ^= 1;
                    flash
                        .submit(Io::write(at, Buf::from_vec(sector), Durability::Fua))
                        .await
                        .expect("written");
                }
            }
            let open = devices(&env, Begin::Open).await;
            assert_eq!(extents(&open[0]).await, json!([]));
            use_it(&open[0]).await;
            assert_eq!(extents(&open[0]).await.as_array().map(Vec::len), Some(8));
        });
    }
}
