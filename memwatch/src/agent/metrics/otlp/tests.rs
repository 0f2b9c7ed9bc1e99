use std::collections::BTreeMap;

use prost::Message as _;

use super::messages::ExportRequest;
use super::requests::{Reporter, requests};
use super::*;
use crate::agent::metrics::families::ALL;
use crate::agent::metrics::tests::{facts, node, node_with_a_dead};
use crate::agent::metrics::{ExpositionFormat, Metrics};
use crate::render::fixture;

fn points(metric: &Metric) -> &[NumberDataPoint] {
    match metric.points.as_ref().expect("it is of a kind") {
        Points::Gauge(gauge) => &gauge.data_points,
        Points::Sum(sum) => &sum.data_points,
    }
}

fn text_of(attribute: &KeyValue) -> (&str, &str) {
    let value = attribute.value.as_ref().and_then(|value| value.string_value.as_deref());
    (&attribute.key, value.expect("every attribute is text"))
}

/// Returns the series of a scraped text, without empty labels.
fn scraped(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        let (series, number) = line.rsplit_once(' ').expect("a series and its number");
        (series.to_owned(), number.parse().expect("a number"))
    };
    lines.map(pair).collect()
}

/// Returns the series that Prometheus makes of metrics.
fn pushed(metrics: &[Metric]) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for metric in metrics {
        let total = if matches!(metric.points, Some(Points::Sum(_))) { "_total" } else { "" };
        let family = ALL.iter().find(|family| metric.name.trim_end_matches("_info") == family.name);
        let family = family.unwrap_or_else(|| panic!("{} is in the table", metric.name));
        for point in points(metric) {
            let given: BTreeMap<_, _> = point.attributes.iter().map(text_of).collect();
            assert!(given.values().all(|value| !value.is_empty()), "{given:?}");
            let label = |name: &&str| format!("{name}={:?}", given.get(name).copied().unwrap_or_default());
            let labels: Vec<_> = family.labels.iter().map(label).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let number = as_double(point.value.expect("a number"));
            assert!(all.insert(format!("{}{total}{labels}", metric.name), number).is_none(), "{labels} twice");
        }
    }
    all
}

#[test]
fn otlp_metrics_equal_the_scraped_metrics() {
    let snapshot = node_with_a_dead();
    let facts = facts(&snapshot);
    let metrics = Metrics::new(2).messages(&facts, &mut CounterStates::default());
    let expected = scraped(&Metrics::new(2).text(&facts, ExpositionFormat::Plain));
    assert_eq!(pushed(&metrics), expected);
    assert_eq!(metrics.len(), ALL.len(), "each family has an example");
    let of = |name: &str| metrics.iter().find(|metric| metric.name == name).expect("it is there");
    assert_eq!((of("process_cpu_seconds").unit.as_str(), of("memwatch_gpu_up").unit.as_str()), ("s", ""));
    assert_eq!(of("memwatch_gpu_memory_limit_bytes").unit, "By");
}

#[test]
fn a_counter_has_a_start_that_stays_until_it_begins_again() {
    let mut series = CounterStates::default();
    let mut start = |key: &str, value: f64, now: u64| series.start(key.to_owned(), value, 10, now);
    assert_eq!((start("a", 5.0, 100), start("b", 1.0, 100)), (10, 10));
    series.end(100);
    let mut start = |key: &str, value: f64, now: u64| series.start(key.to_owned(), value, 10, now);
    assert_eq!((start("a", 5.0, 200), start("new", 7.0, 200)), (10, 100));
    series.end(200);
    let mut start = |key: &str, value: f64, now: u64| series.start(key.to_owned(), value, 10, now);
    assert_eq!((start("a", 2.0, 300), start("b", 1.0, 300), start("new", 8.0, 300)), (200, 200, 100));
    series.end(300);
    assert_eq!(series.start("a".to_owned(), 3.0, 10, 400), 200);
}

