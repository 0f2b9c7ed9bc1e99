//! Maps terminal events to commands.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEventKind};

use super::state::ViewAction;

/// Rows per notch of the mouse wheel.
const WHEEL: isize = 3;

/// A user command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyCommand {
    /// Quit.
    Quit,
    /// Suspend the program until the shell continues it.
    Suspend,
    /// The terminal was resized.
    Resize,
    /// Force a full redraw.
    Redraw,
    /// Reset peaks.
    ResetPeaks,
    /// Toggle mouse reports. Without them the mouse selects text in the terminal.
    Mouse,
    /// A step within the view.
    View(ViewAction),
    /// A key without a function, by name.
    Unknown(String),
}

/// The keys of the help page, in two columns.
pub(crate) const HELP: [[(&str, &str); 2]; 8] = [
    [("Up Down j k", "select a row"), ("/", "filter rows")],
    [("PgUp PgDn", "move by a page"), ("s  S", "sort: next column, reverse")],
    [("Home End g G", "first, last row"), ("t", "tree by workload and rank")],
    [("Enter", "open; stacks of a row"), ("r", "reset peaks")],
    [("Esc", "back"), ("m", "mouse on or off")],
    [("1-6 Tab", "tab of a process"), ("Ctrl-L", "draw everything again")],
    [("Space", "pause, continue"), ("Ctrl-Z", "suspend")],
    [("?  h", "this page"), ("q  Ctrl-C", "quit")],
];

/// Returns the command for a terminal event; `None` if the event has no meaning. While a filter is
/// being typed, letters go to the filter.
pub(crate) fn command(event: &Event, is_typing: bool) -> Option<KeyCommand> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => of_key(key, is_typing),
        Event::Resize(..) => Some(KeyCommand::Resize),
        Event::Mouse(mouse) => match mouse.kind {
            MouseEventKind::ScrollDown => Some(KeyCommand::View(ViewAction::Move(WHEEL))),
            MouseEventKind::ScrollUp => Some(KeyCommand::View(ViewAction::Move(-WHEEL))),
            MouseEventKind::Down(MouseButton::Left) => {
                Some(KeyCommand::View(ViewAction::Click(mouse.column, mouse.row)))
            }
            _ => None,
        },
        _ => None,
    }
}

fn of_key(key: &KeyEvent, is_typing: bool) -> Option<KeyCommand> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return Some(match key.code {
            KeyCode::Char('c') => KeyCommand::Quit,
            KeyCode::Char('z') => KeyCommand::Suspend,
            KeyCode::Char('l') => KeyCommand::Redraw,
            code => KeyCommand::Unknown(format!("Ctrl-{code}")),
        });
    }
    if is_typing {
        return typed(key.code).map(KeyCommand::View);
    }
    let step = match key.code {
        KeyCode::Char('q') => return Some(KeyCommand::Quit),
        KeyCode::Char('r') => return Some(KeyCommand::ResetPeaks),
        KeyCode::Char('m') => return Some(KeyCommand::Mouse),
        KeyCode::Up | KeyCode::Char('k') => ViewAction::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => ViewAction::Move(1),
        KeyCode::PageUp => ViewAction::Page(-1),
        KeyCode::PageDown => ViewAction::Page(1),
        KeyCode::Home | KeyCode::Char('g') => ViewAction::First,
        KeyCode::End | KeyCode::Char('G') => ViewAction::Last,
        KeyCode::Enter => ViewAction::Open,
        KeyCode::Esc | KeyCode::Backspace => ViewAction::Back,
        KeyCode::Char(' ') => ViewAction::Pause,
        KeyCode::Char('?' | 'h') => ViewAction::Help,
        KeyCode::Char('s') => ViewAction::Sort,
        KeyCode::Char('S') => ViewAction::Reverse,
        KeyCode::Char('/') => ViewAction::Filter,
        KeyCode::Char('t') => ViewAction::Tree,
        KeyCode::Tab | KeyCode::Right => ViewAction::NextTab(1),
        KeyCode::BackTab | KeyCode::Left => ViewAction::NextTab(-1),
        KeyCode::Char(digit @ '1'..='9') => ViewAction::Tab(digit.to_digit(10).unwrap_or(1) as usize),
        code => return Some(KeyCommand::Unknown(code.to_string())),
    };
    Some(KeyCommand::View(step))
}

