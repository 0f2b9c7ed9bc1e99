//! Text output of `memwatch explain`.

use std::io;

use memwatch_core::kernel_driver::decode::Lies;
use memwatch_core::snapshot::{Explained, ExplainedUse, GpuView, ProcessView, RefusedView, Snapshot};

use super::ExplainShown;
use super::balance::{self, ProcessBalance};
use super::words;
use crate::render::Tone;
use crate::render::causes;
use crate::render::explained::{called, refused};
use crate::render::format::{UNKNOWN, bytes, count, known, percent, plural, printable};
use crate::render::kv_cache;
use crate::render::sentences::{self, Sentence};
use crate::render::text::grid::{Align, TextGrid};
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;
use crate::watch::kv_caches::KvCaches;

/// Maximum number of refused requests listed.
const LISTED: usize = 5;
const COLUMNS: [(&str, Align); 6] = [
    ("BYTES", Align::Right),
    ("%", Align::Right),
    ("OBJECTS", Align::Right),
    ("PART", Align::Left),
    ("CALLED", Align::Left),
    ("SURE", Align::Left),
];

/// Writes the purposes of each process's used memory: by part, or by role with balance sheets.
///
/// # Errors
/// The error of `out`.
pub(super) fn write(
    out: &mut impl io::Write,
    shown: ExplainShown<'_>,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    let plain = |text: &str| Sentence::new(Tone::Plain, text);
    let ExplainShown { snapshot, kv_caches, .. } = shown;
    let explained = snapshot.processes.iter().filter_map(|process| Some((process, process.explained.as_deref()?)));
    for (process, explained) in explained {
        write_process(&mut page, (snapshot, clock), (process, shown.balance_of(process)), explained);
        write_kv_cache(&mut page, kv_caches, process);
    }
    for process in snapshot.processes.iter().filter(|process| process.explained.is_none()) {
        page.line(&heading(process, snapshot, clock));
        match shown.balance_of(process) {
            Some(own) => balance::write(&mut page, own, snapshot, process),
            None => words::unseen(snapshot, process).iter().for_each(|sentence| page.line(&plain(sentence))),
        }
        write_kv_cache(&mut page, kv_caches, process);
        write_left_behind(&mut page, snapshot, process);
    }
    for line in &causes::lines(&kv_caches.causes()) {
        page.line(line);
    }
    if snapshot.processes.is_empty() {
        page.line(&plain("No process with GPU memory."));
    }
    for gpu in &snapshot.gpus {
        write_gpu(&mut page, gpu);
    }
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

fn heading(process: &ProcessView, snapshot: &Snapshot, clock: &WallClock) -> Sentence {
    let ended =
        process.ended_ns.map(|ended| format!("  ended at {}: what it had last", clock.moment(ended, snapshot.time_ns)));
    let text = format!("PID {}  {}{}", process.tgid.0, printable(&process.command), ended.unwrap_or_default());
    Sentence::new(Tone::Heading, text)
}

fn write_process(
    page: &mut TextPage,
    (snapshot, clock): (&Snapshot, &WallClock),
    (process, own): (&ProcessView, Option<&ProcessBalance>),
    explained: &Explained,
) {
    page.line(&heading(process, snapshot, clock));
    write_left_behind(page, snapshot, process);
    if let Some(own) = own {
        balance::write(page, own, snapshot, process);
    }
    for own in explained.gpus.iter().filter(|_| own.is_none()) {
        let place = own.uuid.as_ref().and_then(|uuid| snapshot.gpus.iter().find(|gpu| gpu.uuid == *uuid));
        write_use(page, (process, explained), own, &place.map_or_else(|| UNKNOWN.to_owned(), sentences::place));
    }
    let host = explained.host;
    if host.driver_bytes + host.pinned_bytes > 0 {
        let resident = host.resident_bytes.map(|resident| format!(" of {}", bytes(resident))).unwrap_or_default();
        let text = format!(
            "host memory: the driver's own {}, pinned {} (part of its resident set{resident})",
            bytes(host.driver_bytes),
            bytes(host.pinned_bytes)
        );
        page.line(&Sentence::new(Tone::Plain, text));
    }
    if explained.imported > 0 {
        let text =
            format!("{} of other processes: no bytes of its own", plural(explained.imported, "object", "objects"));
        page.line(&Sentence::new(Tone::Plain, text));
    }
    write_refused(page, (snapshot, clock), explained);
}

/// Describes the KV cache of a process. Its bytes are in the parts above already.
fn write_kv_cache(page: &mut TextPage, kv_caches: &KvCaches, process: &ProcessView) {
    match kv_caches.get(process.tgid) {
        Some(Ok(pool)) => {
            page.line(&Sentence::new(Tone::Plain, kv_cache::pool(pool, process.tgid)));
            if let Some(requests) = kv_cache::requests(pool) {
                page.line(&Sentence::new(Tone::Faint, requests));
            }
        }
        Some(Err(why)) => page.line(&Sentence::new(Tone::Plain, kv_cache::unknown(why))),
        None => {}
    }
}

/// Writes memory that a process left behind after its exit.
fn write_left_behind(page: &mut TextPage, snapshot: &Snapshot, process: &ProcessView) {
    for text in sentences::left_behind::remarks(snapshot, process) {
        page.line(&Sentence::new(Tone::Warning, text));
    }
}

/// Formats the bytes of the columns, with their names.
fn columns(own: &ExplainedUse) -> String {
    let all = own.columns;
    let named = [
        (all.requested_bytes, "requested by the program"),
        (all.slack_bytes, "free in what was granted"),
        (all.rounding_bytes, "rounding"),
        (all.unplaced_bytes, "granted for unidentified requests"),
        (all.driver_bytes, "the driver's own"),
    ];
    let parts = named.into_iter().filter(|(amount, _)| *amount > 0);
    parts.map(|(amount, name)| format!("{name} {}", bytes(amount))).collect::<Vec<_>>().join(" · ")
}

fn write_use(page: &mut TextPage, (process, explained): (&ProcessView, &Explained), own: &ExplainedUse, place: &str) {
    let doubt = words::doubt(own, process.from_start, explained.version.as_deref());
    if let Some(doubt) = doubt {
        let used = known(own.used_bytes, bytes);
        page.line(&Sentence::new(Tone::Warning, format!("GPU {place}  used {used}: {doubt}")));
        return;
    }
    let sum = words::sum(own).unwrap_or_default();
    page.line(&Sentence::new(Tone::Plain, format!("GPU {place}  {sum}")));
    let mut grid = TextGrid::new(&COLUMNS);
    for part in &own.parts {
        grid.push(vec![
            bytes(part.bytes),
            percent(part.bytes, own.used_bytes.unwrap_or(own.live_bytes)),
            count(part.objects),
            words::part(part),
            called(part.function.as_deref(), part.owner.as_deref()),
            words::sure(part.sure).to_owned(),
        ]);
    }
    page.grid(&grid);
    if !own.parts.is_empty() {
        page.line(&Sentence::new(Tone::Faint, columns(own)));
    }
    for advice in words::advice(own) {
        page.line(&Sentence::new(Tone::Plain, advice));
    }
}

fn write_refused(page: &mut TextPage, (snapshot, clock): (&Snapshot, &WallClock), explained: &Explained) {
    let line = |one: &RefusedView| {
        let (asked, called) = refused(one);
        let gpu = one.uuid.as_ref().filter(|_| one.lies == Lies::Video);
        let gpu = gpu.map(|gpu| format!(" on GPU {}", sentences::gpu_number(snapshot, Some(gpu)))).unwrap_or_default();
        let moment = clock.moment(one.time_ns, snapshot.time_ns);
        Sentence::new(Tone::Bad, format!("refused: {asked}{gpu} in {called} at {moment}"))
    };
    for one in explained.refused.iter().rev().take(LISTED) {
        page.line(&line(one));
    }
    let shown = u64::try_from(explained.refused.len().min(LISTED)).unwrap_or(u64::MAX);
    if explained.refused_count > shown {
        page.line(&Sentence::new(Tone::Faint, format!("refused in all: {}", count(explained.refused_count))));
    }
}

fn write_gpu(page: &mut TextPage, gpu: &GpuView) {
    let Some(remainder) = gpu.remainder.filter(|remainder| remainder.bytes != 0) else { return };
    let text = format!(
        "GPU {} in all: used {}; {}",
        sentences::place(gpu),
        known(gpu.used_bytes, bytes),
        words::uncharged(&remainder)
    );
    page.line(&Sentence::new(Tone::Faint, text));
}
