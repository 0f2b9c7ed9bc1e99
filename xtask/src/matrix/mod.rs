//! `cargo xtask matrix`: tests one release of each minor version of each framework, or of some
//! frameworks, and writes a table of the results.
//!
//! The test is the one of the normal test suite: memwatch's numbers equal the framework's own.
//! Packages are large, so each is downloaded before its test and removed afterwards; the output of
//! a test stays in `target/matrix/<framework>-<version>.log`.

mod outcome;
mod table;
mod versions;

use crate::args::TaskArgs;
use crate::document::{self, DocumentPart};
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::torch::{self, MakeRelease, ReleaseEnv, ReleasePlace};
use crate::{binary, setup};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use table::{Lines, VersionLine};

/// Registry that lists a framework's versions.
enum Registry {
    /// PyPI package of this name.
    PyPi(&'static str),
    /// npm package of this name.
    Npm(&'static str),
}

/// A framework.
struct MatrixFramework {
    /// Name on the command line.
    word: &'static str,
    registry: Registry,
    /// Makes an environment with one version.
    release: MakeRelease,
    /// Prefix of the variables that pass the environment to the test.
    variable: &'static str,
    /// Tests to run.
    tests: &'static [&'static str],
    part: DocumentPart,
}

macro_rules! part {
    ($word:literal) => {
        DocumentPart {
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

const ROWS: [MatrixFramework; 5] = [
    MatrixFramework {
        word: "jax",
        registry: Registry::PyPi("jax-cuda12-pjrt"),
        release: torch::jax_release,
        variable: "JAX",
        tests: &["frameworks::arenas::late_attach_to_jax_matches_its_statistics_at_each_checkpoint"],
        part: part!("jax"),
    },
    MatrixFramework {
        word: "tensorflow",
        registry: Registry::PyPi("tensorflow"),
        release: torch::tensorflow_release,
        variable: "TENSORFLOW",
        tests: &[
            "frameworks::tensorflow::tensorflow_arena_probed_early_matches_its_statistics",
            "frameworks::tensorflow::late_attach_to_tensorflow_matches_from_its_next_event",
            "frameworks::tensorflow::tensorflow_arena_exhaustion_is_an_oom_failure_with_its_line",
            "frameworks::tensorflow::tensorflow_operators_probed_early_have_the_expected_bytes",
            "frameworks::tensorflow::attached_late_operators_have_what_they_ask_for_from_then_on",
            "frameworks::tensorflow::a_recording_of_tensorflow_has_its_operators",
        ],
        part: part!("tensorflow"),
    },
    MatrixFramework {
        word: "onnxruntime",
        registry: Registry::PyPi("onnxruntime-gpu"),
        release: torch::onnxruntime_release,
        variable: "ONNX",
        tests: &["frameworks::onnx::onnx_arena_probed_early_matches_its_statistics_and_weight_bytes"],
        part: part!("onnxruntime"),
    },
    MatrixFramework {
        word: "ggml",
        registry: Registry::Npm("@node-llama-cpp/linux-x64-cuda"),
        release: torch::ggml_release,
        variable: "GGML",
        tests: &["frameworks::ggml::late_attach_to_ggml_knows_younger_buffers_and_no_totals"],
        part: part!("ggml"),
    },
    MatrixFramework {
        word: "pytorch",
        registry: Registry::PyPi("torch"),
        release: torch::torch_release,
        variable: "TORCH_2_9",
        tests: &["pytorch::versions::a_training_on_2_9_in_a_newer_system"],
        part: part!("pytorch"),
    },
];

/// Arguments.
struct Wish {
    /// Number of newest minor versions to test.
    newest: usize,
    /// A single version to test.
    version: Option<String>,
    /// Whether to keep the environments.
    keeps: bool,
}

/// Runs `cargo xtask matrix [FRAMEWORK] [--newest N] [--version V] [--keep]`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let newest = args.count("--newest")?.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let wish = Wish { newest, version: args.value("--version")?, keeps: args.flag("--keep") };
    let word = args.word();
    args.finish()?;
    let rows: Vec<&MatrixFramework> =
        ROWS.iter().filter(|row| word.as_deref().is_none_or(|word| word == row.word)).collect();
    if rows.is_empty() {
        let known: Vec<&str> = ROWS.iter().map(|row| row.word).collect();
        bail!("there is no framework '{}', only {}", word.unwrap_or_default(), known.join(", "));
    }
    setup::tools(repo)?;
    binary::build(repo, BuildProfile::Tested)?;
    integration::build_simulators(repo)?;
    rows.into_iter().try_for_each(|row| row.run(repo, &wish))
}

impl MatrixFramework {
    fn run(&self, repo: &Repo, wish: &Wish) -> Result<()> {
        let versions = match self.registry {
            Registry::PyPi(package) => versions::of_pypi(&torch::python_with_pip(repo)?, package)?,
            Registry::Npm(package) => versions::of_npm(package)?,
        };
        let mut versions = versions::one_of_each_minor(&versions);
        versions.truncate(wish.newest);
        for version in wish.version.clone().map_or(versions, |version| vec![version]) {
            let line = self.line(repo, &version, wish)?;
            println!("{} {version}: {}", self.word, line.outcome);
            self.write(repo, line)?;
        }
        Ok(())
    }

    /// Writes a line into the document; earlier results of other versions stay.
    fn write(&self, repo: &Repo, line: VersionLine) -> Result<()> {
        let document = repo.path("docs/project/versions.md");
        let mut lines = Lines::of(&document::measured(&document, &self.part)?);
        lines.put(line);
        document::update(&document, &self.part, &format!("{}\n\n{}", document::machine()?, lines.text()))
    }

    /// Returns the result for a version.
    fn line(&self, repo: &Repo, version: &str, wish: &Wish) -> Result<VersionLine> {
        let home = repo.made("matrix").join(format!("{}-{version}", self.word));
        let place = ReleasePlace { repo: repo.root(), cache: &repo.made("torch"), home: &home };
        let line = match (self.release)(&place, version) {
            Ok(made) => {
                let outcome = self.tested(repo, &made, &home.with_added_extension("log"))?;
                VersionLine::new(version, &format!("CUDA {}, Python {}", made.cuda_major, made.python), &outcome)
            }
            Err(error) => VersionLine::new(version, "", &outcome::not_made(&format!("{error:#}"))),
        };
        if home.exists() && !wish.keeps {
            fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
        }
        Ok(line)
    }

    /// Runs the test, and writes its output to a log.
    fn tested(&self, repo: &Repo, made: &ReleaseEnv, log: &Path) -> Result<String> {
        let environment = &made.environment;
        let folders: [(&str, &PathBuf); 3] = [
            ("ROOT", &environment.root),
            ("PACKAGES", &environment.packages),
            ("RUNTIME", &environment.runtime_lib_dir),
        ];
        let mut variables = integration::simulated(repo);
        let named = |(what, folder): (&str, &PathBuf)| (format!("{}_{what}", self.variable), folder.into());
        variables.extend(folders.map(named));
        variables.extend(made.settings.iter().map(|(name, value)| ((*name).to_owned(), value.into())));
        let mut text = Vec::new();
        let mut is_success = true;
        for test in self.tests {
            let mut cargo = integration::cargo_test_with(repo, variables.clone());
            cargo.args(["--test", "integration", "--", "--exact", test]);
            let output = cargo.output().with_context(|| format!("cannot test {}", self.word))?;
            text.extend([output.stdout, output.stderr].concat());
            is_success &= output.status.success();
        }
        fs::write(log, &text).with_context(|| format!("cannot write {}", log.display()))?;
        Ok(outcome::judged(&String::from_utf8_lossy(&text), self.tests.len(), is_success))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_tests_exist_and_its_parts_are_documented() {
        let repo = Repo::locate().unwrap();
        let document = fs::read_to_string(repo.path("docs/project/versions.md")).unwrap();
        for row in ROWS {
            assert!(document.contains(row.part.begin) && document.contains(row.part.end), "{}", row.word);
            for name in row.tests {
                let (file, test) = name.rsplit_once("::").unwrap();
                let file = file.replace("::", "/");
                let source = fs::read_to_string(repo.path(&format!("tests/tests/{file}.rs"))).unwrap();
                assert!(source.contains(&format!("fn {test}()")), "{name}");
            }
        }
    }
}
