//! `cargo xtask matrix`: one test of each framework, on one release of each of its minor versions that its registry has, and a table of what came out.
//!
//! The test is the one that every run of all tests has: what memwatch says equals what the framework says itself. Packages are large: each is fetched when its turn
//! comes, and kept below `target/matrix`.

mod versions;

use crate::args::Args;
use crate::document::{self, Part};
use crate::integration;
use crate::repo::{Profile, Repo};
use crate::table::Table;
use crate::torch::{self, Release};
use crate::{binary, setup};
use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// Where a framework's versions are listed.
enum Registry {
    /// PyPI's package of this name.
    PyPi(&'static str),
    /// npm's.
    Npm(&'static str),
    /// There is no way to run it here, for this reason.
    None(&'static str),
}

/// A framework.
struct Row {
    /// The word that is typed.
    word: &'static str,
    registry: Registry,
    /// How an environment with one version is made.
    release: Option<Release>,
    /// How the variables begin that name it to the test.
    variable: &'static str,
    /// The test.
    test: &'static str,
    part: Part,
}

macro_rules! part {
    ($word:literal) => {
        Part {
            begin: concat!(
                "<!-- matrix of ",
                $word,
                ": begin (cargo xtask matrix ",
                $word,
                " writes what follows) -->\n"
            ),
            end: concat!("<!-- matrix of ", $word, ": end -->\n"),
        }
    };
}

const ROWS: [Row; 5] = [
    Row {
        word: "jax",
        registry: Registry::PyPi("jax-cuda13-pjrt"),
        release: Some(torch::jax_release),
        variable: "JAX",
        test: "arenas::attached_late_an_arena_has_the_numbers_that_jax_says_at_every_checkpoint",
        part: part!("jax"),
    },
    Row {
        word: "onnxruntime",
        registry: Registry::PyPi("onnxruntime-gpu"),
        release: Some(torch::onnxruntime_release),
        variable: "ONNX",
        test: "onnx::from_before_its_first_chunk_an_arena_has_onnx_runtimes_numbers_at_every_checkpoint_and_its_weights",
        part: part!("onnxruntime"),
    },
    Row {
        word: "ggml",
        registry: Registry::Npm("@node-llama-cpp/linux-x64-cuda"),
        release: Some(torch::ggml_release),
        variable: "GGML",
        test: "ggml::attached_late_only_younger_buffers_are_known_and_no_number_is_that_of_all",
        part: part!("ggml"),
    },
    Row {
        word: "pytorch",
        registry: Registry::PyPi("torch"),
        release: Some(torch::torch_release),
        variable: "TORCH_2_9",
        test: "versions::a_training_on_2_9_in_a_newer_system",
        part: part!("pytorch"),
    },
    Row {
        word: "tensorflow",
        registry: Registry::None("its wheel wants a Python that the newer system for tests does not have"),
        release: None,
        variable: "",
        test: "",
        part: part!("tensorflow"),
    },
];

/// `cargo xtask matrix [FRAMEWORK] [--newest N]`.
pub(crate) fn task(repo: &Repo, mut args: Args) -> Result<()> {
    let newest = args.count("--newest")?.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let word = args.word();
    args.finish()?;
    let rows: Vec<&Row> = ROWS.iter().filter(|row| word.as_deref().is_none_or(|word| word == row.word)).collect();
    if rows.is_empty() {
        let known: Vec<&str> = ROWS.iter().map(|row| row.word).collect();
        bail!("there is no framework '{}', only {}", word.unwrap_or_default(), known.join(", "));
    }
    setup::tools(repo)?;
    binary::build(repo, Profile::Tested)?;
    integration::build_simulators(repo)?;
    rows.into_iter().try_for_each(|row| row.run(repo, newest))
}

impl Row {
    fn run(&self, repo: &Repo, newest: usize) -> Result<()> {
        let mut table = Table::new(&["version", "what came out"]);
        let versions = match self.registry {
            Registry::PyPi(package) => versions::of_pypi(&torch::python_with_pip(repo)?, package)?,
            Registry::Npm(package) => versions::of_npm(package)?,
            Registry::None(why) => {
                println!("{}: skipped: {why}", self.word);
                return Ok(());
            }
        };
        for version in versions::one_of_each_minor(&versions).into_iter().take(newest) {
            let outcome = self.outcome(repo, &version)?;
            println!("{} {version}: {outcome}", self.word);
            table.row(vec![version, outcome]);
        }
        let text = format!("{}\n\n{}", document::machine()?, table.text());
        document::update(&repo.path("docs/frameworks.md"), &self.part, &text)
    }

    /// What came out for a version: a few words.
    fn outcome(&self, repo: &Repo, version: &str) -> Result<String> {
        let Some(release) = self.release else { return Ok("skipped".to_owned()) };
        let home = repo.made("matrix").join(format!("{}-{version}", self.word));
        let environment = match release(repo.root(), &repo.made("torch"), (&home, version)) {
            Ok(environment) => environment,
            Err(error) => return Ok(format!("skipped: {}", reason(&format!("{error:#}")))),
        };
        let folders: [(&str, &PathBuf); 3] = [
            ("ROOT", &environment.root),
            ("PACKAGES", &environment.packages),
            ("RUNTIME", &environment.runtime_lib_dir),
        ];
        let mut cargo = integration::cargo_test(repo)?;
        cargo.envs(folders.map(|(what, folder)| (format!("{}_{what}", self.variable), folder.as_os_str().to_owned())));
        cargo.envs(torch::settings_of(version));
        cargo.args(["--test", "together", "--", "--exact", "--nocapture", self.test]);
        self.result(&mut cargo)
    }

    fn result(&self, cargo: &mut Command) -> Result<String> {
        let output = cargo.output().with_context(|| format!("cannot test {}", self.word))?;
        let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        Ok(judged(&String::from_utf8_lossy(&text), output.status.success()))
    }
}

/// What a test's output says, in a few words.
fn judged(text: &str, is_success: bool) -> String {
    if let Some(line) = text.lines().find_map(|line| line.strip_prefix("SKIPPED: ")) {
        return format!("skipped: {}", reason(line));
    }
    match (is_success, text.contains("1 passed")) {
        (true, true) => "equal".to_owned(),
        (true, false) => "skipped: there is no such test".to_owned(),
        (false, _) => {
            let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
            let says = lines.nth(1).unwrap_or("the test does not build");
            format!("not equal: {}", reason(says))
        }
    }
}

/// The beginning of a message, as a cell of a table has room for it.
fn reason(message: &str) -> String {
    const MOST: usize = 100;
    let line = message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let line: String = line.chars().map(|letter| if letter == '|' { '/' } else { letter }).collect();
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_a_few_words() {
        assert_eq!(judged("test a ... ok\ntest result: ok. 1 passed; 0 failed", true), "equal");
        assert_eq!(judged("SKIPPED: uprobes need root\ntest result: ok. 1 passed", true), "skipped: uprobes need root");
        assert_eq!(judged("test result: ok. 0 passed", true), "skipped: there is no such test");
        assert_eq!(judged("thread 'a' panicked at b.rs:1:\nleft | right\n", false), "not equal: left / right");
        assert_eq!(judged("error: no", false), "not equal: the test does not build");
        assert!(reason(&"a".repeat(300)).chars().count() < 110);
    }

    #[test]
    fn every_test_is_there_and_every_part_is_in_the_document() {
        let repo = Repo::locate().unwrap();
        let document = std::fs::read_to_string(repo.path("docs/frameworks.md")).unwrap();
        for row in ROWS {
            let has_places = matches!(row.registry, Registry::None(_))
                || (document.contains(row.part.begin) && document.contains(row.part.end));
            assert!(has_places, "{}", row.word);
            let Some((file, test)) = row.test.split_once("::") else { continue };
            let source = std::fs::read_to_string(repo.path(&format!("tests/tests/together/{file}.rs"))).unwrap();
            assert!(source.contains(&format!("fn {test}()")), "{}", row.test);
        }
    }
}
