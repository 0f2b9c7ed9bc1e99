use memwatch_core::words::Tgid;
use serde_json::Value;

use super::*;
use crate::options::Choice;
use crate::render::fixture::UUID_0;
use crate::render::text::TableOptions;
use crate::watch::events::fixture::{failure, forecast, left_behind, out_of_memory};

/// The machine booted at 13:00:00 UTC of that day.
const BOOTED_UNIX_NS: i128 = 1_795_266_000_000_000_000;

fn line(event: &MachineEvent) -> String {
    line_of(event, &TakenAt::at("node", BOOTED_UNIX_NS))
}

fn json(event: &MachineEvent) -> Value {
    serde_json::from_str(&line(event)).expect("it is JSON")
}

fn table(events: &[MachineEvent], columns: Option<usize>) -> String {
    let options = TableOptions { columns, ..TableOptions::default() };
    let mut out = Vec::new();
    let lines: Vec<String> = events.iter().map(line).collect();
    let mut table = EventTable::new(options, u64::try_from(BOOTED_UNIX_NS).expect("it is later than 1970"));
    table.write(&mut out, lines.iter().map(String::as_str)).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn event_line_has_the_same_fields_for_every_kind() {
    let events = [
        (out_of_memory(), "out_of_memory", "2026-11-21T14:03:21.000000Z"),
        (forecast(), "forecast", "2026-11-21T14:03:00.000000Z"),
        (left_behind(false), "left_behind", "2026-11-21T14:04:00.000000Z"),
        (left_behind(true), "left_behind", "2026-11-21T14:05:00.000000Z"),
    ];
    for (event, kind, time) in events {
        let text = line(&event);
        assert!(text.starts_with(r#"{"schema":"memwatch.event/1","version":""#) && !text.contains('\n'), "{text}");
        let event_json = json(&event);
        let subject = event.subjects()[0].clone();
        let fields = ["host", "kind", "time", "pid", "user", "gpu", "uuid"].map(|name| event_json[name].clone());
        let user = subject.user.expect("it is known");
        let expected = ["node", kind, time].map(Value::from).into_iter();
        let expected: Vec<Value> =
            expected.chain([subject.tgid.0.into(), user.into(), "0".into(), UUID_0.into()]).collect();
        assert_eq!(fields.to_vec(), expected);
        assert!(event_json["what"].is_string() && event_json["details"].is_object(), "{event_json:#}");
    }
}

#[test]
fn event_details_of_a_failure_are_those_of_oom_with_its_outcome() {
    let details = |oom| json(&MachineEvent::OutOfMemory(Box::new(oom)))["details"].clone();
    let survived = details(failure());
    assert_eq!((&survived["outcome"], &survived["wanted_bytes"]), (&"survived".into(), &(2_u64 << 30).into()));
    assert!(survived["holders"][0]["held_bytes"].is_u64() && survived["advice"].is_array(), "{survived:#}");
    assert_eq!((&survived["holders_left_out"], survived.get("snapshot")), (&0.into(), None));
    let open = details(memwatch_core::features::oom::view::OomView { is_survived: false, ..failure() });
    assert_eq!((&open["outcome"], &open["ended"]), (&"open".into(), &Value::Null));
    let ended_ns = Some(failure().time_ns + 1_200_000_000);
    let ended = details(memwatch_core::features::oom::view::OomView { is_survived: false, ended_ns, ..failure() });
    assert_eq!((&ended["outcome"], &ended["ended"]), (&"ended".into(), &"2026-11-21T14:03:22.200000Z".into()));
}

#[test]
fn event_of_a_failure_lists_the_largest_holders_only() {
    let mut oom = failure();
    let one = oom.snapshot.processes[0].clone();
    for number in 0..40 {
        oom.snapshot.processes.insert(0, ProcessView { tgid: Tgid(500_000 + number), ..one.clone() });
    }
    let event = json(&MachineEvent::OutOfMemory(Box::new(oom)));
    let (listed, left_out) = (&event["details"]["holders"], &event["details"]["holders_left_out"]);
    let sum = listed.as_array().map(Vec::len).zip(left_out.as_u64());
    assert_eq!(sum, Some((16, 26)), "{event:#}");
}

#[test]
fn event_of_an_unknown_process_and_gpu_has_null_fields() {
    let mut oom = failure();
    oom.snapshot.processes.clear();
    (oom.uuid, oom.snapshot.gpus) = (None, Vec::new());
    let tgid = oom.tgid.0;
    let event = json(&MachineEvent::OutOfMemory(Box::new(oom)));
    assert_eq!([&event["user"], &event["gpu"], &event["uuid"]], [&Value::Null; 3]);
    assert_eq!(event["pid"], tgid);
}

#[test]
fn event_table_has_one_row_per_event() {
    let text = table(&[forecast(), out_of_memory(), left_behind(false), left_behind(true)], None);
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows.len(), 5, "{text}");
    assert!(rows[0].starts_with("TIME"), "{text}");
    for (row, parts) in rows[1..].iter().zip([
        ["  forecast       ", "critical: ", "(before: low)"],
        ["  out of memory  ", "requested 2.00 GiB", "; survived: the process continued"],
        ["  left behind    ", "NVML still charges it 646.0 MiB", "one of PID 453, 454"],
        ["  left behind    ", "its 646.0 MiB are free", "after its end"],
    ]) {
        assert!(parts.iter().all(|part| row.contains(part)), "{row}");
    }
    let at = rows[0].find("WHAT").expect("a title");
    assert!(rows[2].is_char_boundary(at) && rows[2][at - 2..at] == *"  ", "{text}");
}

#[test]
fn event_table_wraps_and_shows_hostile_names_as_text() {
    let mut oom = failure();
    let process = &mut oom.snapshot.processes[0];
    (process.command, process.user) = ("py\u{1b}[2Jthon \u{202e}x\n".to_owned(), Some("a\u{1b}b".to_owned()));
    let events = [MachineEvent::OutOfMemory(Box::new(oom))];
    let text = table(&events, None);
    assert!(!text.contains(['\u{1b}', '\u{202e}']) && text.lines().count() == 2, "{text:?}");
    assert!(text.contains(r"a\x1bb") && text.contains(r"py\x1b[2Jthon"), "{text}");
    assert!(!line(&events[0]).contains(['\u{1b}', '\u{202e}']));
    let narrow = table(&events, Some(60));
    assert!(narrow.lines().count() > 2 && narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
}

#[test]
fn event_is_chosen_by_its_processes() {
    let event = out_of_memory();
    let subject = event.subjects()[0].clone();
    let target = ProcessView { target: true, ..subject.clone() };
    let chosen = |selection: &Selection| is_chosen(selection, &[&target]);
    assert!(chosen(&Selection::default()));
    assert!(chosen(&Selection::new(&Choice::default(), &[subject.tgid])));
    assert!(
        !chosen(&Selection::new(&Choice::default(), &[Tgid(1)])),
        "a target of the recording is not chosen by that"
    );
    let users = |user: &str| Selection::new(&Choice { users: vec![user.to_owned()], ..Choice::default() }, &[]);
    assert!(chosen(&users("1000")) && !chosen(&users("1001")));
    assert!(!is_chosen(&users("1000"), &[]));
}
