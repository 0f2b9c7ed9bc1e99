//! Queries of a report to a Prometheus, and conversion of the answers.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::args::{FleetRowKind, FleetSort};
use super::facts::{self as of, Fact};
use super::model::{
    FleetGpu, FleetHolder, FleetNode, FleetRowKey, FleetTotals, FleetWorkload, JoinedAnswers, RowValues, WorkloadName,
    whole,
};
use super::select::{Matcher, Matchers, WORKLOAD};
use crate::sources::prometheus::{AnswerRequest, PrometheusAnswer, PrometheusClient, Trouble};

/// Maximum number of agents that are named as not responding.
const NAMED_AGENTS: usize = 100;

/// A report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FleetReport {
    /// URL of the server.
    pub(crate) prometheus: String,
    /// Whether the shipped recording rules were used.
    pub(crate) rules: RuleUse,
    pub(crate) totals: FleetTotals,
    #[serde(flatten)]
    pub(crate) rows: FleetRows,
    /// Queries that were sent, with the cost of each answer.
    pub(crate) queries: Vec<QueryCost>,
}

/// Kind of series that were queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RuleUse {
    /// Recorded series.
    Used,
    /// Recorded series, or raw ones if the recorded one lacks a label of `--match`.
    PartlyUsed,
    /// Raw series, since the rules are not loaded.
    Absent,
    /// Raw series, since the loaded rules are those of another version.
    OtherVersion,
}

/// A query, and the cost of its answer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct QueryCost {
    pub(crate) expression: String,
    pub(crate) series: usize,
    pub(crate) answer_bytes: usize,
    pub(crate) seconds: f64,
}

/// Rows of a report, sorted.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FleetRows {
    Workloads(Vec<FleetWorkload>),
    Nodes(Vec<FleetNode>),
    Gpus(Vec<FleetGpu>),
    Holders(Vec<FleetHolder>),
}

/// What to query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FleetQuestion {
    pub(crate) by: FleetRowKind,
    pub(crate) sort: FleetSort,
    /// Maximum number of rows.
    pub(crate) top: usize,
    /// Conditions of `--match`.
    pub(crate) matchers: Matchers,
    /// Conditions of the row that the user opened.
    pub(crate) opened: Vec<Matcher>,
}

/// Queries of one report.
pub(crate) struct ReportQueries<'a> {
    client: &'a mut PrometheusClient,
    /// Whether the shipped rules are loaded on the server.
    is_recorded: bool,
    /// Number of recordable facts queried from recorded series, and from raw ones.
    by_record: [u64; 2],
    queries: Vec<QueryCost>,
}

/// Queries one report.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn report(
    client: &mut PrometheusClient,
    prometheus: String,
    question: &FleetQuestion,
) -> Result<FleetReport, Trouble> {
    let mut asking = ReportQueries { client, is_recorded: false, by_record: [0; 2], queries: Vec::new() };
    let loaded = asking.number(of::RULES_RECORD.to_owned()).await?;
    asking.is_recorded = loaded.is_some_and(|version| version.to_bits() == of::RULES.to_bits());
    let totals = asking.totals(&question.matchers).await?;
    let rows = match question.by {
        FleetRowKind::Workload => FleetRows::Workloads(asking.rows(question, &WORKLOAD, &WORKLOADS, workload).await?),
        FleetRowKind::Node => FleetRows::Nodes(asking.rows(question, &of::NODE, &NODES, node).await?),
        FleetRowKind::Gpu => {
            let mut gpus = asking.rows(question, &of::GPU, &GPUS, gpu).await?;
            asking.largest_holders(question, &mut gpus).await?;
            FleetRows::Gpus(gpus)
        }
        FleetRowKind::Holder => FleetRows::Holders(asking.rows(question, &of::HOLDER, &HOLDERS, holder).await?),
    };
    let rules = match (asking.is_recorded, loaded, asking.by_record) {
        (false, None, _) => RuleUse::Absent,
        (false, Some(_), _) => RuleUse::OtherVersion,
        (true, _, [_, 0]) => RuleUse::Used,
        (true, ..) => RuleUse::PartlyUsed,
    };
    Ok(FleetReport { prometheus, rules, totals, rows: sorted(rows, question.sort), queries: asking.queries })
}

