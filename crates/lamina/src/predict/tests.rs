//! Whole predictions, with few requests.

use super::*;
use clap::Parser;

fn args(words: &[&str]) -> cli::Predict {
    let line = ["lamina", "predict"].iter().chain(words);
    let cli::Command::Predict(args) = cli::Cli::parse_from(line).command else { panic!("predict") };
    args
}

fn predicted(words: &[&str]) -> Result<Report, String> {
    let short = ["--requests", "1500", "--warmup", "100", "--seeds", "3", "--jobs", "1"];
    let args = args(&[words, &short].concat());
    predict(&args).map(|(report, _)| report).map_err(Failure::into_message)
}

/// A hierarchy file with these tables, in a folder that vanishes with the test.
fn hierarchy(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.toml");
    std::fs::write(&path, text).expect("a file");
    let path = path.to_str().expect("a path in UTF-8").to_owned();
    (folder, path)
}

const DISK: &str = "[device.disk]\ntype = \"file\"\npath = \"disk.img\"\nsize = \"70GB\"\n\
    [export.vm]\ndevice = \"disk\"\nnbd = \"unix:x\"\n";

fn mean(report: &Report, scenario: usize, policy: usize, metric: &str) -> f64 {
    let values = &report.scenarios[scenario].policies[policy].mean;
    values.iter().find(|value| value.metric == metric).expect("a figure").mean
}

fn order<'a>(report: &'a Report, metric: &str) -> &'a str {
    let rankings = &report.scenarios[0].rankings;
    &rankings.iter().find(|ranking| ranking.metric == metric).expect("a ranking").order
}

#[test]
fn a_queue_that_sorts_answers_sooner_under_load_and_all_is_the_same_again() {
    let words = ["--model", "cheetah-15k4", "--workload", "random:150", "--policy", "noop,sstf"];
    let report = predicted(&words).expect("a prediction");
    assert_eq!(order(&report, "mean response, ms"), "sstf < noop");
    assert!(report.scenarios[0].policies.iter().flat_map(|o| &o.runs).all(|run| run.requests == 1500));
    // A drive that is not busy all the time: as many reads as come.
    assert!((mean(&report, 0, 1, "requests/s") - 150.0).abs() < 15.0);
    let again = predicted(&words).expect("a prediction");
    let runs = |report: &Report| report.scenarios[0].policies[0].runs.clone();
    assert_eq!(runs(&report), runs(&again));
}

#[test]
fn the_service_of_far_reads_is_that_of_the_model() {
    let words = ["--model", "cheetah-15k4", "--workload", "random:20", "--policy", "noop"];
    let report = predicted(&words).expect("a prediction");
    // X = 4.25 + 5.25 d/D, and a third of the disk on average.
    let service = mean(&report, 0, 0, "mean service, ms");
    assert!((service - 6.0).abs() < 0.1, "{service}");
}

#[test]
fn a_hierarchy_is_predicted_on_its_own_layers_and_another_drive() {
    let (_folder, file) = hierarchy(DISK);
    let model = ["--model", "cheetah-15k4", "--replace", "disk=nvme"];
    let words =
        [&[&file[..]], &model[..], &["--workload", "random:100", "--policy", "noop,deadline"]].concat();
    let report = predicted(&words).expect("a prediction");
    assert_eq!(report.scenarios.len(), 2);
    let response = |scenario| mean(&report, scenario, 0, "mean response, ms");
    assert!(response(1) < response(0) / 5.0, "{} {}", response(0), response(1));
    assert!(report.text(false).contains(" → "));
}

#[test]
fn a_queue_of_the_file_follows_the_policies() {
    let queue = "[device.queue]\ntype = \"schedule\"\nover = \"disk\"\n";
    let (_folder, file) = hierarchy(
        &DISK
            .replace("device = \"disk\"", "device = \"queue\"")
            .replace("[export", &format!("{queue}[export")),
    );
    let words = [&file[..], "--model", "cheetah-15k4", "--workload", "random:150", "--policy", "noop,sstf"];
    let report = predicted(&words).expect("a prediction");
    assert_eq!(order(&report, "mean response, ms"), "sstf < noop");
}

/// `satf` needs the model of its drive: the drives of a pair of disks and of a queue of the file have different ones.
#[test]
fn each_queue_has_the_model_of_its_own_drive() {
    let disk = |name: &str, size: &str| {
        format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\nsize = \"{size}\"\n")
    };
    let pair = format!(
        "{}{}[device.all]\ntype = \"concat\"\nover = [\"a\", \"b\"]\n[export.vm]\ndevice = \"all\"\nnbd = \"unix:x\"\n",
        disk("a", "60GB"),
        disk("b", "20GB")
    );
    let queues = pair.replace("[\"a\", \"b\"]", "[\"qa\", \"qb\"]").replace(
        "[export",
        "[device.qa]\ntype = \"schedule\"\nover = \"a\"\n[device.qb]\ntype = \"schedule\"\nover = \"b\"\n[export",
    );
    for text in [pair, queues] {
        let (_folder, file) = hierarchy(&text);
        let models = ["--model", "a=nvme", "--model", "b=cheetah-15k5", "--workload", "random:640"];
        let words = [&[&file[..]], &models[..], &["--policy", "satf,noop"]].concat();
        let report = predicted(&words).expect("a prediction");
        let [satf, noop] = [0, 1].map(|policy| mean(&report, 0, policy, "mean response, ms"));
        assert!(satf < 0.9 * noop, "{satf} {noop}: a model of another drive orders at random");
    }
}

#[test]
fn a_hierarchy_with_state_is_made_on_its_drives() {
    let (_folder, file) = hierarchy(
        "[hierarchy]\nname = \"pair\"\n\
         [device.a]\ntype = \"file\"\npath = \"a.img\"\nsize = \"64MiB\"\n\
         [device.b]\ntype = \"file\"\npath = \"b.img\"\nsize = \"64MiB\"\n\
         [device.both]\ntype = \"mirror\"\nover = [\"a\", \"b\"]\n\
         [export.vm]\ndevice = \"both\"\nnbd = \"unix:x\"\n",
    );
    let words = [&file[..], "--model", "cheetah-15k4", "--workload", "random:100", "--policy", "noop"];
    let report = predicted(&words).expect("a prediction");
    let run = &report.scenarios[0].policies[0].runs[0];
    // Each read is of one of the two.
    assert!(run.requests == 1500 && run.served.abs_diff(1500) < 50, "{run:?}");
}

#[test]
fn mistakes_say_what_to_do() {
    let (_folder, file) = hierarchy(DISK);
    for (words, says) in [
        (&["--model", "floppy"][..], "floppy: neither a model"),
        (&["--model", "disk=cheetah-15k4"], "no hierarchy file"),
        (&["--model", "cheetah-15k4", "--policy", "fastest"], "fastest"),
        (&["--model", "cheetah-15k4", "--workload", "mail"], "--workload mail"),
        (&[&file, "--model", "cheetah-15k4", "--replace", "disk"], "write DEVICE=MODEL"),
        (&[&file, "--model", "disk=san", "--model", "disk=nvme"], "another model is given for the same"),
        (&[&file, "--replace", "disk=san", "--replace", "disk=nvme"], "another model is given for the same"),
        (&[&file, "--model", "other=cheetah-15k4"], "no disk is called \"other\""),
        (&[&file, "--model", "cheetah-15k4", "--device", "none"], "neither a device nor an export"),
    ] {
        let message = predicted(words).expect_err("it is wrong");
        assert!(message.contains(says), "{words:?}: {message}");
    }
}
