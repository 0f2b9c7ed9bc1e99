//! Rules on what the pure crates may name, and in which direction their rooms may import.

use super::Violation;
use super::imports::paths;
use super::source::Source;

/// The crates that ask the world nothing.
const PURE: &[&str] = &["memwatch-core/src", "memwatch-common/src", "memwatch-inspect/src"];
/// Paths that ask the world something; each stands for everything below it.
const WORLDLY: &[&str] = &[
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "aya",
    "aya_ebpf",
    "libc",
    "tokio",
    "nvml_wrapper",
    "procfs",
];
const PRINTING: &[&str] = &["println!", "eprintln!", "print!", "eprint!", "dbg!"];

/// The rooms of a crate from the ground up: a room imports itself and the rooms before it in the
/// list, and nothing from the crate's root (`lib.rs`, `main.rs`), which imports all of them.
const HOUSES: &[(&str, &[&str])] = &[
    (
        "memwatch-core/src",
        &[
            "words",
            "owner",
            "stack",
            "input",
            "decode",
            "ledger",
            "kernel_driver",
            "allocators",
            "attribution",
            "snapshot",
            "state",
            "features",
            "pipeline",
            "recording",
        ],
    ),
    ("memwatch-inspect/src", &["memory", "pass", "rtti", "pytorch", "python", "holdings", "engines"]),
    (
        "memwatch/src",
        &[
            "printable",
            "output_file",
            "own_folder",
            "stranger_file",
            "sources",
            "frameworks",
            "backends",
            "exit",
            "options",
            "render",
            "client",
            "export",
            "watch",
            "agent",
            "commands",
            "cli",
        ],
    ),
];

/// The pure crates name nothing that reads, writes, sleeps, prints or reports the time.
pub(super) fn impure(source: &Source) -> Vec<Violation> {
    if !PURE.iter().any(|folder| source.is_below(folder)) {
        return Vec::new();
    }
    let roots: Vec<_> = WORLDLY.iter().map(|path| path.split("::").next().unwrap_or(path)).collect();
    let mut roots = roots;
    roots.dedup();
    let named = paths(&source.code, &roots).into_iter().filter_map(|(number, path)| {
        let banned = WORLDLY.iter().find(|banned| is_at_or_below(&path, banned))?;
        Some((number, format!("{banned} in a pure crate")))
    });
    let printed = source.code_lines().filter_map(|(number, line)| {
        let banned = PRINTING.iter().find(|name| has_word(line, name))?;
        Some((number, format!("{banned} in a pure crate")))
    });
    named.chain(printed).collect()
}

/// A room imports only what stands before it in its house.
pub(super) fn direction(source: &Source) -> Vec<Violation> {
    let house = HOUSES.iter().find_map(|(root, rooms)| Some((source.path.strip_prefix(root)?, rooms)));
    let Some((below, rooms)) = house.map(|(path, rooms)| (path.trim_start_matches('/'), rooms)) else {
        return Vec::new();
    };
    if matches!(below, "lib.rs" | "main.rs") || !source.has_extension("rs") || source.is_test(1) {
        return Vec::new();
    }
    let modules = module_path(below);
    let floor = |name: &str| rooms.iter().position(|room| *room == name);
    let Some(own) = modules.first().and_then(|room| floor(room)) else {
        return vec![(1, format!("{below} belongs to no room of the table in xtask/src/tidy/purity.rs"))];
    };
    paths(&source.code, &["crate", "super"])
        .into_iter()
        .filter(|(number, _)| !source.is_test(*number))
        .filter_map(|(number, path)| {
            let read = top_module(&modules, &path)?;
            match floor(&read) {
                Some(other) => {
                    (other > own).then(|| (number, format!("{} reads {read}, which stands above it", rooms[own])))
                }
                // `super` may lead to the file from a module inside it.
                None => path
                    .starts_with("crate::")
                    .then(|| (number, format!("{} reads {read} from the crate's root", rooms[own]))),
            }
        })
        .collect()
}