const WORKLOADS: [Fact; 11] = [
    of::WORKLOAD_USED,
    of::WORKLOAD_DRIVER,
    of::WORKLOAD_CACHED,
    of::WORKLOAD_GPUS,
    of::WORKLOAD_NODES,
    of::WORKLOAD_MOST,
    of::WORKLOAD_LEAST,
    of::WORKLOAD_IDLE,
    of::WORKLOAD_GROWTH,
    of::WORKLOAD_OOMS,
    of::WORKLOAD_LAST_OOM,
];

fn workload(key: &FleetRowKey, values: &RowValues) -> FleetWorkload {
    FleetWorkload {
        name: WorkloadName::of(key),
        used_bytes: values.whole(0),
        driver_allocated_bytes: values.whole(1),
        framework_cached_bytes: values.whole(2),
        gpus: values.whole(3),
        nodes: values.whole(4),
        largest_used_bytes: values.whole(5),
        smallest_used_bytes: values.whole(6),
        idle_gpus: values.whole(7),
        growth_bytes_per_second: values.real(8),
        ooms_1d: values.whole(9),
        last_oom_unix_seconds: values.real(10),
    }
}

const NODES: [Fact; 9] = [
    of::NODE_GPUS,
    of::NODE_LIMIT,
    of::NODE_USED,
    of::NODE_UNATTRIBUTED,
    of::NODE_CACHED,
    of::NODE_IDLE,
    of::NODE_FULL,
    of::NODE_OOMS,
    of::NODE_LAST_OOM,
];

fn node(key: &FleetRowKey, values: &RowValues) -> FleetNode {
    FleetNode {
        instance: key.concat(),
        gpus: values.whole(0),
        limit_bytes: values.whole(1),
        used_bytes: values.whole(2),
        unattributed_bytes: values.signed(3),
        framework_cached_bytes: values.whole(4),
        idle_gpus: values.whole(5),
        seconds_to_full: values.real(6),
        ooms_1d: values.whole(7),
        last_oom_unix_seconds: values.real(8),
    }
}

const GPUS: [Fact; 8] = [
    of::GPU_LIMIT,
    of::GPU_USED,
    of::GPU_UNATTRIBUTED,
    of::GPU_CACHED,
    of::GPU_UTILIZATION,
    of::GPU_IDLE,
    of::GPU_FULL,
    of::GPU_HOLDERS,
];

fn gpu(key: &FleetRowKey, values: &RowValues) -> FleetGpu {
    let [instance, gpu, uuid] = place(key);
    FleetGpu {
        instance,
        gpu,
        uuid,
        limit_bytes: values.whole(0),
        used_bytes: values.whole(1),
        unattributed_bytes: values.signed(2),
        framework_cached_bytes: values.whole(3),
        utilization: values.real(4),
        idle_bytes: values.whole(5),
        seconds_to_full: values.real(6),
        holders: values.whole(7),
        largest_holder: None,
        largest_holder_used_bytes: None,
    }
}

const HOLDERS: [Fact; 7] = [
    of::HOLDER_USED,
    of::HOLDER_DRIVER,
    of::HOLDER_CACHED,
    of::HOLDER_PROCESSES,
    of::HOLDER_GROWTH,
    of::HOLDER_OOMS,
    of::HOLDER_LAST_OOM,
];

