//! Hosts that take a volume from each other, are paused, die, and come back: one at a time can change its record.

use futures_util::future::{Either, join, select};
use lamina_block::{Env, Error, ErrorKind, Pending};
use lamina_cluster::amend::{accept_loss, declare_dead};
use lamina_cluster::host::{Fence, Held, Host, Name};
use lamina_cluster::reservation::Reservation;
use lamina_cluster::vault::{Beat, FolderVault, Holder, Mode, Outcome, Record, Vault};
use lamina_sim::{SimEnv, Simulation};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

const LEASE: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);

fn holder(name: &str, flash: u128) -> Holder {
    Holder { host: name.into(), flash: Some(Uuid::from_u128(flash)) }
}

fn vault(env: &Rc<SimEnv>) -> Rc<dyn Vault> {
    Rc::new(FolderVault::new(Rc::clone(env) as _, env.shared_folder("/vault") as _))
}

/// A vault whose host can fall silent, and goes on otherwise.
struct Mute {
    of: Rc<dyn Vault>,
    is_silent: Rc<Cell<bool>>,
    fences: bool,
}

impl Vault for Mute {
    fn volumes(&self) -> Pending<Vec<Uuid>> {
        self.of.volumes()
    }

    fn read(&self, volume: Uuid) -> Pending<Option<Record>> {
        self.of.read(volume)
    }

    fn append(&self, record: &Record) -> Pending<Outcome> {
        self.of.append(record)
    }

    fn heard(&self, host: &str) -> Pending<Option<Beat>> {
        self.of.heard(host)
    }

    fn beating(&self) -> Pending<Vec<String>> {
        self.of.beating()
    }

    fn beat(&self, host: &str, beat: Beat) -> Pending {
        match self.is_silent.get() {
            true => Box::pin(async { Ok(()) }),
            false => self.of.beat(host, beat),
        }
    }

    fn fences(&self) -> bool {
        self.fences
    }
}

/// A host, and what makes it silent.
fn mute(env: &Rc<SimEnv>, name: &str, flash: u128, fence: Fence) -> (Rc<Host>, Rc<Cell<bool>>) {
    mute_in(env, name, flash, fence, false)
}

/// The same, with a vault that keeps late writes from the store, or does not.
fn mute_in(
    env: &Rc<SimEnv>,
    name: &str,
    flash: u128,
    fence: Fence,
    fences: bool,
) -> (Rc<Host>, Rc<Cell<bool>>) {
    let is_silent = Rc::new(Cell::new(false));
    let vault = Rc::new(Mute { of: vault(env), is_silent: Rc::clone(&is_silent), fences });
    (Host::start(Rc::clone(env) as _, vault, volume(), holder(name, flash), LEASE, fence), is_silent)
}

fn volume() -> Name {
    Name::new("vm1")
}

fn start(env: &Rc<SimEnv>, name: &str, flash: u128) -> Rc<Host> {
    mute(env, name, flash, Fence::Quarantine).0
}

fn back(flashes: &[u128]) -> Mode {
    Mode::Back { members: flashes.iter().copied().map(Uuid::from_u128).collect() }
}

fn simulate<F: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = Simulation::new(seed);
    world.run(test(world.env())).expect("it ends");
}

