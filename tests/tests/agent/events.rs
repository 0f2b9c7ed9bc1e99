//! Events: what the agent runs on them, what it keeps for its clients, and those of a history.

use std::fs;
use std::path::Path;

use memwatch_tests::agent::{TestAgent, workload_of};
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, RunningProgram, SimulatedGpu, SimulatedWorkload, until};
use serde_json::Value;

const ANN: u32 = 64_001;
const BOB: u32 = 64_002;
const EVE: u32 = 64_003;
const ROOT: u32 = 0;

fn machine() -> SimulatedGpu {
    SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda()
}

fn parsed(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))).collect()
}

/// Starts a program of a user, of which one allocation fails. It continues.
fn survivor_of(gpu: &SimulatedGpu, uid: u32) -> SimulatedWorkload {
    let mut job = workload_of(gpu, uid);
    job.run(&["uuid 0", "device 0", "alloc held 4M"]);
    assert_eq!(job.ask("alloc huge 200000000000")["result"], 2);
    job.run(&["alloc more 8M"]);
    job
}

/// Returns the events that a user gets as JSON, as soon as there are at least so many.
fn events(gpu: &SimulatedGpu, agent: &TestAgent, uid: u32, number: usize) -> Vec<Value> {
    until("there are enough events", || {
        let outcome = agent.ask(gpu, uid, &["events", "--json"]);
        outcome.assert_ended_with(0, &[]);
        let found = parsed(&outcome.stdout);
        (found.len() >= number).then_some(found)
    })
}

fn pids_of(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["pid"].as_u64().unwrap_or_else(|| panic!("{event:#}"))).collect()
}

/// Asserts that this is an event of a failure that this program survived.
fn assert_is_failure_of(event: &Value, job: &SimulatedWorkload, uid: u32) {
    assert_eq!((&event["schema"], &event["kind"]), (&"memwatch.event/1".into(), &"out_of_memory".into()), "{event:#}");
    assert_eq!((&event["pid"], &event["user"]), (&job.tgid().into(), &uid.to_string().into()), "{event:#}");
    assert!(event["gpu"] == "0" && event["uuid"].as_str().is_some_and(|uuid| uuid.starts_with("GPU-")), "{event:#}");
    let details = &event["details"];
    assert_eq!((&details["outcome"], &details["wanted_bytes"]), (&"survived".into(), &200_000_000_000_u64.into()));
    assert_eq!(details["time"], event["time"], "{event:#}");
}

#[test(alone)]
fn agent_runs_its_command_on_each_failure_once_its_outcome_is_known() {
    let gpu = machine();
    // The directory of the socket is one that the agent can write to.
    let file = gpu.directory().join("run/events");
    let mut command = gpu.memwatch(&[]);
    command.env("MEMWATCH_ON_EVENT", format!("cat >> {}", file.display()));
    let agent = TestAgent::by(&gpu, command);
    let events = |number: usize| -> Vec<Value> {
        parsed(&until("the command has run", || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            (text.ends_with('\n') && text.lines().count() >= number).then_some(text)
        }))
    };
    let survivor = survivor_of(&gpu, ANN);
    let [event] = &events(1)[..] else { panic!("one failure") };
    assert_is_failure_of(event, &survivor, ANN);
    assert_eq!(event["details"]["is_survived"], true, "{event:#}");

    let mut victim = workload_of(&gpu, ANN);
    victim.run(&["uuid 0", "device 0", "alloc held 4M"]);
    assert_eq!(victim.ask("alloc huge 300000000000")["result"], 2);
    let tgid = victim.tgid();
    drop(victim);
    let [first, event] = &events(2)[..] else { panic!("two failures") };
    assert_eq!((&event["pid"], &event["details"]["outcome"]), (&tgid.into(), &"ended".into()), "{event:#}");
    assert!(event["details"]["ended"].is_string(), "{event:#}");
    // Clients get the same lines.
    let kept = parsed(&agent.ask(&gpu, ROOT, &["events", "--json"]).stdout);
    assert_eq!(kept, [first.clone(), event.clone()]);
}

