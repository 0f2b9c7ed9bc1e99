//! Text output of `memwatch stats`, in the order of PyTorch's own `memory_summary()`.

mod arenas;
mod buffers;
mod pools;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use memwatch_core::allocators::pytorch::Certainty;
use memwatch_core::input::ProbeCoverage;
use memwatch_core::snapshot::{AllocatorView, BuffersView, PoolsView, ProcessView, Snapshot, StatisticView};
use memwatch_core::words::Framework;

use crate::render::Tone;
use crate::render::format::{UNKNOWN, bytes, count, known, percent, plural};
use crate::render::sentences::{self, Sentence};
use crate::render::text::grid::{Align, TextGrid};
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

/// Rows: title, PyTorch's key, and whether the value is in bytes.
const ROWS: [(&str, &str, bool); 9] = [
    ("Allocated memory", "allocated_bytes", true),
    ("Active memory", "active_bytes", true),
    ("Requested memory", "requested_bytes", true),
    ("GPU reserved memory", "reserved_bytes", true),
    ("Non-releasable memory", "inactive_split_bytes", true),
    ("Allocations", "allocation", false),
    ("Active allocs", "active", false),
    ("GPU reserved segments", "segment", false),
    ("Non-releasable allocs", "inactive_split", false),
];
/// Suffixes of a row's keys, with their titles.
const SCOPES: [(&str, &str); 3] =
    [("", ".all"), ("  from large pool", ".large_pool"), ("  from small pool", ".small_pool")];
const OVERSIZE: [(&str, &str); 2] =
    [("Oversize allocations", "oversize_allocations"), ("Oversize GPU segments", "oversize_segments")];
const SIDES: [(&str, &str); 4] =
    [("CURRENT", "current"), ("PEAK", "peak"), ("TOTAL ALLOCATED", "allocated"), ("TOTAL FREED", "freed")];
/// Mark before a derived number.
const DERIVED: &str = "~";

/// Writes every number of the caching allocators of each process with traced tensors.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    snapshot: &Snapshot,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    let mut any = false;
    for process in &snapshot.processes {
        for allocator in process.tensors.iter().flat_map(|tensors| &tensors.allocators) {
            any = true;
            page.line(&Sentence::new(Tone::Heading, heading(snapshot, process, allocator)));
            page.allocator(snapshot, allocator, clock);
        }
        for arena in process.tensors.iter().flat_map(|tensors| &tensors.arenas) {
            any = true;
            page.line(&Sentence::new(Tone::Heading, arenas::heading(snapshot, process, arena)));
            page.grid(&arenas::numbers(arena));
            for doubt in arenas::doubts(arena) {
                page.line(&Sentence::new(Tone::Warning, doubt));
            }
        }
        if let Some(view) = process.tensors.as_ref().and_then(|tensors| tensors.buffers.as_ref()) {
            any = true;
            page.buffers(snapshot, process, view);
        }
        if let Some(view) = process.tensors.as_ref().and_then(|tensors| tensors.pools.as_ref()) {
            any = true;
            page.pools(snapshot, process, view);
        }
        if let Some(why) = process.tensors.as_ref().and_then(|tensors| tensors.allocator_state_refused.as_ref()) {
            let text = format!("PID {}: what it held before the attach is not known: {why}", process.tgid.0);
            page.line(&Sentence::new(Tone::Warning, text));
        }
        for (name, lost) in process.tensors.iter().flat_map(|tensors| &tensors.losses) {
            let text = format!("PID {}: lost {} ({})", process.tgid.0, count(*lost), name.replace('_', " "));
            page.line(&Sentence::new(Tone::Warning, text));
        }
    }
    if !any {
        page.line(&Sentence::new(Tone::Plain, none()));
    }
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

/// Returns the sentence for no allocator in any process: `No allocator of PyTorch, … or CuPy found.`
fn none() -> String {
    let [first @ .., last] = Framework::ALL.map(Framework::product);
    format!("No allocator of {} or {last} found.", first.join(", "))
}

fn heading(snapshot: &Snapshot, process: &ProcessView, allocator: &AllocatorView) -> String {
    format!(
        "PID {}  {}  GPU {}  allocated {}  reserved {}  cached {}",
        process.tgid.0,
        sentences::short_command(process),
        sentences::gpu_number(snapshot, allocator.uuid.as_ref()),
        known(allocator.allocated_bytes, bytes),
        known(allocator.reserved_bytes, bytes),
        known(allocator.cached_bytes, bytes),
    )
}