fn holder(key: &FleetRowKey, values: &RowValues) -> FleetHolder {
    let [instance, gpu, uuid] = place(key);
    FleetHolder {
        instance,
        gpu,
        uuid,
        name: WorkloadName::of(key.get(3..).unwrap_or_default()),
        used_bytes: values.whole(0),
        driver_allocated_bytes: values.whole(1),
        framework_cached_bytes: values.whole(2),
        processes: values.whole(3),
        growth_bytes_per_second: values.real(4),
        ooms_1d: values.whole(5),
        last_oom_unix_seconds: values.real(6),
    }
}

/// Returns the first values of a key.
fn place<const N: usize>(key: &FleetRowKey) -> [String; N] {
    std::array::from_fn(|place| key.get(place).cloned().unwrap_or_default())
}

impl ReportQueries<'_> {
    async fn ask(&mut self, expression: String, wanted: AnswerRequest<'_>) -> Result<PrometheusAnswer, Trouble> {
        let begin = Instant::now();
        let (answer, length) = self.client.query(&expression, wanted).await?;
        self.queries.push(QueryCost {
            expression,
            series: answer.series.len(),
            answer_bytes: length.bytes,
            seconds: begin.elapsed().as_secs_f64(),
        });
        Ok(answer)
    }

    /// Queries an expression with a single value.
    async fn number(&mut self, expression: String) -> Result<Option<f64>, Trouble> {
        let answer = self.ask(expression, AnswerRequest { labels: &[], most: 1 }).await?;
        Ok(answer.series.first().map(|one| one.value))
    }

    /// Returns the expression of a fact with conditions.
    fn expression(&mut self, fact: Fact, matchers: &Matchers) -> String {
        let (expression, is_record) = fact.asked(self.is_recorded, matchers);
        if !fact.record.is_empty() {
            self.by_record[usize::from(!is_record)] += 1;
        }
        expression
    }

    async fn sum(&mut self, how: &str, fact: Fact, matchers: &Matchers) -> Result<Option<u64>, Trouble> {
        let expression = format!("{how}({})", self.expression(fact, matchers));
        Ok(self.number(expression).await?.and_then(whole))
    }

    async fn totals(&mut self, matchers: &Matchers) -> Result<FleetTotals, Trouble> {
        let down = self.expression(of::DOWN, matchers);
        let named = AnswerRequest { labels: &of::NODE, most: NAMED_AGENTS };
        let named = self.ask(format!("topk({NAMED_AGENTS}, {down})"), named).await?;
        let mut agents_down: Vec<String> = named.series.into_iter().map(|one| one.key.concat()).collect();
        agents_down.sort_unstable();
        let knows_utilization = self.sum("count", of::GPU_UTILIZATION, matchers).await?.is_some();
        let idle_gpus =
            if knows_utilization { self.sum("sum", of::NODE_IDLE, matchers).await?.or(Some(0)) } else { None };
        Ok(FleetTotals {
            nodes: self.sum("count", of::NODE_GPUS, matchers).await?.unwrap_or(0),
            gpus: self.sum("sum", of::NODE_GPUS, matchers).await?.unwrap_or(0),
            workloads: self.sum("count", of::WORKLOAD_USED, matchers).await?.unwrap_or(0),
            limit_bytes: self.sum("sum", of::NODE_LIMIT, matchers).await?.unwrap_or(0),
            used_bytes: self.sum("sum", of::NODE_USED, matchers).await?.unwrap_or(0),
            framework_cached_bytes: self.sum("sum", of::NODE_CACHED, matchers).await?,
            idle_gpus,
            ooms_1d: self.sum("sum", of::NODE_OOMS, matchers).await?,
            agents_down_count: self.sum("count", of::DOWN, matchers).await?.unwrap_or(0),
            agents_down,
        })
    }

    /// Queries the first rows in sort order, with one column per fact.
    async fn rows<T>(
        &mut self,
        question: &FleetQuestion,
        labels: &[&str],
        facts: &[Fact],
        make: fn(&FleetRowKey, &RowValues) -> T,
    ) -> Result<Vec<T>, Trouble> {
        let (first, matchers) = self.first(question, labels);
        // Several scrape jobs may have the same GPU.
        let wanted = AnswerRequest { labels, most: question.top.saturating_mul(4) };
        let mut answers = Vec::with_capacity(facts.len());
        for fact in facts {
            let expression = self.expression(*fact, &matchers);
            answers.push(self.ask(format!("({expression}) and on ({}) {first}", labels.join(", ")), wanted).await?);
        }
        Ok(JoinedAnswers::of(answers, question.top).each(|key, values| make(&key, values)))
    }

    /// Returns the expression of the first rows in sort order, and the conditions on them.
    fn first(&mut self, question: &FleetQuestion, labels: &[&str]) -> (String, Matchers) {
        let matchers = Matchers([question.matchers.0.clone(), question.opened.clone()].concat());
        let rank = self.rank(question, labels, &matchers);
        // The GPU that is full soonest comes first.
        let how = if question.sort == FleetSort::Full { "bottomk" } else { "topk" };
        (format!("{how}({}, {rank})", question.top), matchers)
    }

    /// Returns the expression to sort by.
    fn rank(&mut self, question: &FleetQuestion, labels: &[&str], matchers: &Matchers) -> String {
        let labels = labels.join(", ");
        let mut of = |fact: Fact| format!("({})", self.expression(fact, matchers));
        match (question.by, question.sort) {
            // If no NVML reports the use, the driver allocations are all that is known.
            (FleetRowKind::Workload, FleetSort::Used) => of(of::WORKLOAD_HELD),
            (FleetRowKind::Holder, FleetSort::Used) => {
                format!("{} or on ({labels}) {}", of(of::HOLDER_USED), of(of::HOLDER_DRIVER))
            }
            (by, sort) => of(sort.fact(by).unwrap_or(of::NODE_USED)),
        }
    }

    async fn largest_holders(&mut self, question: &FleetQuestion, gpus: &mut [FleetGpu]) -> Result<(), Trouble> {
        let (first, matchers) = self.first(question, &of::GPU);
        let expression = self.expression(of::GPU_LARGEST, &matchers);
        let text = format!("({expression}) and on ({}) {first}", of::GPU.join(", "));
        let wanted = AnswerRequest { labels: &of::HOLDER, most: question.top.saturating_mul(4) };
        let answer = self.ask(text, wanted).await?;
        let by_place = |gpu: &FleetGpu| [gpu.instance.clone(), gpu.gpu.clone(), gpu.uuid.clone()];
        let places: BTreeMap<_, _> = gpus.iter().map(by_place).zip(0..).collect();
        for one in answer.series {
            let Some(gpu) = places.get(&place(&one.key)).and_then(|index: &usize| gpus.get_mut(*index)) else {
                continue;
            };
            gpu.largest_holder = Some(WorkloadName::of(one.key.get(3..).unwrap_or_default()));
            gpu.largest_holder_used_bytes = whole(one.value);
        }
        Ok(())
    }
}

