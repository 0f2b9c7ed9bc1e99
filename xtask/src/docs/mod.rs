//! `cargo xtask docs`: generates documents from code, and checks that the committed ones are
//! current.

mod metrics;
mod probes;

use crate::args::TaskArgs;
use crate::repo::Repo;
use anyhow::{Context as _, Result, bail};
use std::fs;

/// A generated document.
struct GeneratedDocument {
    /// Path relative to the root.
    path: &'static str,
    /// Generates the text.
    text: fn() -> String,
}

const DOCUMENTS: &[GeneratedDocument] = &[
    GeneratedDocument { path: "docs/reference/probes.md", text: probes::text },
    GeneratedDocument { path: "docs/reference/metrics.md", text: metrics::text },
];

/// Runs `cargo xtask docs`.
pub(crate) fn task(repo: &Repo, args: TaskArgs) -> Result<()> {
    args.finish()?;
    for document in DOCUMENTS {
        let path = repo.path(document.path);
        fs::write(&path, (document.text)()).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Compares the committed documents with the generated ones.
///
/// # Errors
/// A document is missing or differs.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let is_stale = |document: &&GeneratedDocument| match fs::read_to_string(repo.path(document.path)) {
        Ok(committed) => committed != (document.text)(),
        Err(_) => true,
    };
    let stale: Vec<&str> = DOCUMENTS.iter().filter(is_stale).map(|document| document.path).collect();
    if !stale.is_empty() {
        bail!("not what the code says now: {}. To write it again: cargo xtask docs", stale.join(", "));
    }
    Ok(())
}