impl TextPage {
    fn buffers(&mut self, snapshot: &Snapshot, process: &ProcessView, view: &BuffersView) {
        if view.devices.is_empty() {
            self.line(&Sentence::new(Tone::Heading, buffers::heading(snapshot, process, view.framework, None)));
        }
        for device in &view.devices {
            self.line(&Sentence::new(Tone::Heading, buffers::heading(snapshot, process, view.framework, Some(device))));
            self.grid(&buffers::numbers(device));
            if let Some(made) = buffers::made(device) {
                self.line(&Sentence::new(Tone::Plain, made));
            }
            if let Some(tensors) = buffers::tensors(device) {
                self.grid(&tensors);
            }
            if let Some(more) = buffers::more_tensors(device) {
                self.line(&Sentence::new(Tone::Plain, more));
            }
        }
        for doubt in buffers::doubts(view) {
            self.line(&Sentence::new(Tone::Warning, doubt));
        }
    }

    fn pools(&mut self, snapshot: &Snapshot, process: &ProcessView, view: &PoolsView) {
        let has_any = |framework| view.pools.iter().any(|pool| pool.framework == framework);
        for framework in view.frameworks.iter().copied().filter(|framework| !has_any(*framework)) {
            self.line(&Sentence::new(Tone::Heading, pools::heading_of_none(process, framework)));
        }
        for pool in &view.pools {
            self.line(&Sentence::new(Tone::Heading, pools::heading(snapshot, process, pool)));
            self.grid(&pools::numbers(pool));
            for doubt in pools::doubts(pool) {
                self.line(&Sentence::new(Tone::Warning, doubt));
            }
        }
    }

    fn allocator(&mut self, snapshot: &Snapshot, allocator: &AllocatorView, clock: &WallClock) {
        self.line(&Sentence::new(Tone::Plain, waste(allocator)));
        self.line(&Sentence::new(Tone::Plain, cache(allocator, snapshot)));
        self.grid(&numbers(allocator));
        self.line(&Sentence::new(Tone::Plain, counters(allocator)));
        self.legend(allocator);
        let base = match (&*allocator.counted_from, allocator.readout_ns) {
            ("start", _) => "counted from the allocator's start".to_owned(),
            (_, Some(read_ns)) => {
                let moment = clock.moment(read_ns, snapshot.time_ns);
                format!("counted from the allocator's own numbers, read at {moment}")
            }
            _ => "the program started before attach: its own counters are read at its next allocation".to_owned(),
        };
        self.line(&Sentence::new(Tone::Faint, base));
        if let Some(begun_ns) = allocator.peaks_begun_ns {
            let since = clock.moment(begun_ns, snapshot.time_ns);
            let text = format!("peaks are since {since}, when they were reset here; the program's own may be higher");
            self.line(&Sentence::new(Tone::Plain, text));
        }
        if allocator.out_of_step > 0 {
            let times = plural(allocator.out_of_step, "time", "times");
            let text = format!("out of step with the allocator {times}: its own numbers were taken then");
            self.line(&Sentence::new(Tone::Warning, text));
        }
    }

    /// Explains the marks, with one line for each reason.
    fn legend(&mut self, allocator: &AllocatorView) {
        let mut reasons: BTreeMap<(Certainty, &str), BTreeSet<&str>> = BTreeMap::new();
        for (key, view) in &allocator.statistics {
            if let Some(reason) = &view.reason {
                let family = key.split('.').next().unwrap_or(key);
                reasons.entry((view.certainty, reason)).or_default().insert(family);
            }
        }
        for ((certainty, reason), families) in reasons {
            let mark = if certainty == Certainty::Derived { DERIVED } else { UNKNOWN };
            let whose = if families.len() > 4 {
                plural(families.len() as u64, "number", "numbers")
            } else {
                families.into_iter().collect::<Vec<_>>().join(", ")
            };
            self.line(&Sentence::new(Tone::Warning, format!("{mark} {whose}: {}", why(reason))));
        }
    }
}

fn waste(allocator: &AllocatorView) -> String {
    format!(
        "waste {}: rounding {}, free but not releasable {}; pre-existing {}",
        known(allocator.waste_bytes, bytes),
        known(allocator.rounding_bytes, bytes),
        known(allocator.inactive_split_bytes, bytes),
        known(allocator.preexisting_bytes, bytes),
    )
}

