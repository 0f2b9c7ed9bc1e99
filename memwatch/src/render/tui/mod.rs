//! The live view: a full screen that is refreshed in place.

#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod grid;
mod history;
pub(crate) mod keys;
mod outlook;
mod parts;
mod size;
mod state;
mod tables;
pub(crate) mod terminal;
pub(crate) mod view;
mod words;

use std::io;

use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::keys::Command;
pub(crate) use self::outlook::{Held, Outlooks, WARNED_BYTES_PER_MINUTE};
use self::state::State;
pub(crate) use self::state::Step;
use self::terminal::FullScreen;
pub(crate) use self::terminal::usable;
use self::view::{Look, Shown};
use super::wall_clock::WallClock;

/// What happens to the screen.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// What the terminal reports: keys, the mouse and changes of size.
    Terminal(ratatui::crossterm::event::Event),
    /// The program was stopped and continues: anything may be on the terminal.
    Continued,
}

/// How the screen looks and what it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScreenOptions {
    /// With colours.
    pub(crate) color: bool,
    /// With ASCII characters only (but for the texts of others).
    pub(crate) ascii: bool,
    /// Begin with the process that is traced instead of the list of all.
    pub(crate) single_target: bool,
}

/// Whether the view goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// It does.
    Continue,
    /// The person wants to leave.
    Quit,
    /// Peaks are to be reset: of this process, or of all that are shown.
    ResetPeaks(Option<Tgid>),
}

/// The live view on this terminal. When it is dropped, the terminal is as it was.
pub(crate) struct Screen {
    terminal: FullScreen,
    state: State,
    look: Look,
    shown: Option<(Snapshot, WallClock, Outlooks)>,
    /// Of the snapshot that comes next.
    outlooks: Outlooks,
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
            outlooks: Outlooks::default(),
        })
    }

    /// Takes what is expected of processes by the snapshot that comes next.
    pub(crate) fn expect(&mut self, outlooks: Outlooks) {
        self.outlooks = outlooks;
    }

    /// Shows a snapshot; while the view is paused it only goes into the history.
    ///
    /// # Errors
    /// What the terminal answers.
    pub(crate) fn draw(&mut self, snapshot: &Snapshot, clock: &WallClock) -> io::Result<()> {
        self.state.histories.take(snapshot);
        if self.shown.is_none() || !self.state.is_paused() {
            self.state.follow(snapshot);
            self.shown = Some((snapshot.clone(), clock.clone(), std::mem::take(&mut self.outlooks)));
        }
        self.redraw()
    }

    /// Does what a key asks for, and shows it at once.
    #[allow(clippy::needless_pass_by_value, reason = "an event is handled once")]
    pub(crate) fn handle(&mut self, event: Event) -> Flow {
        let command = match event {
            Event::Continued => {
                self.terminal.resume();
                Some(Command::Resize)
            }
            Event::Terminal(event) => keys::command(&event, self.state.is_typing()),
        };
        let mut flow = Flow::Continue;
        match command {
            Some(Command::Quit) => return Flow::Quit,
            Some(Command::ResetPeaks) => {
                flow = Flow::ResetPeaks(self.state.process());
                self.state.notify("peaks are reset");
            }
            Some(Command::Suspend) => self.terminal.suspend(),
            Some(Command::Redraw) => self.terminal.repaint(),
            Some(Command::Mouse) => {
                let on = self.terminal.toggle_mouse();
                self.state.notify(if on { "mouse on: click, wheel" } else { "mouse off: it selects text" });
            }
            Some(Command::Resize) => {}
            Some(Command::View(step)) => self.state.take(step),
            Some(Command::Unknown(key)) => self.state.notify(format!("{key} has no function here: ? lists the keys")),
            None => return Flow::Continue,
        }
        // A terminal that is gone is noticed by the next `draw`, which reports it.
        let _ = self.redraw();
        flow
    }

    fn redraw(&mut self) -> io::Result<()> {
        let Some((snapshot, clock, outlooks)) = &self.shown else { return Ok(()) };
        let (state, look) = (&mut self.state, self.look);
        self.terminal.draw(|frame| view::draw(frame, state, &Shown { snapshot, clock, look, outlooks }))
    }
}

/// Forwards what happens to the terminal until nobody listens or the terminal is gone: keys from a thread of their own, and continuations.
pub(crate) fn spawn_keys(events: mpsc::Sender<Event>) {
    let continued = events.clone();
    // Without the signal, Ctrl-L draws everything again.
    if let Ok(mut signals) = signal(SignalKind::from_raw(libc::SIGCONT)) {
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if continued.send(Event::Continued).await.is_err() {
                    return;
                }
            }
        });
    }
    std::thread::spawn(move || {
        while let Ok(event) = ratatui::crossterm::event::read() {
            if events.blocking_send(Event::Terminal(event)).is_err() {
                return;
            }
        }
    });
}
