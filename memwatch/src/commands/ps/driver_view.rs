//! Output of `memwatch ps` without permission to trace: NVML's values for each GPU and each process
//! on it.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use memwatch_core::input::{DeviceFacts, DeviceReading, NvmlState};

use super::args::Ps;
use crate::backends::backend;
use crate::exit::{Exit, ExitFailure};
use crate::options::CommonArgs;
use crate::render::format::{UNKNOWN, bytes, known, printable};
use crate::render::output::unless_closed;
use crate::render::text::grid::{Align, TextGrid};
use crate::sources::procfs::ProcReader;

/// Directory that exists if the driver is loaded.
const DRIVER: &str = "/proc/driver/nvidia";

/// Prints NVML's table, with exit code 0; without NVML, fails with the reason why tracing failed.
///
/// # Errors
/// NVML does not answer, or the report cannot be written.
pub(super) fn report(args: &Ps, common: &CommonArgs, failure: ExitFailure) -> Result<Exit, ExitFailure> {
    let reading = match backend().reading(common.nvml_lib.as_deref()) {
        Ok(reading) => reading,
        // The machine may have a driver that this container does not show, so both advice rows are
        // given.
        Err(_) if is_without_driver(common) => {
            let advice = format!("{}\n{}", no_driver(), crate::exit::permission_advice());
            return Err(failure.advise(advice));
        }
        Err(why) => return Err(failure.advise(format!("{why}\n{}", crate::exit::permission_advice()))),
    };
    if let NvmlState::Unavailable(why) = &reading.state {
        return Err(failure.advise(format!("NVML: {why}\n{}", crate::exit::permission_advice())));
    }
    let wanted = |tgid: u32| {
        let selected = &args.targets.selected.tgids;
        selected.is_empty() || selected.iter().any(|one| one.0 == tgid)
    };
    let text = table(&reading, &mut ProcReader::new("/proc"), wanted);
    unless_closed(io::stdout().lock().write_all(text.as_bytes()))?;
    Ok(Exit::Ok)
}

/// First line of a report with NVML's values only.
const TITLE: &str = "Driver view only (NVML). Allocation tracing needs root: sudo memwatch ps\n";

fn table(reading: &DeviceReading, processes: &mut ProcReader, wanted: impl Fn(u32) -> bool) -> String {
    let mut text = TITLE.to_owned();
    let mut grid = TextGrid::new(&[
        ("PID", Align::Right),
        ("USER", Align::Left),
        ("GPU", Align::Right),
        ("USED", Align::Right),
        ("COMMAND", Align::Left),
    ]);
    let mut any = false;
    for DeviceFacts { nvml_index, name, used_bytes, total_bytes, processes: uses, .. } in &reading.devices {
        let (used, total) = (known(*used_bytes, bytes), known(*total_bytes, bytes));
        writeln!(text, "GPU {nvml_index}  {}  used {used} of {total}", printable(name))
            .expect("a String takes any text");
        for entry in uses.iter().flatten().filter(|entry| wanted(entry.tgid.0)) {
            any = true;
            let facts = processes.facts(entry.tgid.0, false);
            let owner = facts.as_ref().and_then(|facts| facts.user.clone());
            let command = facts.map(|facts| if facts.command.is_empty() { facts.comm } else { facts.command });
            grid.push(vec![
                entry.tgid.0.to_string(),
                known(owner, |owner| printable(&owner).into_owned()),
                nvml_index.to_string(),
                known(entry.used_bytes, bytes),
                command.map_or_else(|| UNKNOWN.to_owned(), |command| printable(&command).into_owned()),
            ]);
        }
    }
    if any {
        text.push_str(&grid.lines(None, "").join("\n"));
        text.push('\n');
    } else {
        text.push_str("No process with GPU memory.\n");
    }
    text
}

/// Whether this machine has no driver, and no driver file is given on the command line.
pub(super) fn is_without_driver(common: &CommonArgs) -> bool {
    common.nvml_lib.is_none() && common.libcuda.is_empty() && !Path::new(DRIVER).exists()
}

fn no_driver() -> String {
    format!("No NVIDIA driver on this machine ({DRIVER} is missing).")
}

/// Makes the error for a machine without a driver.
pub(super) fn without_gpu() -> ExitFailure {
    ExitFailure::new(Exit::Unsupported, no_driver()).advise(
        "This machine has an NVIDIA GPU: install its driver, then check with nvidia-smi.\n\
         It has none: read a recording from another machine: memwatch ps --in FILE\n\
         Check what works here: memwatch doctor",
    )
}
