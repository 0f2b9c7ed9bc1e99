//! The HTML page, with tables that every browser can show. Scripts replace them by richer views.

use std::fmt::Write as _;

use memwatch_core::snapshot::{GpuView, ProcessView};

use super::json::PageContent;
use crate::export::plot::escape;
use crate::printable::printable;
use crate::render::format::{UNKNOWN, bytes, known, percent};
use crate::render::sentences;
use crate::render::text::columns::{COLUMNS, ProcessRow};

/// HTML template of the page.
const PAGE: &str = include_str!("../../../web/page.html");
/// HTML template of a refusal.
const REFUSAL: &str = include_str!("../../../web/refusal.html");

/// Reason for a refusal: a title and an instruction.
pub(super) type PageRefusal = (&'static str, &'static str);

/// The request has no link.
pub(super) const VISITOR: PageRefusal = (
    "This page needs a link",
    "The agent shows each user their own processes, so it needs to know who you are. On this machine, type:",
);
/// The link was used or has expired.
pub(super) const USED: PageRefusal =
    ("This link was used or has expired", "A link opens the page once, within five minutes. For another one, type:");
/// The session does not exist or has ended.
pub(super) const ENDED: PageRefusal = (
    "This page has ended",
    "A page stays open for twelve hours, or until the agent is started again. For a new one, type:",
);
/// The connection came over the network.
pub(super) const ELSEWHERE: PageRefusal = (
    "Not over the network",
    "What the page shows could be read on the way: it is served on this machine only. Forward the port with ssh -L and open the page there, or start the \
     agent with --tls-cert and --tls-key, or with --insecure=page. On the machine, type:",
);
/// No random numbers are available.
pub(super) const UNABLE: PageRefusal =
    ("The page cannot be opened", "The agent's log names the reason. Once the problem is fixed, type:");

/// Returns the HTML of a refusal.
pub(super) fn refusal((title, sentence): PageRefusal) -> String {
    filled(REFUSAL, &[("<!--TITLE-->", title), ("<!--SENTENCE-->", sentence)])
}

/// Returns the page with all its tables.
pub(super) fn page(shown: &PageContent) -> String {
    let snapshot = shown.snapshot;
    let host = text(shown.host);
    let (gpus, processes) = (gpus(shown), processes(shown));
    let hidden = snapshot.hidden.as_ref().map(|hidden| hidden.processes).unwrap_or_default();
    let mut besides = String::new();
    if hidden > 0 {
        let _ = write!(besides, "<p>{hidden} processes of other users hold memory, too.</p>");
    }
    if shown.left_out > 0 {
        let _ = write!(besides, "<p>{} smaller processes are not listed: memwatch ps has all.</p>", shown.left_out);
    }
    let time = text(&shown.clock.rfc3339(snapshot.time_ns));
    let holes = [
        ("<!--HOST-->", &*host),
        ("<!--TIME-->", &*time),
        ("<!--GPUS-->", &*gpus),
        ("<!--PROCESSES-->", &*processes),
        ("<!--BESIDES-->", &*besides),
        ("<!--VERSION-->", env!("CARGO_PKG_VERSION")),
    ];
    filled(PAGE, &holes)
}

/// Fills each placeholder of a template once. Inserted text is not searched for placeholders.
fn filled(page: &str, holes: &[(&str, &str)]) -> String {
    let mut found: Vec<_> = holes.iter().filter_map(|hole| Some((page.find(hole.0)?, hole))).collect();
    found.sort_unstable_by_key(|(at, _)| *at);
    let (mut whole, mut from) = (String::with_capacity(page.len() + 4096), 0);
    for (at, (hole, text)) in found {
        whole.push_str(&page[from..at]);
        whole.push_str(text);
        from = at + hole.len();
    }
    whole.push_str(&page[from..]);
    whole
}

/// Escapes untrusted text for terminals and HTML.
fn text(of_strangers: &str) -> String {
    escape(&printable(of_strangers))
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    cells.into_iter().fold("<tr>".to_owned(), |row, cell| row + "<td>" + &text(&cell) + "</td>") + "</tr>\n"
}

fn head<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let head = names.into_iter().fold(String::new(), |head, name| head + "<th scope=\"col\">" + name + "</th>");
    format!("<thead><tr>{head}</tr></thead>\n")
}

fn gpus(shown: &PageContent) -> String {
    let gpu = |gpu: &GpuView| {
        let share = gpu.used_bytes.zip(gpu.total_bytes).map(|(used, total)| percent(used, total));
        row([
            sentences::gpu_number(shown.snapshot, Some(&gpu.uuid)),
            gpu.name.clone(),
            known(gpu.used_bytes, bytes),
            known(gpu.total_bytes, bytes),
            share.unwrap_or(UNKNOWN.to_owned()),
            bytes(gpu.live_bytes),
        ])
    };
    let rows: String = shown.snapshot.gpus.iter().map(gpu).collect();
    format!("<table>{}<tbody>{rows}</tbody></table>", head(["GPU", "NAME", "USED", "TOTAL", "SHARE", "ALLOCATED"]))
}

fn processes(shown: &PageContent) -> String {
    let snapshot = shown.snapshot;
    let rows = |process: &ProcessView| {
        let gpus: Vec<_> = if process.gpus.is_empty() { vec![None] } else { process.gpus.iter().map(Some).collect() };
        let row = |gpu| {
            let cell = ProcessRow { snapshot, process, gpu, ascii: false };
            row(COLUMNS.iter().map(|column| column.text(&cell)))
        };
        gpus.into_iter().map(row).collect::<String>()
    };
    let living = snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
    let rows: String = living.map(rows).collect();
    format!("<table>{}<tbody>{rows}</tbody></table>", head(COLUMNS.iter().map(|column| column.head().0)))
}
