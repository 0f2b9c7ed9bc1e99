//! `memwatch web`: requests a link to the agent's page, limited to what the caller may see, and
//! opens it.

pub(crate) mod args;

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memwatch_core::snapshot::Viewer;
use serde::Serialize;

use crate::client::protocol::PageLink;
use crate::client::{AgentClient, NoAgent};
use crate::exit::{Exit, ExitFailure};
use crate::options::{CommonArgs, DEFAULT_SOCKET};
use crate::output_file;
use crate::render::output::unless_closed;
use args::Web;

/// Program that opens a page in the user's browser.
const OPENER: &str = "xdg-open";
/// File that redirects to the page; each call replaces it.
const FILE: &str = "memwatch-page.html";

/// Prints the link, and opens it if there is a screen.
///
/// # Errors
/// There is no agent, or it serves no page.
pub(crate) async fn run(args: &Web, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let socket = common.agent.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET));
    let (link, viewer) = AgentClient::page(socket).await.map_err(|why| without_agent(socket, &why))?;
    let url = match link {
        PageLink::Open { url } => url,
        PageLink::Closed { why } => {
            let sentence = format!("the agent on {} has no page for you: {}", socket.display(), why.escape_debug());
            return Err(ExitFailure::new(Exit::Error, sentence));
        }
    };
    let printed = if common.json { report(&url).map_err(anyhow::Error::from)? } else { url.clone() };
    let mut out = io::stdout().lock();
    unless_closed(writeln!(out, "{printed}").and_then(|()| out.flush()))?;
    if common.json {
        return Ok(Exit::Ok);
    }
    let whose = match viewer {
        Viewer::Everything => "all processes",
        Viewer::User(_) => "your processes, and the sum of all others",
    };
    eprintln!("memwatch: the link works once, within five minutes, on this machine; the page shows {whose}");
    if !args.no_open && has_screen() {
        match open(&url) {
            Ok(()) => eprintln!("memwatch: opening it in your browser"),
            Err(error) => eprintln!("memwatch: your browser was not opened ({error}): open the link yourself"),
        }
    }
    Ok(Exit::Ok)
}

#[derive(Serialize)]
struct WebEnvelope<'a> {
    schema: &'static str,
    version: &'static str,
    data: WebLink<'a>,
}

#[derive(Serialize)]
struct WebLink<'a> {
    url: &'a str,
}

fn report(url: &str) -> serde_json::Result<String> {
    let (schema, version) = ("memwatch.web/1", env!("CARGO_PKG_VERSION"));
    serde_json::to_string(&WebEnvelope { schema, version, data: WebLink { url } })
}

/// Whether a browser may be started in a desktop session; never for root.
fn has_screen() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    // SAFETY: it has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    !is_root && (is_set("DISPLAY") || is_set("WAYLAND_DISPLAY"))
}

/// Opens the link through a file that only its owner can read: other users could see it on a
/// command line.
fn open(url: &str) -> io::Result<()> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folder = folder.ok_or_else(|| io::Error::other("XDG_RUNTIME_DIR is not set"))?;
    let path = folder.join(FILE);
    let mut file = output_file::create(&path, true)?;
    file.write_all(leading_to(url).as_bytes())?;
    drop(file);
    let mut opener = Command::new(OPENER);
    opener.arg::<&OsStr>(path.as_ref()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = opener.status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{OPENER} ended with {status}"))) }
}

/// Returns a page that redirects to the link. The link has only digits, dots, colons, brackets and
/// slashes, which need no escaping.
fn leading_to(url: &str) -> String {
    format!(
        "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=\"0; url={url}\"><a href=\"{url}\">memwatch</a>\n"
    )
}

fn without_agent(socket: &Path, why: &NoAgent) -> ExitFailure {
    let sentence = match why {
        NoAgent::Absent => format!("no agent listens on {}", socket.display()),
        NoAgent::Unusable(why) => format!("the agent on {} cannot be used: {why}", socket.display()),
    };
    ExitFailure::new(Exit::Error, sentence).advise(
        "The page is the agent's. Start it with: sudo memwatch agent --listen 127.0.0.1:9747\n\
         Without an agent, memwatch shows the same on the terminal.",
    )
}