fn typed(code: KeyCode) -> Option<ViewAction> {
    Some(match code {
        KeyCode::Char(letter) => ViewAction::Type(letter),
        KeyCode::Backspace => ViewAction::Erase,
        KeyCode::Enter => ViewAction::Keep,
        KeyCode::Esc => ViewAction::Clear,
        KeyCode::Up => ViewAction::Move(-1),
        KeyCode::Down => ViewAction::Move(1),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::MouseEvent;

    use super::*;

    fn press(code: KeyCode, modifiers: KeyModifiers) -> Option<KeyCommand> {
        command(&Event::Key(KeyEvent::new(code, modifiers)), false)
    }

    #[test]
    fn control_keys_end_and_suspend_also_while_a_filter_is_typed() {
        for is_typing in [false, true] {
            let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
            assert_eq!(command(&Event::Key(control('c')), is_typing), Some(KeyCommand::Quit));
            assert_eq!(command(&Event::Key(control('z')), is_typing), Some(KeyCommand::Suspend));
        }
        assert_eq!(press(KeyCode::Char('q'), KeyModifiers::NONE), Some(KeyCommand::Quit));
        assert_eq!(press(KeyCode::Char('r'), KeyModifiers::NONE), Some(KeyCommand::ResetPeaks));
    }

    #[test]
    fn arrows_and_letters_move_alike() {
        for (code, step) in [
            (KeyCode::Up, ViewAction::Move(-1)),
            (KeyCode::Char('k'), ViewAction::Move(-1)),
            (KeyCode::Char('j'), ViewAction::Move(1)),
            (KeyCode::Char('G'), ViewAction::Last),
            (KeyCode::Char('3'), ViewAction::Tab(3)),
            (KeyCode::Enter, ViewAction::Open),
            (KeyCode::Esc, ViewAction::Back),
        ] {
            assert_eq!(press(code, KeyModifiers::NONE), Some(KeyCommand::View(step)), "{code:?}");
        }
    }

    #[test]
    fn tui_unknown_keys_are_reported_by_name() {
        for (code, name) in [(KeyCode::Char('c'), "c"), (KeyCode::F(5), "F5"), (KeyCode::Delete, "Del")] {
            assert_eq!(press(code, KeyModifiers::NONE), Some(KeyCommand::Unknown(name.to_owned())));
        }
    }

    #[test]
    fn letters_go_into_the_filter_while_it_is_typed() {
        let typed = |code| command(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)), true);
        assert_eq!(typed(KeyCode::Char('q')), Some(KeyCommand::View(ViewAction::Type('q'))));
        assert_eq!(typed(KeyCode::Enter), Some(KeyCommand::View(ViewAction::Keep)));
        assert_eq!(typed(KeyCode::Esc), Some(KeyCommand::View(ViewAction::Clear)));
    }

    #[test]
    fn the_wheel_moves_and_a_button_clicks() {
        let mouse = |kind| {
            let event = MouseEvent { kind, column: 4, row: 7, modifiers: KeyModifiers::NONE };
            command(&Event::Mouse(event), false)
        };
        assert_eq!(mouse(MouseEventKind::ScrollUp), Some(KeyCommand::View(ViewAction::Move(-3))));
        assert_eq!(mouse(MouseEventKind::Down(MouseButton::Left)), Some(KeyCommand::View(ViewAction::Click(4, 7))));
        assert_eq!(mouse(MouseEventKind::Moved), None);
    }

    #[test]
    fn a_key_that_is_released_and_text_that_is_pasted_mean_nothing() {
        let release = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(command(&Event::Key(release), false), None);
        assert_eq!(command(&Event::Paste("q".to_owned()), false), None);
        assert_eq!(command(&Event::Resize(80, 24), false), Some(KeyCommand::Resize));
    }
}
