//! Builds the lists of library lines: lines of packages and of torch that a call site called, with
//! the memory allocated in them.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::allocators::names::{LibraryKey, LibraryLine, NameTable, SiteKey};
use crate::allocators::places::{BlockSum, DeviceAttribution};
use crate::snapshot::LibraryLineView;
use crate::stack::PythonCode;
use crate::words::Name;

/// Maximum number of library lines per call site.
const LISTED: usize = 32;

/// Returns the library lines of each call site on a device; call sites that called no library are
/// left out.
pub(super) fn library_lines(names: &NameTable, device: &DeviceAttribution) -> HashMap<SiteKey, Vec<LibraryLineView>> {
    let mut by_site: HashMap<SiteKey, HashMap<LibraryKey, LibraryLineView>> = HashMap::new();
    for (call_path, sum) in device.call_paths().filter(|(_, sum)| sum.is_used()) {
        let line = library_line(names, call_path.library, (sum, device.at_peak_bytes(sum)));
        let of_site = by_site.entry(call_path.site).or_default();
        of_site.entry(call_path.library).and_modify(|known| add(known, &line)).or_insert(line);
    }
    let called = |lines: &HashMap<LibraryKey, LibraryLineView>| lines.keys().any(|key| *key != LibraryKey::NONE);
    let with_library = by_site.into_iter().filter(|(_, lines)| called(lines));
    with_library.map(|(site, lines)| (site, listed(lines.into_values().collect()))).collect()
}

/// Returns the view of a library line with its sum and its live bytes at the device's peak.
pub(super) fn library_line(
    names: &NameTable,
    key: LibraryKey,
    (sum, at_peak_bytes): (&BlockSum, u64),
) -> LibraryLineView {
    let (kind, code) = match names.library_of(key) {
        LibraryLine::Rest => ("rest", None),
        LibraryLine::None => ("none", None),
        LibraryLine::Line(code) => ("line", Some(code)),
    };
    LibraryLineView {
        kind: Name::Borrowed(kind),
        file: code.map(|code| code.file.to_string()),
        line: code.and_then(|code| code.line),
        function: code.map(|code| code.function.to_string()),
        live_bytes: sum.live_bytes,
        at_peak_bytes,
        total_bytes: sum.total_bytes,
    }
}

/// Returns a library line as text; `None` if there is none.
pub(super) fn library_text(names: &NameTable, key: LibraryKey) -> Option<String> {
    if let LibraryLine::Line(code) = names.library_of(key) { Some(code_text(code)) } else { None }
}

/// Returns `train.py:36 Trainer.step`.
pub(super) fn code_text(code: &PythonCode) -> String {
    let line = code.line.map_or_else(String::new, |line| format!(":{line}"));
    format!("{}{line} {}", code.file, code.function)
}

/// Returns the lines, most bytes first; lines beyond the bound are summed up in the last row.
fn listed(mut lines: Vec<LibraryLineView>) -> Vec<LibraryLineView> {
    lines.sort_by(|one, other| {
        let sums = |line: &LibraryLineView| Reverse((line.live_bytes, line.at_peak_bytes, line.total_bytes));
        let by_name = || (&one.file, one.line, &one.function).cmp(&(&other.file, other.line, &other.function));
        sums(one).cmp(&sums(other)).then_with(by_name)
    });
    if lines.len() > LISTED {
        let beyond = lines.split_off(LISTED - 1);
        let none = LibraryLineView {
            kind: Name::Borrowed("rest"),
            file: None,
            line: None,
            function: None,
            live_bytes: 0,
            at_peak_bytes: 0,
            total_bytes: 0,
        };
        let rest = beyond.iter().fold(none, |mut rest, line| {
            add(&mut rest, line);
            rest
        });
        lines.push(rest);
    }
    lines
}

fn add(line: &mut LibraryLineView, other: &LibraryLineView) {
    line.live_bytes = line.live_bytes.saturating_add(other.live_bytes);
    line.at_peak_bytes = line.at_peak_bytes.saturating_add(other.at_peak_bytes);
    line.total_bytes = line.total_bytes.saturating_add(other.total_bytes);
}