fn cache(allocator: &AllocatorView, snapshot: &Snapshot) -> String {
    let all = allocator.cache_hits + allocator.cache_misses;
    let is_only_read = snapshot.coverage.mechanism == ProbeCoverage::NOTHING;
    if is_only_read || &*allocator.observed_by == "numbers" {
        return "cache hits are not known: no event is traced".to_owned();
    }
    if all == 0 {
        return "no allocation since attach".to_owned();
    }
    // A few misses among many hits must not be rounded away.
    let share = percent(allocator.cache_hits, all);
    let share = if allocator.cache_misses > 0 && share == percent(1, 1) { "over 99.9 %".to_owned() } else { share };
    format!(
        "cache hits {share}: {} of {} since attach",
        count(allocator.cache_hits),
        plural(all, "allocation", "allocations"),
    )
}

fn numbers(allocator: &AllocatorView) -> TextGrid {
    let columns: Vec<_> = SIDES.iter().map(|(title, _)| (*title, Align::Right)).collect();
    let mut grid = TextGrid::new(&[&[("METRIC", Align::Left)], columns.as_slice()].concat());
    let mut push = |title: String, key: &str, is_bytes| {
        let cell = |(_, side): &(&str, &str)| number(allocator, &format!("{key}.{side}"), is_bytes);
        grid.push([title].into_iter().chain(SIDES.iter().map(cell)).collect());
    };
    for (title, key, is_bytes) in ROWS {
        for (scope_title, scope) in SCOPES {
            let title = if scope_title.is_empty() { title } else { scope_title };
            push(title.to_owned(), &format!("{key}{scope}"), is_bytes);
        }
    }
    for (title, key) in OVERSIZE {
        push(title.to_owned(), key, false);
    }
    let pools: BTreeSet<&str> = allocator.statistics.keys().filter_map(|key| private_pool(key)).collect();
    for pool in pools {
        push(format!("Private pool {pool}"), &format!("{PRIVATE}{pool}.all"), true);
    }
    grid
}

/// Prefix of the keys of private pools.
const PRIVATE: &str = "reserved_bytes_by_private_pools.";

fn private_pool(key: &str) -> Option<&str> {
    key.strip_prefix(PRIVATE)?.split('.').next()
}

/// Formats `1.00 GiB`, `~1.00 GiB` if derived, `-` if unknown.
fn number(allocator: &AllocatorView, key: &str, is_bytes: bool) -> String {
    let Some(StatisticView { value: Some(value), certainty, .. }) = allocator.statistics.get(key) else {
        return UNKNOWN.to_owned();
    };
    let mark = if *certainty == Certainty::Derived { DERIVED } else { "" };
    let sign = if *value < 0 { "-" } else { "" };
    let size = value.unsigned_abs();
    format!("{mark}{sign}{}", if is_bytes { bytes(size) } else { count(size) })
}

fn counters(allocator: &AllocatorView) -> String {
    let named = [
        ("out of memory", "num_ooms"),
        ("cudaMalloc retries", "num_alloc_retries"),
        ("waits for all streams", "num_sync_all_streams"),
        ("driver allocations", "num_device_alloc"),
        ("driver frees", "num_device_free"),
        ("refused in advance", "num_oom_rejections"),
    ];
    let counted = named.into_iter().filter(|(_, key)| allocator.statistics.contains_key(*key));
    let mut parts: Vec<_> = counted.map(|(title, key)| format!("{title} {}", number(allocator, key, false))).collect();
    if let Some(limit) = allocator.statistic("max_split_size") {
        let limit =
            u64::try_from(limit).map_or_else(|_| "of any size".to_owned(), |limit| format!("below {}", bytes(limit)));
        parts.push(format!("blocks {limit} are split"));
    }
    parts.join(", ")
}

/// Describes why a number is not exact.
fn why(reason: &str) -> &str {
    match reason {
        "not_read_yet" => "the program started before attach, and its own counters have not been read yet",
        "events_lost" => "events were lost; its own numbers are read with its next allocation",
        "out_of_step" => "an event was inconsistent; its own numbers are read with its next allocation",
        "older_neighbours" => "the neighbours of pre-existing memory are not known",
        "older_blocks" => "the sizes of pre-existing blocks are not all known",
        "older_pools" => "pre-existing private pools, or those after dropped events, are not known",
        "older_segments" => "the pools of pre-existing segments are not all known",
        "rounded_only" => "this build shows rounded sizes only",
        "streams_unseen" => "this build does not show whether a stream still uses what was freed",
        "segments_unseen" => "this build does not show how many segments were given back",
        "calls_unseen" => "this build shows the driver's calls, of which the allocator counts several as one",
        "as_read" => "this build does not show it: as it was when its own numbers were read",
        "peaks_missed" => "not everything was followed since peaks were reset here: it may have been more",
        "resets_unseen" => "this build does not show when the program resets its peaks and totals",
        _ => "this build does not show it",
    }
}

#[cfg(test)]
mod tests;
