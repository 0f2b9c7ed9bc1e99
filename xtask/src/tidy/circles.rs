//! No circle of files: where one file of a crate names another, that one does not lead back to it.
//!
//! A module and what is inside it are one thing here: a parent names its children and they name it, and neither counts.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::imports::paths;
use super::source::Source;

/// A module by the names that lead to it from its crate's root.
type Module<'a> = Vec<&'a str>;

/// For each file, by its place in the list: what it names, and in which line it does first.
type Arrows = Vec<BTreeMap<usize, usize>>;

/// Every arrow of every circle, at the line that draws it.
pub(super) fn circles(sources: &[Source]) -> Vec<(usize, Violation)> {
    let mut crates: BTreeMap<&str, BTreeMap<Module<'_>, usize>> = BTreeMap::new();
    for (index, source) in sources.iter().enumerate().filter(|(_, source)| source.has_extension("rs")) {
        let Some((root, below)) = source.path.split_once("/src/").filter(|_| !source.is_test(1)) else { continue };
        crates.entry(root).or_default().insert(module(below), index);
    }
    let mut arrows = vec![BTreeMap::new(); sources.len()];
    for modules in crates.values() {
        for (own, index) in modules {
            arrows[*index] = named(&sources[*index], own, modules);
        }
    }
    let reached: Vec<BTreeSet<usize>> = (0..sources.len()).map(|start| reached(&arrows, start)).collect();
    let mut found = Vec::new();
    for (index, own) in arrows.iter().enumerate() {
        for (other, line) in own.iter().filter(|(other, _)| reached[**other].contains(&index)) {
            let back = if arrows[*other].contains_key(&index) { "which names it" } else { "from which it is reached" };
            found.push((index, (*line, format!("names {}, {back}", sources[*other].path))));
        }
    }
    found
}

/// `ledger/linear.rs` → `[ledger, linear]`; `ledger/mod.rs` → `[ledger]`; the root of a crate is nothing.
fn module(below: &str) -> Module<'_> {
    let mut names: Vec<_> = below.trim_end_matches(".rs").split('/').collect();
    if matches!(names.last(), Some(&("mod" | "lib" | "main"))) {
        names.pop();
    }
    names
}

/// The files that a file names, but for what it is inside, or has inside it.
fn named(source: &Source, own: &[&str], modules: &BTreeMap<Module<'_>, usize>) -> BTreeMap<usize, usize> {
    let mut named = BTreeMap::new();
    let shipped = paths(&source.code, &["crate", "super"]).into_iter().filter(|(line, _)| !source.is_test(*line));
    for (line, path) in shipped {
        let full = absolute(own, &path);
        let longest = (1..=full.len()).rev().find_map(|length| modules.get_key_value(&full[..length]));
        let Some((other, index)) = longest else { continue };
        if !other.starts_with(own) && !own.starts_with(other) {
            let first: &mut usize = named.entry(*index).or_insert(line);
            *first = line.min(*first);
        }
    }
    named
}

/// A path from the crate's root, where it is written from a module.
fn absolute<'a>(own: &[&'a str], path: &'a str) -> Module<'a> {
    let mut names = path.split("::").peekable();
    let mut full = if names.next_if_eq(&"crate").is_some() { Vec::new() } else { own.to_vec() };
    while names.next_if_eq(&"super").is_some() {
        full.pop();
    }
    full.extend(names);
    full
}

/// All files that arrows lead to from one.
fn reached(arrows: &Arrows, start: usize) -> BTreeSet<usize> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
    while let Some(index) = next.pop() {
        next.extend(arrows[index].keys().filter(|other| seen.insert(**other)));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let line = |(index, (line, what)): (usize, Violation)| format!("{}:{line} {what}", sources[index].path);
        circles(&sources).into_iter().map(line).collect()
    }

    #[test]
    fn two_files_that_name_each_other_are_a_circle() {
        let [one, other] =
            [("a/src/b.rs", "\nuse crate::c::Thing;\n"), ("a/src/c.rs", "use super::b::{self, Other};\n")];
        assert_eq!(
            found(&[one, other]),
            ["a/src/b.rs:2 names a/src/c.rs, which names it", "a/src/c.rs:1 names a/src/b.rs, which names it"]
        );
        assert_eq!(found(&[one, ("a/src/c.rs", "struct Thing;")]), [""; 0]);
    }

    #[test]
    fn tidy_finds_indirect_module_cycles_but_not_paths_into_them() {
        let files = [
            ("a/src/d/mod.rs", "fn a() { crate::e::f(); }"),
            ("a/src/e.rs", "use crate::g::h::Thing;"),
            ("a/src/g/h.rs", "use crate::d::{Thing, self};"),
            ("a/src/i.rs", "use crate::e::f;"),
        ];
        let found = found(&files);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], "a/src/d/mod.rs:1 names a/src/e.rs, from which it is reached");
    }

    #[test]
    fn tidy_treats_a_module_and_its_submodules_as_one() {
        let files = [
            ("a/src/lib.rs", "use crate::b::Thing;"),
            ("a/src/b.rs", "use crate::b::c::Thing; use crate::Root;"),
            ("a/src/b/c.rs", "use super::Other; use crate::Root;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn tidy_ignores_test_and_cross_crate_module_cycles() {
        let test = "struct B;\n#[cfg(test)]\nmod tests {\n    use crate::c::Thing;\n}\n";
        assert_eq!(found(&[("a/src/b.rs", test), ("a/src/c.rs", "use crate::b::B;")]), [""; 0]);
        assert_eq!(found(&[("a/src/b.rs", "use crate::c::C;"), ("d/src/c.rs", "use crate::b::B;")]), [""; 0]);
        assert_eq!(
            found(&[("a/src/b.rs", "use crate::c::tests::C;"), ("a/src/c/tests/x.rs", "use crate::b::B;")]),
            [""; 0]
        );
    }
}