#[test(alone)]
fn kept_events_are_shown_to_their_user_and_to_root() {
    let gpu = machine();
    let agent = TestAgent::start(&gpu);
    let (ann, bob) = (survivor_of(&gpu, ANN), survivor_of(&gpu, BOB));
    let all = events(&gpu, &agent, ROOT, 2);
    assert_eq!(pids_of(&all).len(), 2, "{all:#?}");
    let holders = |event: &Value| -> Vec<u64> { pids_of(event["details"]["holders"].as_array().expect("a list")) };
    let bobs = all.iter().find(|event| event["pid"] == bob.tgid()).unwrap_or_else(|| panic!("{all:#?}"));
    assert!(holders(bobs).contains(&ann.tgid().into()), "root sees the holders of all users: {bobs:#}");
    for (uid, own, other) in [(ANN, &ann, &bob), (BOB, &bob, &ann)] {
        let seen = events(&gpu, &agent, uid, 1);
        let [event] = &seen[..] else { panic!("the failures of others are not shown: {seen:#?}") };
        assert_is_failure_of(event, own, uid);
        assert!(!holders(event).contains(&other.tgid().into()), "{event:#}");
        let text = agent.ask(&gpu, uid, &["events"]);
        text.assert_ended_with(0, &[]);
        let rows: Vec<&str> = text.stdout.lines().collect();
        assert!(rows.len() == 2 && rows[0].starts_with("TIME"), "{text:?}");
        let words = ["out of memory", &own.tgid().to_string(), &uid.to_string(), "survived: the process continued"];
        assert!(words.iter().all(|word| rows[1].contains(word)), "{text:?}");
    }
    let none = agent.ask(&gpu, EVE, &["events"]);
    none.assert_ended_with(0, &[]);
    assert!(none.stdout.starts_with("No event since the agent's start at "), "{none:?}");
    assert_eq!(agent.ask(&gpu, EVE, &["events", "--json"]).stdout, "");
    let tgid = ann.tgid().to_string();
    for words in [["--pid", &tgid], ["--user", "64001"]] {
        let chosen = agent.ask(&gpu, ROOT, &[&["events", "--json"][..], &words].concat());
        assert_eq!(pids_of(&parsed(&chosen.stdout)), [u64::from(ann.tgid())], "{words:?}");
    }
}

#[test(alone)]
fn events_follow_prints_failures_that_happen_while_it_waits() {
    let gpu = machine();
    let agent = TestAgent::start(&gpu);
    let _first = survivor_of(&gpu, ANN);
    let first = events(&gpu, &agent, ANN, 1);
    let mut rows = RunningProgram::start(agent.client(&gpu, ANN, &["events", "--follow"]));
    assert!(rows.until_line_with("TIME").starts_with("TIME"), "it waits");
    let mut all = RunningProgram::start(agent.client(&gpu, ROOT, &["events", "--follow", "--since", "1h", "--json"]));
    assert_eq!(parsed(&all.next_line().expect("it is kept")), first);
    let bob = survivor_of(&gpu, BOB);
    assert_is_failure_of(&parsed(&all.next_line().expect("a failure"))[0], &bob, BOB);
    let ann = survivor_of(&gpu, ANN);
    assert_is_failure_of(&parsed(&all.next_line().expect("a failure"))[0], &ann, ANN);
    let row = rows.next_line().expect("a failure");
    assert!(row.contains(&ann.tgid().to_string()) && row.contains("out of memory"), "{row}");
    for mut follower in [rows, all] {
        follower.signal(libc::SIGINT);
        assert_eq!(follower.next_line(), None, "nothing else was printed");
        assert_eq!(follower.end(), 0);
    }
}

#[test(alone)]
fn events_follow_needs_no_agent() {
    let gpu = machine();
    let mut follower = RunningProgram::start(gpu.memwatch(&["--no-agent", "events", "--follow"]));
    assert!(follower.until_line_with("TIME").starts_with("TIME"), "it is attached");
    let job = survivor_of(&gpu, ANN);
    let row = follower.next_line().expect("a failure");
    let words = ["out of memory", &job.tgid().to_string(), "64001", "survived: the process continued"];
    assert!(words.iter().all(|word| row.contains(word)), "{row}");
    follower.signal(libc::SIGINT);
    assert_eq!((follower.next_line(), follower.end()), (None, 0));
    CommandOutcome::of(gpu.memwatch(&["--no-agent", "events"]))
        .assert_ended_with(1, &["are those of the agent", "--in FILE"]);
}

