//! Log of a PyTorch program's memory with one line per change of module or phase, in one file per
//! process.
//!
//! ```text
//! step  module                   stage    allocated  cached    max_allocated  max_cached  time
//! 12    Net layers.0.fc1 Linear  forward  1204224    20971520  9437184        20971520    2026-11-21T18:50:26.940865Z
//! ```
//! Columns are separated by tabs. Numbers are bytes without separators. `max_…` are maxima since
//! the attach. A module without a name is `-`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use memwatch_core::state::tensors::{TensorLog, TensorLogLine};
use memwatch_core::words::Tgid;

use crate::output_file;
use crate::render::format::printable;
use crate::render::wall_clock::WallClock;

/// Placeholders in the file name: the process's rank within its job, and its process id.
const RANK: &str = "{rank}";
const TGID: &str = "{pid}";
const HEADER: &str = "step\tmodule\tstage\tallocated\tcached\tmax_allocated\tmax_cached\ttime\n";

/// Logs of a session.
pub(crate) struct MemTrace {
    pattern: PathBuf,
    files: BTreeMap<Tgid, BufWriter<File>>,
}

impl MemTrace {
    /// Creates an empty set of logs. A file is created with the first line of its process.
    pub(crate) fn new(pattern: &Path) -> Self {
        Self { pattern: pattern.to_owned(), files: BTreeMap::new() }
    }

    /// Writes the new lines of a process.
    ///
    /// # Errors
    /// If the file cannot be written, or already exists.
    pub(crate) fn write(&mut self, log: &TensorLog, clock: &WallClock) -> io::Result<()> {
        if !self.files.contains_key(&log.tgid) {
            let path = self.path(log);
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            let mut file = BufWriter::new(output_file::create(&path, false).map_err(named)?);
            file.write_all(HEADER.as_bytes())?;
            self.files.insert(log.tgid, file);
        }
        let Some(file) = self.files.get_mut(&log.tgid) else { return Ok(()) };
        if log.missing > 0 {
            writeln!(file, "# {} lines are missing here", log.missing)?;
        }
        for line in &log.lines {
            write_line(file, line, clock)?;
        }
        file.flush()
    }

    /// Returns the path for a process. A process without a rank is distinguished by its process id.
    fn path(&self, log: &TensorLog) -> PathBuf {
        let tgid = log.tgid.0.to_string();
        let rank = log.rank.map_or_else(|| format!("pid{tgid}"), |rank| rank.to_string());
        let pattern = self.pattern.to_string_lossy();
        PathBuf::from(pattern.replace(RANK, &rank).replace(TGID, &tgid))
    }
}

fn write_line(file: &mut impl io::Write, named: &TensorLogLine, clock: &WallClock) -> io::Result<()> {
    let line = &named.line;
    let again = if line.recomputed { " (recomputed)" } else { "" };
    writeln!(
        file,
        "{}\t{}\t{}{again}\t{}\t{}\t{}\t{}\t{}",
        line.step,
        printable(named.module.name.as_deref().unwrap_or("-")),
        named.phase,
        line.allocated_bytes,
        line.cached_bytes,
        line.max_allocated_bytes,
        line.max_cached_bytes,
        clock.rfc3339(line.time_ns),
    )
}