impl FleetSort {
    /// Returns the fact that rows of this kind are sorted by; `None` if they lack this column.
    pub(crate) const fn fact(self, by: FleetRowKind) -> Option<Fact> {
        Some(match (by, self) {
            (FleetRowKind::Workload, Self::Used) => of::WORKLOAD_USED,
            (FleetRowKind::Workload, Self::Driver) => of::WORKLOAD_DRIVER,
            (FleetRowKind::Workload, Self::Cached) => of::WORKLOAD_CACHED,
            (FleetRowKind::Workload, Self::Imbalance) => of::WORKLOAD_IMBALANCE,
            (FleetRowKind::Workload, Self::Idle) => of::WORKLOAD_IDLE,
            (FleetRowKind::Workload, Self::Growth) => of::WORKLOAD_GROWTH,
            (FleetRowKind::Workload, Self::Ooms) => of::WORKLOAD_OOMS,
            (FleetRowKind::Node, Self::Used) => of::NODE_USED,
            (FleetRowKind::Node, Self::Unattributed) => of::NODE_UNATTRIBUTED,
            (FleetRowKind::Node, Self::Cached) => of::NODE_CACHED,
            (FleetRowKind::Node, Self::Idle) => of::NODE_IDLE,
            (FleetRowKind::Node, Self::Full) => of::NODE_FULL,
            (FleetRowKind::Node, Self::Ooms) => of::NODE_OOMS,
            (FleetRowKind::Gpu, Self::Used) => of::GPU_USED,
            (FleetRowKind::Gpu, Self::Unattributed) => of::GPU_UNATTRIBUTED,
            (FleetRowKind::Gpu, Self::Cached) => of::GPU_CACHED,
            (FleetRowKind::Gpu, Self::Idle) => of::GPU_IDLE,
            (FleetRowKind::Gpu, Self::Full) => of::GPU_FULL,
            (FleetRowKind::Holder, Self::Used) => of::HOLDER_USED,
            (FleetRowKind::Holder, Self::Driver) => of::HOLDER_DRIVER,
            (FleetRowKind::Holder, Self::Cached) => of::HOLDER_CACHED,
            (FleetRowKind::Holder, Self::Growth) => of::HOLDER_GROWTH,
            (FleetRowKind::Holder, Self::Ooms) => of::HOLDER_OOMS,
            _ => return None,
        })
    }
}