#[test]
fn counters_begin_with_the_watch_and_the_agents_own_with_its_process() {
    let snapshot = node();
    let facts = facts(&snapshot);
    let unix = |boottime_ns: u64| {
        u64::try_from(fixture::clock().boottime_to_unix_ns + i128::from(boottime_ns)).expect("after 1970")
    };
    let metrics = Metrics::new(0).messages(&facts, &mut CounterStates::default());
    let mut sums = 0;
    for metric in &metrics {
        let start_ns = match &metric.points {
            Some(Points::Sum(sum)) => {
                sums += 1;
                assert!(sum.is_monotonic && sum.temporality() == Temporality::Cumulative, "{}", metric.name);
                let own = OF_THE_PROCESS.map(|family| family.name);
                let is_own = own.contains(&metric.name.as_str());
                unix(if is_own { facts.own.start_ns.expect("a start") } else { snapshot.attached_ns })
            }
            _ => 0,
        };
        for point in points(metric) {
            assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (start_ns, unix(snapshot.time_ns)));
        }
    }
    assert_eq!(sums, ALL.iter().filter(|family| family.kind == MetricKind::Counter).count());
}

#[test]
fn many_series_are_in_several_requests_that_have_each_once() {
    let many = |name: &str, count: u64| {
        let point = |number| NumberDataPoint {
            attributes: vec![KeyValue::new("unit", format!("{number}{}", "x".repeat(250)))],
            value: Some(DataPointValue::Int(7)),
            ..NumberDataPoint::default()
        };
        let points = Some(Points::Gauge(Gauge { data_points: (0..count).map(point).collect() }));
        Metric { name: name.to_owned(), points, ..Metric::default() }
    };
    let reporter = Reporter::of("node", "");
    let all = requests(vec![many("few", 2), many("most", 20_000), many("last", 1)], &reporter);
    assert!(all.len() > 2 && all.iter().all(|request| request.encoded_len() < 4 << 20), "{}", all.len());
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for request in &all {
        let read = ExportRequest::decode(&*request.encode_to_vec()).expect("it is whole");
        let [part] = &read.resource_metrics[..] else { panic!("one reporter") };
        assert!(part.resource.is_some());
        for metric in part.scope_metrics.iter().flat_map(|scope| &scope.metrics) {
            *counts.entry(metric.name.clone()).or_default() += points(metric).len();
        }
    }
    let expected = [("few".to_owned(), 2), ("last".to_owned(), 1), ("most".to_owned(), 20_000)];
    assert_eq!(counts, BTreeMap::from(expected));
    assert_eq!(requests(Vec::new(), &reporter).len(), 1, "who has nothing to report reports that");
}

#[test]
fn otlp_resource_names_the_reporter_and_accepts_overrides() {
    let named = |reporter: &Reporter| {
        let all = requests(Vec::new(), reporter);
        let resource = all[0].resource_metrics[0].resource.clone().expect("a reporter");
        let pairs = resource.attributes.iter().map(text_of);
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
    };
    let reporter = Reporter::of("node-7", "0123abc\n");
    let own = named(&reporter);
    for (key, value) in [
        ("service.name", "memwatch"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", "node-7"),
        ("host.name", "node-7"),
        ("host.id", "0123abc"),
        ("os.type", "linux"),
    ] {
        assert_eq!(own[key], value);
    }
    assert!(!named(&Reporter::of("node-7", "")).contains_key("host.id"), "what is not known is absent");
    let more = reporter.clone().with("k8s.node.name=gpu-1, team=a%2Cb%C3%A9,host.name=other,").expect("attributes");
    let more = named(&more);
    assert_eq!((&*more["k8s.node.name"], &*more["team"], &*more["host.name"]), ("gpu-1", "a,bé", "other"));
    for text in ["nothing", "=b", "a=%", "a=%zz", "a=%ff"] {
        let why = reporter.clone().with(text).expect_err(text);
        assert!(why.contains(text) && why.contains("k8s.node.name=a"), "{why}");
    }
}
