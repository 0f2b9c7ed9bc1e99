//! Output of snapshots: a screen, a table per interval, or a line of JSON per interval.

use std::io::{self, IsTerminal as _};

use memwatch_core::snapshot::Snapshot;
use memwatch_core::snapshot::groups::OwnerGrouping;
use ratatui::crossterm::terminal;
use tokio::sync::mpsc;

use crate::exit::ExitFailure;
use crate::options::CommonArgs;
use crate::render::json::{self, JsonReport, ReportOrigin};
use crate::render::text as table;
use crate::render::text::TableOptions;
use crate::render::text::columns::TableSelection;
use crate::render::tui::{self, Outlooks, Screen, ScreenEvent, ScreenFlow, ScreenOptions};
use crate::render::wall_clock::WallClock;

/// Output format and target.
pub(crate) enum ReportOutput {
    /// Full screen, refreshed in place.
    Screen(Box<Screen>),
    /// Plain text, one table per snapshot.
    Table(TableOptions, TableSelection),
    /// Plain text: sums by owner.
    Groups(TableOptions, OwnerGrouping),
    /// JSON, one line per snapshot.
    Json {
        /// Type of the report.
        report: JsonReport,
        /// Host name.
        host: String,
    },
}

impl ReportOutput {
    /// Returns the output for a single report, optionally with sums by owner.
    pub(crate) fn once(
        common: &CommonArgs,
        (by, shown): (Option<OwnerGrouping>, TableSelection),
        host: String,
    ) -> Self {
        match by {
            _ if common.json => Self::Json { report: JsonReport::Ps(by), host },
            Some(by) => Self::Groups(style(common, false), by),
            None => Self::Table(style(common, false), shown),
        }
    }

    /// Returns the output for a tracing session: a screen on a terminal, otherwise a table or a
    /// JSON report per interval.
    ///
    /// # Errors
    /// If the terminal cannot be set up.
    pub(crate) fn watch(common: &CommonArgs, single_target: bool) -> Result<Self, ExitFailure> {
        if common.json {
            return Ok(Self::report(JsonReport::Watch));
        }
        if !io::stdout().is_terminal() {
            return Ok(Self::Table(style(common, true), TableSelection::default()));
        }
        let options = ScreenOptions { color: use_color(common), ascii: common.ascii, single_target };
        Ok(Self::Screen(Box::new(Screen::open(options).map_err(anyhow::Error::from)?)))
    }

    /// Returns whether a tracing session uses a screen.
    pub(crate) fn is_screen(common: &CommonArgs) -> bool {
        !common.json && io::stdout().is_terminal()
    }

    /// Stores the outlooks for the next snapshot. Only a screen shows them.
    pub(crate) fn expect(&mut self, outlooks: Outlooks) {
        if let Self::Screen(screen) = self {
            screen.expect(outlooks);
        }
    }

    /// Returns the output for a JSON report.
    pub(crate) fn report(report: JsonReport) -> Self {
        Self::Json { report, host: host_name() }
    }

    /// Shows a snapshot. `boottime_to_unix_ns` converts its times to dates. Returns false if the
    /// reader has closed the pipe.
    ///
    /// # Errors
    /// If writing fails for another reason.
    pub(crate) fn show(&mut self, snapshot: &Snapshot, boottime_to_unix_ns: i128) -> Result<bool, ExitFailure> {
        let clock = WallClock::local(boottime_to_unix_ns);
        let written = match self {
            Self::Screen(screen) => screen.draw(snapshot, &clock),
            Self::Table(style, shown) => table::write(&mut io::stdout().lock(), snapshot, shown, &clock, style),
            Self::Groups(style, by) => table::groups::write(&mut io::stdout().lock(), snapshot, *by, &clock, style),
            Self::Json { report, host } => {
                json::write(&mut io::stdout().lock(), *report, snapshot, ReportOrigin { host, clock: &clock })
            }
        };
        match written {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(anyhow::Error::from(error).context("the report cannot be written").into()),
        }
    }

    /// Returns the screen's input events. For the other formats the channel stays empty.
    pub(crate) fn keys(&self) -> mpsc::Receiver<ScreenEvent> {
        let (sender, receiver) = mpsc::channel(64);
        if matches!(self, Self::Screen(_)) {
            tui::spawn_keys(sender);
        } else {
            // Leaks the sender, so that the receiver waits forever instead of ending.
            std::mem::forget(sender);
        }
        receiver
    }

    /// Handles an input event and returns the action for the caller.
    pub(crate) fn key(&mut self, event: ScreenEvent) -> ScreenFlow {
        match self {
            Self::Screen(screen) => screen.handle(event),
            _ => ScreenFlow::Continue,
        }
    }
}

/// Converts the result of writing a report. A closed pipe is not an error.
///
/// # Errors
/// If writing failed for another reason.
pub(crate) fn unless_closed(written: io::Result<()>) -> Result<(), ExitFailure> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written.map_err(|error| anyhow::Error::from(error).context("the report cannot be written"))?),
    }
}

/// Returns the text style for standard output.
pub(crate) fn style(common: &CommonArgs, repeated: bool) -> TableOptions {
    TableOptions { columns: columns(), color: use_color(common), ascii: common.ascii, repeated }
}

/// Returns the width of the terminal; `None` for a pipe, where lines are not truncated.
fn columns() -> Option<usize> {
    let size = terminal::size().ok().filter(|_| io::stdout().is_terminal())?;
    Some(tui::usable(size).0.into())
}

/// Returns whether to write colours to standard output.
pub(crate) fn use_color(common: &CommonArgs) -> bool {
    common.color.decide(io::stdout().is_terminal(), |name| std::env::var(name).ok())
}

/// Returns the host name, as printed by `uname -n`.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
