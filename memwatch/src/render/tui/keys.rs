//! Which key means what.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::state::Step;

/// What a person asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Leave.
    Quit,
    /// Stop the program until the shell goes on with it.
    Suspend,
    /// The terminal has another size.
    Redraw,
    /// Reset peaks.
    ResetPeaks,
    /// Something within the view.
    View(Step),
}

/// The keys as the help page lists them.
pub(crate) const HELP: [(&str, &str); 10] = [
    ("Up, Down, j, k", "select a process, or scroll"),
    ("PageUp, PageDown", "by a page"),
    ("Home, End, g, G", "to the first, to the last"),
    ("Enter", "open the selected process"),
    ("Esc", "back to the list"),
    ("Space", "pause and go on"),
    ("r", "reset peaks of the open process, or of all"),
    ("?, h", "this page"),
    ("Ctrl-Z", "suspend"),
    ("q, Ctrl-C", "quit"),
];

/// What an event of the terminal means; `None` where it means nothing here.
pub(crate) fn command(event: &Event) -> Option<Command> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => of_key(key),
        Event::Resize(..) => Some(Command::Redraw),
        _ => None,
    }
}

fn of_key(key: &KeyEvent) -> Option<Command> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Command::Quit),
            KeyCode::Char('z') => Some(Command::Suspend),
            KeyCode::Char('l') => Some(Command::Redraw),
            _ => None,
        };
    }
    let step = match key.code {
        KeyCode::Char('q') => return Some(Command::Quit),
        KeyCode::Char('r') => return Some(Command::ResetPeaks),
        KeyCode::Up | KeyCode::Char('k') => Step::Up,
        KeyCode::Down | KeyCode::Char('j') => Step::Down,
        KeyCode::PageUp => Step::PageUp,
        KeyCode::PageDown => Step::PageDown,
        KeyCode::Home | KeyCode::Char('g') => Step::First,
        KeyCode::End | KeyCode::Char('G') => Step::Last,
        KeyCode::Enter => Step::Open,
        KeyCode::Esc | KeyCode::Backspace => Step::Back,
        KeyCode::Char(' ') => Step::Pause,
        KeyCode::Char('?' | 'h') => Step::Help,
        _ => return None,
    };
    Some(Command::View(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(code: KeyCode, modifiers: KeyModifiers) -> Option<Command> {
        command(&Event::Key(KeyEvent::new(code, modifiers)))
    }

    #[test]
    fn control_keys_end_and_suspend() {
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Command::Quit));
        assert_eq!(press(KeyCode::Char('z'), KeyModifiers::CONTROL), Some(Command::Suspend));
        assert_eq!(press(KeyCode::Char('q'), KeyModifiers::NONE), Some(Command::Quit));
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(press(KeyCode::Char('r'), KeyModifiers::NONE), Some(Command::ResetPeaks));
    }

    #[test]
    fn arrows_and_letters_move_alike() {
        for (code, step) in [
            (KeyCode::Up, Step::Up),
            (KeyCode::Char('k'), Step::Up),
            (KeyCode::Char('j'), Step::Down),
            (KeyCode::Char('G'), Step::Last),
            (KeyCode::Enter, Step::Open),
            (KeyCode::Esc, Step::Back),
        ] {
            assert_eq!(press(code, KeyModifiers::NONE), Some(Command::View(step)), "{code:?}");
        }
    }

    #[test]
    fn a_key_that_is_let_go_and_text_that_is_pasted_mean_nothing() {
        let release = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(command(&Event::Key(release)), None);
        assert_eq!(command(&Event::Paste("q".to_owned())), None);
        assert_eq!(command(&Event::Resize(80, 24)), Some(Command::Redraw));
    }
}
