//! From state and snapshot to a frame: what is where on the screen.

mod block;
mod gpus;
mod list;
mod look;
mod tensors;

use memwatch_core::snapshot::Snapshot;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

pub(crate) use self::look::Look;

use super::keys;
use super::state::{Page, State};
use crate::render::Tone;
use crate::render::format::plural;
use crate::render::sentences;
use crate::render::wall_clock::WallClock;

/// Below this height the line of keys gives way to numbers.
const ROOM_FOR_KEYS: usize = 10;
/// The trust line may be broken into so many lines.
const TRUST_LINES: usize = 3;

/// What is shown, and how.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    /// The numbers.
    pub(crate) snapshot: &'a Snapshot,
    /// Their times.
    pub(crate) clock: &'a WallClock,
    /// Colours and characters.
    pub(crate) look: Look,
}

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame, state: &mut State, shown: &Shown) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let footer = footer(state, shown, width, height);
    let room = height.saturating_sub(footer.len());
    let header = header(state, shown, width, room);
    let room = room.saturating_sub(header.len());
    let body = body(state, shown, width, room);
    let body_top = header.len();
    put(frame, area, 0, header);
    put(frame, area, body_top, body);
    put(frame, area, height.saturating_sub(footer.len()), footer);
}

/// Writes lines from a row of the area on; what does not fit is left out.
fn put(frame: &mut Frame, area: Rect, top: usize, lines: Vec<Line>) {
    for (row, line) in (top..usize::from(area.height)).zip(lines) {
        let Ok(row) = u16::try_from(row) else { return };
        let place = Rect { x: area.x, y: area.y.saturating_add(row), width: area.width, height: 1 };
        frame.render_widget(line, place.intersection(area));
    }
}

/// Title and GPUs, in at most half of the room.
fn header(state: &State, shown: &Shown, width: usize, room: usize) -> Vec<Line<'static>> {
    let most = room / 2;
    if most == 0 {
        return Vec::new();
    }
    let mut lines = vec![title(state, shown, width)];
    lines.extend(gpus::lines(state, shown, width, most - 1));
    if most > lines.len() {
        lines.push(Line::default());
    }
    lines
}

fn title(state: &State, shown: &Shown, width: usize) -> Line<'static> {
    let Shown { snapshot, clock, look } = shown;
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let gpus = plural(count(snapshot.gpus.len()), "GPU", "GPUs");
    let processes = plural(count(snapshot.processes.len()), "process", "processes");
    let facts = format!("  {gpus}, {processes}");
    let left = vec![look.span(Tone::Heading, "memwatch"), look.span(Tone::Faint, facts)];
    let time = clock.time_of_day(snapshot.time_ns);
    let right = if state.is_paused() {
        look.span(Tone::Warning, format!("paused at {time}"))
    } else {
        look.span(Tone::Faint, time)
    };
    look::ends(left, vec![right], width)
}

/// The trust line, broken where it must be, and the keys.
fn footer(state: &State, shown: &Shown, width: usize, height: usize) -> Vec<Line<'static>> {
    let look = shown.look;
    let parts = sentences::trust(shown.snapshot, shown.clock);
    let mut lines = look.joined(&parts, width);
    lines.truncate(match height {
        0..4 => 0,
        4..14 => 1,
        _ => TRUST_LINES,
    });
    if height >= ROOM_FOR_KEYS {
        lines.push(look.keys(keys_here(state), width));
    }
    lines
}

fn keys_here(state: &State) -> &'static [(&'static str, &'static str)] {
    match state.page() {
        _ if state.is_help() => &[("Esc", "back"), ("q", "quit")],
        Page::List => &[("Enter", "open"), ("Space", "pause"), ("r", "reset peaks"), ("?", "help"), ("q", "quit")],
        Page::Process(_) | Page::Blocks => {
            &[("Esc", "all processes"), ("Space", "pause"), ("r", "reset peaks"), ("?", "help"), ("q", "quit")]
        }
    }
}

fn body(state: &mut State, shown: &Shown, width: usize, room: usize) -> Vec<Line<'static>> {
    if state.page() == Page::List && !state.is_help() {
        return list::lines(state, shown, width, room);
    }
    let lines = if state.is_help() { help(shown.look) } else { block::lines(state, shown, width) };
    state.fit(lines.len(), room);
    let below = lines.len().saturating_sub(state.top() + room);
    let mut lines: Vec<_> = lines.into_iter().skip(state.top()).take(room).collect();
    if let Some(last) = lines.last_mut().filter(|_| below > 0 && room > 2) {
        *last = Line::from(shown.look.span(Tone::Faint, format!("{} more lines below: j, k", below + 1)));
    }
    lines
}

fn help(look: Look) -> Vec<Line<'static>> {
    let row = |(name, meaning): (&'static str, &'static str)| {
        Line::from(vec![look.span(Tone::Heading, format!("  {name:<17}")), Span::raw(meaning)])
    };
    let words = [
        ("used", "what the driver charges, by NVML"),
        ("live", "what the calls that were seen have allocated and not freed"),
        ("peak", "the most that was live since memwatch came, or since r"),
        ("before attach", "what the process already held when memwatch came"),
        ("unattributed", "used - live: before attach, context, code, pool caches"),
        ("managed", "its pages may be anywhere: in no GPU's sum"),
    ];
    let mut lines = vec![Line::from(look.span(Tone::Faint, "Keys"))];
    lines.extend(keys::HELP.map(row));
    lines.push(Line::from(look.span(Tone::Faint, "Words")));
    lines.extend(words.map(row));
    let kinds = sentences::KINDS.iter().filter(|name| **name != sentences::MANAGED);
    let mut legend = vec![Span::raw("  ")];
    legend.extend(kinds.flat_map(|name| look.legend(look::Fill::Kind(name), name)));
    lines.extend([Line::from(look.span(Tone::Faint, "Kinds")), Line::from(legend)]);
    lines
}

#[cfg(test)]
mod tests;
