//! What a host shows of others: from what it has seen, whatever hangs now.

use lamina_block::{Env, Pending};
use lamina_cluster::host::{Fence, Host, Name};
use lamina_cluster::promise::Takeover;
use lamina_cluster::report::{MemberState, Own, VolumeReport};
use lamina_cluster::reservation::Reservation;
use lamina_cluster::vault::{Beat, FolderVault, Holder, Mode, Outcome, Record, Vault};
use lamina_cluster::view::{HostState, View};
use lamina_sim::{SimEnv, Simulation};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

const LEASE: Duration = Duration::from_secs(4);

/// A vault that hangs when it is told to: nothing that is asked is answered any more.
struct Hangs {
    of: Rc<dyn Vault>,
    is_hanging: Rc<Cell<bool>>,
}

impl Hangs {
    fn asked<T: 'static>(&self, answer: Pending<T>) -> Pending<T> {
        match self.is_hanging.get() {
            true => Box::pin(std::future::pending()),
            false => answer,
        }
    }
}

impl Vault for Hangs {
    fn volumes(&self) -> Pending<Vec<Uuid>> {
        self.asked(self.of.volumes())
    }

    fn read(&self, volume: Uuid) -> Pending<Option<Record>> {
        self.asked(self.of.read(volume))
    }

    fn append(&self, record: &Record) -> Pending<Outcome> {
        self.asked(self.of.append(record))
    }

    fn heard(&self, host: &str) -> Pending<Option<Beat>> {
        self.asked(self.of.heard(host))
    }

    fn beating(&self) -> Pending<Vec<String>> {
        self.asked(self.of.beating())
    }

    fn beat(&self, host: &str, beat: Beat) -> Pending {
        self.asked(self.of.beat(host, beat))
    }
}

/// A host, and what makes its vault hang.
fn host(env: &Rc<SimEnv>, name: &str, flash: u128) -> (Rc<Host>, Rc<Cell<bool>>) {
    let is_hanging = Rc::new(Cell::new(false));
    let folder = FolderVault::new(Rc::clone(env) as _, env.shared_folder("/vault") as _);
    let vault = Rc::new(Hangs { of: Rc::new(folder), is_hanging: Rc::clone(&is_hanging) });
    let holder = Holder { host: name.into(), flash: Some(Uuid::from_u128(flash)) };
    let host = Host::start(Rc::clone(env) as _, vault, Name::new("vm1"), holder, LEASE, Fence::Quarantine);
    (host, is_hanging)
}

fn simulate<F: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = Simulation::new(seed);
    world.run(test(world.env())).expect("it ends");
}

/// How it is with the only other host.
fn other(view: &View) -> HostState {
    let [other] = &view.hosts[..] else { panic!("{view:?}") };
    other.state
}

#[test]
fn hosts_are_alive_silent_and_alive_again() {
    simulate(1, |env| async move {
        let ((a, _), (b, b_hangs)) = (host(&env, "a", 1), host(&env, "b", 2));
        assert_eq!(a.view(), View::default(), "nothing has been seen");
        env.sleep(LEASE * 2).await;
        assert_eq!(other(&a.view()), HostState::Alive);
        assert!(a.view().hosts[0].heard.is_some_and(|heard| heard < LEASE), "{:?}", a.view());
        // It cannot beat, and does not know how it is with others.
        b_hangs.set(true);
        env.sleep(LEASE * 3).await;
        assert_eq!(other(&a.view()), HostState::Silent);
        assert!(a.view().hosts[0].heard.is_some_and(|heard| heard > LEASE * 2), "{:?}", a.view());
        assert_eq!(other(&b.view()), HostState::Unknown);
        assert!(b.view().answered.is_some_and(|answered| answered > LEASE * 2), "{:?}", b.view());
        b.stop();
        let (again, _) = host(&env, "b", 2);
        env.sleep(LEASE * 2).await;
        assert_eq!((other(&a.view()), other(&again.view())), (HostState::Alive, HostState::Alive));
    });
}

#[test]
fn a_host_that_was_never_heard_is_not_shown_unless_it_has_the_volume() {
    simulate(2, |env| async move {
        let (gone, _) = host(&env, "gone", 1);
        env.sleep(LEASE).await;
        gone.stop();
        let (a, _) = host(&env, "a", 2);
        env.sleep(LEASE * 3).await;
        assert_eq!(a.view().hosts, []);
        let (dead, _) = host(&env, "dead", 3);
        dead.take(LEASE).await.expect("nobody has it");
        dead.stop();
        let (b, _) = host(&env, "b", 4);
        env.sleep(LEASE * 3).await;
        let dead = b.view().hosts.into_iter().find(|host| host.name == "dead").expect("it has the volume");
        assert_eq!((dead.state, dead.heard), (HostState::Silent, None));
    });
}

fn report(of: &Rc<Reservation>, flash: u128) -> VolumeReport {
    of.report(Own { device: "top".into(), flash: Some(Uuid::from_u128(flash)), ..Own::default() })
}

/// A report is there at once: it is no future, and nobody is asked.
#[test]
fn a_volume_is_reported_while_the_vault_hangs() {
    simulate(3, |env| async move {
        let ((a, a_hangs), (b, _)) = (host(&env, "a", 1), host(&env, "b", 2));
        let reserved = |host: &Rc<Host>| Reservation::new(Rc::clone(host), "/vault".into(), None, None);
        let (here, there) = (reserved(&a), reserved(&b));
        let held = here.take(Some(Uuid::from_u128(1))).await.expect("nobody has it");
        let both = Mode::Back { members: vec![Uuid::from_u128(1), Uuid::from_u128(2)] };
        held.change(|record| record.mode = both.clone()).await.expect("it has the volume");
        env.sleep(LEASE * 2).await;
        let of_b = report(&there, 2);
        assert_eq!((of_b.host.as_deref(), of_b.role.as_str()), (Some("a"), "standby"));
        assert_eq!((of_b.promise.survives, of_b.promise.takeover), (Some(1), Takeover::Automatic));
        let states: Vec<MemberState> = of_b.members.iter().map(|member| member.state).collect();
        assert_eq!(states, [MemberState::Primary, MemberState::Named]);
        a_hangs.set(true);
        env.sleep(LEASE * 3).await;
        let of_a = report(&here, 1);
        assert_eq!((of_a.role.as_str(), of_a.mode.as_deref()), ("primary", Some("back")));
        assert!(of_a.vault_seconds.is_some_and(|seconds| seconds > 8.0), "{of_a:?}");
        // Its peer is on no connection, as far as it knows.
        assert_eq!((of_a.promise.survives, of_a.promise.takeover), (Some(0), Takeover::Impossible));
        let of_b = report(&there, 2);
        assert!(of_b.promise.sentence.contains("host a is silent"), "{of_b:?}");
        there.take(Some(Uuid::from_u128(2))).await.expect("it is a member");
        let of_b = report(&there, 2);
        assert_eq!(
            (of_b.host.as_deref(), of_b.role.as_str(), of_b.generation),
            (Some("b"), "primary", Some(2))
        );
        assert_eq!(there.figures()["takeovers"], 1);
        there.give_back().await.expect("given");
        let of_b = report(&there, 2);
        assert!(of_b.host.is_none() && of_b.promise.sentence.contains("no host has the volume"), "{of_b:?}");
        assert_eq!(there.figures()["given"], 1);
    });
}