fn in_file(gpu: &SimulatedGpu, words: &[&str], file: &Path) -> CommandOutcome {
    CommandOutcome::of(gpu.memwatch(&[&["events", "--in", &file.display().to_string()], words].concat()))
}

#[test]
fn events_of_a_recording_are_its_forecasts_and_failures_oldest_first() {
    let gpu = machine();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("replays/grows-linear-7.mwr");
    let read = in_file(&gpu, &["--json"], &file);
    read.assert_ended_with(0, &[]);
    let found = parsed(&read.stdout);
    let [forecast, failure] = &found[..] else { panic!("two events: {found:#?}") };
    assert_eq!((&forecast["kind"], &forecast["details"]["level"]), (&"forecast".into(), &"critical".into()));
    assert_eq!((&failure["kind"], &failure["details"]["outcome"]), (&"out_of_memory".into(), &"ended".into()));
    assert_eq!((&forecast["pid"], &forecast["uuid"]), (&failure["pid"], &failure["uuid"]));
    assert!(forecast["time"].as_str() < failure["time"].as_str(), "{found:#?}");
    let text = in_file(&gpu, &[], &file).stdout;
    let kinds = ["  forecast  ", "  out of memory  "];
    assert!(text.lines().skip(1).zip(kinds).all(|(row, kind)| row.contains(kind)), "{text}");
    let before = in_file(&gpu, &["--until", "2026-11-22T12:10:00Z"], &file);
    before.assert_ended_with(0, &[]);
    assert!(before.stdout.starts_with("No event from "), "{before:?}");
}

#[test(alone)]
fn events_of_a_history_are_those_of_its_file_and_of_a_user_only_the_own() {
    let gpu = machine();
    let directory = gpu.directory().join("history");
    let mut command = gpu.memwatch(&[]);
    command.env("MEMWATCH_HISTORY", &directory);
    let (agent, file) = (TestAgent::by(&gpu, command), directory.join("history.mwr"));
    let (ann, bob) = (survivor_of(&gpu, ANN), survivor_of(&gpu, BOB));
    let all = ["--since", "300d", "--json"];
    let ask = |uid, words: &[&str]| agent.ask(&gpu, uid, &[&["events"], words].concat());
    let whole = until("both failures are in the history", || {
        let outcome = ask(ROOT, &all);
        outcome.assert_ended_with(0, &[]);
        let found = parsed(&outcome.stdout);
        let are_known = found.iter().all(|event| event["details"]["outcome"] == "survived");
        (found.len() == 2 && are_known).then_some(found)
    });
    assert_is_failure_of(&whole[0], &ann, ANN);
    assert_is_failure_of(&whole[1], &bob, BOB);
    let until_last = whole[1]["time"].as_str().expect("a time");
    let period = ["--since", "300d", "--until", until_last];
    for words in [&period[..], &[&period[..], &["--json"]].concat()] {
        let (asked, read) = (ask(ROOT, words), in_file(&gpu, words, &file));
        read.assert_ended_with(0, &[]);
        assert_eq!(asked.stdout, read.stdout, "{words:?}");
    }
    let text = in_file(&gpu, &[], &file);
    text.assert_ended_with(0, &[]);
    let rows: Vec<&str> = text.stdout.lines().collect();
    assert!(rows[0].starts_with("TIME") && rows[1].contains("out of memory"), "{text:?}");
    assert!(rows[1].contains(&ann.tgid().to_string()) && rows[2].contains(&bob.tgid().to_string()), "{text:?}");
    let own = parsed(&ask(BOB, &all).stdout);
    assert_eq!(pids_of(&own), [u64::from(bob.tgid())], "{own:#?}");
    let chosen = in_file(&gpu, &["--json", "--pid", &ann.tgid().to_string()], &file);
    assert_eq!(pids_of(&parsed(&chosen.stdout)), [u64::from(ann.tgid())]);
    in_file(&gpu, &["--user", "64009"], &file).assert_ended_with(6, &["no process of user 64009"]);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let quiet = ask(ROOT, &["--since", "1s"]);
    quiet.assert_ended_with(0, &[]);
    assert!(quiet.stdout.starts_with("No event from "), "{quiet:?}");
}
