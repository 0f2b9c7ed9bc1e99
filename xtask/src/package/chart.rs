//! Checks the Helm chart: Helm's own engine renders it, and Kubernetes' schemas validate the
//! result.

use crate::repo::Repo;
use crate::run::run;
use crate::setup::PythonTools;
use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::Command;

/// Helm's Go packages with a Python interface, Kubernetes' schemas, and their dependencies.
const TOOLS: PythonTools = PythonTools {
    name: "helm",
    wheels: &[
        "helm-python-sdk==0.2.2",
        "kubernetes-validate==1.37.0",
        "PyYAML==6.0.4",
        "attrs==26.1.0",
        "importlib_resources==7.1.0",
        "jsonschema==4.26.0",
        "jsonschema-specifications==2025.9.1",
        "packaging==26.4",
        "referencing==0.37.0",
        "rpds-py==2026.9.1",
        "typing_extensions==4.16.0",
    ],
};

/// Checks the chart, and packs it into this directory.
///
/// # Errors
/// A tool cannot be downloaded, or the chart is wrong; the reason is on the terminal.
pub(super) fn check(repo: &Repo, folder: &Path) -> Result<()> {
    let programs = TOOLS.ensure(repo)?;
    let mut check = Command::new(programs.join("python"));
    check.arg(repo.path("tests/packages/check_chart.py")).arg(repo.path("deploy")).arg(folder);
    run(&mut check).context("the Helm chart")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_chart_the_image_and_the_changelog_are_of_this_version() {
        let repo = Repo::locate().unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let has = |path: &str, line: String| {
            let text = fs::read_to_string(repo.path(path)).unwrap();
            assert!(text.lines().any(|own| own.trim() == line), "{path} has no line '{line}'");
        };
        has("deploy/helm/memwatch/Chart.yaml", format!("version: {version}"));
        has("deploy/helm/memwatch/Chart.yaml", format!("appVersion: {version}"));
        has("deploy/kubernetes/daemonset.yaml", format!("image: memwatch:{version}"));
        has("deploy/packages/changelog.yaml", format!("- semver: {version}"));
    }
}