#[test]
fn a_volume_is_taken_when_its_host_is_silent() {
    simulate(1, |env| async move {
        let ((a, a_is_silent), b) = (mute(&env, "a", 1, Fence::Quarantine), start(&env, "b", 2));
        let held = a.take(LONG).await.expect("nobody has it");
        assert_eq!(held.record().generation, 1);
        let e = b.take(2 * LEASE).await.err().expect("its host is alive");
        assert!(e.kind() == ErrorKind::Busy && e.message().contains("a (flash"), "{e}");
        held.change(|record| record.mode = back(&[1, 2])).await.expect("it has the volume");
        // It hangs.
        a_is_silent.set(true);
        let began = env.now();
        let taken = b.take(LONG).await.expect("its host is silent");
        let took = env.now().since(began);
        assert!(took < 2 * LEASE && taken.record().unfenced == Some(1), "{took:?}: {:?}", taken.record());
        // The first one goes on.
        let e = held.change(|record| record.checkpoint = 9).await.expect_err("it is fenced");
        assert!(e.kind() == ErrorKind::Fenced && e.message().contains("b (flash"), "{e}");
        let has_all = |record: &mut Record| (record.checkpoint, record.mode) = (7, Mode::Through);
        taken.change(has_all).await.expect("it has the volume");
        taken.give_back().await.expect("given back");
        let c = start(&env, "c", 3);
        let again = c.take(Duration::ZERO).await.expect("at once").record();
        // Late writes of the first one may still come: it stays known.
        assert_eq!((again.generation, again.checkpoint, again.unfenced), (3, 7, Some(1)));
        assert_eq!(again.previous, Some(holder("a", 1)));
    });
}

/// The host before may have beaten just when its volume was taken, and answers until it looks: also the next process of
/// the host that has taken it waits for that.
#[test]
fn who_follows_a_process_that_has_just_taken_a_volume_waits_for_the_host_before() {
    simulate(6, |env| async move {
        let ((a, a_is_silent), b) = (mute(&env, "a", 1, Fence::Quarantine), start(&env, "b", 2));
        let held = a.take(LONG).await.expect("nobody has it");
        held.change(|record| record.mode = back(&[1, 2])).await.expect("it has the volume");
        a_is_silent.set(true);
        let is_taken = async {
            while !env.shared_folder("/vault").names().iter().any(|name| name.ends_with(".record.3")) {
                env.sleep(Duration::from_micros(100)).await;
            }
        };
        let attempt = select(Box::pin(b.take(LONG)), Box::pin(is_taken)).await;
        assert!(matches!(attempt, Either::Right(_)), "it has waited for the host before");
        drop(attempt);
        b.stop();
        a_is_silent.set(false);
        assert!(a.is_safe(), "the host before has not looked");
        let again = start(&env, "b", 2).take(LONG).await.expect("it had the volume").record();
        assert_eq!((again.generation, again.unfenced, a.is_safe()), (3, Some(1), false));
    });
}

/// What flashes had is given up. The store is past one that was no member, and not past one that was.
#[test]
fn a_flash_that_did_not_count_does_not_count_after_a_loss() {
    for (members, since) in [(&[2][..], 2), (&[1, 2], 1)] {
        simulate(7, move |env| async move {
            let a = start(&env, "a", 1);
            let held = a.take(LONG).await.expect("nobody has it");
            held.change(|record| record.mode = back(members)).await.expect("it has the volume");
            held.give_back().await.expect("given back");
            accept_loss(&*vault(&env), &*env, volume().uuid).await.expect("nobody has it");
            let again = a.take(LONG).await.expect("nobody has it").record();
            assert_eq!((again.mode, again.generation, again.since), (Mode::Through, 2, since));
        });
    }
}

/// Whoever takes a volume may give up waiting: those who come later try themselves.
#[test]
fn an_attempt_that_is_given_up_is_in_nobodys_way() {
    simulate(3, |env| async move {
        let (a, b) = (start(&env, "a", 1), start(&env, "b", 2));
        let held = a.take(LONG).await.expect("nobody has it");
        let reservation = Reservation::new(b, "/vault".into(), None, None);
        let attempt = select(Box::pin(reservation.take(None)), env.sleep(LEASE / 2)).await;
        assert!(matches!(attempt, Either::Right(_)), "its host is alive");
        drop(attempt);
        held.give_back().await.expect("given back");
        let again = select(Box::pin(reservation.take(None)), env.sleep(LEASE)).await;
        assert!(matches!(again, Either::Left((Ok(_), _))), "nobody has it");
    });
}

