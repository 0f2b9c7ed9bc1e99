//! `cargo xtask`: memwatch's development tasks, each of which sets up what it needs.
//!
//! This crate builds with any stable toolchain from 1.95 on. Everything else is compiled by the
//! toolchain pinned in `[workspace.metadata.toolchain]`, which the first task that needs it
//! installs.

mod args;
mod bench;
mod binary;
mod book;
mod child;
mod demo;
mod docs;
mod document;
mod fuzz;
mod gpu_check;
mod gpusim;
mod hostile;
mod install;
mod integration;
mod interrupt;
mod kernels;
mod matrix;
mod orphans;
mod package;
mod profile_readers;
mod replays;
mod repo;
mod run;
mod setup;
mod simulations;
mod spelling;
mod suite;
mod table;
mod test_output;
mod tidy;
mod torch;

use anyhow::{Result, bail};
use args::TaskArgs;
use repo::Repo;
use std::process::ExitCode;

/// A task.
struct Task {
    /// Name after `cargo xtask`.
    name: &'static str,
    /// Arguments.
    usage: &'static str,
    /// One line for `--help`.
    summary: &'static str,
    /// Runs the task.
    run: fn(&Repo, TaskArgs) -> Result<()>,
}

/// All tasks, in the order of `--help`.
const TASKS: &[Task] = &[
    Task {
        name: "build",
        usage: "[--debug]",
        summary: "set up the tools, build the eBPF object and memwatch",
        run: binary::build_task,
    },
    Task {
        name: "run",
        usage: "-- <memwatch args>",
        summary: "build, then run memwatch with these arguments (through sudo if needed)",
        run: binary::run_task,
    },
    Task {
        name: "demo",
        usage: "[--duration 30s]",
        summary: "watch a real PyTorch job on a simulated GPU; needs no GPU, ends with Ctrl-C",
        run: demo::task,
    },
    Task {
        name: "gpusim",
        usage: "",
        summary: "build the simulated GPU of tests/gpusim, in both shapes",
        run: integration::simulators_task,
    },
    Task {
        name: "test",
        usage: "[PART] [FILTER]",
        summary: "all checks; PART is quick, fmt, tidy, spelling, clippy, unit, fuzz, book, packages or integration, FILTER a test's name",
        run: suite::task,
    },
    Task {
        name: "fetch",
        usage: "",
        summary: "install the PyTorch versions and the readers of profiles that the tests use",
        run: suite::fetch_task,
    },
    Task {
        name: "bench",
        usage: "overhead|families|ledger|agent [--rounds N] [--pairs N] [--duration TIME]",
        summary: "measure what watching costs per driver call, a record in the ledger or the agent at rest, and write docs/project/overhead.md",
        run: bench::task,
    },
    Task {
        name: "docs",
        usage: "",
        summary: "write the documents that are made from code: docs/reference/probes.md and docs/reference/metrics.md",
        run: docs::task,
    },
    Task {
        name: "book",
        usage: "",
        summary: "write the parts of the book that the program prints: docs/reference/commands.md and docs/pictures",
        run: book::task,
    },
    Task {
        name: "replays",
        usage: "[NAME]...",
        summary: "record the runs of tests/replays/runs.tsv again, on the simulated GPU; NAME records those with it in their names",
        run: replays::task,
    },
    Task {
        name: "calibrate",
        usage: "",
        summary: "measure verdicts and forecasts on those runs: the table in the code, and docs/project/verdicts.md",
        run: replays::calibrate,
    },
    Task {
        name: "simulations",
        usage: "[NAME]...",
        summary: "run real programs with each setting of PyTorch's allocator, compare what `memwatch simulate` says, and write docs/project/simulations.md",
        run: simulations::task,
    },
    Task {
        name: "matrix",
        usage: "[FRAMEWORK] [--newest N|--version V] [--keep]",
        summary: "compare memwatch with one release of each minor version of PyTorch, JAX, TensorFlow, ONNX Runtime and ggml, and write docs/project/versions.md; downloads gigabytes",
        run: matrix::task,
    },
    Task {
        name: "kernels",
        usage: "[KERNEL]... [--tests NAME]",
        summary: "run the tests of all driver functions with other kernels in virtual machines, and write docs/project/kernels.md",
        run: kernels::task,
    },
    Task {
        name: "fuzz",
        usage: "[TARGET] [SECONDS|FILE]",
        summary: "arbitrary bytes into what memwatch reads, a minute each; FILE repeats an input that failed",
        run: fuzz::task,
    },
    Task {
        name: "hostile",
        usage: "[ATTACK] [--rounds N] [--limit MIB]",
        summary: "attack an agent in every way of tests/hostile, as large as a user can; the agent may have 256 MiB, each answer a second",
        run: hostile::task,
    },
    Task {
        name: "gpu-check",
        usage: "[--bundle FILE] [--diff TRACE]",
        summary: "bundle the real-GPU check, and run it where there is a GPU; --diff compares the simulator with a trace",
        run: gpu_check::task,
    },
    Task {
        name: "install",
        usage: "[--root DIR]",
        summary: "build and install memwatch as DIR/bin/memwatch, with the agent's systemd unit (default /usr/local, where sudo finds it)",
        run: install::task,
    },
    Task {
        name: "package",
        usage: "[--tested] [--binary FILE] [--check]",
        summary: "build a binary for glibc 2.28 and later, and a tarball, a wheel, a .deb and an .rpm of it in target/packages; --check tries them in a virtual machine",
        run: package::task,
    },
    Task {
        name: "tidy",
        usage: "",
        summary: "check the house rules: sizes, names, what the pure crates may touch",
        run: tidy::task,
    },
];

fn main() -> ExitCode {
    match dispatch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch() -> Result<()> {
    run::forget_outer_cargo();
    let mut typed = std::env::args().skip(1);
    let name = typed.next().unwrap_or_else(|| "--help".to_owned());
    if matches!(name.as_str(), "--help" | "-h" | "help") {
        print!("{}", help());
        return Ok(());
    }
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        bail!("there is no task '{name}'\n\n{}", help());
    };
    let args = TaskArgs::new(typed);
    if args.asks_for_help() {
        println!("cargo xtask {} {}\n    {}", task.name, task.usage, task.summary);
        return Ok(());
    }
    (task.run)(&Repo::locate()?, args)
}

fn help() -> String {
    let call = |task: &Task| format!("{} {}", task.name, task.usage).trim_end().to_owned();
    let width = TASKS.iter().map(|task| call(task).len()).max().unwrap_or(0);
    let rows: Vec<String> = TASKS.iter().map(|task| format!("  {:width$}  {}", call(task), task.summary)).collect();
    format!("memwatch's own tasks\n\nUsage: cargo xtask <task>\n\nTasks:\n{}\n", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_task_once() {
        let text = help();
        for task in TASKS {
            let rows = text.lines().filter(|row| row.split_whitespace().next() == Some(task.name));
            assert_eq!(rows.count(), 1, "{}", task.name);
        }
    }
}
