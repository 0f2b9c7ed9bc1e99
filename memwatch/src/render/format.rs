//! Formats numbers and untrusted text for people.

use std::borrow::Cow;

use ratatui::text::Span;

pub(crate) use crate::printable::printable;
pub(crate) use crate::render::units::{bytes, count, ratio};

/// Placeholder for an unknown number.
pub(crate) const UNKNOWN: &str = "-";

/// Formats like [`bytes`], with a sign for negative values.
pub(crate) fn signed_bytes(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", bytes(value.unsigned_abs()))
}

/// `+12.0 MiB/min`.
#[expect(clippy::cast_possible_truncation, reason = "a rate beyond the largest number is shown as that")]
pub(crate) fn rate_per_minute(bytes_per_minute: f64) -> String {
    let rounded = bytes_per_minute.round() as i64;
    format!("{}{}/min", if rounded > 0 { "+" } else { "" }, signed_bytes(rounded))
}

/// `99.9 %` for 0.999. A share close to 1 is not rounded to 100 %.
pub(crate) fn percent_of_one(part: f64) -> String {
    if part > 0.999 { ">99.9 %".to_owned() } else { format!("{:.1} %", 100.0 * part) }
}

/// Formats a number that may be unknown.
pub(crate) fn known<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}

/// Events per second: `0`, `0.4`, `812`, `12.3k`.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate.is_nan() => UNKNOWN.to_owned(),
        rate if rate <= 0.0 => "0".to_owned(),
        rate if rate < 0.05 => "<0.1".to_owned(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate if rate < 999.5 => format!("{rate:.0}"),
        rate if rate < 999_950.0 => format!("{:.1}k", rate / 1e3),
        rate => format!("{:.1}M", rate / 1e6),
    }
}

/// `99.4 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", ratio(part, whole) * 100.0)
}

/// `0.4 s`, `51 s`, `2 min 13 s`, `1 h 4 min`, `3 d 2 h`.
pub(crate) fn duration(duration_ns: u64) -> String {
    let seconds = duration_ns / 1_000_000_000;
    match seconds {
        0..10 => format!("{}.{} s", seconds, duration_ns / 100_000_000 % 10),
        10..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// `1 process`, `2 processes`.
pub(crate) fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Returns the display width of a text in terminal columns.
pub(crate) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Truncates a text to the given number of columns. `mark` replaces the end of truncated text.
pub(crate) fn fit<'a>(text: &'a str, columns: usize, mark: &str) -> Cow<'a, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mark = if width(mark) < columns { mark } else { "" };
    let room = columns - width(mark);
    let mut end = 0;
    for (position, letter) in text.char_indices() {
        let next = position + letter.len_utf8();
        if width(&text[..next]) > room {
            break;
        }
        end = next;
    }
    Cow::Owned(format!("{}{mark}", &text[..end]))
}

/// Wraps a text to lines of at most `columns`. Continuation lines are indented to the text after
/// the first double space. A word longer than a line is kept whole.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    if width(text) <= columns {
        return vec![text.to_owned()];
    }
    let indent = hang(text).min(columns / 2);
    let (mut lines, mut line, mut gap) = (Vec::new(), String::new(), String::new());
    for piece in text.split_inclusive(' ') {
        let word = piece.trim_end_matches(' ');
        if !word.is_empty() {
            let has_words = !line.trim_start().is_empty();
            if has_words && width(&line) + width(&gap) + width(word) > columns {
                lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            } else {
                line.push_str(&gap);
            }
            gap.clear();
            line.push_str(word);
        }
        gap.push_str(&piece[word.len()..]);
    }
    lines.push(line);
    lines
}

/// Returns the indentation of continuation lines: the column after the first double space, if it
/// comes early, otherwise 4 columns.
fn hang(text: &str) -> usize {
    const EARLY: usize = 20;
    let begin = text.len() - text.trim_start().len();
    let Some(gap) = text[begin..].find("  ").map(|at| begin + at).filter(|gap| *gap <= EARLY) else { return begin + 4 };
    let rest = &text[gap..];
    gap + (rest.len() - rest.trim_start().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_line_breaks_between_words_and_indents_below_its_text() {
        assert_eq!(wrap("so  a request fits", 40), ["so  a request fits"]);
        assert_eq!(wrap("so  a request fits into no block", 16), ["so  a request", "    fits into no", "    block"]);
        let facts = wrap("  for         backward, step 71, Linear", 27);
        assert_eq!(facts, ["  for         backward,", "             step 71,", "             Linear"]);
        assert_eq!(wrap("a  veryveryverylongword b", 8), ["a", "   veryveryverylongword", "   b"]);
        for columns in 10..60 {
            let lines = wrap("one two three four five six seven eight nine ten eleven twelve", columns);
            assert!(lines.iter().all(|line| width(line) <= columns), "{columns}: {lines:?}");
            assert_eq!(lines.join(" ").split_whitespace().count(), 12, "{columns}: {lines:?}");
        }
    }

    #[test]
    fn a_negative_amount_has_its_sign() {
        assert_eq!(signed_bytes(-3 << 20), "-3.0 MiB");
        assert_eq!(signed_bytes(i64::MIN), "-8.00 EiB");
    }

    #[test]
    fn counts_rates_and_shares_are_short() {
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        let rates = [0.0, 0.01, 0.44, 9.94, 9.96, 812.4, 12_345.0, 999_960.0, f64::NAN].map(rate);
        assert_eq!(rates, ["0", "<0.1", "0.4", "9.9", "10", "812", "12.3k", "1.0M", "-"]);
        assert_eq!(percent(994, 1000), "99.4 %");
        assert_eq!(percent(0, 0), "0.0 %");
        assert_eq!(plural(1, "free", "frees"), "1 free");
        assert_eq!(plural(2, "free", "frees"), "2 frees");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let seconds = |seconds: u64| duration(seconds * 1_000_000_000);
        assert_eq!(duration(449_000_000), "0.4 s");
        assert_eq!(seconds(51), "51 s");
        assert_eq!(seconds(133), "2 min 13 s");
        assert_eq!(seconds(3_840), "1 h 4 min");
        assert_eq!(seconds(266_400), "3 d 2 h");
    }

    #[test]
    fn cut_text_fits_and_says_that_it_is_cut() {
        assert_eq!(fit("python3 train.py", 16, "…"), "python3 train.py");
        assert_eq!(fit("python3 train.py", 9, "…"), "python3 …");
        assert_eq!(fit("日本語", 5, "…"), "日本…");
        assert_eq!(fit("abc", 1, ".."), "a");
        assert_eq!(fit("abc", 0, "…"), "");
    }
}