#[test]
fn while_the_vault_takes_no_beats_nobody_is_dead() {
    simulate(2, |env| async move {
        let (a, b) = (start(&env, "a", 1), start(&env, "b", 2));
        let held = a.take(LONG).await.expect("nobody has it");
        held.change(|record| record.mode = back(&[1, 2])).await.expect("it has the volume");
        let folder = env.shared_folder("/vault");
        for lasts in [LEASE / 2, 4 * LEASE] {
            folder.set_space(0);
            let e = b.take(lasts).await.err().expect("its host could not beat");
            assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
            assert!(a.view().trouble.is_some_and(|why| why.contains("is full")), "{:?}", a.view());
            folder.set_space(1 << 20);
            let e = b.take(LEASE).await.err().expect("its host beats again");
            assert_eq!((e.kind(), held.fenced()), (ErrorKind::Busy, None), "{e}");
            assert_eq!(a.view().trouble, None);
        }
        // One that is silent while the vault takes beats is dead, as ever.
        a.stop();
        b.take(2 * LEASE).await.expect("its host is silent");
    });
}

#[test]
fn a_host_that_is_only_silent_keeps_its_volume_until_somebody_says_that_it_is_dead() {
    simulate(4, |env| async move {
        let confirmed = |name, flash| mute(&env, name, flash, Fence::Confirmed);
        let ((a, a_is_silent), (b, _)) = (confirmed("a", 1), confirmed("b", 2));
        let held = a.take(LONG).await.expect("nobody has it");
        held.change(|record| record.checkpoint = 5).await.expect("it has the volume");
        a_is_silent.set(true);
        let e = b.take(LONG).await.err().expect("it may still write");
        assert!(e.kind() == ErrorKind::Offline && e.message().contains("host-is-dead a"), "{e}");
        held.change(|record| record.checkpoint = 6).await.expect("it still has the volume");
        let vault = vault(&env);
        assert_eq!(vault.volumes().await, Ok(vec![volume().uuid]));
        let wrong = declare_dead(&*vault, &*env, volume().uuid, "b").await.expect_err("it has nothing");
        assert_eq!(wrong.kind(), ErrorKind::Invalid);
        assert_eq!(held.fenced(), None);
        declare_dead(&*vault, &*env, volume().uuid, "a").await.expect("it has the volume");
        let taken = b.take(Duration::ZERO).await.expect("at once").record();
        assert_eq!((taken.generation, taken.since, taken.checkpoint, taken.unfenced), (2, 2, 6, None));
        // The one that was not dead finds out by itself.
        let began = env.now();
        let e = held.until_fenced().await.expect("another one has it");
        assert!(e.kind() == ErrorKind::Fenced && e.message().contains("b (flash"), "{e}");
        assert!(env.now().since(began) < LEASE / 2);
    });
}

/// What fences hosts in this world has been asked for so many, and answers with `answer` after a while.
fn fenced_by(env: &Rc<SimEnv>, answer: impl Fn(u32) -> Result<(), Error> + 'static) -> Rc<Cell<u32>> {
    let (asked, counts, clock) = (Rc::new(Cell::new(0)), Rc::new(answer), Rc::downgrade(env));
    let count = Rc::clone(&asked);
    env.fence_by(move |host| {
        assert_eq!(host, "a");
        count.set(count.get() + 1);
        let (nth, answer) = (count.get(), Rc::clone(&counts));
        let takes = clock.upgrade().map(|clock| clock.sleep(Duration::from_secs(3)));
        Box::pin(async move {
            if let Some(takes) = takes {
                takes.await;
            }
            answer(nth)
        })
    });
    asked
}

#[test]
fn a_silent_host_is_fenced_by_a_program_before_its_volume_is_taken() {
    simulate(4, |env| async move {
        let confirmed = |name, flash| mute(&env, name, flash, Fence::Confirmed);
        let ((a, a_is_silent), (b, _)) = (confirmed("a", 1), confirmed("b", 2));
        let held = a.take(LONG).await.expect("nobody has it");
        let asked = fenced_by(&env, |nth| match nth {
            1 => Err(Error::offline("/sbin/fence has not fenced host a: exit status: 1")),
            _ => Ok(()),
        });
        let e = b.take(Duration::ZERO).await.err().expect("its host is alive");
        assert_eq!((e.kind(), asked.get()), (ErrorKind::Busy, 0), "{e}");
        a_is_silent.set(true);
        // A program that fails is no fence.
        let e = b.take(LONG).await.err().expect("it may still write");
        assert!(e.message().contains("exit status: 1. See to it") && e.kind() == ErrorKind::Offline, "{e}");
        held.change(|record| record.checkpoint = 6).await.expect("it still has the volume");
        let taken = b.take(LONG).await.expect("it is fenced").record();
        assert_eq!((taken.generation, taken.checkpoint, taken.unfenced, asked.get()), (2, 6, None, 2));
        assert!(held.until_fenced().await.is_some());
    });
}

