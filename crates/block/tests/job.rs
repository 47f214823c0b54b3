//! Jobs: the limit holds over time, a pause lasts, a cancelled job ends, and the figures are those of the work.

use lamina_block::{Env, Error, ErrorKind, Job, JobState, Steering, Time};
use lamina_sim::{SimEnv, Simulation};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Runs `test` with an environment, and a job called "move" of 100 MiB with this limit.
fn with_job<F: Future<Output = ()> + 'static>(
    limit: Option<u64>,
    test: impl FnOnce(Rc<SimEnv>, Rc<Job>) -> F + 'static,
) {
    let world = Simulation::new(1);
    let env = world.env();
    world
        .run(async move {
            let any: Rc<dyn Env> = Rc::clone(&env) as _;
            let job = Job::new(&any, "move", 100 * MIB, limit);
            test(env, job).await;
        })
        .expect("it ends");
}

async fn seconds(env: &Rc<SimEnv>, seconds: f64) {
    env.sleep(Duration::from_secs_f64(seconds)).await;
}

fn at(env: &Rc<SimEnv>) -> f64 {
    env.now().since(Time(0)).as_secs_f64()
}

/// True if `a` is `b`, within a hundredth of a second.
fn about(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.01
}

#[test]
fn without_a_limit_it_never_waits() {
    with_job(None, |env, job| async move {
        for _ in 0..100 {
            job.step(MIB).await.expect("it goes on");
        }
        assert_eq!(env.now(), Time(0));
        assert_eq!((job.info()["done"].clone(), job.name()), (json!(100 * MIB), "move"));
    });
}

#[test]
fn a_limit_spaces_the_pieces() {
    with_job(Some(10 * MIB), |env, job| async move {
        for piece in 0..30 {
            job.step(MIB).await.expect("it goes on");
            // The first begins at once, and each costs a tenth of a second for the one after it.
            assert!(about(at(&env), f64::from(piece) / 10.0), "piece {piece} at {}", at(&env));
        }
        // A burst does not make up for unused time.
        seconds(&env, 10.0).await;
        job.step(MIB).await.expect("it goes on");
        let before = at(&env);
        job.step(MIB).await.expect("it goes on");
        assert!(about(at(&env) - before, 0.1));
    });
}

#[test]
fn a_change_of_the_limit_is_seen_while_it_waits() {
    with_job(Some(MIB), |env, job| async move {
        job.step(50 * MIB).await.expect("it goes on");
        let work = Rc::clone(&job);
        let waiting = env.start(async move { work.step(MIB).await });
        seconds(&env, 1.0).await;
        job.set_limit(Some(100 * MIB));
        waiting.ended().await.expect("it goes on");
        assert!(at(&env) < 1.5, "it waited until {}", at(&env));
        job.set_limit(None);
        assert_eq!(job.limit(), None);
        let before = env.now();
        job.step(MIB).await.expect("it goes on");
        assert_eq!(env.now(), before);
    });
}

#[test]
fn a_paused_job_waits_and_goes_on() {
    with_job(None, |env, job| async move {
        job.step(MIB).await.expect("it goes on");
        job.pause();
        let work = Rc::clone(&job);
        let waiting = env.start(async move { work.step(MIB).await });
        seconds(&env, 60.0).await;
        assert_eq!(job.info()["done"], MIB);
        assert_eq!((job.state(), &job.info()["state"]), (JobState::Paused, &json!("paused")));
        // A paused job has no rate, and its end is unknown.
        assert_eq!((&job.info()["rate"], &job.info()["seconds_left"]), (&json!(0), &Value::Null));
        job.resume();
        waiting.ended().await.expect("it goes on");
        assert_eq!((job.info()["done"].clone(), job.state()), (json!(2 * MIB), JobState::Running));
        job.resume();
        assert_eq!(job.state(), JobState::Running);
    });
}

#[test]
fn a_job_that_cannot_go_on_says_why_until_it_is_resumed() {
    with_job(None, |_, job| async move {
        job.fail(&Error::media("unreadable").on("disk"));
        assert_eq!((job.state(), &job.info()["error"]), (JobState::Paused, &json!("disk: unreadable")));
        job.resume();
        assert_eq!((job.state(), &job.info()["error"]), (JobState::Running, &Value::Null));
    });
}

