//! Work in the background that the end waits for.

use lamina_block::{Env, Signal};
use std::cell::Cell;
use std::rc::Rc;

/// The number of tasks at work. The owner makes sure that they end, and then waits for [`Tasks::ended`].
#[derive(Default)]
pub struct Tasks {
    count: Cell<usize>,
    ended: Signal,
}

/// A task at work, until this is dropped.
pub struct Task(Rc<Tasks>);

impl Tasks {
    /// Counts one more task at work.
    pub fn begin(self: &Rc<Self>) -> Task {
        self.count.set(self.count.get() + 1);
        Task(Rc::clone(self))
    }

    /// Runs `work` in the background. All that it holds is released before it counts as ended.
    pub fn spawn(self: &Rc<Self>, env: &dyn Env, work: impl Future<Output = ()> + 'static) {
        let task = self.begin();
        env.spawn(Box::pin(async move {
            work.await;
            drop(task);
        }));
    }

    /// Waits until no task is at work.
    pub async fn ended(&self) {
        self.ended.until(|| self.count.get() == 0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let left = self.0.count.get() - 1;
        self.0.count.set(left);
        if left == 0 {
            self.0.ended.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_once;
    use lamina_sim::Simulation;
    use std::time::Duration;

    #[test]
    fn the_end_waits_for_all_of_them() {
        let world = Simulation::new(0);
        let (env, tasks) = (world.env(), Rc::<Tasks>::default());
        let waits = async move {
            let done = Rc::new(Cell::new(0));
            let of = Rc::clone(&tasks);
            for millis in [1, 5, 3] {
                let (sleep, done) = (env.sleep(Duration::from_millis(millis)), Rc::clone(&done));
                let (more, of) = (Rc::clone(&done), Rc::clone(&of));
                let again = Rc::clone(&env);
                tasks.spawn(&*env, async move {
                    sleep.await;
                    // A task may begin another one.
                    of.spawn(&*again, async move { more.set(more.get() + 1) });
                    done.set(done.get() + 1);
                });
            }
            tasks.ended().await;
            assert_eq!((done.get(), Rc::strong_count(&done)), (6, 1), "what they held is given back");
        };
        world.run(waits).expect("it ends");
    }

    #[test]
    fn a_task_that_is_dropped_has_ended() {
        let tasks = Rc::<Tasks>::default();
        at_once(tasks.ended());
        let (a, b) = (tasks.begin(), tasks.begin());
        drop((a, b));
        at_once(tasks.ended());
    }
}
