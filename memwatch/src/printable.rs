//! Sanitises untrusted text for screens: names, command lines, paths, answers of other programs.
//! The text must not control the terminal, reverse a line or be invisible.

use std::borrow::Cow;
use std::io;

use ratatui::text::Span;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter};

/// Maximum number of combining marks on one letter. No known script needs more.
const MARKS: usize = 4;

/// Returns the text with control and invisible characters written as `\x1b` or `\u{202e}`, and
/// likewise excess combining marks on one letter.
///
/// Right-to-left letters are kept: a terminal with bidirectional text may show the rest of their
/// line in another order.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    let mut marks = 0;
    for letter in text.chars() {
        marks = if is_mark(letter) { marks + 1 } else { 0 };
        match letter {
            '\n' => safe.push_str("\\n"),
            '\t' => safe.push_str("\\t"),
            '\r' => safe.push_str("\\r"),
            letter if letter.is_control() => safe.push_str(&control(letter)),
            letter if is_unseen(letter) || marks > MARKS => safe.extend(letter.escape_unicode()),
            letter => safe.push(letter),
        }
    }
    Cow::Owned(safe)
}

/// Like [`printable`], but keeps newlines: for a message of memwatch's own in several lines that
/// contains untrusted text.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Writes JSON with control and invisible characters escaped. JSON readers see the same strings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrintableJson;

impl Formatter for PrintableJson {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        if is_plain(fragment) {
            return out.write_all(fragment.as_bytes());
        }
        let mut plain = 0;
        for (at, letter) in fragment.char_indices().filter(|(_, letter)| letter.is_control() || is_unseen(*letter)) {
            out.write_all(&fragment.as_bytes()[plain..at])?;
            for unit in letter.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            plain = at + letter.len_utf8();
        }
        out.write_all(&fragment.as_bytes()[plain..])
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, out: &mut W, escape: CharEscape) -> io::Result<()> {
        CompactFormatter.write_char_escape(out, escape)
    }
}

/// Writes one value as JSON.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write_json(out: &mut impl io::Write, value: &impl serde::Serialize) -> io::Result<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(out, PrintableJson))?;
    Ok(())
}

/// Fast path for plain text, which is nearly all of it.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

fn control(letter: char) -> String {
    format!("\\x{:02x}", u32::from(letter))
}

/// Whether a character changes the text direction or is invisible: Unicode's
/// `Default_Ignorable_Code_Point` (DerivedCoreProperties.txt), line and paragraph separators,
/// annotations, and the blank Braille pattern.
const fn is_unseen(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Whether a character has no column of its own.
fn is_mark(letter: char) -> bool {
    !letter.is_ascii() && Span::raw(&*letter.encode_utf8(&mut [0; 4])).width() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_escapes_terminal_control_characters_only() {
        assert_eq!(printable("a\x1b[2Jb\r\n\t\u{7f}\u{9b}31m"), "a\\x1b[2Jb\\r\\n\\t\\x7f\\x9b31m");
        assert_eq!(printable("zug/ü日本\\ é ไทย שלום"), "zug/ü日本\\ é ไทย שלום");
        assert!(matches!(printable("python train.py ~ {}"), Cow::Borrowed(_)));
    }

    #[test]
    fn printable_escapes_bidirectional_and_invisible_characters() {
        assert_eq!(printable("a\u{202e}b\u{2066}c\u{61c}d"), "a\\u{202e}b\\u{2066}c\\u{61c}d");
        assert_eq!(printable("ro\u{ad}ot\u{200b}\u{e0041}\u{fe0f}"), "ro\\u{ad}ot\\u{200b}\\u{e0041}\\u{fe0f}");
    }

    #[test]
    fn printable_keeps_up_to_four_combining_marks() {
        let accent = "\u{301}";
        assert_eq!(printable(&format!("e{}", accent.repeat(4))), format!("e{}", accent.repeat(4)));
        assert_eq!(
            printable(&format!("e{}x", accent.repeat(6))),
            format!("e{}\\u{{301}}\\u{{301}}x", accent.repeat(4))
        );
    }

    #[test]
    fn printable_lines_keep_line_breaks() {
        assert_eq!(printable_lines("no\x1b[m\r\nway\n"), "no\\x1b[m\\r\nway\n");
    }

    #[test]
    fn json_reads_back_as_it_was_and_shows_nothing_that_steers() {
        let hostile = "a\"\\\u{1}\n\x1b[m\u{7f}\u{9b}31m\u{202e}\u{e0041}ü日本";
        let mut out = Vec::new();
        write_json(&mut out, &[hostile]).expect("a vector takes any bytes");
        let text = String::from_utf8(out).expect("JSON is UTF-8");
        assert!(!text.contains(|letter: char| letter.is_control() || is_unseen(letter)), "{text}");
        assert!(text.contains("ü日本") && text.contains("\\u009b31m\\u202e\\udb40\\udc41"), "{text}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).expect("valid JSON"), [hostile]);
    }
}
