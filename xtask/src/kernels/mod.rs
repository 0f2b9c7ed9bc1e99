//! `cargo xtask kernels`: tests other kernels, each in a virtual machine, with memwatch and the
//! tests of all driver functions.
//!
//! A machine boots from an archive in its memory, so that it needs neither an installation, nor a
//! disk, nor a disk driver.

mod built;
mod machine;
mod system;

use crate::args::TaskArgs;
use crate::document::{self, DocumentPart};
use crate::integration;
use crate::repo::Repo;
use crate::run::first_line;
use crate::setup::{self, Package};
use crate::table::MarkdownTable;
use anyhow::{Result, bail};
use machine::{MachineOutcome, Processor};
use std::process::Command;

/// Document with the results.
const DOCUMENT: &str = "docs/project/kernels.md";
const PART: DocumentPart = DocumentPart {
    begin: "<!-- kernels: begin (cargo xtask kernels writes what follows) -->\n",
    end: "<!-- kernels: end -->\n",
};
/// Directory below `target/`.
const FOLDER: &str = "kernels";
/// Filter of the tests to run: all functions of the driver, checked against the simulator's ledger.
const TESTS: &str = "capture::conformance::";

/// Header of the results table.
const HEADER: [&str; 7] = [
    "kernel",
    "its release",
    "machine",
    "functions are probed by",
    "frameworks can be traced",
    "tests of all driver functions",
    "date",
];

/// A kernel to test.
struct TestedKernel {
    /// Name on the command line.
    word: &'static str,
    /// Debian release that contains it.
    release: &'static str,
    processor: &'static Processor,
}

const KERNELS: [TestedKernel; 3] = [
    TestedKernel { word: "6.1", release: "bookworm", processor: &machine::X86_64 },
    TestedKernel { word: "6.12", release: "trixie", processor: &machine::X86_64 },
    TestedKernel { word: "6.12-aarch64", release: "trixie", processor: &machine::AARCH64 },
];

/// Runs `cargo xtask kernels [KERNEL]... [--tests NAME]`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let tests = args.value("--tests")?;
    let words: Vec<String> = std::iter::from_fn(|| args.word()).collect();
    args.finish()?;
    if let Some(word) = words.iter().find(|word| KERNELS.iter().all(|kernel| kernel.word != **word)) {
        let known: Vec<&str> = KERNELS.iter().map(|kernel| kernel.word).collect();
        bail!("there is no kernel '{word}' here, only {}", known.join(", "));
    }
    let chosen: Vec<&TestedKernel> =
        KERNELS.iter().filter(|kernel| words.is_empty() || words.iter().any(|word| word == kernel.word)).collect();
    setup::packages(&[Package::CCompiler, Package::Mmdebstrap, Package::Qemu])?;
    setup::tools(repo)?;
    integration::build_simulators(repo)?;
    let date = first_line(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    let mut rows = rows(&document::measured(&repo.path(DOCUMENT), &PART)?);
    let mut wrong = Vec::new();
    for kernel in &chosen {
        let outcome = kernel.run(repo, tests.as_deref().unwrap_or(TESTS))?;
        println!("{}: {}", kernel.word, outcome.tests);
        if !outcome.is_fine {
            wrong.push(kernel.word);
        }
        rows.retain(|row| row[0] != kernel.word);
        let name = kernel.processor.name.to_owned();
        let frameworks = outcome.frameworks.to_owned();
        let word = kernel.word.to_owned();
        rows.push(vec![word, outcome.release, name, outcome.mechanism, frameworks, outcome.tests, date.clone()]);
    }
    rows.sort();
    let mut table = MarkdownTable::new(&HEADER);
    for row in rows {
        table.row(row);
    }
    println!("\n{}", table.text());
    // The document has results of all tests only.
    if tests.is_none() {
        document::update(&repo.path(DOCUMENT), &PART, &table.text())?;
    }
    if wrong.is_empty() { Ok(()) } else { bail!("something failed with {}", wrong.join(", ")) }
}

/// Returns the rows of an earlier table, which are kept for kernels that do not run now.
fn rows(table: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Option<Vec<String>> {
        let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        Some(inner.split('|').map(|cell| cell.trim().to_owned()).collect())
    };
    let of_kernel = |row: &Vec<String>| row.len() == HEADER.len() && KERNELS.iter().any(|kernel| kernel.word == row[0]);
    table.lines().filter_map(cells).filter(of_kernel).collect()
}

impl TestedKernel {
    fn run(&self, repo: &Repo, tests: &str) -> Result<MachineOutcome> {
        let folder = repo.made(FOLDER).join(self.word);
        let programs = built::programs(repo, self.processor)?;
        let system = system::MachineSystem::ensure(&folder, self.release, self.processor)?;
        let archive = system.with_programs(repo, &programs, tests)?;
        machine::run(self.processor, &system.kernel(), &archive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_are_not_run_keep_their_rows() {
        let mut table = MarkdownTable::new(&HEADER);
        let row = ["6.1", "6.1.0-1", "x86_64", "uprobe", "yes", "4 passed", "2026-01-02"].map(str::to_owned).to_vec();
        table.row(row.clone());
        assert_eq!(rows(&table.text()), [row]);
        assert_eq!(rows("nothing | here\n|5.4|a|b|c|d|e|"), Vec::<Vec<String>>::new());
    }

    #[test]
    fn the_document_has_a_place_for_the_table() {
        let repo = Repo::locate().unwrap();
        assert!(document::measured(&repo.path(DOCUMENT), &PART).is_ok());
    }
}