/// The machine is switched off and on again, and its Lamina is quicker than the one that waits for the program.
#[test]
fn a_host_that_was_fenced_and_has_the_volume_anew_keeps_it() {
    simulate(5, |env| async move {
        let confirmed = |name, flash| mute(&env, name, flash, Fence::Confirmed);
        let ((a, a_is_silent), (b, _)) = (confirmed("a", 1), confirmed("b", 2));
        let _held = a.take(LONG).await.expect("nobody has it");
        let asked = fenced_by(&env, |_| Ok(()));
        a_is_silent.set(true);
        let mut takes = Box::pin(b.take(LEASE * 2));
        while asked.get() == 0 {
            let waited = select(&mut takes, env.sleep(Duration::from_millis(100))).await;
            assert!(matches!(waited, Either::Right(_)), "it is not fenced yet");
        }
        a.stop();
        let again = mute(&env, "a", 1, Fence::Confirmed).0;
        let held = again.take(LONG).await.expect("it had the volume");
        assert_eq!(held.record().generation, 2);
        let e = takes.await.err().expect("its host is alive");
        assert_eq!((e.kind(), asked.get(), held.fenced()), (ErrorKind::Busy, 1, None), "{e}");
    });
}

/// A peer has all that the silent host may still write, and waits for nothing; the program ends the quarantine.
#[test]
fn late_writes_end_with_the_host_that_is_fenced() {
    for settles in [None, Some(Duration::from_secs(2))] {
        simulate(6, move |env| async move {
            let ((a, a_is_silent), b) = (mute(&env, "a", 1, Fence::Quarantine), start(&env, "b", 2));
            let held = a.take(LONG).await.expect("nobody has it");
            held.change(|record| record.mode = back(&[1, 2])).await.expect("it has the volume");
            a_is_silent.set(true);
            let asked = fenced_by(&env, |nth| match nth {
                1 | 2 => Err(Error::offline("it has not fenced host a")),
                _ => Ok(()),
            });
            let reservation = Reservation::new(b, "/vault".into(), None, settles);
            let taken = reservation.take(Some(Uuid::from_u128(2))).await.expect("its host is silent");
            assert_eq!((taken.record().unfenced, asked.get()), (Some(1), 0));
            let began = env.now();
            taken.until_alone().await;
            let took = env.now().since(began);
            // Three runs and two pauses; a host that can say itself that it has ended has time for that.
            let patience = settles.map_or(Duration::ZERO, |settles| settles + LEASE * 2);
            let expected = patience + Duration::from_secs(9) + LEASE * 2;
            assert!(took >= expected && took < expected + LEASE, "{took:?} {settles:?}");
            assert_eq!((taken.record().unfenced, taken.fenced(), asked.get()), (None, None, 3));
        });
    }
}

