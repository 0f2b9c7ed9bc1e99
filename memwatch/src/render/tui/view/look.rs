//! Colours, characters and text elements shared by all pages.

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::{self, bar::Set};
use ratatui::text::{Line, Span};

use crate::render::Tone;
use crate::render::format::{fit, ratio, width};
use crate::render::sentences::Sentence;

/// Bars in ASCII.
const ASCII_BARS: Set = Set {
    full: "#",
    seven_eighths: "#",
    three_quarters: "#",
    five_eighths: "+",
    half: "+",
    three_eighths: "+",
    one_quarter: "_",
    one_eighth: "_",
    empty: " ",
};
/// Share from which memory is nearly full.
const HIGH: f64 = 0.8;
/// Share from which memory is almost exhausted.
const FULL: f64 = 0.95;

/// Capabilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TerminalLook {
    /// Use colours.
    pub(crate) color: bool,
    /// Use ASCII characters only, except in text from traced programs.
    pub(crate) ascii: bool,
}

/// Meaning of a section of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Allocated by driver calls, or used by the page's process.
    Own,
    /// Allocated before memwatch attached.
    PreExisting,
    /// Used by other processes.
    Others,
    /// Used by an unknown origin.
    Unattributed,
    /// Free memory.
    Free,
}

impl TerminalLook {
    /// Returns the style of a tone.
    pub(crate) fn style(self, tone: Tone) -> Style {
        let style = match tone {
            Tone::Plain | Tone::Good => Style::new(),
            Tone::Faint => Style::new().add_modifier(Modifier::DIM),
            Tone::Heading | Tone::Warning | Tone::Bad => Style::new().add_modifier(Modifier::BOLD),
        };
        let color = match tone {
            Tone::Good => Color::Green,
            Tone::Warning => Color::Yellow,
            Tone::Bad => Color::Red,
            Tone::Plain | Tone::Heading | Tone::Faint => return style,
        };
        if self.color { style.fg(color) } else { style }
    }

    /// Returns a styled span.
    pub(crate) fn span(self, tone: Tone, text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), self.style(tone))
    }

    /// Returns the mark at the end of truncated text.
    pub(crate) const fn mark(self) -> &'static str {
        if self.ascii { ".." } else { "…" }
    }

    /// Returns the character and the style of a section. Without colours, each section has its own
    /// character.
    pub(crate) fn fill(self, fill: Fill) -> (&'static str, Style) {
        let (ascii, mono, colored, color) = match fill {
            Fill::Own => ("#", "█", "█", Some(Color::Green)),
            Fill::PreExisting => ("=", "▓", "█", Some(Color::Cyan)),
            Fill::Others => ("o", "▒", "█", Some(Color::Blue)),
            Fill::Unattributed => ("%", "▚", "█", Some(Color::Yellow)),
            Fill::Free => (".", "░", "░", Some(Color::DarkGray)),
        };
        let symbol = match (self.ascii, self.color) {
            (true, _) => ascii,
            (false, true) => colored,
            (false, false) => mono,
        };
        let style = color.filter(|_| self.color).map_or_else(Style::new, |color| Style::new().fg(color));
        (symbol, style)
    }

    /// Returns a bar of the given width: each section's share of `whole`, and the rest empty.
    ///
    /// A section with bytes gets at least one column. Sections that do not fit are truncated.
    pub(crate) fn bar(self, pieces: &[(Fill, u64)], whole: u64, columns: usize) -> Vec<Span<'static>> {
        let mut spans = Vec::new();
        let mut left = columns;
        for (fill, bytes) in pieces.iter().filter(|(_, bytes)| *bytes > 0) {
            let take = columns_of(ratio(*bytes, whole), columns).max(1).min(left);
            left -= take;
            spans.push(self.stretch(*fill, take));
        }
        spans.push(self.stretch(Fill::Free, left));
        spans
    }

    fn stretch(self, fill: Fill, columns: usize) -> Span<'static> {
        let (symbol, style) = self.fill(fill);
        Span::styled(symbol.repeat(columns), style)
    }

    /// Returns a legend entry: `█ this 28.90`.
    pub(crate) fn legend(self, fill: Fill, text: &str) -> Vec<Span<'static>> {
        let (symbol, style) = self.fill(fill);
        vec![Span::styled(symbol, style), Span::raw(format!(" {text}"))]
    }

    /// Returns the bar characters of a graph, from empty to full.
    pub(crate) fn bars(self) -> Set<'static> {
        if self.ascii { ASCII_BARS } else { symbols::bar::NINE_LEVELS }
    }

    /// Returns the tone of a fill level.
    pub(crate) fn load(part: u64, whole: Option<u64>) -> Tone {
        match whole.map(|whole| ratio(part, whole)) {
            Some(share) if share >= FULL => Tone::Bad,
            Some(share) if share >= HIGH => Tone::Warning,
            _ => Tone::Plain,
        }
    }

    /// Joins sentences with dots and wraps them to the screen width.
    pub(crate) fn joined(self, parts: &[Sentence], columns: usize) -> Vec<Line<'static>> {
        let joint = if self.ascii { " - " } else { " · " };
        let mut lines = Vec::new();
        let mut line = Line::default();
        for part in parts {
            let text = fit(&part.text, columns, self.mark());
            if line.width() > 0 && line.width() + width(joint) + width(&text) > columns {
                lines.push(std::mem::take(&mut line));
            }
            if line.width() > 0 {
                line.push_span(self.span(Tone::Faint, joint));
            }
            line.push_span(self.span(part.tone, text));
        }
        lines.push(line);
        lines
    }

    /// Returns key hints, as many as fit: `q quit  ? help`.
    pub(crate) fn keys(self, keys: &[(&'static str, &'static str)], columns: usize) -> Line<'static> {
        self.keys_after("", keys, columns)
    }

    /// Returns a text followed by the key hints that fit.
    pub(crate) fn keys_after(self, text: &str, keys: &[(&'static str, &'static str)], columns: usize) -> Line<'static> {
        let mut line = Line::default();
        if !text.is_empty() {
            line.push_span(self.span(Tone::Heading, fit(text, columns, self.mark())));
        }
        for (name, meaning) in keys {
            let gap = if line.width() == 0 { "" } else { "  " };
            if line.width() + gap.len() + width(name) + 1 + width(meaning) > columns {
                break;
            }
            line.push_span(self.span(Tone::Heading, format!("{gap}{name}")));
            line.push_span(self.span(Tone::Faint, format!(" {meaning}")));
        }
        line
    }

    /// Returns a line with left-aligned and right-aligned text. The left text is truncated if both
    /// do not fit.
    pub(crate) fn ends(self, left: Vec<Span<'static>>, right: Vec<Span<'static>>, columns: usize) -> Line<'static> {
        let right_wide: usize = right.iter().map(Span::width).sum();
        let mut room = columns.saturating_sub(right_wide + 1);
        let mut line = Line::default();
        for span in left {
            let text = fit(&span.content, room, self.mark()).into_owned();
            room -= width(&text).min(room);
            line.push_span(Span::styled(text, span.style));
        }
        if right_wide <= columns {
            line.push_span(Span::raw(" ".repeat(columns - right_wide - line.width().min(columns - right_wide))));
            line.spans.extend(right);
        }
        line
    }
}

