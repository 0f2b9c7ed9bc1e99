//! Colours and characters, and the pieces of text that every page is made of.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use crate::render::Tone;
use crate::render::format::{fit, ratio, width};
use crate::render::sentences::Sentence;

/// Eighths of a column's height.
const SPARKS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const ASCII_SPARKS: [&str; 8] = ["_", ".", "-", "=", "+", "*", "%", "#"];

/// What a terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Colours.
    pub(crate) color: bool,
    /// ASCII characters only (but for the texts of others).
    pub(crate) ascii: bool,
}

/// What a piece of a bar stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Live bytes of all kinds.
    Live,
    /// Used and not live.
    Unexplained,
    /// Nothing.
    Empty,
    /// Live bytes of one kind.
    Kind(&'static str),
    /// Live bytes of one stage of training.
    Stage(&'static str),
}

impl Look {
    /// The style of a tone.
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

    /// A text in a tone.
    pub(crate) fn span(self, tone: Tone, text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), self.style(tone))
    }

    /// Where a text is cut off.
    pub(crate) const fn mark(self) -> &'static str {
        if self.ascii { ".." } else { "…" }
    }

    /// The character and the colour of a piece of a bar. Without colours every piece has a character of its own.
    pub(crate) fn fill(self, fill: Fill) -> (&'static str, Style) {
        let (ascii, mono, colored, color) = match fill {
            Fill::Live | Fill::Kind("device") | Fill::Stage("forward") => ("#", "█", "█", Some(Color::Green)),
            Fill::Unexplained => ("%", "▒", "▒", Some(Color::Yellow)),
            Fill::Empty => (".", "░", "░", Some(Color::DarkGray)),
            Fill::Kind("pool") | Fill::Stage("backward") => ("=", "▓", "█", Some(Color::Cyan)),
            Fill::Kind("physical") | Fill::Stage("optimizer") => ("+", "▒", "█", Some(Color::Blue)),
            Fill::Kind("array") | Fill::Stage("outside") => ("~", "▚", "█", Some(Color::Magenta)),
            Fill::Kind(_) | Fill::Stage(_) => ("?", "▞", "█", None),
        };
        let symbol = match (self.ascii, self.color) {
            (true, _) => ascii,
            (false, true) => colored,
            (false, false) => mono,
        };
        let style = color.filter(|_| self.color).map_or_else(Style::new, |color| Style::new().fg(color));
        (symbol, style)
    }

    /// A bar of so many columns: each piece's share of `whole`, and the rest empty.
    ///
    /// A piece that is there has at least one column; pieces that do not fit are cut.
    pub(crate) fn bar(self, pieces: &[(Fill, u64)], whole: u64, columns: usize) -> Vec<Span<'static>> {
        let mut spans = Vec::new();
        let mut left = columns;
        for (fill, bytes) in pieces.iter().filter(|(_, bytes)| *bytes > 0) {
            let take = columns_of(ratio(*bytes, whole), columns).max(1).min(left);
            left -= take;
            spans.push(self.stretch(*fill, take));
        }
        spans.push(self.stretch(Fill::Empty, left));
        spans
    }

    fn stretch(self, fill: Fill, columns: usize) -> Span<'static> {
        let (symbol, style) = self.fill(fill);
        Span::styled(symbol.repeat(columns), style)
    }

    /// A legend's entry: `█ device 38.0 GiB`.
    pub(crate) fn legend(self, fill: Fill, text: &str) -> Vec<Span<'static>> {
        let (symbol, style) = self.fill(fill);
        vec![Span::styled(symbol, style), Span::raw(format!(" {text}   "))]
    }

    /// The last values as columns between 0 and `top`.
    pub(crate) fn sparkline(
        self,
        values: impl DoubleEndedIterator<Item = u64>,
        top: u64,
        columns: usize,
    ) -> Span<'static> {
        let sparks = if self.ascii { ASCII_SPARKS } else { SPARKS };
        let mut last: Vec<u64> = values.rev().take(columns).collect();
        last.reverse();
        let step = |value: &u64| sparks[columns_of(ratio(*value, top), sparks.len()).clamp(1, sparks.len()) - 1];
        Span::styled(last.iter().map(step).collect::<String>(), self.fill(Fill::Live).1)
    }

    /// Sentences joined by dots, broken into lines no wider than the screen.
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

    /// `q quit  ? help`.
    pub(crate) fn keys(self, keys: &[(&'static str, &'static str)], columns: usize) -> Line<'static> {
        let mut line = Line::default();
        for (name, meaning) in keys {
            let wide = width(name) + 1 + width(meaning) + 3;
            if line.width() + wide > columns + 3 {
                break;
            }
            line.push_span(self.span(Tone::Heading, *name));
            line.push_span(self.span(Tone::Faint, format!(" {meaning}   ")));
        }
        line
    }

    /// A sentence on a line of its own.
    pub(crate) fn sentence(self, sentence: &Sentence, columns: usize) -> Line<'static> {
        Line::from(self.span(sentence.tone, fit(&sentence.text, columns, self.mark())))
    }
}

