//! Where the time of a request goes, as nodes account for it.

use futures_util::future::join;
use lamina_block::{
    Buf, Cause, Durability, Env, Geometry, Io, Layer, Manage, Node, Op, Part, Passthrough, Result, Signal,
    Step, all, wait,
};
use lamina_sim::{SimEnv, Simulation};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// A device that takes its time.
struct Slow {
    env: Rc<SimEnv>,
    takes: Duration,
}

impl Layer for Slow {
    fn geometry(&self) -> Geometry {
        Geometry::new(1 << 20)
    }

    fn submit(self: Rc<Self>, _: &mut Io) -> Step {
        Step::control(async move {
            self.env.sleep(self.takes).await;
            Ok(())
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for Slow {}

/// It waits for room, asks both below at once, and rests; what is written, it passes on.
struct Both {
    env: Rc<SimEnv>,
    below: [Rc<Node>; 2],
    room: Signal,
}

impl Layer for Both {
    fn geometry(&self) -> Geometry {
        Geometry { discard: true, ..Geometry::new(1 << 20) }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match io.op {
            Op::Write(..) => return Step::Forward(Rc::clone(&self.below[0])),
            // Before it has a future of its own.
            Op::Discard => {
                let both = self.below.clone().map(|below| below.submit(Io::flush()));
                return Step::control(async move { all(both).await });
            }
            Op::Read(_) | Op::Zero(_) | Op::Flush => {}
        }
        let at = io.at.start;
        Step::control(async move {
            let waits = wait(Cause::Room);
            self.room.wait().await;
            drop(waits);
            let read = |below: &Rc<Node>| below.submit(Io::read(at, Buf::zeroed(512)));
            let (a, b) = join(read(&self.below[0]), read(&self.below[1])).await;
            self.env.sleep(Duration::from_micros(7)).await;
            a.and(b)
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for Both {}

fn node(env: &Rc<SimEnv>, name: &str, layer: Rc<dyn Layer>) -> Rc<Node> {
    Node::new(name, "test", Rc::clone(env) as Rc<dyn Env>, layer)
}

/// A device over two, of which the second takes 50 us, and that has room 20 us after a request.
fn devices(env: &Rc<SimEnv>) -> (Rc<Node>, Rc<Both>) {
    let slow = |name, takes| {
        node(env, name, Rc::new(Slow { env: Rc::clone(env), takes: Duration::from_micros(takes) }))
    };
    let below = [slow("a", 10), slow("b", 50)];
    let both = Rc::new(Both { env: Rc::clone(env), below, room: Signal::new() });
    (node(env, "both", Rc::clone(&both) as _), both)
}

async fn read(env: &Rc<SimEnv>, of: &Rc<Node>, both: &Both) -> Result<()> {
    read_with_room(env, of, both, Duration::from_micros(20)).await
}

async fn read_with_room(env: &Rc<SimEnv>, of: &Rc<Node>, both: &Both, after: Duration) -> Result<()> {
    let request = of.submit(Io::read(0, Buf::zeroed(512)));
    let room = async {
        env.sleep(after).await;
        both.room.notify();
    };
    join(request, room).await.0
}

fn told(parts: &[Part]) -> Vec<String> {
    let told = |part: &Part| format!("{} {} {}", part.device, part.cause.name(), part.took.as_micros());
    parts.iter().map(told).collect()
}

#[test]
fn the_parts_of_a_request_are_what_it_waited_for() {
    let world = Simulation::new(1);
    let env = world.env();
    let run = async move {
        let (top, both) = devices(&env);
        top.account().set_rate(1000);
        read(&env, &top, &both).await.expect("a read");
        let samples = top.account().samples();
        assert_eq!(samples.len(), 1);
        // What `a` took was over before `b` was.
        assert_eq!(told(&samples[0].parts), ["both room 20", "b itself 50", "both itself 7"]);
        assert_eq!(samples[0].took(), Duration::from_micros(77));
        assert_eq!(top.account().slowest(env.now()).len(), 1);
        assert!(both.below[0].account().samples().is_empty(), "what is below is accounted for above");
    };
    assert_eq!(world.run(run), Ok(()));
}

#[test]
fn what_is_forwarded_counts_where_it_is_kept() {
    let world = Simulation::new(2);
    let env = world.env();
    let run = async move {
        let (top, _) = devices(&env);
        top.account().set_rate(1000);
        top.submit(Io::write(0, Buf::zeroed(512), Durability::Cached)).await.expect("a write");
        assert_eq!(told(&top.account().samples()[0].parts), ["a itself 10"]);
    };
    assert_eq!(world.run(run), Ok(()));
}

#[test]
fn what_a_layer_asks_before_it_keeps_a_request_is_below_it() {
    let world = Simulation::new(2);
    let env = world.env();
    let run = async move {
        let (top, _) = devices(&env);
        top.account().set_rate(1000);
        top.submit(Io::discard(0..512)).await.expect("a discard");
        assert_eq!(told(&top.account().samples()[0].parts), ["b itself 50"]);
    };
    assert_eq!(world.run(run), Ok(()));
}

#[test]
fn nobody_looks_unless_it_is_wanted() {
    let world = Simulation::new(3);
    let env = world.env();
    let run = async move {
        let (top, both) = devices(&env);
        read(&env, &top, &both).await.expect("a read");
        assert!(top.account().samples().is_empty());
        top.account().set_rate(1000);
        read(&env, &top, &both).await.expect("a read");
        top.account().set_rate(0);
        read(&env, &top, &both).await.expect("a read");
        assert_eq!(top.account().samples().len(), 1);
    };
    assert_eq!(world.run(run), Ok(()));
}

/// Of many requests as many a second are looked at as wanted, about; of few, all.
#[test]
fn so_many_are_looked_at_as_is_wanted() {
    let world = Simulation::new(4);
    let env = world.env();
    let run = async move {
        let (top, _) = devices(&env);
        top.account().set_rate(100);
        let write = || top.submit(Io::write(0, Buf::zeroed(512), Durability::Cached));
        for _ in 0..50 {
            write().await.expect("a write");
            env.sleep(Duration::from_millis(100)).await;
        }
        let few = top.account().samples().len();
        assert_eq!(few, 50, "ten a second");
        // 100,000 a second, for three seconds.
        for _ in 0..300_000 {
            write().await.expect("a write");
        }
        let many = top.account().samples().len() - few;
        assert!((200..500).contains(&many), "{many} of 300,000 in three seconds");
    };
    assert_eq!(world.run(run), Ok(()));
}

/// After a burst, of which few requests are looked at, those that stand still are.
#[test]
fn what_stands_still_after_a_burst_is_looked_at() {
    let world = Simulation::new(6);
    let env = world.env();
    let run = async move {
        let (top, both) = devices(&env);
        top.account().set_rate(100);
        for _ in 0..20_000 {
            top.submit(Io::write(0, Buf::zeroed(512), Durability::Cached)).await.expect("a write");
        }
        for _ in 0..10 {
            read_with_room(&env, &top, &both, Duration::from_secs(1)).await.expect("a read");
        }
        let samples = top.account().samples();
        let slow = samples.iter().filter(|sample| sample.took() > Duration::from_secs(1)).count();
        assert!(slow >= 9, "{slow} of 10");
    };
    assert_eq!(world.run(run), Ok(()));
}

/// A request that is given up, or the layer of which goes on in a task, leaves nothing behind.
#[test]
fn a_request_that_is_given_up_is_over() {
    let world = Simulation::new(5);
    let env = world.env();
    let run = async move {
        let (top, both) = devices(&env);
        top.account().set_rate(1000);
        let mut request = top.submit(Io::read(0, Buf::zeroed(512)));
        let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut request).poll(cx))).await;
        assert!(polled.is_pending());
        drop(request);
        assert_eq!(top.account().samples().len(), 1);
        read(&env, &top, &both).await.expect("a read");
        assert_eq!(told(&top.account().samples()[1].parts), ["both room 20", "b itself 50", "both itself 7"]);
    };
    assert_eq!(world.run(run), Ok(()));
}
