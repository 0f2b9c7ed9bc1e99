use std::collections::HashMap;
use std::io::Read as _;

use memwatch_core::snapshot::PhaseView;
use memwatch_core::words::GpuUuid;
use prost::Message as _;
use serde_json::Value;

use super::*;
use crate::render::fixture;

const MIB: u64 = 1 << 20;
/// Function and file names that a hostile program may choose.
const HOSTILE: (&str, &str) = ("f\";</script><b>\n\u{1b}[2J& 5", "=cmd()|;\r\u{202e}.py");

/// A frame whose code object no longer existed.
const UNREAD: FrameView = FrameView { file: None, line: None, function: None, module: None };

fn sum(mebibytes: [u64; 3], allocations: u64, frees: u64) -> SumView {
    let [live_bytes, at_peak_bytes, total_bytes] = mebibytes.map(|number| number * MIB);
    let lifetime = (frees > 0).then_some(1_500_000_000);
    SumView {
        live_bytes,
        peak_bytes: at_peak_bytes.max(live_bytes),
        at_peak_bytes,
        total_bytes,
        allocations,
        frees,
        mean_lifetime_ns: lifetime,
        longest_lifetime_ns: lifetime,
        sampled: None,
        sampled_live: None,
        at_least: false,
    }
}

/// Returns a call path of these frames, outermost first. Without frames its call site has this
/// kind.
fn call_path(phase: &'static str, kind: &'static str, frames: &[(&str, &str, u32)], sum: SumView) -> CallPathView {
    let view = |(function, file, line): &(&str, &str, u32)| FrameView {
        file: Some((*file).to_owned()),
        line: Some(*line),
        function: Some((*function).to_owned()),
        module: None,
    };
    let (function, file, line) = *frames.last().unwrap_or(&("step", "/srv/net.py", 17));
    let is_line = kind == "line" || kind == "backward_of";
    let site = SiteView {
        kind: kind.into(),
        file: is_line.then(|| file.to_owned()),
        line: is_line.then_some(line),
        function: is_line.then(|| function.to_owned()),
        held: None,
        library_lines: Vec::new(),
        sum,
    };
    CallPathView {
        phase: PhaseView { phase: phase.into(), recomputed: false, captured: false, sum },
        site,
        frames: frames.iter().rev().map(view).collect(),
        truncated: false,
    }
}

fn call_paths() -> Vec<CallPathView> {
    let main = ("<module>", "/srv/train.py", 3);
    let (function, file) = HOSTILE;
    let deep = call_path("forward", "line", &[main, ("Net.forward", "/srv/net.py", 17)], sum([30, 40, 900], 90, 60));
    let cut = call_path("optimizer", "line", &[main, (function, file, 8)], sum([2, 1, 2], 1, 0));
    let mut unknown = call_path("outside", "line", &[main], sum([0, 7, 7], 1, 1));
    unknown.frames.insert(0, UNREAD);
    vec![
        call_path("preexisting", "preexisting", &[], sum([100, 120, 0], 0, 3)),
        deep,
        call_path("backward", "backward_of", &[], sum([5, 8, 400], 50, 45)),
        call_path("backward", "no_python", &[], sum([3, 0, 3], 1, 0)),
        CallPathView { truncated: true, ..cut },
        unknown,
    ]
}

/// Returns the profile of the fixture's training with these call paths on its first device.
fn profile_of(call_paths: &[CallPathView]) -> CallPathProfile {
    let mut snapshot = fixture::training_node();
    let sums = |of: fn(&SumView) -> u64| call_paths.iter().map(|call_path| of(&call_path.site.sum)).sum::<u64>();
    let total = SumView {
        live_bytes: sums(|sum| sum.live_bytes),
        at_peak_bytes: sums(|sum| sum.at_peak_bytes),
        total_bytes: sums(|sum| sum.total_bytes),
        allocations: sums(|sum| sum.allocations),
        ..SumView::default()
    };
    let tensors = snapshot.processes[0].tensors.as_mut().expect("it trains");
    tensors.attribution.devices[0].sites = call_paths.iter().map(|call_path| call_path.site.clone()).collect();
    let device = DeviceCallPaths {
        device: 0,
        uuid: Some(GpuUuid::new(fixture::UUID_0)),
        unplaced_bytes: -512,
        total,
        call_paths: call_paths.to_vec(),
    };
    CallPathProfile::new(&snapshot, |_| vec![device.clone()], &fixture::clock())
}

fn profile() -> CallPathProfile {
    profile_of(&call_paths())
}

fn written(format: ProfileFormat, weight: ProfileWeight) -> Vec<u8> {
    profile().write(format, weight).expect("the format has it")
}

fn text(format: ProfileFormat, weight: ProfileWeight) -> String {
    String::from_utf8(written(format, weight)).expect("text is UTF-8")
}

/// Sums the numbers at the ends of lines.
fn folded_sum(text: &str) -> u64 {
    text.lines().map(|line| line.rsplit_once(' ').expect("a number").1.parse::<u64>().expect("a number")).sum()
}

