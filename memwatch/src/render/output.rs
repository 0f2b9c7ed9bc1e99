//! Where snapshots go: a screen, a table per interval, or a line of JSON per interval.

use std::io::{self, IsTerminal as _};

use memwatch_core::snapshot::Snapshot;
use memwatch_core::snapshot::groups::By;
use ratatui::crossterm::terminal;
use tokio::sync::mpsc;

use crate::exit::Failure;
use crate::options::Common;
use crate::render::json::{self, Origin, Report};
use crate::render::text as table;
use crate::render::text::TableOptions;
use crate::render::text::columns::Shown;
use crate::render::tui::{self, Event, Flow, Outlooks, Screen, ScreenOptions};
use crate::render::wall_clock::WallClock;

/// Where snapshots go.
pub(crate) enum Output {
    /// Full screen, refreshed in place.
    Screen(Box<Screen>),
    /// Plain text, one table per snapshot.
    Table(TableOptions, Shown),
    /// Plain text: sums by owner.
    Groups(TableOptions, By),
    /// JSON, one line per snapshot.
    Json {
        /// Which report it is.
        report: Report,
        /// This machine's name.
        host: String,
    },
}

impl Output {
    /// The form for one report on a machine, with sums by owner if they are asked for.
    pub(crate) fn once(common: &Common, (by, shown): (Option<By>, Shown), host: String) -> Self {
        match by {
            _ if common.json => Self::Json { report: Report::Ps(by), host },
            Some(by) => Self::Groups(style(common, false), by),
            None => Self::Table(style(common, false), shown),
        }
    }

    /// The form for a watch: a screen on a terminal, otherwise what [`Output::once`] writes, again and again.
    ///
    /// # Errors
    /// When the terminal cannot be set up.
    pub(crate) fn watch(common: &Common, single_target: bool) -> Result<Self, Failure> {
        if common.json {
            return Ok(Self::report(Report::Watch));
        }
        if !io::stdout().is_terminal() {
            return Ok(Self::Table(style(common, true), Shown::default()));
        }
        let options = ScreenOptions { color: use_color(common), ascii: common.ascii, single_target };
        Ok(Self::Screen(Box::new(Screen::open(options).map_err(anyhow::Error::from)?)))
    }

    /// Whether a watch has a screen.
    pub(crate) fn is_screen(common: &Common) -> bool {
        !common.json && io::stdout().is_terminal()
    }

    /// What is expected by the snapshot that is shown next.
    pub(crate) fn expect(&mut self, outlooks: Outlooks) {
        if let Self::Screen(screen) = self {
            screen.expect(outlooks);
        }
    }

    /// One report in JSON.
    pub(crate) fn report(report: Report) -> Self {
        Self::Json { report, host: host_name() }
    }

    /// Shows a snapshot; `boottime_to_unix_ns` turns its times into dates. False when nobody reads any more.
    ///
    /// # Errors
    /// When it cannot be written for another reason.
    pub(crate) fn show(&mut self, snapshot: &Snapshot, boottime_to_unix_ns: i128) -> Result<bool, Failure> {
        let clock = WallClock::local(boottime_to_unix_ns);
        let written = match self {
            Self::Screen(screen) => screen.draw(snapshot, &clock),
            Self::Table(style, shown) => table::write(&mut io::stdout().lock(), snapshot, shown, &clock, style),
            Self::Groups(style, by) => table::groups::write(&mut io::stdout().lock(), snapshot, *by, &clock, style),
            Self::Json { report, host } => {
                json::write(&mut io::stdout().lock(), *report, snapshot, Origin { host, clock: &clock })
            }
        };
        match written {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(anyhow::Error::from(error).context("the report cannot be written").into()),
        }
    }

    /// The keys of the screen; for the other forms a channel on which nothing ever comes.
    pub(crate) fn keys(&self) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(64);
        if matches!(self, Self::Screen(_)) {
            tui::spawn_keys(sender);
        } else {
            // Kept alive for the life of the program, so that the receiver waits instead of ending.
            std::mem::forget(sender);
        }
        receiver
    }

    /// Handles a key: what it asks for beyond the screen.
    pub(crate) fn key(&mut self, event: Event) -> Flow {
        match self {
            Self::Screen(screen) => screen.handle(event),
            _ => Flow::Continue,
        }
    }
}

/// What became of a report: one that nobody reads to its end is no failure.
///
/// # Errors
/// When it could not be written for another reason.
pub(crate) fn unless_closed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written.map_err(|error| anyhow::Error::from(error).context("the report cannot be written"))?),
    }
}

/// How text looks on standard output.
pub(crate) fn style(common: &Common, repeated: bool) -> TableOptions {
    TableOptions { columns: columns(), color: use_color(common), ascii: common.ascii, repeated }
}

/// The width of the terminal; `None` in a pipe, where no line is cut.
fn columns() -> Option<usize> {
    let size = terminal::size().ok().filter(|_| io::stdout().is_terminal())?;
    Some(tui::usable(size).0.into())
}

/// Whether standard output takes colours.
pub(crate) fn use_color(common: &Common) -> bool {
    common.color.decide(io::stdout().is_terminal(), |name| std::env::var(name).ok())
}

/// This machine's name, as `uname -n` gives it.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