/// `ledger/linear.rs` → `[ledger, linear]`; `ledger/mod.rs` → `[ledger]`.
fn module_path(below: &str) -> Vec<&str> {
    let mut parts: Vec<_> = below.trim_end_matches(".rs").split('/').collect();
    if parts.last() == Some(&"mod") {
        parts.pop();
    }
    parts
}

/// The first module below the crate's root that a path names from inside `modules`.
fn top_module(modules: &[&str], path: &str) -> Option<String> {
    let mut parts = path.split("::").peekable();
    let mut base: Vec<&str> = match parts.next()? {
        "crate" => Vec::new(),
        _ => modules[..modules.len() - 1].to_vec(),
    };
    while parts.next_if_eq(&"super").is_some() {
        base.pop();
    }
    base.extend(parts);
    base.first().map(|name| (*name).to_owned())
}

fn is_at_or_below(path: &str, banned: &str) -> bool {
    path.strip_prefix(banned).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Whether `name` stands in the line and is not the end of a longer word.
fn has_word(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(position, _)| {
        let before = line[..position].bytes().next_back();
        !before.is_some_and(super::mask::is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [&str; 0] = [];

    fn found(rule: fn(&Source) -> Vec<Violation>, path: &str, text: &str) -> Vec<String> {
        rule(&Source::new(path, text)).into_iter().map(|(_, what)| what).collect()
    }

    #[test]
    fn a_pure_crate_reads_no_file_and_no_clock() {
        for text in [
            "use std::fs;",
            "use std::{collections::HashMap, time::{Duration, Instant}};",
            "let a = std::env::var(x);",
            "use libc::c_int;",
            "fn a() { println!(); }",
            "fn a() { eprintln!(); }",
        ] {
            assert_eq!(found(impure, "memwatch-core/src/a.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_pure_crate_may_name_durations_and_say_nvml() {
        let text = "use std::time::Duration;\nuse std::{fmt, io};\nstruct Coverage { nvml: bool }\n// std::fs\n";
        assert_eq!(found(impure, "memwatch-core/src/a.rs", text), NOTHING);
        assert_eq!(found(impure, "memwatch/src/a.rs", "use std::fs;"), NOTHING);
    }

    #[test]
    fn tidy_purity_permits_imports_of_earlier_modules_only() {
        let ledger = "memwatch-core/src/ledger/linear.rs";
        assert_eq!(found(direction, ledger, "use crate::decode::Call;\nuse super::totals;\n"), NOTHING);
        assert_eq!(found(direction, ledger, "use crate::{decode, snapshot::Snapshot};").len(), 1);
        assert_eq!(found(direction, ledger, "use super::super::features;").len(), 1);
        assert_eq!(found(direction, "memwatch-core/src/input.rs", "use super::decode::Call;").len(), 1);
        assert_eq!(found(direction, "memwatch-core/src/lib.rs", "use crate::snapshot::Snapshot;"), NOTHING);
    }

    #[test]
    fn tidy_purity_reports_imports_from_the_root() {
        let leak = "memwatch-core/src/features/leak/mod.rs";
        assert_eq!(found(direction, leak, "use crate::Pipeline;").len(), 1);
        assert_eq!(found(direction, leak, "use crate::state::State;\nuse super::trend;\n"), NOTHING);
    }

    #[test]
    fn tidy_purity_reports_modules_that_import_from_above() {
        for (root, rooms) in HOUSES {
            for (floor, room) in rooms.iter().enumerate() {
                let path = format!("{root}/{room}.rs");
                for (other, read) in rooms.iter().enumerate() {
                    let count = found(direction, &path, &format!("use crate::{read}::Thing;")).len();
                    assert_eq!(count, usize::from(other > floor), "{room} reads {read}");
                }
            }
        }
    }

    #[test]
    fn tidy_purity_requires_a_row_for_a_new_module() {
        assert_eq!(found(direction, "memwatch-core/src/other.rs", "").len(), 1);
        assert_eq!(found(direction, "memwatch/src/other.rs", "").len(), 1);
    }
}
