//! What tracing a program's tensors would cost it is predicted before it is traced, and by default no more is traced than it may cost.
//!
//! The rates are so far apart that no machine is slow or fast enough to change what comes of them: 50 tensors per second, and as many as the processor
//! can make.

use std::time::Instant;

use memwatch_tests::report::{Report, as_recorded};
use memwatch_tests::{Allocator, Gpu, Outcome, Program, Shape, TIMEOUT, TorchJob};
use serde_json::Value;

const SLOW: &str = "50";
const FAST: &str = "0";

/// A job at the first of these rates.
fn job(gpu: &Gpu, rates: &[&str]) -> Option<TorchJob> {
    let mut job = gpu.torch("2.15", Allocator::Native, &[&["decode_loop.py"], rates].concat())?;
    let begun = job.next_checkpoint().expect("it begins with the first rate");
    assert_eq!(begun["label"], format!("rate {}", rates[0]));
    Some(job)
}

fn level(report: &Report, job: &TorchJob) -> Value {
    report.process(job.tgid()).map_or(Value::Null, |process| process.0["tensor_level"].clone())
}

#[test]
fn a_quiet_program_is_traced_with_modules_and_lines() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let Some(job) = job(&gpu, &[SLOW]) else { return };
    let mut watch = gpu.watch(&["--no-agent", "--pid", &job.tgid().to_string()]);
    let is_traced =
        |report: &Report| report.process(job.tgid()).is_some_and(|process| process.0["tensor"]["gpus"][0].is_object());
    let chosen = level(&watch.until(is_traced), &job);
    assert_eq!((&chosen["asked"], &chosen["chosen"]), (&"layers".into(), &"layers".into()), "{chosen}");
    let price = chosen["predicted_seconds_per_second"].as_f64().expect("it is predicted");
    assert!(price < 0.05 && chosen["since"].is_string(), "{chosen}");
}

#[test]
fn a_hot_program_is_watched_by_its_driver_calls_alone_and_one_line_says_so() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let Some(job) = job(&gpu, &[FAST]) else { return };
    let tgid = job.tgid().to_string();
    let mut watch = gpu.watch(&["--no-agent", "--pid", &tgid]);
    let report = watch.until(|report| level(report, &job).is_object());
    let chosen = level(&report, &job);
    assert_eq!((&chosen["asked"], &chosen["chosen"]), (&"layers".into(), &"off".into()), "{chosen}");
    assert_eq!(chosen["predicted_seconds_per_second"], 0.0);
    assert!(chosen["predicted_seconds_per_second_asked"].as_f64() > Some(0.05), "{chosen}");
    assert!(report.process(job.tgid()).is_some_and(|process| process.0["tensor"].is_null()), "nothing was traced");
    drop(watch);

    let file = gpu.directory().join("job.mwr").display().to_string();
    let mut recorder = Program::start_with_errors(gpu.memwatch(&["record", "--pid", &tgid, "-o", &file]));
    let line = recorder.until_line_with("tensor events/s");
    assert!(line.starts_with("memwatch: tensors are off: at "), "{line}");
    let rest = format!("they would slow PID {tgid} by about ");
    assert!(line.contains(&rest) && line.ends_with(" %. To trace anyway: --tensors=layers"), "{line}");
}

#[test]
fn a_level_that_is_asked_for_is_obeyed_and_its_price_is_printed_first() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let Some(job) = job(&gpu, &[FAST]) else { return };
    let tgid = job.tgid().to_string();
    let mut watch = gpu.watch(&["--no-agent", "--tensors=blocks", "--pid", &tgid]);
    let chosen = level(&watch.until(|report| level(report, &job).is_object()), &job);
    assert_eq!((&chosen["asked"], &chosen["chosen"]), (&"blocks".into(), &"blocks".into()), "{chosen}");
    assert!(chosen["predicted_seconds_per_second"].as_f64() > Some(0.05), "{chosen}");
    drop(watch);

    let list = ["--no-agent", "sites", "--duration", "10m", "--pid", &tgid];
    let mut list = Program::start_with_errors(gpu.memwatch(&list));
    let price = list.until_line_with("tensor events/s");
    assert!(price.contains(&format!("tracing slows PID {tgid} by about ")), "{price}");
}

#[test]
fn a_program_that_becomes_hot_is_traced_no_longer_and_its_recording_says_the_same() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let Some(mut job) = job(&gpu, &[SLOW, FAST]) else { return };
    let (tgid, file) = (job.tgid().to_string(), gpu.directory().join("job.mwr"));
    let path = file.display().to_string();
    let mut recorder = Program::start(gpu.memwatch(&["record", "--json", "--pid", &tgid, "-o", &path]));
    until(&gpu, &path, |report| level(report, &job)["chosen"] == "layers" && has_tensors(report, &job));
    job.go_on();
    until(&gpu, &path, |report| level(report, &job)["chosen"] == "off");
    recorder.signal(libc::SIGINT);
    let reported = recorder.next_line().expect("it says what it has");
    assert_eq!(recorder.end(), 0, "{reported}");
    let replayed = Outcome::of(gpu.memwatch(&["report", "--json", &path]));
    assert_eq!(as_recorded(&replayed.stdout), reported);
    let report = Report::parse(&reported);
    assert!(has_tensors(&report, &job), "what was traced by then is there");
    assert_eq!(level(&report, &job)["asked"], "layers");
}

fn has_tensors(report: &Report, job: &TorchJob) -> bool {
    report.process(job.tgid()).is_some_and(|process| process.0["tensor"].is_object())
}

/// Waits until what is in the recording is like this: it is read while it is written.
fn until(gpu: &Gpu, path: &str, holds: impl Fn(&Report) -> bool) {
    let begin = Instant::now();
    let mut last = String::new();
    while begin.elapsed() < TIMEOUT {
        let outcome = Outcome::of(gpu.memwatch(&["report", "--json", path]));
        if outcome.code == 0 && holds(&Report::parse(&outcome.stdout)) {
            return;
        }
        last = outcome.stdout + &outcome.stderr;
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("the recording was never as expected; last: {last}")
}
