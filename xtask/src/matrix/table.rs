//! The table of a framework in the document: a line for each version, newest first. A run replaces
//! only its own lines.

use crate::table::MarkdownTable;

const HEADER: [&str; 3] = ["version", "built for", "result"];

/// Line of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VersionLine {
    version: String,
    /// CUDA and Python versions; empty if the environment could not be made.
    built_for: String,
    /// Short description of the result.
    pub(super) outcome: String,
}

impl VersionLine {
    pub(super) fn new(version: &str, built_for: &str, outcome: &str) -> Self {
        Self { version: version.to_owned(), built_for: built_for.to_owned(), outcome: outcome.to_owned() }
    }

    /// Returns the numbers of the version.
    fn numbers(&self) -> Vec<u32> {
        self.version.split('.').map_while(|part| part.parse().ok()).collect()
    }

    fn minor(&self) -> Vec<u32> {
        self.numbers().into_iter().take(2).collect()
    }
}

/// All lines of a framework.
pub(super) struct Lines(Vec<VersionLine>);

impl Lines {
    /// Parses the lines of a part of the document.
    pub(super) fn of(part: &str) -> Self {
        let cells = |line: &str| -> Option<VersionLine> {
            let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
            match cells[..] {
                [version, built_for, outcome] => Some(VersionLine::new(version, built_for, outcome)),
                _ => None,
            }
        };
        Self(part.lines().filter_map(cells).filter(|line| !line.numbers().is_empty()).collect())
    }

    /// Inserts a line, replacing an earlier one of the same minor version.
    pub(super) fn put(&mut self, line: VersionLine) {
        self.0.retain(|other| other.minor() != line.minor());
        self.0.push(line);
        self.0.sort_by_key(|line| std::cmp::Reverse(line.numbers()));
    }

    /// Renders the lines as Markdown.
    pub(super) fn text(&self) -> String {
        let mut table = MarkdownTable::new(&HEADER);
        for line in &self.0 {
            table.row(vec![line.version.clone(), line.built_for.clone(), line.outcome.clone()]);
        }
        table.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_run_replaces_only_the_line_of_its_minor_version() {
        let mut lines = Lines::of("");
        lines.put(VersionLine::new("2.9.0", "CUDA 12, Python 3.13", "equal"));
        lines.put(VersionLine::new("2.10.0", "CUDA 12, Python 3.13", "not equal: a"));
        lines.put(VersionLine::new("2.9.1", "", "not tried: b"));
        let text = format!("2026-01-01: a machine\n\n{}", lines.text());
        let read = Lines::of(&text);
        let versions: Vec<&str> = read.0.iter().map(|line| line.version.as_str()).collect();
        assert_eq!(versions, ["2.10.0", "2.9.1"]);
        assert_eq!(read.text(), lines.text());
        assert_eq!(read.0[1].outcome, "not tried: b");
    }
}
