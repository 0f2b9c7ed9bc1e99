//! Measured parts of documents, each between two markers, with the time and machine of the
//! measurement.

use crate::run::first_line;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A measured part of a document, between two markers.
pub(crate) struct DocumentPart {
    /// Line before the part.
    pub(crate) begin: &'static str,
    /// Line after the part.
    pub(crate) end: &'static str,
}

/// Returns the date and the machine.
///
/// # Errors
/// The machine's description cannot be read.
pub(crate) fn machine() -> Result<String> {
    let information = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
    let model = information
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()))
        .unwrap_or(std::env::consts::ARCH);
    let processors = std::thread::available_parallelism().context("cannot count processors")?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read the kernel's version")?;
    let date = first_line(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    let is_virtual = information.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
    let kind = if is_virtual { "virtual machine" } else { "bare machine" };
    Ok(format!("{date}: {model}, {processors} processors, {kind}, Linux {}", kernel.trim()))
}

/// Replaces the text between the markers of a part.
///
/// # Errors
/// The document cannot be read or written, or the markers are missing.
pub(crate) fn update(document: &Path, part: &DocumentPart, measured: &str) -> Result<()> {
    let old = fs::read_to_string(document).with_context(|| format!("cannot read {}", document.display()))?;
    let new = replaced(&old, part, measured).with_context(|| format!("{}", document.display()))?;
    fs::write(document, new).with_context(|| format!("cannot write {}", document.display()))?;
    eprintln!("written into {}", document.display());
    Ok(())
}

fn replaced(old: &str, part: &DocumentPart, measured: &str) -> Result<String> {
    let (from, to) = place(old, part)?;
    Ok(format!("{}\n{}\n\n{}", &old[..from], measured.trim(), &old[to..]))
}

/// Returns the start and the end of the text between the markers.
fn place(text: &str, part: &DocumentPart) -> Result<(usize, usize)> {
    let DocumentPart { begin, end } = part;
    let (Some(from), Some(to)) = (text.find(begin), text.find(end)) else {
        bail!("the markers of the measured part are gone: {}{}", begin, end.trim_end());
    };
    Ok((from + begin.len(), to))
}

/// Returns the text between the markers of a part.
///
/// # Errors
/// The document cannot be read, or the markers are missing.
pub(crate) fn measured(document: &Path, part: &DocumentPart) -> Result<String> {
    let text = fs::read_to_string(document).with_context(|| format!("cannot read {}", document.display()))?;
    let (from, to) = place(&text, part).with_context(|| format!("{}", document.display()))?;
    Ok(text[from..to].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: DocumentPart = DocumentPart { begin: "<!-- first: begin -->\n", end: "<!-- first: end -->\n" };
    const SECOND: DocumentPart = DocumentPart { begin: "<!-- second: begin -->\n", end: "<!-- second: end -->\n" };

    #[test]
    fn only_the_measured_part_of_the_document_changes() {
        let DocumentPart { begin, end } = FIRST;
        let old = format!("before\n{begin}{end}between\n{}{}after\n", SECOND.begin, SECOND.end);
        let first = replaced(&old, &FIRST, "one").unwrap();
        let second = replaced(&first, &FIRST, "two").unwrap();
        assert_eq!(second, old.replace(end, &format!("\ntwo\n\n{end}")));
        assert!(replaced("no markers", &FIRST, "x").is_err());
    }
}
