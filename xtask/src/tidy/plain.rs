//! Plain words: narration that a reader has to decode is not in comments, texts, documents and names.

use super::Violation;
use super::source::Source;

/// A forbidden word or phrase, and what says the same plainly.
const FORBIDDEN: &[(&str, &str)] = &[
    ("told", "reported, set, distinguished"),
    ("tell", "report, show, distinguish"),
    ("tells", "reports, shows, distinguishes"),
    ("telling", "reporting"),
    ("said", "reported, stated"),
    ("anew", "again, reset"),
    ("whom", "which process, who"),
    ("oneself", "directly"),
    ("by oneself", "directly"),
    ("seen by", "observed by, from"),
    ("of the watch", "of the session, since attach"),
    ("so often", "every, how many times"),
    ("in vain", "without result"),
    ("what is to be thought", "verdict"),
    ("those that", "the ones that, what"),
    ("nought", "0"),
];

/// What documents and code of others write, by the end of the path.
const OTHERS: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT"];

/// Lines with a forbidden word. `_` parts words, so that names of functions and tests are held to the same.
pub(super) fn unplain(source: &Source) -> Vec<Violation> {
    if OTHERS.iter().any(|end| source.path.ends_with(end)) {
        return Vec::new();
    }
    (1..).zip(source.text.lines()).filter_map(|(number, line)| Some((number, finding(line)?))).collect()
}

fn finding(line: &str) -> Option<String> {
    let line = line.to_ascii_lowercase().replace('_', " ");
    FORBIDDEN
        .iter()
        .find(|(phrase, _)| has_phrase(&line, phrase))
        .map(|(phrase, plain)| format!("'{phrase}' (plainly: {plain})"))
}

fn has_phrase(line: &str, phrase: &str) -> bool {
    let is_border = |letter: Option<char>| letter.is_none_or(|letter| !letter.is_alphanumeric());
    line.match_indices(phrase).any(|(start, _)| {
        is_border(line[..start].chars().next_back()) && is_border(line[start + phrase.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        unplain(&Source::new("memwatch/src/a.rs", text)).into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn forbidden_words_are_found_in_comments_texts_and_names() {
        let text = "// as the driver TOLD it\nlet a = \"it is said\";\nfn what_is_told() {}\n// in vain\n";
        assert_eq!(found(text), [1, 2, 3, 4]);
    }

    #[test]
    fn parts_of_other_words_are_fine() {
        assert_eq!(
            found("// Intelligence retells satellites; the household is untoldable\n// what is reported\n"),
            [0; 0]
        );
    }

    #[test]
    fn every_forbidden_phrase_has_a_plain_one() {
        assert!(FORBIDDEN.iter().all(|(phrase, plain)| !phrase.is_empty() && !has_phrase(plain, phrase)));
    }
}
