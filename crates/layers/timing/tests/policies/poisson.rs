//! Random reads that come independently of their ends: policies against the figures of DiskSim's validated model of a
//! disk of the same class (Poisson arrivals, 4 KiB, mean response times).

use crate::virtual_time::{Served, run};
use lamina_block::Time;
use lamina_drive::{Mechanism, Model, Request, Seek};
use lamina_timing::schedule::{Keys, Name};
use lamina_workload::{Action, Poisson, Workload};

/// Requests of a run: with fewer, means at high load are off by chance.
const COUNT: usize = 40_000;

fn drive() -> Model {
    Model::named("cheetah-15k5").expect("a model")
}

/// The same requests for every policy. `believed`: the model that the policy has.
fn served(keys: &Keys, believed: &Model, rate: f64, seed: u64) -> Vec<Served> {
    let real = drive();
    served_by(&real, Poisson::new(rate, real.size.0, seed), keys, believed, seed)
}

fn served_by(
    real: &Model,
    mut workload: impl Workload,
    keys: &Keys,
    believed: &Model,
    seed: u64,
) -> Vec<Served> {
    let mut policy = keys.policy(Some(believed)).expect("a policy");
    run(&mut workload, policy.as_mut(), &mut real.drive(seed), 1, COUNT)
}

/// Mean and longest response time in ms.
fn responses(served: &[Served]) -> (f64, f64) {
    let ms = served.iter().map(|served| served.response().as_secs_f64() * 1e3);
    (ms.clone().sum::<f64>() / served.len() as f64, ms.fold(0.0, f64::max))
}

/// What a calibration would give: the rotation off by 1e-6, and seeks that are thought to take longer by `seek_ms`.
fn calibrated(seek_ms: f64) -> Model {
    let mut model = drive();
    let Mechanism::Rotational(keys) = &mut model.mechanism else { panic!("a disk") };
    keys.rotation_ms *= 1.0 + 1e-6;
    let Seek::Points(points) = &mut keys.seek else { panic!("points") };
    // Skews are measured, too: a change of cylinder fits into its skew.
    points.iter_mut().skip(1).for_each(|point| point[1] += seek_ms);
    keys.arrival_spread_ms = seek_ms.abs() / 2.0;
    model
}

/// Requests a second, and DiskSim's mean response times in ms: FCFS, C-LOOK, LOOK, SSTF, SPTF.
const DISKSIM: [(f64, [Option<f64>; 5]); 4] = [
    (100.0, [Some(10.16), Some(9.65), Some(9.25), Some(9.11), Some(8.78)]),
    (150.0, [Some(26.65), Some(15.37), Some(14.00), Some(13.57), Some(11.90)]),
    (200.0, [None, Some(30.17), Some(25.99), Some(25.78), Some(17.79)]),
    (250.0, [None, Some(74.67), Some(68.92), Some(70.29), Some(29.30)]),
];

fn keys(policy: Name) -> Keys {
    Keys { policy, ..Keys::default() }
}

#[test]
fn response_times_are_those_of_disksim() {
    let policies = [Name::Noop, Name::Cscan, Name::Scan, Name::Sstf, Name::Satf, Name::Cats];
    for (rate, disksim) in DISKSIM {
        for (place, policy) in policies.into_iter().enumerate() {
            let (mean, longest) = responses(&served(&keys(policy), &drive(), rate, 1));
            let theirs = disksim.get(place).copied().flatten();
            let beside = theirs.map_or("-".into(), |ms| format!("{ms:.2}"));
            println!(
                "{rate}/s {:6} mean {mean:8.2} ms, DiskSim {beside:>6}; longest {longest:8.1}",
                policy.text()
            );
            // First come, first served is near its saturation at 150/s, where a mean needs more requests.
            let tolerance = if policy == Name::Noop { 0.25 } else { 0.10 };
            assert!(
                theirs.is_none_or(|theirs| (mean / theirs - 1.0).abs() < tolerance),
                "{rate} {policy:?}: {mean}"
            );
        }
    }
}

/// What SPTF gains over SSTF on DiskSim at 200/s, in parts of SSTF's response time.
const GAIN: f64 = 1.0 - 17.79 / 25.78;

#[test]
fn satf_with_a_calibrated_model_gains_what_sptf_gains_over_sstf() {
    for seed in [1, 2, 3] {
        let of = |policy, model: &Model| responses(&served(&keys(policy), model, 200.0, seed));
        let (sstf, clook) = (of(Name::Sstf, &drive()), of(Name::Cscan, &drive()));
        for (name, model) in [
            ("the drive's model", drive()),
            ("seeks 0.05 ms too long", calibrated(0.05)),
            ("seeks 0.05 ms too short", calibrated(-0.05)),
        ] {
            let satf = of(Name::Satf, &model);
            let (gain, longest) = ((1.0 - satf.0 / sstf.0) / GAIN, satf.1 / clook.1);
            println!("seed {seed}, {name}: sstf {:.2} ms, satf {:.2} ms", sstf.0, satf.0);
            println!(
                "    {:.0}% of the gain, longest {:.1} ms, {longest:.2} of C-LOOK's",
                gain * 100.0,
                satf.1
            );
            assert!(
                gain >= 0.8 && longest <= 1.2,
                "seed {seed}, {name}: gain {gain:.2}, longest {longest:.2}"
            );
        }
    }
}

/// Reads of other lengths at the same places.
struct Long(Poisson, u32);

impl Workload for Long {
    fn clients(&self) -> u32 {
        self.0.clients()
    }

    fn next(&mut self, client: u32, now: Time) -> Action {
        match self.0.next(client, now) {
            Action::Submit { request, wait } => {
                Action::Submit { request: Request { sectors: self.1, ..request }, wait }
            }
            other => other,
        }
    }
}

/// The drive with skews that are too small for its arm: a transfer that goes on to the next track loses a turn.
fn tight() -> Model {
    let mut model = drive();
    let Mechanism::Rotational(keys) = &mut model.mechanism else { panic!("a disk") };
    keys.zones.iter_mut().for_each(|zone| (zone.track_skew, zone.cylinder_skew) = (0.1, 0.1));
    model.check().expect("a valid model");
    model
}

/// A transfer that loses a turn takes that turn whenever it goes: it must not look far away, and wait for long.
#[test]
fn satf_keeps_no_request_waiting_whose_transfer_loses_a_turn() {
    let model = tight();
    for sectors in [8, 64] {
        for seed in [1, 2, 3] {
            let of = |policy| {
                let workload = Long(Poisson::new(200.0, model.size.0, seed), sectors);
                responses(&served_by(&model, workload, &keys(policy), &model, seed))
            };
            let (clook, satf) = (of(Name::Cscan), of(Name::Satf));
            let longest = satf.1 / clook.1;
            println!(
                "{sectors} sectors, seed {seed}: satf {:.2} ms, longest {:.1} ms, {longest:.2} of C-LOOK's",
                satf.0, satf.1
            );
            assert!(longest <= 1.2, "{sectors} sectors, seed {seed}: {longest:.2}");
        }
    }
}
