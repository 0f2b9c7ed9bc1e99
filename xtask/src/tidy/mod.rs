//! `cargo xtask tidy`: the house rules that neither rustc nor clippy can check.

mod circles;
mod imports;
mod language;
mod links;
mod mask;
mod purity;
mod shape;
pub(crate) mod source;
mod words;

use crate::args::TaskArgs;
use crate::repo::Repo;
use anyhow::{Result, bail};
use source::Source;

/// One house rule.
struct Rule {
    /// The word used in [`EXCEPTIONS`] and printed with a finding.
    name: &'static str,
    /// What to do about a finding.
    fix: &'static str,
    /// How violations are found.
    find: Find,
}

/// Finds violations.
enum Find {
    /// In one file, whatever stands in others.
    InFile(fn(&Source) -> Vec<Violation>),
    /// In all files together, each with its place in the list.
    InTree(fn(&[Source]) -> Vec<(usize, Violation)>),
}

impl Find {
    fn violations(&self, sources: &[Source]) -> Vec<(usize, Violation)> {
        let all = sources.iter().enumerate();
        match self {
            Self::InFile(find) => {
                all.flat_map(|(index, source)| find(source).into_iter().map(move |one| (index, one))).collect()
            }
            Self::InTree(find) => find(sources),
        }
    }
}

/// One violation in a file: the line, numbered from 1, and what is wrong there.
type Violation = (usize, String);

/// Every rule.
const RULES: &[Rule] = &[
    Rule { name: "file-length", fix: "split the file: one room, one job", find: Find::InFile(shape::file_length) },
    Rule { name: "function-length", fix: "split the function", find: Find::InFile(shape::function_length) },
    Rule {
        name: "module-name",
        fix: "name the module after what it holds, or move its parts to where they are used",
        find: Find::InFile(shape::module_name),
    },
    Rule {
        name: "pure",
        fix: "do it in the memwatch crate and pass the result in as an Input",
        find: Find::InFile(purity::impure),
    },
    Rule {
        name: "direction",
        fix: "move the code to the lowest room that knows all it needs, or pass the thing in",
        find: Find::InFile(purity::direction),
    },
    Rule {
        name: "circle",
        fix: "move what both need below both: a type or a constant to the file that needs nothing of the others",
        find: Find::InTree(circles::circles),
    },
    Rule {
        name: "cuda-name",
        fix: "make it a row of memwatch-common's probe table",
        find: Find::InFile(words::cuda_name),
    },
    Rule {
        name: "unwrap",
        fix: "return an error, or expect(\"why it cannot fail\") for an invariant",
        find: Find::InFile(words::unwrap),
    },
    Rule {
        name: "pid",
        fix: "say tgid or tid; rename a foreign field where it comes in",
        find: Find::InFile(words::process_word),
    },
    Rule {
        name: "frequent-word",
        fix: "rewrite the sentences: subject, verb, object, and the noun in place of the pronoun",
        find: Find::InTree(language::frequent_words),
    },
    Rule { name: "riddle", fix: "name the thing, or delete the comment", find: Find::InFile(language::riddles) },
    Rule {
        name: "dead-link",
        fix: "link to what is there, or list the page in docs/SUMMARY.md",
        find: Find::InTree(links::dead),
    },
    Rule {
        name: "shared-name",
        fix: "name the type after its role: LeakReport, FleetRow",
        find: Find::InTree(language::shared_names),
    },
    Rule { name: "conflict", fix: "choose one of the two sides", find: Find::InFile(shape::conflict) },
    Rule { name: "unfinished", fix: "finish it, or file an issue", find: Find::InFile(words::unfinished) },
];

/// A file that may break a rule.
struct Exception {
    /// The rule's name.
    rule: &'static str,
    /// The file.
    path: &'static str,
    /// Why it may. Shown to nobody but the reader of this table.
    #[allow(dead_code, reason = "the table is documentation: a reason is required to add a row")]
    reason: &'static str,
}

/// Every exception; one that is no longer needed is a finding itself.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        rule: "unfinished",
        path: "xtask/src/tidy/words.rs",
        reason: "the rule has to spell the words that it looks for",
    },
    Exception {
        rule: "pure",
        path: "memwatch-core/src/allocators/tests/sampled_runs.rs",
        reason: "a test that opens windows of its own on the sixty recordings in the tree: no input does that",
    },
];

/// `cargo xtask tidy`.
pub(crate) fn task(repo: &Repo, args: TaskArgs) -> Result<()> {
    args.finish()?;
    check(repo)
}

/// Checks the working tree and prints every finding.
///
/// # Errors
/// When there is one.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let sources = source::read_tree(repo.root())?;
    let findings = findings(&sources, EXCEPTIONS);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {} files keep {} rules", sources.len(), RULES.len());
            Ok(())
        }
        count => bail!("tidy: {count} findings (an exception with its reason goes into xtask/src/tidy/mod.rs)"),
    }
}

/// All findings as lines for the terminal, in the order of the files.
fn findings(sources: &[Source], exceptions: &[Exception]) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_used = vec![false; exceptions.len()];
    for rule in RULES {
        for (index, (line, what)) in rule.find.violations(sources) {
            let path = &sources[index].path;
            match exceptions.iter().position(|exception| exception.rule == rule.name && exception.path == *path) {
                Some(exception) => is_used[exception] = true,
                None => found.push((index, format!("{path}:{line}: {what} [{}]: {}", rule.name, rule.fix))),
            }
        }
    }
    found.sort_by_key(|(index, _)| *index);
    let mut lines: Vec<String> = found.into_iter().map(|(_, line)| line).collect();
    for (exception, _) in exceptions.iter().zip(is_used).filter(|(_, used)| !used) {
        lines.push(format!(
            "{}:1: needs no exception from [{}] any more: delete its row",
            exception.path, exception.rule
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCEPTION: Exception = Exception { rule: "unwrap", path: "memwatch-common/src/a.rs", reason: "a test" };

    #[test]
    fn a_finding_says_where_what_and_how_to_fix_it() {
        let found = findings(&[Source::new("memwatch-common/src/a.rs", "fn a() { b.unwrap() }\n")], &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("memwatch-common/src/a.rs:1: ") && found[0].contains("expect("), "{found:?}");
    }

    #[test]
    fn an_exception_silences_its_rule_in_its_file() {
        let found = findings(&[Source::new("memwatch-common/src/a.rs", "fn a() { b.unwrap() }\n")], &[EXCEPTION]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn an_exception_that_nothing_needs_is_a_finding() {
        let found = findings(&[Source::new("memwatch-common/src/a.rs", "fn a() {}\n")], &[EXCEPTION]);
        assert!(found.len() == 1 && found[0].contains("delete its row"), "{found:?}");
    }

    #[test]
    fn every_exception_names_a_rule_and_gives_a_reason() {
        for exception in EXCEPTIONS {
            assert!(RULES.iter().any(|rule| rule.name == exception.rule), "{}", exception.rule);
            assert!(exception.reason.len() > 10, "{}", exception.path);
        }
    }
}