#[test]
fn a_vault_that_fences_needs_nobody_to_say_that_a_host_is_dead() {
    simulate(3, |env| async move {
        let of = |name: &str, flash: u128| mute_in(&env, name, flash, Fence::Confirmed, true);
        let ((a, a_is_silent), (b, _)) = (of("a", 1), of("b", 2));
        let held = a.take(LONG).await.expect("nobody has it");
        let e = b.take(2 * LEASE).await.err().expect("its host is alive");
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        a_is_silent.set(true);
        let taken = b.take(LONG).await.expect("its host is silent").record();
        assert_eq!((taken.generation, taken.unfenced, &taken.previous), (2, None, &Some(holder("a", 1))));
        let e = held.change(|record| record.checkpoint = 9).await.expect_err("it is fenced");
        assert_eq!(e.kind(), ErrorKind::Fenced, "{e}");
        // What only a flash has is still left to that.
        let (c, _) = of("c", 3);
        drop(b.take(LONG).await.expect("its own").change(|record| record.mode = back(&[2])).await);
        b.stop();
        let e = c.take(LONG).await.err().expect("it lacks what the store lacks");
        assert!(e.kind() == ErrorKind::Offline && e.message().contains("accept-loss"), "{e}");
    });
}

#[test]
fn a_flash_is_known_to_have_been_alone_with_its_volume() {
    simulate(5, |env| async move {
        let since = async |name, flash| {
            let host = start(&env, name, flash);
            let held = host.take(LONG).await.expect("nobody has it");
            let record = held.record();
            held.give_back().await.expect("it has it");
            host.stop();
            (record.generation, record.since)
        };
        assert_eq!(since("a", 1).await, (1, 1));
        assert_eq!(since("a", 1).await, (2, 1));
        // Its name says nothing.
        assert_eq!(since("b", 1).await, (3, 1));
        assert_eq!(since("b", 2).await, (4, 4));
        assert_eq!(since("a", 1).await, (5, 5));
    });
}

#[test]
fn what_only_a_flash_has_is_left_to_it() {
    simulate(2, |env| async move {
        let (a, b, c) = (start(&env, "a", 1), start(&env, "b", 2), start(&env, "c", 3));
        let held = a.take(LONG).await.expect("nobody has it");
        held.change(|record| record.mode = back(&[1, 2])).await.expect("it has the volume");
        a.stop();
        env.sleep(2 * LEASE).await;
        let e = c.take(LONG).await.err().expect("it lacks what a and b have");
        assert!(e.kind() == ErrorKind::Offline && e.message().contains("only flash"), "{e}");
        let taken = b.take(LONG).await.expect("a member").record();
        let members = [1, 2].map(Uuid::from_u128).to_vec();
        assert_eq!((taken.generation, taken.mode), (2, Mode::Recovering { members }));
    });
}

#[test]
fn two_processes_under_one_name_are_noticed() {
    simulate(3, |env| async move {
        let (one, two) = (start(&env, "a", 1), start(&env, "a", 2));
        env.sleep(2 * LEASE).await;
        // Of two that beat at the same moment, the one notices whose beat the other one has followed.
        let errors = [one.take(LONG).await.err(), two.take(LONG).await.err()];
        let notices = |e: &Error| e.kind() == ErrorKind::Busy && e.message().contains("a name of its own");
        assert!(errors.iter().flatten().any(notices), "{errors:?}");
    });
}

/// A host gives its volume back at the moment at which it is declared dead. True if it is fenced by that: then whoever
/// waits for this hears of it, though the host had begun to give its volume back.
fn is_fenced_while_it_gives_its_volume_back(seed: u64) -> bool {
    let (fenced, told) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
    let (sets, tells) = (Rc::clone(&fenced), Rc::clone(&told));
    simulate(seed, |env| async move {
        let (a, a_is_silent) = mute(&env, "a", 1, Fence::Confirmed);
        let held = a.take(LONG).await.expect("nobody has it");
        let waits = Rc::clone(&held);
        env.spawn(Box::pin(async move { tells.set(Some(waits.until_fenced().await.is_some())) }));
        a_is_silent.set(true);
        env.sleep(2 * LEASE).await;
        let (clock, after, vault) = (Rc::clone(&env), env.random() % 20_000, vault(&env));
        let gives_back = async {
            clock.sleep(Duration::from_micros(after)).await;
            held.give_back().await
        };
        let declares = declare_dead(&*vault, &*env, volume().uuid, "a");
        let (declared, given) = join(declares, gives_back).await;
        assert_ne!(declared.is_ok(), given.is_ok(), "{declared:?} {given:?}");
        sets.set(Some(given.is_err_and(|e| e.kind() == ErrorKind::Fenced)));
        env.sleep(Duration::from_millis(1)).await;
    });
    assert!(fenced.get().is_some() && fenced.get() == told.get(), "{fenced:?} {told:?}");
    fenced.get() == Some(true)
}

