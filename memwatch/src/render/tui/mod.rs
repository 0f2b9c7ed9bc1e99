//! The live view: a full screen that is refreshed in place.

mod keys;
mod state;
mod terminal;
mod view;

use std::io;

use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;
use tokio::sync::mpsc;

use self::keys::Command;
use self::state::State;
use self::terminal::FullScreen;
use self::view::Look;
use super::wall_clock::WallClock;

/// What a terminal reports: keys and changes of size.
pub(crate) use ratatui::crossterm::event::Event;

/// How the screen looks and what it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScreenOptions {
    /// With colours.
    pub(crate) color: bool,
    /// With ASCII characters only (but for the texts of others).
    pub(crate) ascii: bool,
    /// Begin with the watched process instead of the list of all.
    pub(crate) single_target: bool,
}

/// Whether the view goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// It does.
    Continue,
    /// The person wants to leave.
    Quit,
    /// Peaks are to begin again: of this process, or of all that are shown.
    ResetPeaks(Option<Tgid>),
}

/// The live view on this terminal. When it is dropped, the terminal is as it was.
pub(crate) struct Screen {
    terminal: FullScreen,
    state: State,
    look: Look,
    shown: Option<(Snapshot, WallClock)>,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// When there is none, or it cannot be switched.
    pub(crate) fn open(options: ScreenOptions) -> io::Result<Self> {
        Ok(Self {
            terminal: FullScreen::enter()?,
            state: State::new(options.single_target),
            look: Look { color: options.color, ascii: options.ascii },
            shown: None,
        })
    }

    /// Shows a snapshot; while the view is paused it only goes into the history.
    ///
    /// # Errors
    /// What the terminal answers.
    pub(crate) fn draw(&mut self, snapshot: &Snapshot, clock: &WallClock) -> io::Result<()> {
        self.state.remember(snapshot);
        if self.shown.is_none() || !self.state.is_paused() {
            self.state.arrange(snapshot);
            self.shown = Some((snapshot.clone(), clock.clone()));
        }
        self.redraw()
    }

    /// Does what a key asks for, and shows it at once.
    #[allow(clippy::needless_pass_by_value, reason = "an event is handled once")]
    pub(crate) fn handle(&mut self, event: Event) -> Flow {
        match keys::command(&event) {
            Some(Command::Quit) => return Flow::Quit,
            Some(Command::ResetPeaks) => return Flow::ResetPeaks(self.state.process()),
            Some(Command::Suspend) => self.terminal.suspend(),
            Some(Command::Redraw) => {}
            Some(Command::View(step)) => self.state.take(step),
            None => return Flow::Continue,
        }
        // A terminal that is gone is noticed by the next `draw`, which reports it.
        let _ = self.redraw();
        Flow::Continue
    }

    fn redraw(&mut self) -> io::Result<()> {
        let Some((snapshot, clock)) = &self.shown else { return Ok(()) };
        let (state, look) = (&mut self.state, self.look);
        self.terminal.draw(|frame| view::draw(frame, state, &view::Shown { snapshot, clock, look }))
    }
}

/// Forwards what the terminal reports, from a thread of its own, until nobody listens or the terminal is gone.
pub(crate) fn spawn_keys(events: mpsc::Sender<Event>) {
    std::thread::spawn(move || {
        while let Ok(event) = ratatui::crossterm::event::read() {
            if events.blocking_send(event).is_err() {
                return;
            }
        }
    });
}
