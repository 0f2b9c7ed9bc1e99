//! The live view of a recorded training on an H100, as the book shows it: `cargo xtask pictures` draws the file that this test
//! keeps.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::recording::{RecordingPart, RecordingReader};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::{FrameInput, Outlooks, TerminalLook, ViewState, draw};
use crate::render::tui::state::ViewAction;
use crate::render::wall_clock::WallClock;

/// The recorded training.
const RECORDING: &str = "../tests/replays/h100/hf.mwr";
/// Time from the moment of the picture to the end of the recording.
const REMAINING_NS: u64 = 1_200_000_000;
/// Time between two points of the curve.
const INTERVAL_NS: u64 = 500_000_000;
const SIZE: (u16, u16) = (110, 30);
/// Number of the tab with modules.
const MODULES: usize = 2;
const FILE: &str = "src/render/tui/view/golden/picture.ansi";

/// Passes the inputs of the recording with their offsets to nanoseconds since 1970.
fn for_each(mut take: impl FnMut(Input, i64)) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORDING);
    let file = File::open(path).expect("it is in the repository");
    let mut reader = RecordingReader::open(BufReader::new(file)).expect("it is a recording");
    while let Some(part) = reader.next_part().expect("it is readable") {
        let RecordingPart::Chunk(chunk) = part else { continue };
        let offset = chunk.front.boottime_to_unix_ns;
        chunk.for_each(|input| take(input, offset)).expect("it is whole");
    }
}

/// Replays the recording until [`REMAINING_NS`] before its end and draws its process.
fn frame() -> Buffer {
    let mut end_ns = 0;
    for_each(|input, _| end_ns = input.time_ns().unwrap_or(0).max(end_ns));
    let mut pipeline = Pipeline::new(true);
    let mut state = ViewState::new(true);
    let (mut next_ns, mut clock) = (0, WallClock::utc(0));
    for_each(|input, offset| {
        let time_ns = input.time_ns().unwrap_or(pipeline.state.now_ns());
        if time_ns + REMAINING_NS > end_ns {
            return;
        }
        clock = WallClock::utc(offset.into());
        pipeline.step(input);
        if time_ns >= next_ns {
            next_ns = time_ns + INTERVAL_NS;
            let mut snapshot = pipeline.snapshot();
            snapshot.keep_wanted();
            state.histories.take(&snapshot);
        }
    });
    let mut snapshot = pipeline.snapshot();
    snapshot.keep_wanted();
    state.follow(&snapshot);
    state.take(ViewAction::Tab(MODULES));
    let mut terminal = Terminal::new(TestBackend::new(SIZE.0, SIZE.1)).expect("a test backend never fails");
    let shown = FrameInput {
        snapshot: &snapshot,
        clock: &clock,
        look: TerminalLook { color: true, ascii: false },
        outlooks: &Outlooks::default(),
    };
    terminal.draw(|frame| draw(frame, &mut state, &shown)).expect("a test backend never fails");
    terminal.backend().buffer().clone()
}

/// Writes a buffer as a terminal would be sent it: text with escape sequences.
fn ansi(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in buffer.content().chunks(usize::from(buffer.area.width)) {
        let mut last = String::new();
        for cell in row {
            let style = style(cell);
            if style != last {
                let _ = write!(text, "\x1b[0m{style}");
                last = style;
            }
            text.push_str(cell.symbol());
        }
        text.push_str("\x1b[0m\n");
    }
    text
}

fn style(cell: &Cell) -> String {
    let mut style = String::new();
    for (modifier, code) in
        [(Modifier::BOLD, 1), (Modifier::DIM, 2), (Modifier::UNDERLINED, 4), (Modifier::REVERSED, 7)]
    {
        if cell.modifier.contains(modifier) {
            let _ = write!(style, "\x1b[{code}m");
        }
    }
    for (color, base) in [(cell.fg, 30), (cell.bg, 40)] {
        if let Some(code) = code(color) {
            let _ = write!(style, "\x1b[{}m", base + code);
        }
    }
    style
}

/// The number of a colour behind 30 or 40.
fn code(color: Color) -> Option<u8> {
    match color {
        Color::Reset => None,
        Color::Black => Some(0),
        Color::Red => Some(1),
        Color::Green => Some(2),
        Color::Yellow => Some(3),
        Color::Blue => Some(4),
        Color::Magenta => Some(5),
        Color::Cyan => Some(6),
        Color::Gray => Some(7),
        Color::DarkGray => Some(60),
        other => panic!("the live view has no {other:?}"),
    }
}

#[test]
fn the_picture_in_the_book_is_what_the_live_view_shows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let shown = ansi(&frame());
    if std::env::var_os("MEMWATCH_BLESS").is_some() {
        fs::write(&path, &shown).expect("the folder is there");
    }
    assert_eq!(shown, fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
}
