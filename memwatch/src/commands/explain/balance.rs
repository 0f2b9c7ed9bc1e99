//! `memwatch explain --by role`: the balance sheet of each process and GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memwatch_core::features::balance::{AllocatorSum, BalanceInput, BalanceView, Role, RoleView, balance};
use memwatch_core::features::holdings::view::HoldingGrouping;
use memwatch_core::features::holdings::{known_holdings, last_names, sum_by_name};
use memwatch_core::input::held_names::HeldGroup;
use memwatch_core::input::holdings::Holding;
use memwatch_core::snapshot::{ProcessView, Snapshot};
use memwatch_core::state::State;
use memwatch_core::words::{GpuUuid, Tgid};

use super::words;
use crate::commands::stats::read_only;
use crate::frameworks::pytorch::{HoldingsReader, NAMES_TIME};
use crate::options::{CommonArgs, Selected};
use crate::render::Tone;
use crate::render::explained::name_of;
use crate::render::format::{bytes, count, duration, percent, printable, signed_bytes};
use crate::render::sentences::{self, Sentence};
use crate::render::text::TextPage;
use crate::render::text::grid::{Align, TextGrid};

const COLUMNS: [(&str, Align); 5] = [
    ("BYTES", Align::Right),
    ("%", Align::Right),
    ("BLOCKS", Align::Right),
    ("ROLE", Align::Left),
    ("LARGEST", Align::Left),
];

/// Time in which the names of all processes are read, begun readings excepted.
const LONGEST_READING: Duration = Duration::from_secs(10);

/// Balance sheets of one process.
pub(super) struct ProcessBalance {
    pub(super) sheets: Vec<BalanceView>,
    /// Reason why blocks have no names; `None` if they were read.
    pub(super) without_names: Option<String>,
    /// Time at which a recording's names were read: `CLOCK_BOOTTIME`, nanoseconds. `None` if there are
    /// none, and if they were read for this report.
    pub(super) read_ns: Option<u64>,
}

/// What was read of the framework's allocators of a process.
#[derive(Default)]
struct ReadBlocks {
    process: Option<ProcessView>,
    rows: Vec<Holding>,
    without_names: Option<String>,
}

/// Balance sheets by process; the key has the start of the observation, since numbers are reused.
pub(super) type Balances = BTreeMap<(Tgid, u64), ProcessBalance>;

/// Returns the balance sheets of running processes. Reads the names of their tensors first, and the
/// allocators' counters and the charge last, at one moment.
pub(super) async fn of_running(snapshot: &Snapshot, common: &CommonArgs) -> Balances {
    let mut balances = Balances::new();
    let deadline = Instant::now() + LONGEST_READING;
    for process in snapshot.processes.iter().filter(|process| process.ended_ns.is_none()) {
        let read = if process.gpus.is_empty() {
            ReadBlocks::default()
        } else if Instant::now() < deadline {
            read(process.tgid, common).await
        } else {
            let why = "the time for reading all processes was over: name this one";
            ReadBlocks { without_names: Some(why.to_owned()), ..ReadBlocks::default() }
        };
        let groups = sum_by_name(&read.rows.iter().collect::<Vec<_>>(), usize::MAX);
        let counted = read.process.as_ref().unwrap_or(process);
        let sheets = sheets(process, counted, &groups);
        balances.insert(
            (process.tgid, process.observed_since_ns),
            ProcessBalance { sheets, without_names: read.without_names, read_ns: None },
        );
    }
    balances
}

/// Returns the balance sheets at the end of a recording, with the names of its last readings.
pub(super) fn of_recording(snapshot: &Snapshot, state: &State) -> Balances {
    let known = known_holdings(state, HoldingGrouping::Class, usize::MAX);
    let of = |process: &ProcessView| {
        let key = (process.tgid, process.observed_since_ns);
        let own = known.iter().find(|known| (known.tgid, known.observed_since_ns) == key);
        let whole = own.map(|own| (own.view.read_ns, sum_by_name(&own.rows, usize::MAX)));
        // The agent's history has no blocks, but their sums.
        let sums = || last_names(state, key).map(|read| (read.time_ns, read.groups.clone()));
        let (read_ns, groups) = whole.or_else(sums).unzip();
        let without_names = groups.is_none().then(|| "the recording has none".to_owned());
        let sheets = sheets(process, process, &groups.unwrap_or_default());
        (key, ProcessBalance { sheets, without_names, read_ns })
    };
    snapshot.processes.iter().map(of).collect()
}

async fn read(tgid: Tgid, common: &CommonArgs) -> ReadBlocks {
    let holdings = match HoldingsReader::open(tgid.0, NAMES_TIME) {
        Ok(Some(mut reader)) => reader.read_patiently().map(|(holdings, _)| holdings),
        Ok(None) => return ReadBlocks::default(),
        Err(error) => Err(error),
    };
    // Counters and charge are read last, so that both are of one moment.
    let counted = read_only::snapshot(&Selected::of(&[tgid]), common).await;
    let process = counted.and_then(|counted| counted.processes.into_iter().find(|process| process.tgid == tgid));
    match holdings {
        Ok(holdings) => ReadBlocks { process, without_names: holdings.without_names, rows: holdings.rows },
        Err(error) => ReadBlocks { process, rows: Vec::new(), without_names: Some(error.to_string()) },
    }
}

