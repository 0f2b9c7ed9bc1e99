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

use self::keys::KeyCommand;
pub(crate) use self::outlook::{Outlooks, ProcessObjects, WARNED_BYTES_PER_MINUTE};
pub(crate) use self::state::ViewAction;
use self::state::ViewState;
use self::terminal::FullScreen;
pub(crate) use self::terminal::usable;
use self::view::{FrameInput, TerminalLook};
use super::wall_clock::WallClock;

/// An input event of the live view.
#[derive(Clone, Debug)]
pub(crate) enum ScreenEvent {
    /// A terminal event: key, mouse or resize.
    Terminal(ratatui::crossterm::event::Event),
    /// The program continued after a stop. The screen may hold other output.
    Continued,
}

/// Appearance of the screen and its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScreenOptions {
    /// Use colours.
    pub(crate) color: bool,
    /// Use ASCII characters only, except in text from traced programs.
    pub(crate) ascii: bool,
    /// Open the traced process instead of the process list.
    pub(crate) single_target: bool,
}

/// What the caller does after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScreenFlow {
    /// Continue.
    Continue,
    /// Quit.
    Quit,
    /// Reset the peaks of this process, or of all displayed processes if `None`.
    ResetPeaks(Option<Tgid>),
}

/// The live view on this terminal. Dropping it restores the terminal.
pub(crate) struct Screen {
    terminal: FullScreen,
    state: ViewState,
    look: TerminalLook,
    shown: Option<(Snapshot, WallClock, Outlooks)>,
    /// Outlooks for the next snapshot.
    outlooks: Outlooks,
}

impl Screen {
    /// Enters the full screen.
    ///
    /// # Errors
    /// If standard output is not a terminal, or switching its mode fails.
    pub(crate) fn open(options: ScreenOptions) -> io::Result<Self> {
        Ok(Self {
            terminal: FullScreen::enter()?,
            state: ViewState::new(options.single_target),
            look: TerminalLook { color: options.color, ascii: options.ascii },
            shown: None,
            outlooks: Outlooks::default(),
        })
    }

    /// Stores the outlooks that belong to the next snapshot.
    pub(crate) fn expect(&mut self, outlooks: Outlooks) {
        self.outlooks = outlooks;
    }

    /// Shows a snapshot. While the view is paused, only the histories are updated.
    ///
    /// # Errors
    /// If writing to the terminal fails.
    pub(crate) fn draw(&mut self, snapshot: &Snapshot, clock: &WallClock) -> io::Result<()> {
        self.state.histories.take(snapshot);
        if self.shown.is_none() || !self.state.is_paused() {
            self.state.follow(snapshot);
            self.shown = Some((snapshot.clone(), clock.clone(), std::mem::take(&mut self.outlooks)));
        }
        self.redraw()
    }

    /// Executes the command of an event and redraws immediately.
    #[allow(clippy::needless_pass_by_value, reason = "an event is handled once")]
    pub(crate) fn handle(&mut self, event: ScreenEvent) -> ScreenFlow {
        let command = match event {
            ScreenEvent::Continued => {
                self.terminal.resume();
                Some(KeyCommand::Resize)
            }
            ScreenEvent::Terminal(event) => keys::command(&event, self.state.is_typing()),
        };
        let mut flow = ScreenFlow::Continue;
        match command {
            Some(KeyCommand::Quit) => return ScreenFlow::Quit,
            Some(KeyCommand::ResetPeaks) => {
                flow = ScreenFlow::ResetPeaks(self.state.process());
                self.state.notify("peaks are reset");
            }
            Some(KeyCommand::Suspend) => self.terminal.suspend(),
            Some(KeyCommand::Redraw) => self.terminal.repaint(),
            Some(KeyCommand::Mouse) => {
                let on = self.terminal.toggle_mouse();
                self.state.notify(if on { "mouse on: click, wheel" } else { "mouse off: it selects text" });
            }
            Some(KeyCommand::Resize) => {}
            Some(KeyCommand::View(step)) => self.state.take(step),
            Some(KeyCommand::Unknown(key)) => {
                self.state.notify(format!("{key} has no function here: ? lists the keys"));
            }
            None => return ScreenFlow::Continue,
        }
        // If the terminal is gone, the next `draw` reports the error.
        let _ = self.redraw();
        flow
    }

    fn redraw(&mut self) -> io::Result<()> {
        let Some((snapshot, clock, outlooks)) = &self.shown else { return Ok(()) };
        let (state, look) = (&mut self.state, self.look);
        self.terminal.draw(|frame| view::draw(frame, state, &FrameInput { snapshot, clock, look, outlooks }))
    }
}

/// Forwards terminal events, read on a thread of their own, and `SIGCONT` to `events`. Stops when
/// the receiver is dropped or the terminal is gone.
pub(crate) fn spawn_keys(events: mpsc::Sender<ScreenEvent>) {
    let continued = events.clone();
    // If the signal handler cannot be installed, Ctrl-L still forces a redraw.
    if let Ok(mut signals) = signal(SignalKind::from_raw(libc::SIGCONT)) {
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if continued.send(ScreenEvent::Continued).await.is_err() {
                    return;
                }
            }
        });
    }
    std::thread::spawn(move || {
        while let Ok(event) = ratatui::crossterm::event::read() {
            if events.blocking_send(ScreenEvent::Terminal(event)).is_err() {
                return;
            }
        }
    });
}
