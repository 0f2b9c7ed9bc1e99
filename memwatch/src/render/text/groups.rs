//! The table of `ps --by`: one row per owner and GPU, and the memory of each GPU that is attributed
//! to no owner.

use std::io;

use memwatch_core::owner::Container;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::snapshot::groups::{GroupGpu, OwnerGroup, OwnerGrouping, UngroupedBytes, groups};

use super::grid::{Align, TextGrid};
use super::{TableOptions, TextPage, gpu_line};
use crate::render::Tone;
use crate::render::format::{UNKNOWN, bytes, count, known, printable, signed_bytes};
use crate::render::owners;
use crate::render::sentences::{self, Sentence};
use crate::render::wall_clock::WallClock;

/// Writes a snapshot by owner as text.
///
/// # Errors
/// If writing to `out` fails.
pub(crate) fn write(
    out: &mut impl io::Write,
    snapshot: &Snapshot,
    by: OwnerGrouping,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    for gpu in &snapshot.gpus {
        page.line(&Sentence::new(Tone::Heading, gpu_line(snapshot, gpu)));
    }
    let (groups, rest) = groups(snapshot, by);
    let mut grid = TextGrid::new(&[
        (title(by), Align::Left),
        ("GPU", Align::Right),
        ("PROCESSES", Align::Right),
        ("USED", Align::Right),
        ("DRIVER", Align::Right),
        ("PEAK", Align::Right),
        ("PRE-EXISTING", Align::Right),
        ("FAILED", Align::Right),
    ]);
    for group in &groups {
        let name = name(by, group);
        if group.gpus.is_empty() {
            let unknown = || UNKNOWN.to_owned();
            let processes = count(group.processes);
            grid.push(vec![name, unknown(), processes, unknown(), unknown(), unknown(), unknown(), unknown()]);
        } else {
            group.gpus.iter().for_each(|gpu| grid.push(row(snapshot, &name, gpu, options.ascii)));
        }
    }
    for UngroupedBytes { uuid, bytes } in &rest {
        let mut cells = vec!["(not attributed)".to_owned(), sentences::gpu_number(snapshot, Some(uuid))];
        cells.extend([UNKNOWN.to_owned(), known(*bytes, signed_bytes)]);
        cells.resize(8, UNKNOWN.to_owned());
        grid.push(cells);
    }
    page.grid(&grid);
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

const fn title(by: OwnerGrouping) -> &'static str {
    match by {
        OwnerGrouping::Container => "CONTAINER",
        OwnerGrouping::Pod => "POD",
        OwnerGrouping::Job => "JOB",
        OwnerGrouping::User => "USER",
        OwnerGrouping::Gpu => "ALL OF",
    }
}

/// Returns the displayed name of a group.
pub(crate) fn name(by: OwnerGrouping, group: &OwnerGroup) -> String {
    let Some(process) = group.owner else {
        return match by {
            OwnerGrouping::Container => "(no container)",
            OwnerGrouping::Pod => "(no pod)",
            OwnerGrouping::Job => "(no job)",
            OwnerGrouping::User => "(user not known)",
            OwnerGrouping::Gpu => "all processes",
        }
        .to_owned();
    };
    let owner = &process.owner;
    let text = match by {
        OwnerGrouping::Container => owner
            .pod
            .as_ref()
            .and_then(|_| owners::workload(owner))
            .or_else(|| owner.container.as_ref().map(Container::label)),
        OwnerGrouping::Pod => owner.pod.as_ref().map(owners::pod),
        OwnerGrouping::Job => owner.slurm.as_ref().map(|job| {
            let number = job.number().unwrap_or_default();
            job.name.as_ref().map_or_else(|| number.to_owned(), |name| format!("{number} {name}"))
        }),
        OwnerGrouping::User => process.user.clone().or_else(|| process.uid.map(|uid| uid.to_string())),
        OwnerGrouping::Gpu => None,
    };
    text.map_or_else(|| UNKNOWN.to_owned(), |text| printable(&text).into_owned())
}

fn row(snapshot: &Snapshot, name: &str, gpu: &GroupGpu, ascii: bool) -> Vec<String> {
    let at_most = |is_bound: bool, text: String| match (is_bound, ascii) {
        (false, _) => text,
        (true, false) => format!("≤{text}"),
        (true, true) => format!("<={text}"),
    };
    vec![
        name.to_owned(),
        sentences::gpu_number(snapshot, gpu.uuid.as_ref()),
        count(gpu.processes),
        known(gpu.used_bytes, bytes),
        bytes(gpu.live_bytes),
        at_most(gpu.processes > 1, bytes(gpu.at_most_peak_bytes)),
        known(gpu.preexisting_bytes, |before| at_most(gpu.preexisting_includes_context, bytes(before))),
        count(gpu.failed_allocations),
    ]
}