/// Returns a share of the columns, rounded and at most all of them.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a terminal has few columns, and the share is between 0 and 1"
)]
fn columns_of(share: f64, columns: usize) -> usize {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    (share * columns as f64).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: TerminalLook = TerminalLook { color: false, ascii: true };

    fn text(spans: &[Span]) -> String {
        spans.iter().map(|span| span.content.as_ref()).collect()
    }

    #[test]
    fn a_bar_has_each_pieces_share() {
        let pieces = [(Fill::Own, 50), (Fill::Unattributed, 25)];
        assert_eq!(text(&PLAIN.bar(&pieces, 100, 8)), "####%%..");
    }

    #[test]
    fn a_small_piece_is_seen_and_a_large_one_does_not_overflow() {
        assert_eq!(text(&PLAIN.bar(&[(Fill::Own, 1), (Fill::Unattributed, 0)], 1_000_000, 4)), "#...");
        assert_eq!(text(&PLAIN.bar(&[(Fill::Own, 500), (Fill::Unattributed, 500)], 100, 4)), "####");
        assert_eq!(text(&PLAIN.bar(&[(Fill::Own, 1)], 0, 4)), "#...");
        assert_eq!(text(&PLAIN.bar(&[(Fill::Own, 1)], 1, 0)), "");
    }

    #[test]
    fn a_whole_that_becomes_full_changes_its_tone() {
        let tones = [79, 80, 94, 95, 120].map(|part| TerminalLook::load(part, Some(100)));
        assert_eq!(tones, [Tone::Plain, Tone::Warning, Tone::Warning, Tone::Bad, Tone::Bad]);
        assert_eq!(TerminalLook::load(95, None), Tone::Plain);
    }

    #[test]
    fn two_ends_keep_the_right_one_whole() {
        let ends = |look: TerminalLook, columns| {
            text(&look.ends(vec![Span::raw("left text")], vec![Span::raw("right")], columns).spans)
        };
        let drawn = TerminalLook { ascii: false, ..PLAIN };
        assert_eq!(
            [16, 12, 5, 3].map(|columns| ends(drawn, columns)),
            ["left text  right", "left … right", "right", ""]
        );
        assert_eq!(ends(PLAIN, 12), "left.. right");
    }

    #[test]
    fn sentences_break_between_parts() {
        let parts = ["one", "two", "three"].map(|part| Sentence::new(Tone::Plain, part));
        let lines: Vec<_> = PLAIN.joined(&parts, 10).iter().map(|line| text(&line.spans)).collect();
        assert_eq!(lines, ["one - two", "three"]);
        assert_eq!(PLAIN.joined(&parts, 0).iter().map(Line::width).sum::<usize>(), 0);
    }
}
