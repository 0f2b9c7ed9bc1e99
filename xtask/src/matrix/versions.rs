//! Versions of a package in its registry, newest first, and the selection of one per minor version.

use crate::run::output;
use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::Command;

/// Returns the versions of a PyPI package, as pip lists them.
///
/// # Errors
/// pip fails.
pub(super) fn of_pypi(python: &Path, package: &str) -> Result<Vec<String>> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "index", "versions", "--disable-pip-version-check", package]);
    let text = output(&mut pip).with_context(|| format!("pip could not list the versions of {package}"))?;
    Ok(listed(&text))
}

/// Returns the versions of an npm package.
///
/// # Errors
/// npm fails.
pub(super) fn of_npm(package: &str) -> Result<Vec<String>> {
    let mut npm = Command::new("npm");
    npm.args(["view", package, "versions", "--json"]);
    let text = output(&mut npm).with_context(|| format!("npm could not list the versions of {package}"))?;
    let mut all: Vec<String> = text.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    all.reverse();
    Ok(all)
}

/// Parses `Available versions: 2.0, 1.9`.
fn listed(text: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("Available versions:"));
    line.into_iter().flat_map(|line| line.split(',')).map(|version| version.trim().to_owned()).collect()
}

/// Returns the newest of each minor version, in the order of the list, without pre-releases.
pub(super) fn one_of_each_minor(versions: &[String]) -> Vec<String> {
    let mut seen: Vec<(u32, u32)> = Vec::new();
    let mut chosen = Vec::new();
    for version in versions {
        let Some(minor) = minor(version) else { continue };
        if !seen.contains(&minor) {
            seen.push(minor);
            chosen.push(version.clone());
        }
    }
    chosen
}

/// Returns the first two numbers; `None` if any part is not a number.
fn minor(version: &str) -> Option<(u32, u32)> {
    let numbers: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
    match numbers?[..] {
        [major, minor, ..] => Some((major, minor)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_uses_the_newest_release_of_each_minor_version() {
        let text =
            "jax (0.12.1)\nAvailable versions: 0.12.1, 0.12.0.1, 0.12.0, 0.11.0rc1, 0.10.3, 0.10.2\n  INSTALLED: 1.0\n";
        assert_eq!(one_of_each_minor(&listed(text)), ["0.12.1", "0.10.3"]);
        assert_eq!(listed("nothing"), [""; 0]);
    }
}
