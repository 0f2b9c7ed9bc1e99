//! `cargo xtask bench ledger`: measures the time per processed record, and the memory per
//! allocation.

use super::DOCUMENT;
use super::report::LEDGER;
use crate::args::TaskArgs;
use crate::document;
use crate::repo::Repo;
use crate::run::{line, pinned};
use crate::table::MarkdownTable;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::process::Stdio;

const ROUNDS: u64 = 9;

/// Measures, prints the table and writes it into the document.
pub(super) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let rounds = args.count("--rounds")?.unwrap_or(ROUNDS);
    args.finish()?;
    if rounds == 0 {
        bail!("--rounds is at least 1");
    }
    let mut cargo = pinned(repo, "cargo");
    cargo.args(["bench", "--quiet", "--package", "memwatch-core", "--bench", "ledger", "--"]);
    cargo.args(["--rounds", &rounds.to_string()]).stderr(Stdio::inherit());
    let output = cargo.output().with_context(|| format!("cannot start {}", line(&cargo)))?;
    if !output.status.success() {
        bail!("{}: {}", output.status, line(&cargo));
    }
    let rows: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("the benchmark says {line}")))
        .collect::<Result<_>>()?;
    let text = text(&document::machine()?, rounds, &rows)?;
    println!("{text}");
    document::update(&repo.path(DOCUMENT), &LEDGER, &text)
}

fn text(machine: &str, rounds: u64, rows: &[Value]) -> Result<String> {
    let mut text = format!("{machine}.\n{rounds} rounds of 1048576 records.\n\n");
    let mut table = MarkdownTable::new(&[
        "live allocations",
        "ns per record (min)",
        "ns per record (median)",
        "million records per second (median)",
        "heap bytes per live allocation",
        "copied for a keyframe, ms (min)",
    ]);
    let number = |row: &Value, field: &str| row[field].as_f64().with_context(|| format!("no {field} in {row}"));
    for row in rows {
        let median_ns = number(row, "median_ns")?;
        table.row(vec![
            row["live"].to_string(),
            format!("{:.0}", number(row, "min_ns")?),
            format!("{median_ns:.0}"),
            format!("{:.1}", 1_000.0 / median_ns),
            format!("{:.1}", number(row, "bytes_per_live")?),
            format!("{:.2}", number(row, "copy_ms")?),
        ]);
    }
    text.push_str(&table.text());
    if let [first, .., last] = rows {
        let ratio = number(last, "median_ns")? / number(first, "median_ns")?;
        write!(
            text,
            "\nA record costs {ratio:.1} times as much with {} live as with {}.\n",
            last["live"], first["live"]
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rates_and_the_ratio_come_from_the_medians() {
        let rows = [
            json!({"live": 1_000, "min_ns": 70.0, "median_ns": 80.0, "bytes_per_live": 126.2, "copy_ms": 0.01}),
            json!({"live": 10_000_000, "min_ns": 190.0, "median_ns": 200.0, "bytes_per_live": 95.6, "copy_ms": 0.01}),
        ];
        let text = text("here", 3, &rows).unwrap();
        assert!(text.contains("12.5") && text.contains("5.0"), "{text}");
        assert!(text.ends_with("A record costs 2.5 times as much with 10000000 live as with 1000.\n"), "{text}");
        assert!(super::text("here", 3, &[json!({})]).is_err());
    }
}
