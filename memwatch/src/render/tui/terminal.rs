//! The terminal in full-screen mode. The former state is restored at the end, on a panic, and while
//! the program is suspended.

use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::Once;

use ratatui::backend::{Backend, ClearType, CrosstermBackend, WindowSize};
use ratatui::buffer::Cell;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::{Position, Size};
use ratatui::{Frame, Terminal};

/// Size for a terminal that reports none, such as serial lines and some containers.
const USUAL: (u16, u16) = (80, 24);

/// Returns the terminal's columns and rows. Replaces a reported 0 by [`USUAL`].
pub(crate) const fn usable((columns, rows): (u16, u16)) -> (u16, u16) {
    (if columns == 0 { USUAL.0 } else { columns }, if rows == 0 { USUAL.1 } else { rows })
}

/// The terminal in full-screen mode.
pub(crate) struct FullScreen {
    terminal: Terminal<Usable<CrosstermBackend<Stdout>>>,
    mouse: bool,
}

impl FullScreen {
    /// Enters the alternate screen in raw mode, with mouse reports.
    ///
    /// # Errors
    /// If standard output is not a terminal or rejects the mode. The former state is restored then.
    pub(crate) fn enter() -> io::Result<Self> {
        leave_on_panic();
        let mouse = true;
        switch_on(mouse)?;
        match Terminal::new(Usable(CrosstermBackend::new(stdout()))) {
            Ok(terminal) => Ok(Self { terminal, mouse }),
            Err(error) => {
                switch_off();
                Err(error)
            }
        }
    }

    /// Draws one frame.
    ///
    /// # Errors
    /// If writing to the terminal fails.
    pub(crate) fn draw(&mut self, render: impl FnOnce(&mut Frame)) -> io::Result<()> {
        self.terminal.draw(render).map(|_| ())
    }

    /// Stops the whole job, as Ctrl-Z does in other programs. Returns after the shell continues it.
    pub(crate) fn suspend(&mut self) {
        switch_off();
        // SAFETY: kill takes no pointers; 0 is the caller's own process group.
        unsafe { libc::kill(0, libc::SIGTSTP) };
        self.resume();
    }

    /// Enters full-screen mode again after other programs used the terminal. The next frame is
    /// drawn in full.
    ///
    /// Errors are ignored: if the terminal is gone, the next draw fails and reports it.
    pub(crate) fn resume(&mut self) {
        // The shell has changed the terminal modes. Disabling raw mode first makes crossterm set it
        // again.
        let _ = disable_raw_mode();
        let _ = switch_on(self.mouse);
        self.repaint();
    }

    /// Forces the next frame to be drawn in full.
    pub(crate) fn repaint(&mut self) {
        let _ = forget(&mut self.terminal);
    }

    /// Toggles mouse reports and returns whether they are on. Without them the mouse selects text
    /// in the terminal.
    pub(crate) fn toggle_mouse(&mut self) -> bool {
        self.mouse = !self.mouse;
        let _ =
            if self.mouse { execute!(stdout(), EnableMouseCapture) } else { execute!(stdout(), DisableMouseCapture) };
        self.mouse
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        switch_off();
    }
}

/// Clears the screen and the buffer of its contents.
///
/// `Terminal::clear` first queries the terminal for the cursor position. The thread that reads keys
/// takes the answer, so the call fails and clears nothing.
fn forget<B: Backend>(terminal: &mut Terminal<B>) -> Result<(), B::Error> {
    terminal.swap_buffers();
    terminal.backend_mut().clear()
}

fn switch_on(mouse: bool) -> io::Result<()> {
    enable_raw_mode()?;
    let entered = execute!(stdout(), EnterAlternateScreen, Hide);
    let entered = entered.and_then(|()| if mouse { execute!(stdout(), EnableMouseCapture) } else { Ok(()) });
    entered.inspect_err(|_| switch_off())
}

/// Leaves full-screen mode. Errors cannot be reported at this point.
fn switch_off() {
    let _ = execute!(stdout(), DisableMouseCapture, Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// Restores the ordinary screen before a panic message is printed.
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

/// A backend whose size is never 0.
struct Usable<B>(B);

impl<B: Backend> Backend for Usable<B> {
    type Error = B::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> Result<(), B::Error> {
        self.0.draw(content)
    }

    fn hide_cursor(&mut self) -> Result<(), B::Error> {
        self.0.hide_cursor()
    }

    fn show_cursor(&mut self) -> Result<(), B::Error> {
        self.0.show_cursor()
    }

    fn get_cursor_position(&mut self) -> Result<Position, B::Error> {
        self.0.get_cursor_position()
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> Result<(), B::Error> {
        self.0.set_cursor_position(position)
    }

    fn clear(&mut self) -> Result<(), B::Error> {
        self.0.clear()
    }

    fn clear_region(&mut self, region: ClearType) -> Result<(), B::Error> {
        self.0.clear_region(region)
    }

    fn size(&self) -> Result<Size, B::Error> {
        let Size { width, height } = self.0.size()?;
        Ok(usable((width, height)).into())
    }

    fn window_size(&mut self) -> Result<WindowSize, B::Error> {
        self.0.window_size()
    }

    fn flush(&mut self) -> Result<(), B::Error> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;
    use ratatui::text::Line;

    use super::*;

    /// A terminal whose answers are taken by another thread, as while keys are read.
    struct Silent(TestBackend);

    impl Backend for Silent {
        type Error = io::Error;

        fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
            self.0.draw(content).map_err(io::Error::other)
        }

        fn hide_cursor(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn show_cursor(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn get_cursor_position(&mut self) -> io::Result<Position> {
            Err(io::ErrorKind::TimedOut.into())
        }

        fn set_cursor_position<P: Into<Position>>(&mut self, _: P) -> io::Result<()> {
            Ok(())
        }

        fn clear(&mut self) -> io::Result<()> {
            self.0.clear().map_err(io::Error::other)
        }

        fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
            self.0.clear_region(region).map_err(io::Error::other)
        }

        fn size(&self) -> io::Result<Size> {
            self.0.size().map_err(io::Error::other)
        }

        fn window_size(&mut self) -> io::Result<WindowSize> {
            self.0.window_size().map_err(io::Error::other)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn tui_redraws_fully_after_suspension_on_a_silent_terminal() {
        let mut terminal = Terminal::new(Silent(TestBackend::new(8, 1))).expect("it has a size");
        let draw = |terminal: &mut Terminal<Silent>| {
            terminal.draw(|frame| frame.render_widget(Line::raw("memwatch"), frame.area())).expect("it draws");
        };
        draw(&mut terminal);
        // The shell's prompt has replaced the screen.
        terminal.backend_mut().0 = TestBackend::with_lines(["$ fg    "]);
        draw(&mut terminal);
        terminal.backend().0.assert_buffer_lines(["$ fg    "]);
        forget(&mut terminal).expect("it asks for nothing");
        draw(&mut terminal);
        terminal.backend().0.assert_buffer_lines(["memwatch"]);
    }

    #[test]
    fn a_terminal_that_reports_no_size_counts_as_80_by_24() {
        assert_eq!(Usable(TestBackend::new(0, 0)).size().expect("a size"), Size::new(80, 24));
        assert_eq!(Usable(TestBackend::new(200, 50)).size().expect("a size"), Size::new(200, 50));
        assert_eq!([usable((0, 50)), usable((200, 0))], [(80, 50), (200, 24)]);
    }
}