#[test]
fn a_host_that_is_fenced_while_it_gives_its_volume_back_is_told() {
    let fenced = (0..40).filter(|seed| is_fenced_while_it_gives_its_volume_back(*seed)).count();
    assert!((5..35).contains(&fenced), "{fenced}");
}

/// The highest generation that somebody was told to have.
type Highest = Rc<Cell<u64>>;

/// Changes the record for a while; the host may be silent for so long that others take the volume.
async fn holds(env: &Rc<SimEnv>, held: Rc<Held>, highest: &Highest) -> Result<(), String> {
    let generation = held.record().generation;
    for _ in 0..env.random() % 20 {
        let before = highest.get();
        match held.change(|record| record.checkpoint += 1).await {
            // It was asked for when nobody had a later one, or was done before that.
            Ok(()) if before > generation => return Err(format!("{generation} goes on beside {before}")),
            Ok(()) => {}
            // Whoever is the next one may not have been told yet.
            Err(e) if e.kind() == ErrorKind::Fenced => {
                return match vault(env).read(volume().uuid).await {
                    Ok(Some(newest)) if newest.generation <= generation => Err(e.to_string()),
                    Ok(_) | Err(_) => Ok(()),
                };
            }
            Err(e) => return Err(format!("generation {generation} of {}: {e}", highest.get())),
        }
        let pause = if env.random().is_multiple_of(8) { 12_000 } else { 500 };
        env.sleep(Duration::from_millis(env.random() % pause)).await;
    }
    match held.give_back().await {
        Err(e) if e.kind() != ErrorKind::Fenced => Err(e.to_string()),
        Ok(()) | Err(_) => Ok(()),
    }
}

async fn lives(env: Rc<SimEnv>, name: &'static str, highest: Highest) -> Result<u32, String> {
    let mut taken = 0;
    for _ in 0..12 {
        let (host, is_silent) = mute(&env, name, 1, Fence::Quarantine);
        // Calls of the folder fail, and a beat may be lost with them.
        if let Ok(held) = host.take(LONG).await {
            taken += 1;
            let generation = held.record().generation;
            if generation <= highest.replace(generation.max(highest.get())) {
                return Err(format!("generation {generation} was given twice"));
            }
            // Its host may be as good as dead while it has the volume.
            if env.random().is_multiple_of(2) {
                silent_soon(&env, is_silent);
            }
            holds(&env, held, &highest).await?;
        }
        host.stop();
        env.sleep(Duration::from_millis(env.random() % 3000)).await;
    }
    Ok(taken)
}

/// Some time from now a host is silent, and goes on otherwise.
fn silent_soon(env: &Rc<SimEnv>, is_silent: Rc<Cell<bool>>) {
    let (clock, after) = (Rc::clone(env), env.random() % 3000);
    env.spawn(Box::pin(async move {
        clock.sleep(Duration::from_millis(after)).await;
        is_silent.set(true);
    }));
}

#[test]
fn hosts_that_die_and_hang_have_a_volume_one_after_the_other() {
    let mut all = 0;
    for seed in 0..100 {
        let world = Simulation::new(seed);
        let env = world.env();
        let run = async move {
            env.shared_folder("/vault").set_faults([0, 20, 6][seed as usize % 3]);
            let highest = Highest::default();
            let hosts =
                ["a", "b", "c"].map(|name| env.start(lives(Rc::clone(&env), name, Rc::clone(&highest))));
            let mut taken = 0;
            for host in hosts {
                taken += host.ended().await?;
            }
            match taken > 0 {
                true => Ok(taken),
                false => Err("nobody ever took it".to_owned()),
            }
        };
        let ended: Result<u32, String> = world.run(run).expect("it ends");
        all += ended.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(all > 800, "it was taken {all} times");
}
