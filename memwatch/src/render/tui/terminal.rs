//! The terminal as a full screen, and back as it was: at the end, on a panic, and while the program is suspended.

use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::Once;
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::{Frame, Terminal};

/// By then a process that was stopped has stopped.
const STOPPING: Duration = Duration::from_millis(50);

/// The terminal while it shows the full screen.
pub(crate) struct FullScreen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl FullScreen {
    /// Switches to the alternate screen, without echo and line editing.
    ///
    /// # Errors
    /// When standard output is no terminal or refuses; then it is as it was.
    pub(crate) fn enter() -> io::Result<Self> {
        leave_on_panic();
        switch_on()?;
        match Terminal::new(CrosstermBackend::new(stdout())) {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                switch_off();
                Err(error)
            }
        }
    }

    /// Draws one frame.
    ///
    /// # Errors
    /// What the terminal answers.
    pub(crate) fn draw(&mut self, render: impl FnOnce(&mut Frame)) -> io::Result<()> {
        self.terminal.draw(render).map(|_| ())
    }

    /// Stops the whole job, as Ctrl-Z does elsewhere, and comes back when the shell goes on with it.
    pub(crate) fn suspend(&mut self) {
        switch_off();
        // SAFETY: kill takes no pointers; 0 is this process's own group.
        unsafe { libc::kill(0, libc::SIGTSTP) };
        // Another thread may take the signal, so that the stop comes a moment after the call.
        std::thread::sleep(STOPPING);
        // Where the terminal is gone by now, drawing fails next and says so.
        let _ = switch_on();
        let _ = self.terminal.clear();
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        switch_off();
    }
}

fn switch_on() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide).inspect_err(|_| switch_off())
}

/// The way back has nowhere to report an error to.
fn switch_off() {
    let _ = execute!(stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// A panic's message belongs on the ordinary screen.
fn leave_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            switch_off();
            report(info);
        }));
    });
}
