//! `cargo xtask book`: the parts of the book that the program itself writes: the reference of commands, and pictures of screens.

use crate::args::TaskArgs;
use crate::binary;
use crate::repo::{BuildProfile, Repo};
use anstyle_svg::Term;
use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Reference of commands, relative to the root.
const COMMANDS: &str = "docs/reference/commands.md";
/// Directory of the pictures, relative to the root.
const PICTURES: &str = "docs/pictures";
/// The live view of a recorded training, as a unit test of memwatch keeps it.
const LIVE: (&str, &str) = ("live", "memwatch/src/render/tui/view/golden/picture.ansi");
/// Reports of recordings in the repository, with their names as pictures.
const REPORTS: &[(&str, &[&str])] = &[
    ("oom", &["oom", "--in", "tests/replays/h100/oom.mwr"]),
    ("leak", &["leak", "--in", "tests/replays/grows-linear-7.mwr"]),
    ("fragment", &["fragment", "--in", "tests/replays/fragments-1.mwr"]),
];
/// Columns of a screen.
const COLUMNS: &str = "100";
const COMMANDS_HEAD: &str = "\
# Commands

<!-- Written by `cargo xtask book` from the program's help: change the help there. -->

Options that all commands have are listed by `memwatch help advanced`.
";

/// Runs `cargo xtask book`.
pub(crate) fn task(repo: &Repo, args: TaskArgs) -> Result<()> {
    args.finish()?;
    let memwatch = binary::build(repo, BuildProfile::Tested)?;
    for (path, text) in pages(repo, &memwatch)? {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Compares the committed parts with the ones that this program writes.
///
/// # Errors
/// One is missing or differs.
pub(crate) fn check(repo: &Repo, memwatch: &Path) -> Result<()> {
    let is_stale = |(path, text): &(PathBuf, String)| fs::read_to_string(path).ok().as_ref() != Some(text);
    let stale: Vec<String> =
        pages(repo, memwatch)?.into_iter().filter(is_stale).map(|(path, _)| path.display().to_string()).collect();
    if !stale.is_empty() {
        bail!("not what memwatch prints now: {}. To write it again: cargo xtask book", stale.join(", "));
    }
    Ok(())
}

/// Returns all parts with their paths.
fn pages(repo: &Repo, memwatch: &Path) -> Result<Vec<(PathBuf, String)>> {
    let picture = |name: &str| repo.path(&format!("{PICTURES}/{name}.svg"));
    let (live, kept) = LIVE;
    let screen = fs::read_to_string(repo.path(kept)).with_context(|| format!("cannot read {kept}"))?;
    let mut pages = vec![(repo.path(COMMANDS), commands(repo, memwatch)?), (picture(live), svg(&screen))];
    for (name, words) in REPORTS {
        let printed = printed(repo, memwatch, &[*words, &["--color", "always"]].concat())?;
        pages.push((picture(name), svg(&format!("$ memwatch {}\n{printed}", words.join(" ")))));
    }
    Ok(pages)
}

fn svg(screen: &str) -> String {
    Term::new().render_svg(screen)
}

/// Returns the reference: the help of each command that `memwatch --help` lists.
fn commands(repo: &Repo, memwatch: &Path) -> Result<String> {
    let overview = printed(repo, memwatch, &["-h"])?;
    let mut text = format!("{COMMANDS_HEAD}\n```\n{}\n```\n", overview.trim_end());
    for name in names(&overview) {
        let help = printed(repo, memwatch, &[name, "--help"])?;
        let _ = write!(text, "\n## {name}\n\n```\n{}\n```\n", help.trim_end());
    }
    let advanced = printed(repo, memwatch, &["help", "advanced"])?;
    let _ = write!(text, "\n## Advanced options\n\n```\n{}\n```\n", advanced.trim_end());
    Ok(text)
}

/// Returns the names of commands: indented by two spaces, below a heading of one word.
fn names(overview: &str) -> Vec<&str> {
    let is_heading = |line: &str| line.chars().all(char::is_alphabetic) && !line.is_empty();
    let is_row = |line: &&str| line.starts_with("  ") && line.chars().nth(2).is_some_and(char::is_lowercase);
    let mut lines = overview.lines().skip_while(|line| !is_heading(line));
    let table = lines.by_ref().take_while(|line| !line.is_empty());
    table.filter(is_row).filter_map(|line| line.split_whitespace().next()).collect()
}

/// Returns what memwatch prints to a terminal of [`COLUMNS`] columns.
///
/// # Errors
/// The command fails.
fn printed(repo: &Repo, memwatch: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new(memwatch);
    command.args(words).current_dir(repo.root()).env("COLUMNS", COLUMNS).env("TZ", "UTC").env_remove("NO_COLOR");
    let output = command.output().with_context(|| format!("cannot start {}", memwatch.display()))?;
    if !output.status.success() {
        bail!("memwatch {} fails: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("memwatch prints UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_the_rows_of_the_table_in_the_help() {
        let overview = "Shows it.\n\nUsage: memwatch\n\nWatch\n  ps          List\n  where       Find\nCheck\n  oom  Explain\n\nProcesses  PID\n  -h, --help\n";
        assert_eq!(names(overview), ["ps", "where", "oom"]);
    }

    #[test]
    fn picture_has_the_text_and_the_colour_of_the_screen() {
        let picture = svg("\x1b[31mred\x1b[0m <plain>\n");
        assert!(
            picture.starts_with("<svg") && picture.contains("red") && picture.contains("&lt;plain&gt;"),
            "{picture}"
        );
    }
}
