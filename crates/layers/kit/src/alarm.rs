//! A moment at which an owner looks again at what it waits for.

use lamina_block::{Env, Time};
use std::cell::Cell;
use std::rc::Rc;

/// The next moment at which the owner is called, if there is one. Earlier moments take the place of later ones. An
/// owner that is gone by then is not missed: nothing has to wait for an alarm.
#[derive(Default)]
pub struct Alarm(Rc<Cell<Option<Time>>>);

impl Alarm {
    /// Has `ring` called at `at`, when `sleep` ends, unless an alarm is set for that moment or an earlier one.
    pub fn set<T: 'static, S: Future<Output = ()> + 'static>(
        &self,
        env: &dyn Env,
        at: Time,
        sleep: impl FnOnce() -> S,
        owner: &Rc<T>,
        ring: impl FnOnce(Rc<T>) + 'static,
    ) {
        if self.0.get().is_some_and(|set| set <= at) {
            return;
        }
        self.0.set(Some(at));
        let (set, sleep, owner) = (Rc::clone(&self.0), sleep(), Rc::downgrade(owner));
        env.spawn(Box::pin(async move {
            sleep.await;
            // An earlier alarm may have been set meanwhile, and have rung.
            if set.get() == Some(at) {
                set.set(None);
            }
            if let Some(owner) = owner.upgrade() {
                ring(owner);
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamina_sim::Simulation;
    use std::cell::RefCell;
    use std::time::Duration;

    #[derive(Default)]
    struct Owner {
        alarm: Alarm,
        rung: RefCell<Vec<u64>>,
    }

    #[test]
    fn earlier_moments_are_added_and_later_ones_are_not() {
        let world = Simulation::new(0);
        let (env, owner) = (world.env(), Rc::<Owner>::default());
        let set = |ms: u64| {
            let at = Time(0).after(Duration::from_millis(ms));
            let (of, sleeper) = (Rc::clone(&env), Rc::clone(&env));
            let sleep = move || sleeper.sleep(Duration::from_millis(ms));
            owner.alarm.set(&*env, at, sleep, &owner, move |owner| {
                owner.rung.borrow_mut().push(of.now().0 / 1_000_000)
            });
        };
        for until in [5, 7, 3] {
            set(until);
        }
        assert_eq!(env.tasks(), 2, "the later one is not needed");
        let wait = env.sleep(Duration::from_millis(20));
        world.run(wait).unwrap();
        assert_eq!(*owner.rung.borrow(), [3, 5]);
    }

    #[test]
    fn nothing_waits_for_an_alarm() {
        let world = Simulation::new(0);
        let (env, owner) = (world.env(), Rc::<Owner>::default());
        let sleeper = Rc::clone(&env);
        let sleep = move || sleeper.sleep(Duration::from_secs(1000));
        owner.alarm.set(&*env, Time(1_000_000_000_000), sleep, &owner, |_| panic!("the owner is gone"));
        let gone = Rc::downgrade(&owner);
        drop(owner);
        assert!(gone.upgrade().is_none());
        let wait = env.sleep(Duration::from_secs(2000));
        world.run(wait).unwrap();
    }
}