#[test]
fn folded_stacks_are_written_as_others_read_them() {
    assert_eq!(text(ProfileFormat::Folded, ProfileWeight::InUse), include_str!("golden.folded"));
}

#[test]
fn speedscope_has_a_profile_for_each_weight() {
    let written = text(ProfileFormat::Speedscope, ProfileWeight::Allocated);
    assert_eq!(written + "\n", include_str!("golden.speedscope.json"));
}

#[test]
fn csv_has_a_row_for_each_site() {
    assert_eq!(text(ProfileFormat::Csv, ProfileWeight::InUse), include_str!("golden.csv").replace('\n', "\r\n"));
}

#[test]
fn every_format_adds_up_to_the_devices_total() {
    let profile = profile();
    for weight in ProfileWeight::ALL {
        let total = profile.total(weight);
        assert!(total > 0);
        assert_eq!(folded_sum(&text(ProfileFormat::Folded, weight)), total, "{weight:?}");
        let speedscope: Value = serde_json::from_slice(&written(ProfileFormat::Speedscope, weight)).expect("JSON");
        let active =
            &speedscope["profiles"][usize::try_from(speedscope["activeProfileIndex"].as_u64().unwrap()).unwrap()];
        let weights = active["weights"].as_array().expect("weights").iter();
        assert_eq!(weights.map(|weight| weight.as_u64().expect("a number")).sum::<u64>(), total);
        assert_eq!(active["endValue"], total);
        let page = data_of(&text(ProfileFormat::Html, weight));
        let index = usize::try_from(page["weight"].as_u64().unwrap()).unwrap();
        let samples = page["parts"][0]["samples"].as_array().expect("samples").iter();
        assert_eq!(samples.map(|sample| sample[1][index].as_u64().unwrap()).sum::<u64>(), total);
        let svg = text(ProfileFormat::Svg, weight);
        assert!(svg.contains(&format!("total_samples=\"{total}\"")), "{svg}");
        // The style comes after inferno's own style sheet, so it takes precedence.
        assert!(svg.rfind("prefers-color-scheme: dark") > svg.find("</style>") && svg.ends_with("</svg>"), "{svg}");
    }
    let proto = proto(ProfileWeight::InUse);
    let sums = |index: usize| proto.sample.iter().map(|sample| sample.value[index].cast_unsigned()).sum::<u64>();
    let of = [ProfileWeight::Count, ProfileWeight::Allocated, ProfileWeight::InUse].map(|weight| profile.total(weight));
    assert_eq!([sums(0), sums(1), sums(3)], of);
}

/// Returns the data embedded in a page.
fn data_of(page: &str) -> Value {
    let (_, after) = page.split_once("type=\"application/json\">").expect("the page has data");
    serde_json::from_str(after.split_once("</script>").expect("it ends").0).expect("JSON")
}

fn proto(weight: ProfileWeight) -> pprof::Proto {
    let mut unpacked = Vec::new();
    let packed = written(ProfileFormat::Pprof, weight);
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut unpacked).expect("gzip");
    pprof::Proto::decode(&unpacked[..]).expect("a message")
}

#[test]
fn pprof_has_the_types_of_a_heap_and_names_everything_once() {
    let proto = proto(ProfileWeight::Allocated);
    let text = |number: i64| proto.string_table[usize::try_from(number).unwrap()].as_str();
    let types: Vec<_> = proto.sample_type.iter().map(|one| (text(one.kind), text(one.unit))).collect();
    let heap =
        [("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_objects", "count"), ("inuse_space", "bytes")];
    assert_eq!(types, heap);
    assert_eq!(text(proto.default_sample_type), "alloc_space");
    let period = proto.period_type.expect("it has one");
    assert_eq!((text(period.kind), text(period.unit), proto.period, text(0)), ("space", "bytes", 1, ""));
    assert_eq!((proto.mapping.len(), proto.function.len(), proto.location.len()), (1, 8, 8));
    assert!(proto.location.iter().zip(1..).all(|(location, id)| location.id == id && location.mapping_id == 1));
    assert!(proto.function.iter().zip(1..).all(|(function, id)| function.id == id));
    let functions: HashMap<u64, &str> = proto.function.iter().map(|one| (one.id, text(one.name))).collect();
    let names = |sample: &pprof::ProtoSample| {
        let lines = sample.location_id.iter().map(|id| proto.location[usize::try_from(*id).unwrap() - 1].line[0]);
        lines.map(|line| (functions[&line.function_id], line.line)).collect::<Vec<_>>()
    };
    assert_eq!(names(&proto.sample[1]), [("Net.forward", 17), ("<module>", 3)], "innermost first");
    assert_eq!(proto.sample[1].value, [90, 900 << 20, 30, 30 << 20]);
    let labels: Vec<_> = proto.sample[1].label.iter().map(|label| (text(label.key), text(label.text))).collect();
    assert_eq!(labels, [("gpu", "0"), ("pid", "1234"), ("phase", "forward"), ("gpu_uuid", fixture::UUID_0)]);
    assert_eq!(proto.sample[0].value[2], 0, "the number of blocks older than the watch is not known");
    assert!(proto.comment.iter().any(|number| text(*number).contains("-512 B in no sample")));
    assert_eq!(proto.time_nanos / 1_000_000_000, 1_795_266_000 + 3_801);
}

