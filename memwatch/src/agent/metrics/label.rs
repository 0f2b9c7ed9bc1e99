//! Sanitises untrusted text for label values.

use crate::printable::printable;

/// Maximum length of a label value in bytes.
const LABEL_BYTES: usize = 256;

/// Converts untrusted text to a label value: bounded, and without control characters.
pub(super) fn label_value(word: &str) -> String {
    let plain: String = word.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect();
    let mut value = printable(&plain).into_owned();
    let cut = (0..=LABEL_BYTES.min(value.len())).rev().find(|end| value.is_char_boundary(*end));
    value.truncate(cut.unwrap_or_default());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strangers_word_is_cut_between_letters_and_obeyed_by_no_terminal() {
        assert_eq!(label_value("\x1b[2J\u{9b}x"), "\u{fffd}[2J\u{fffd}x");
        assert_eq!(label_value("job\u{202e}gnp\u{200b}.exe\u{2066}"), "job\\u{202e}gnp\\u{200b}.exe\\u{2066}");
        let cut = label_value(&"é".repeat(1000));
        assert!(cut.len() <= LABEL_BYTES && cut.chars().all(|letter| letter == 'é'), "{cut}");
    }
}