/// Returns a sheet for each GPU of a process. `counted` has its allocators' counters and, from the
/// same moment, its charges.
fn sheets(process: &ProcessView, counted: &ProcessView, groups: &[HeldGroup]) -> Vec<BalanceView> {
    let allocators = || counted.tensors.iter().flat_map(|tensors| &tensors.allocators);
    let uuids: BTreeSet<Option<&GpuUuid>> = process.gpus.iter().map(|gpu| gpu.uuid.as_ref()).collect();
    let sheet = |uuid: Option<&GpuUuid>| {
        let own = || allocators().filter(|allocator| allocator.uuid.as_ref() == uuid);
        let ordinals: BTreeSet<i32> = own().map(|allocator| allocator.device).collect();
        let sum = own().filter_map(|allocator| allocator.allocated_bytes.zip(allocator.reserved_bytes));
        let sum = sum.fold(None, |sum: Option<AllocatorSum>, (allocated, reserved)| {
            let sum = sum.unwrap_or_default();
            Some(AllocatorSum {
                allocated_bytes: sum.allocated_bytes.saturating_add(allocated),
                reserved_bytes: sum.reserved_bytes.saturating_add(reserved),
            })
        });
        let groups: Vec<HeldGroup> =
            groups.iter().filter(|group| ordinals.contains(&group.ordinal.0)).cloned().collect();
        let gpu = process.gpus.iter().find(|gpu| gpu.uuid.as_ref() == uuid);
        // Counters that were read apart are of the moment of their charge, and of another one than the calls.
        let is_apart = !std::ptr::eq(process, counted);
        let is_as_new = own().all(|allocator| allocator.is_as_new_as(process.driver_changed_ns));
        let is_from_start = process.from_start && process.exact && !is_apart && is_as_new;
        let called = gpu.filter(|gpu| is_from_start && gpu.preexisting_bytes == Some(0)).map(|gpu| gpu.live_bytes);
        let charge = counted.gpus.iter().find(|gpu| gpu.uuid.as_ref() == uuid).and_then(|gpu| gpu.used_bytes);
        balance(&BalanceInput {
            tgid: process.tgid,
            uuid,
            used_bytes: charge,
            allocator: sum,
            is_one_moment: is_apart || is_as_new,
            called_bytes: called,
            groups: &groups,
            explained: process.explained_on(uuid),
        })
    };
    uuids.into_iter().map(sheet).filter(|sheet| !sheet.roles.is_empty()).collect()
}

/// Writes the balance sheets of a process.
pub(super) fn write(page: &mut TextPage, own: &ProcessBalance, snapshot: &Snapshot, process: &ProcessView) {
    for sheet in &own.sheets {
        let number = sentences::gpu_number(snapshot, sheet.uuid.as_ref());
        let used = match (sheet.used_bytes, process.ended_ns) {
            (Some(used), _) => format!("used {} by NVML, the sum of these rows", bytes(used)),
            (None, Some(_)) => "what its allocator had last".to_owned(),
            (None, None) => "NVML does not say what it uses".to_owned(),
        };
        page.line(&Sentence::new(Tone::Plain, format!("GPU {number}  {used}")));
        let mut grid = TextGrid::new(&COLUMNS);
        let whole = sheet.used_bytes.unwrap_or_else(|| sheet.roles.iter().filter_map(positive).sum());
        for row in &sheet.roles {
            let amount = positive(row).map_or_else(|| signed_bytes(row.bytes), bytes);
            let share = positive(row).map_or_else(String::new, |bytes| percent(bytes, whole));
            let what = what(row, own.without_names.as_deref());
            grid.push(vec![amount, share, row.count.map(count).unwrap_or_default(), name(row), what]);
        }
        page.grid(&grid);
        if let Some(read_ns) = own.read_ns {
            let age = duration(process.ended_ns.unwrap_or(snapshot.time_ns).saturating_sub(read_ns));
            page.line(&Sentence::new(Tone::Faint, format!("names: read {age} before this moment")));
        }
        if let Some(why) = not_apart(sheet, process) {
            page.line(&Sentence::new(Tone::Faint, why));
        }
    }
}

fn positive(row: &RoleView) -> Option<u64> {
    u64::try_from(row.bytes).ok()
}

fn name(row: &RoleView) -> String {
    row.part.map_or_else(|| row.role.label().to_owned(), |part| name_of(part, row.owner.as_deref()))
}

/// Returns the largest group of a row's blocks, or where its bytes are told apart.
fn what(row: &RoleView, without_names: Option<&str>) -> String {
    match (row.role, without_names) {
        (Role::Cached, _) => "memwatch fragment shows where it lies".to_owned(),
        (Role::NotRead, Some(why)) => why.to_owned(),
        _ => {
            let parts = row.dtype.iter().chain(&row.largest);
            parts.map(|part| printable(part).into_owned()).collect::<Vec<_>>().join(", ")
        }
    }
}

/// Returns why a remainder is one row.
fn not_apart(sheet: &BalanceView, process: &ProcessView) -> Option<String> {
    let rest = sheet.roles.iter().find(|row| matches!(row.role, Role::ContextAndLibraries | Role::NotAttributed))?;
    let label = rest.role.label();
    if !sheet.is_one_moment {
        return Some(format!(
            "{label}: PyTorch's counters are older than the driver's last calls, so that its own part is unknown"
        ));
    }
    if !process.from_start {
        return Some(format!(
            "{label}: one row, because memwatch came after the start; memwatch run, or an agent that runs before it, tells its parts apart"
        ));
    }
    let explained = process.explained.as_ref();
    let own = explained.and_then(|explained| explained.gpus.iter().find(|own| own.uuid == sheet.uuid));
    let doubt = own.and_then(|own| words::doubt(own, true, explained?.version.as_deref()));
    Some(format!("{label}: one row; {}", doubt.unwrap_or_else(|| words::UNSEEN.to_owned())))
}