#[test]
fn a_heap_profile_of_the_peak_is_refused() {
    let refusal = profile().write(ProfileFormat::Pprof, ProfileWeight::Peak).expect_err("there is no such type");
    assert_eq!(refusal.to_string(), "pprof's profiles of a heap have no peak; all other formats do");
}

#[test]
fn export_escapes_hostile_names_in_every_format() {
    for format in
        [ProfileFormat::Folded, ProfileFormat::Speedscope, ProfileFormat::Csv, ProfileFormat::Svg, ProfileFormat::Html]
    {
        let written = text(format, ProfileWeight::InUse);
        assert!(!written.contains(['\u{1b}', '\u{202e}']), "{format:?}: {written}");
        assert!(
            !matches!(format, ProfileFormat::Svg | ProfileFormat::Html) || !written.contains("<b>"),
            "{format:?}: {written}"
        );
    }
    let folded = text(ProfileFormat::Folded, ProfileWeight::InUse);
    assert_eq!(folded.lines().count(), 5, "{folded}");
    let page = text(ProfileFormat::Html, ProfileWeight::InUse);
    assert_eq!(page.matches("</script").count(), 2, "the data ends where the page ends it");
    let name = &data_of(&page)["frames"];
    assert!(name.to_string().contains("f\\\";</script><b>"), "it is shown as it is: {name}");
}

#[test]
fn folded_frame_that_ends_in_a_number_is_not_a_second_weight() {
    let mut call_paths = call_paths();
    let code = call_paths[1].frames[0].clone();
    call_paths.truncate(2);
    call_paths[1].frames = vec![FrameView { file: Some("a 7".to_owned()), line: None, ..code.clone() }];
    call_paths[0].site =
        SiteView { function: Some("f 7".to_owned()), ..call_path("", "backward_of", &[], call_paths[0].site.sum).site };
    let written = profile_of(&call_paths).write(ProfileFormat::Folded, ProfileWeight::InUse).expect("text");
    let expected = format!("Net.forward (a 7) {}\nbackward of /srv/net.py:17 f_7 {}\n", 30 * MIB, 100 * MIB);
    assert_eq!(String::from_utf8_lossy(&written), expected);
}

#[test]
fn a_stack_of_which_nothing_could_be_read_is_one_frame_that_says_so() {
    let mut unread = call_path("outside", "unreadable", &[], sum([1, 1, 1], 1, 0));
    unread.frames = vec![UNREAD, UNREAD];
    let written = profile_of(&[unread]).write(ProfileFormat::Folded, ProfileWeight::InUse).expect("text");
    assert_eq!(String::from_utf8_lossy(&written), format!("(unknown: the stack could not be read) {MIB}\n"));
}

#[test]
fn several_devices_have_a_frame_each_where_a_format_has_one_profile() {
    let mut profile = profile();
    let mut second = profile.parts[0].clone();
    second.gpu = "1".to_owned();
    profile.parts.push(second);
    let folded =
        String::from_utf8(profile.write(ProfileFormat::Folded, ProfileWeight::InUse).expect("text")).expect("UTF-8");
    let roots: Vec<_> = folded.lines().filter_map(|line| line.split(';').next()).collect();
    assert_eq!(roots.iter().filter(|root| root.ends_with("GPU 1")).count(), 5, "{folded}");
    assert_eq!(folded_sum(&folded), profile.total(ProfileWeight::InUse));
    let speedscope = profile.write(ProfileFormat::Speedscope, ProfileWeight::InUse).expect("JSON");
    let speedscope: Value = serde_json::from_slice(&speedscope).expect("JSON");
    assert_eq!(speedscope["profiles"].as_array().map(Vec::len), Some(8));
}

#[test]
fn a_profile_without_samples_is_a_file_all_the_same_but_no_picture() {
    let profile = profile_of(&[]);
    for format in [
        ProfileFormat::Folded,
        ProfileFormat::Speedscope,
        ProfileFormat::Pprof,
        ProfileFormat::Csv,
        ProfileFormat::Html,
    ] {
        assert!(profile.write(format, ProfileWeight::InUse).is_ok(), "{format:?}");
    }
    let refusal = profile.write(ProfileFormat::Svg, ProfileWeight::InUse).expect_err("nothing to draw");
    assert_eq!(refusal.to_string(), "there is nothing to draw: 0 in use");
}

#[test]
fn the_same_profile_gives_the_same_bytes() {
    for format in [
        ProfileFormat::Folded,
        ProfileFormat::Speedscope,
        ProfileFormat::Pprof,
        ProfileFormat::Csv,
        ProfileFormat::Svg,
        ProfileFormat::Html,
    ] {
        assert_eq!(written(format, ProfileWeight::InUse), written(format, ProfileWeight::InUse), "{format:?}");
    }
}