/// A line with one text flush left and one flush right; where they meet, the left one is cut.
pub(crate) fn ends(left: Vec<Span<'static>>, right: Vec<Span<'static>>, columns: usize) -> Line<'static> {
    let right_wide: usize = right.iter().map(Span::width).sum();
    let mut room = columns.saturating_sub(right_wide + 1);
    let mut line = Line::default();
    for span in left {
        let text = fit(&span.content, room, "…").into_owned();
        room -= width(&text).min(room);
        line.push_span(Span::styled(text, span.style));
    }
    if right_wide <= columns {
        line.push_span(Span::raw(" ".repeat(columns - right_wide - line.width().min(columns - right_wide))));
        line.spans.extend(right);
    }
    line
}

/// A share of so many columns, rounded; never more than all.
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

    const PLAIN: Look = Look { color: false, ascii: true };

    fn text(spans: &[Span]) -> String {
        spans.iter().map(|span| span.content.as_ref()).collect()
    }

    #[test]
    fn a_bar_has_each_pieces_share() {
        let pieces = [(Fill::Live, 50), (Fill::Unexplained, 25)];
        assert_eq!(text(&PLAIN.bar(&pieces, 100, 8)), "####%%..");
    }

    #[test]
    fn a_small_piece_is_seen_and_a_large_one_does_not_overflow() {
        assert_eq!(text(&PLAIN.bar(&[(Fill::Live, 1), (Fill::Unexplained, 0)], 1_000_000, 4)), "#...");
        assert_eq!(text(&PLAIN.bar(&[(Fill::Live, 500), (Fill::Unexplained, 500)], 100, 4)), "####");
        assert_eq!(text(&PLAIN.bar(&[(Fill::Live, 1)], 0, 4)), "#...");
        assert_eq!(text(&PLAIN.bar(&[(Fill::Live, 1)], 1, 0)), "");
    }

    #[test]
    fn a_sparkline_shows_the_last_values() {
        assert_eq!(PLAIN.sparkline([0, 0, 50, 100].into_iter(), 100, 3).content, "_=#");
        assert_eq!(PLAIN.sparkline([5].into_iter(), 0, 3).content, "_");
    }

    #[test]
    fn two_ends_keep_the_right_one_whole() {
        let line = |columns| ends(vec![Span::raw("left text")], vec![Span::raw("right")], columns);
        assert_eq!(text(&line(16).spans), "left text  right");
        assert_eq!(text(&line(12).spans), "left … right");
        assert_eq!(text(&line(5).spans), "right");
        assert_eq!(text(&line(3).spans), "");
    }

    #[test]
    fn sentences_break_between_parts() {
        let parts = ["one", "two", "three"].map(|part| Sentence::new(Tone::Plain, part));
        let lines: Vec<_> = PLAIN.joined(&parts, 10).iter().map(|line| text(&line.spans)).collect();
        assert_eq!(lines, ["one - two", "three"]);
        assert_eq!(PLAIN.joined(&parts, 0).iter().map(Line::width).sum::<usize>(), 0);
    }
}
