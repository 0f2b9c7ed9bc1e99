//! Collects the licences of works linked into memwatch, most of which require their text in the
//! distribution.

use crate::install::captured;
use crate::repo::Repo;
use crate::run::pinned;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// File name prefixes of licences.
const NAMES: [&str; 5] = ["license", "licence", "copying", "copyright", "notice"];

/// Returns a text with the name, version, licence and licence files of every crate linked into the
/// program or its kernel half, and of the page's plot library.
///
/// # Errors
/// cargo does not list the crates.
pub(super) fn text(repo: &Repo) -> Result<String> {
    let mut text = String::from(
        "memwatch contains the works below. memwatch itself is under the MIT licence or the Apache licence 2.0, as you like.\n",
    );
    let folders = folders(repo)?;
    for package in linked(repo)? {
        let Some((licence, folder)) = folders.get(&package) else { continue };
        write!(text, "\n==== {package}: {licence}\n")?;
        append(&mut text, Path::new(folder))?;
        // The C library itself is in a subdirectory of its bindings, with its own licence.
        let vendored = package.split("-sys ").next().map(|name| Path::new(folder).join(name));
        if let Some(vendored) = vendored.filter(|vendored| package.contains("-sys ") && vendored.is_dir()) {
            append(&mut text, &vendored)?;
        }
    }
    text.push_str("\n==== uPlot, in the agent's page: MIT\n");
    append(&mut text, &repo.made("web/node_modules/uplot"))?;
    Ok(text)
}

/// Returns `name version` of the linked crates, without this workspace's.
fn linked(repo: &Repo) -> Result<BTreeSet<String>> {
    let mut packages = BTreeSet::new();
    for member in ["memwatch", "memwatch-ebpf"] {
        let mut tree = pinned(repo, "cargo");
        tree.args(["tree", "--package", member, "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
        let listed = captured(&mut tree)?;
        // Lines have the form `name v1.2.3`, followed by a path for our own crates.
        let external = String::from_utf8_lossy(&listed);
        let external = external.lines().filter(|line| !line.contains('/'));
        packages.extend(external.filter_map(|line| {
            let mut words = line.split(' ');
            Some(format!("{} {}", words.next()?, words.next()?.trim_start_matches('v')))
        }));
    }
    Ok(packages)
}

/// Returns the licence and the directory of every crate that cargo knows, by `name version`.
fn folders(repo: &Repo) -> Result<BTreeMap<String, (String, String)>> {
    let mut metadata = pinned(repo, "cargo");
    let metadata = captured(metadata.args(["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Value = serde_json::from_slice(&metadata).context("cargo's metadata")?;
    let packages = metadata["packages"].as_array().context("cargo's metadata has no packages")?;
    let row = |package: &Value| {
        let of = |field: &str| package[field].as_str().map(str::to_owned);
        let folder = Path::new(package["manifest_path"].as_str()?).parent()?.to_str()?.to_owned();
        let licence = of("license").unwrap_or_else(|| "see its own words".to_owned());
        Some((format!("{} {}", of("name")?, of("version")?), (licence, folder)))
    };
    Ok(packages.iter().filter_map(row).collect())
}

/// Appends every licence file of this directory.
fn append(text: &mut String, folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let names: BTreeSet<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_licence(name))
        .collect();
    for name in names {
        let path = folder.join(&name);
        if path.is_file() {
            let own = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            write!(text, "\n-- {name}\n{}\n", String::from_utf8_lossy(&own).trim_end())?;
        }
    }
    Ok(())
}

fn is_licence(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_list_has_linked_packages_and_no_build_dependencies() {
        let packages = linked(&Repo::locate().unwrap()).unwrap();
        let has = |name: &str| packages.iter().any(|package| package.split(' ').next() == Some(name));
        assert!(has("inferno") && has("aya") && has("aya-ebpf") && has("zstd-sys"), "{packages:?}");
        assert!(!has("proptest") && !has("cc") && !has("memwatch-core"), "{packages:?}");
    }

    #[test]
    fn files_with_licences_are_found_by_their_names() {
        assert!(["LICENSE-MIT", "COPYING", "license.txt", "NOTICE"].iter().all(|name| is_licence(name)));
        assert!(!is_licence("Cargo.toml") && !is_licence("src"));
    }
}
