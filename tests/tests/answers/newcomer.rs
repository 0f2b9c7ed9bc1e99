//! Ten questions of a new user, each answered by one command that `memwatch --help` names: the
//! command, and lines of its answer. The commands read recordings of an H100, so they need neither
//! a GPU nor root.

use memwatch_tests::harness::cannot_run;
use memwatch_tests::test;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A question, the command, and parts of its answer.
struct NewcomerTask {
    question: &'static str,
    words: &'static [&'static str],
    answer: &'static [&'static str],
}

/// `{recordings}` and `{out}` stand for folders.
const TASKS: [NewcomerTask; 10] = [
    NewcomerTask {
        question: "who holds GPU 0",
        words: &["ps", "--gpu", "0", "--in", "{recordings}/hf.mwr"],
        answer: &["GPU 0  NVIDIA H100", "COMMAND", "python"],
    },
    NewcomerTask {
        question: "which line holds it",
        words: &["where", "--in", "{recordings}/sim.mwr"],
        answer: &["ranked AT PEAK", "LINE", ".py:"],
    },
    NewcomerTask {
        question: "which modules hold it",
        words: &["where", "--by", "module", "--in", "{recordings}/hf.mwr"],
        answer: &["MODULE", "BACKWARD"],
    },
    NewcomerTask {
        question: "why did it fail",
        words: &["oom", "--in", "{recordings}/oom.mwr"],
        answer: &["CUDA OUT OF MEMORY  ", "requested", "advice"],
    },
    NewcomerTask {
        question: "does it leak",
        words: &["leak", "--in", "{recordings}/hf.mwr"],
        answer: &["leaking", "steady"],
    },
    NewcomerTask {
        question: "what does PyTorch itself count",
        words: &["stats", "--in", "{recordings}/hf.mwr"],
        answer: &["Allocated memory", "GPU reserved memory", "PEAK"],
    },
    NewcomerTask {
        question: "is memory cached that it cannot use",
        words: &["fragment", "--in", "{recordings}/hf.mwr"],
        answer: &["INACTIVE SPLIT", "FRAGMENTATION"],
    },
    NewcomerTask {
        question: "what is in a recording",
        words: &["report", "{recordings}/hf.mwr"],
        answer: &["peak allocated", "at peak"],
    },
    NewcomerTask {
        question: "record, then compare",
        words: &["diff", "{recordings}/hf.mwr", "{recordings}/compile.mwr"],
        answer: &["PEAK"],
    },
    NewcomerTask {
        question: "draw it",
        words: &["flamegraph", "--in", "{recordings}/hf.mwr", "-o", "{out}/flame.html"],
        answer: &["is written: ", "in use at the peak"],
    },
];

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("replays/h100")
}

fn memwatch(words: &[String]) -> Output {
    let memwatch = std::env::var_os("MEMWATCH_BIN").unwrap_or_else(|| cannot_run("run through `cargo xtask test`"));
    Command::new(memwatch).args(words).output().expect("memwatch starts")
}

#[test]
fn ten_tasks_of_a_newcomer_take_one_command_each_that_the_help_names() {
    let out = tempfile::tempdir().expect("a folder");
    let help = memwatch(&["--help".to_owned()]);
    let help = String::from_utf8(help.stdout).expect("it is text");
    for NewcomerTask { question, words, answer } in TASKS {
        let listed = format!("\n  {:<12}", words[0]);
        assert!(help.contains(&listed), "{question}: {help}");
        let folder = |word: &&str| {
            let word = word.replace("{recordings}", &recordings().display().to_string());
            word.replace("{out}", &out.path().display().to_string())
        };
        let words: Vec<String> = words.iter().map(folder).collect();
        let output = memwatch(&words);
        let text = [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
        assert_eq!(output.status.code(), Some(0), "{question}: {words:?}: {text}");
        for line in answer {
            assert!(text.contains(line), "{question}: {words:?} has no {line:?}: {text}");
        }
    }
}