/// Sorts rows; unknown values come last.
fn sorted(mut rows: FleetRows, sort: FleetSort) -> FleetRows {
    match &mut rows {
        FleetRows::Workloads(rows) => order(rows, |row| match sort {
            FleetSort::Driver => real(row.driver_allocated_bytes),
            FleetSort::Cached => real(row.framework_cached_bytes),
            FleetSort::Imbalance => row.imbalance(),
            FleetSort::Idle => real(row.idle_gpus),
            FleetSort::Growth => row.growth_bytes_per_second,
            FleetSort::Ooms => real(row.ooms_1d),
            _ => real(row.used_bytes.or(row.driver_allocated_bytes)),
        }),
        FleetRows::Nodes(rows) => order(rows, |row| match sort {
            FleetSort::Unattributed => row.unattributed_bytes.map(signed),
            FleetSort::Cached => real(row.framework_cached_bytes),
            FleetSort::Idle => real(row.idle_gpus),
            FleetSort::Full => row.seconds_to_full.map(|seconds| -seconds),
            FleetSort::Ooms => real(row.ooms_1d),
            _ => real(row.used_bytes),
        }),
        FleetRows::Gpus(rows) => order(rows, |row| match sort {
            FleetSort::Unattributed => row.unattributed_bytes.map(signed),
            FleetSort::Cached => real(row.framework_cached_bytes),
            FleetSort::Idle => real(row.idle_bytes),
            FleetSort::Full => row.seconds_to_full.map(|seconds| -seconds),
            _ => real(row.used_bytes),
        }),
        FleetRows::Holders(rows) => order(rows, |row| match sort {
            FleetSort::Driver => real(row.driver_allocated_bytes),
            FleetSort::Cached => real(row.framework_cached_bytes),
            FleetSort::Growth => row.growth_bytes_per_second,
            FleetSort::Ooms => real(row.ooms_1d),
            _ => real(row.used_bytes.or(row.driver_allocated_bytes)),
        }),
    }
    rows
}

fn order<T>(rows: &mut [T], of: impl Fn(&T) -> Option<f64>) {
    rows.sort_by(|one, other| {
        let [one, other] = [one, other].map(|row| of(row).unwrap_or(f64::NEG_INFINITY));
        other.total_cmp(&one)
    });
}

#[expect(clippy::cast_precision_loss, reason = "an order, in which what is equal in 53 bits is equal")]
fn real(number: Option<u64>) -> Option<f64> {
    number.map(|number| number as f64)
}

#[expect(clippy::cast_precision_loss, reason = "as above")]
const fn signed(number: i64) -> f64 {
    number as f64
}
