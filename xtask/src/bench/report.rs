//! Report of the overhead measurement, and the parts of the document.

use super::watcher::WatcherMode;
use crate::document::{DocumentPart, machine};
use crate::run::first_line;
use crate::table::MarkdownTable;
use anyhow::Result;
use std::fmt::Write as _;
use std::process::Command;

/// Overhead of tracing per driver call.
pub(super) const OVERHEAD: DocumentPart = DocumentPart {
    begin: "<!-- measured: begin (cargo xtask bench overhead writes what follows) -->\n",
    end: "<!-- measured: end -->\n",
};
/// Overhead of tracing per call of each family.
pub(super) const FAMILIES: DocumentPart = DocumentPart {
    begin: "<!-- families: begin (cargo xtask bench families writes what follows) -->\n",
    end: "<!-- families: end -->\n",
};
/// Overhead of each tracing level for programs that are limited by the CPU.
pub(super) const PRICE: DocumentPart = DocumentPart {
    begin: "<!-- price: begin (cargo xtask bench price writes what follows) -->\n",
    end: "<!-- price: end -->\n",
};
/// Overhead of tracing per chunk of JAX's arena.
pub(super) const ARENAS: DocumentPart = DocumentPart {
    begin: "<!-- arenas: begin (cargo xtask bench arenas writes what follows) -->\n",
    end: "<!-- arenas: end -->\n",
};
/// Size and overhead of a recording.
pub(super) const RECORDING: DocumentPart = DocumentPart {
    begin: "<!-- recording: begin (cargo xtask bench recording writes what follows) -->\n",
    end: "<!-- recording: end -->\n",
};
/// Resource use of an idle agent.
pub(super) const AGENT: DocumentPart = DocumentPart {
    begin: "<!-- agent: begin (cargo xtask bench agent writes what follows) -->\n",
    end: "<!-- agent: end -->\n",
};
/// Time per processed record.
pub(super) const LEDGER: DocumentPart = DocumentPart {
    begin: "<!-- ledger: begin (cargo xtask bench ledger writes what follows) -->\n",
    end: "<!-- ledger: end -->\n",
};

/// Measurement of one mode on one shape of the driver's functions.
pub(super) struct Measurement {
    /// First instructions of the functions.
    pub(super) shape: &'static str,
    /// What traced the program.
    pub(super) mode: WatcherMode,
    /// Nanoseconds per call, one value per round.
    pub(super) per_call_ns: Vec<f64>,
    /// Calls made while a watcher that counts calls was attached.
    pub(super) made_calls: u64,
    /// Calls in the watcher's last reports.
    pub(super) recorded_calls: u64,
}

impl Measurement {
    /// Makes a measurement without values.
    pub(super) fn new(shape: &'static str, mode: WatcherMode) -> Self {
        Self { shape, mode, per_call_ns: Vec::new(), made_calls: 0, recorded_calls: 0 }
    }

    pub(super) fn minimum(&self) -> f64 {
        self.per_call_ns.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(super) fn median(&self) -> f64 {
        let mut sorted = self.per_call_ns.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() % 2 {
            1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }
}

/// Returns the table, the ratios, and the place and time of the measurement.
///
/// # Errors
/// The machine's description cannot be read.
pub(super) fn text(measurements: &[Measurement], rounds: u64, pairs: u64) -> Result<String> {
    let bpftrace = first_line(Command::new("bpftrace").arg("--version"))?;
    let mut text = format!("{}, {bpftrace}.\n", machine()?);
    write!(text, "{rounds} rounds of {pairs} pairs; nanoseconds per call.\n\n")?;
    let mut table =
        MarkdownTable::new(&["functions begin with", "watched by", "min", "median", "added (min)", "added (median)"]);
    for measurement in measurements {
        let base = find(measurements, measurement.shape, WatcherMode::None);
        let added = |of: fn(&Measurement) -> f64| match measurement.mode {
            WatcherMode::None => String::new(),
            _ => format!("{:.0}", of(measurement) - of(base)),
        };
        table.row(vec![
            measurement.shape.to_owned(),
            measurement.mode.title().to_owned(),
            format!("{:.0}", measurement.minimum()),
            format!("{:.0}", measurement.median()),
            added(Measurement::minimum),
            added(Measurement::median),
        ]);
    }
    text.push_str(&table.text());
    text.push('\n');
    for shape in shapes(measurements) {
        writeln!(
            text,
            "* {shape}: memwatch adds {:.2} of what bpftrace adds for the same job (by the medians; {:.2} by the minima), and {:.2} where that takes \
             frees to succeed.",
            ratio(measurements, shape, WatcherMode::Bpftrace, Measurement::median),
            ratio(measurements, shape, WatcherMode::Bpftrace, Measurement::minimum),
            ratio(measurements, shape, WatcherMode::BpftraceWithoutResults, Measurement::median),
        )?;
        let memwatch = find(measurements, shape, WatcherMode::Memwatch);
        writeln!(text, "  It recorded {} of the {} calls made.", memwatch.recorded_calls, memwatch.made_calls)?;
    }
    Ok(text)
}

/// Returns memwatch's added time relative to that of another mode.
fn ratio(measurements: &[Measurement], shape: &str, other: WatcherMode, of: fn(&Measurement) -> f64) -> f64 {
    let base = of(find(measurements, shape, WatcherMode::None));
    let added = |mode| of(find(measurements, shape, mode)) - base;
    added(WatcherMode::Memwatch) / added(other)
}

fn find<'all>(measurements: &'all [Measurement], shape: &str, mode: WatcherMode) -> &'all Measurement {
    measurements
        .iter()
        .find(|measurement| measurement.shape == shape && measurement.mode == mode)
        .expect("every mode is measured on every shape")
}

fn shapes(measurements: &[Measurement]) -> Vec<&'static str> {
    let mut shapes: Vec<_> = measurements.iter().map(|measurement| measurement.shape).collect();
    shapes.dedup();
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(mode: WatcherMode, per_call_ns: &[f64]) -> Measurement {
        Measurement { per_call_ns: per_call_ns.to_vec(), ..Measurement::new("cmp first", mode) }
    }

    #[test]
    fn bench_ratio_compares_added_time() {
        let all = [
            measured(WatcherMode::None, &[100.0, 120.0, 110.0]),
            measured(WatcherMode::Memwatch, &[400.0, 410.0, 900.0]),
            measured(WatcherMode::Bpftrace, &[1_310.0, 1_300.0, 1_310.0]),
        ];
        assert!((ratio(&all, "cmp first", WatcherMode::Bpftrace, Measurement::median) - 0.25).abs() < 1e-9);
        assert!((ratio(&all, "cmp first", WatcherMode::Bpftrace, Measurement::minimum) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn an_even_number_of_rounds_has_a_median_too() {
        assert!((measured(WatcherMode::None, &[1.0, 4.0, 2.0, 3.0]).median() - 2.5).abs() < 1e-9);
    }
}