#[test]
fn a_cancelled_job_ends_also_while_it_waits() {
    for paused in [false, true] {
        with_job(Some(1), move |env, job| async move {
            job.step(MIB).await.expect("it goes on");
            if paused {
                job.pause();
            }
            let work = Rc::clone(&job);
            let waiting = env.start(async move { work.step(MIB).await });
            seconds(&env, 1.0).await;
            job.cancel();
            let e = waiting.ended().await.expect_err("it was cancelled");
            assert_eq!((e.kind(), e.message()), (ErrorKind::Cancelled, "move was cancelled"));
            assert!(at(&env) < 1.5);
            assert_eq!(job.info()["done"], MIB);
            // For good.
            job.resume();
            job.pause();
            assert_eq!((job.state(), &job.info()["state"]), (JobState::Cancelled, &json!("cancelled")));
            assert!(job.step(1).await.is_err());
        });
    }
}

#[test]
fn figures_are_those_since_it_began_or_was_resumed() {
    with_job(None, |env, job| async move {
        for _ in 0..10 {
            job.step(MIB).await.expect("it goes on");
            seconds(&env, 1.0).await;
        }
        let info = job.info();
        assert_eq!((&info["done"], &info["total"]), (&json!(10 * MIB), &json!(100 * MIB)));
        assert_eq!((&info["rate"], &info["seconds_left"]), (&json!(MIB), &json!(90)));
        job.pause();
        seconds(&env, 1000.0).await;
        job.resume();
        for _ in 0..10 {
            job.step(2 * MIB).await.expect("it goes on");
            seconds(&env, 1.0).await;
        }
        let info = job.info();
        assert_eq!((&info["rate"], &info["seconds_left"]), (&json!(2 * MIB), &json!(35)));
        // A turn counts nothing; the progress can be set, and turned back.
        job.turn(MIB).await.expect("it goes on");
        assert_eq!(job.info()["done"], 30 * MIB);
        job.set_progress(5 * MIB, 10 * MIB);
        seconds(&env, 1.0).await;
        let info = job.info();
        assert_eq!(
            (&info["done"], &info["total"], &info["rate"]),
            (&json!(5 * MIB), &json!(10 * MIB), &json!(0))
        );
        job.set_progress(20 * MIB, 10 * MIB);
        assert_eq!(job.info()["seconds_left"], 0);
    });
}

#[test]
fn a_job_is_steered_only_as_it_may_be() {
    with_job(None, |env, job| async move {
        let any: Rc<dyn Env> = Rc::clone(&env) as _;
        let all = [Steering::Cancel, Steering::All];
        let shown = |steering| Job::shown(&any, "drain", 7, steering);
        let refused = |job: &Job| all.map(|wanted| job.check(wanted).err().map(|e| e.to_string()));
        assert_eq!(refused(&job), [None, None]);
        assert_eq!(refused(&shown(Steering::Cancel)), [None, Some("drain can only be cancelled".into())]);
        let never = "drain has to be done, and ends by itself".to_owned();
        assert_eq!(refused(&shown(Steering::Nothing)), [Some(never.clone()), Some(never)]);

        let waited = Rc::clone(&job);
        let waiting = env.start(async move { waited.cancelled().await });
        seconds(&env, 1.0).await;
        job.cancel();
        waiting.ended().await;
        assert!(about(at(&env), 1.0));
    });
}

#[test]
fn what_was_done_before_does_not_count_into_the_rate() {
    with_job(None, |env, job| async move {
        job.set_progress(900 * MIB, 1000 * MIB);
        seconds(&env, 10.0).await;
        job.set_progress(910 * MIB, 1000 * MIB);
        let info = job.info();
        let (rate, left) =
            (info["rate"].as_f64().expect("a rate"), info["seconds_left"].as_f64().expect("a time"));
        assert!(about(rate / MIB as f64, 1.0) && (left - 90.0).abs() <= 1.0, "{rate} {left}");
    });
}
