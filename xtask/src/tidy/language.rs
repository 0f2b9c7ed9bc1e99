//! Counts of what makes prose hard to read: words without a noun, comments that need their neighbours, names that two types share.
//!
//! A count is a symptom. The cure is a new sentence, never another word in the old one.

use super::Violation;
use super::source::Source;
use std::collections::BTreeMap;

/// Words whose noun is elsewhere, with the most that 10,000 words may have of them.
const LIMITS: &[Limit] = &[
    Limit { name: "who", phrases: &["who", "whose", "whoever", "whom"], at_most: 8 },
    Limit { name: "nobody", phrases: &["nobody", "somebody", "everybody", "anybody"], at_most: 2 },
    Limit { name: "so many", phrases: &["so many", "so long", "so much"], at_most: 2 },
    Limit { name: "lies", phrases: &["lie", "lies"], at_most: 2 },
    Limit { name: "stands", phrases: &["stand", "stands"], at_most: 2 },
    Limit { name: "no more", phrases: &["no more", "any more"], at_most: 2 },
    Limit { name: "goes on", phrases: &["go on", "goes on", "going on"], at_most: 1 },
];
/// Percentage of types that may share their name with another type. Associated types of foreign traits are among them.
const SHARED_NAMES_AT_MOST: usize = 20;
/// First words of a comment that needs the line before it.
const RIDDLES: &[&str] = &["And", "Likewise", "The same", "Since then", "All of them", "Them", "Its own"];
/// Letters up to which such a comment is a riddle; a longer one explains itself.
const RIDDLE_LETTERS: usize = 60;
/// Keywords that declare a type.
const TYPE_KEYWORDS: &[&str] = &["struct", "enum", "trait", "type", "union"];

/// Phrases of one kind and how frequent they may be.
struct Limit {
    name: &'static str,
    phrases: &'static [&'static str],
    /// Per 10,000 words.
    at_most: usize,
}

/// Phrases that are too frequent in the comments of shipped code, and in the documents.
pub(super) fn frequent_words(sources: &[Source]) -> Vec<(usize, Violation)> {
    let comments = |source: &Source| if source.has_extension("rs") { comment_words(source) } else { Vec::new() };
    let documents =
        |source: &Source| if source.has_extension("md") { document_words(&source.text) } else { Vec::new() };
    [too_frequent(sources, "comments", comments), too_frequent(sources, "documents", documents)].concat()
}

/// Phrases above their limit in one kind of prose: one finding each, at the file that has most of them.
fn too_frequent(sources: &[Source], prose: &str, words: fn(&Source) -> Vec<String>) -> Vec<(usize, Violation)> {
    let words: Vec<Vec<String>> = sources.iter().map(words).collect();
    let total: usize = words.iter().map(Vec::len).sum();
    let finding = |limit: &Limit| {
        let counts: Vec<usize> = words.iter().map(|words| limit.count(words)).collect();
        let count: usize = counts.iter().sum();
        let (most, index) = counts.iter().copied().zip(0..).max()?;
        (count * 10_000 > limit.at_most * total).then(|| {
            let Limit { name, at_most, .. } = limit;
            let rate = count * 10_000 / total;
            (index, (1, format!("'{name}' {rate} times in 10,000 words of {prose}, {at_most} allowed; {most} here")))
        })
    };
    LIMITS.iter().filter_map(finding).collect()
}

impl Limit {
    fn count(&self, words: &[String]) -> usize {
        self.phrases
            .iter()
            .map(|phrase| {
                let phrase: Vec<&str> = phrase.split(' ').collect();
                words.windows(phrase.len()).filter(|words| words.iter().eq(&phrase)).count()
            })
            .sum()
    }
}

/// The words of a file's comments outside tests.
fn comment_words(source: &Source) -> Vec<String> {
    shipped_comments(source).flat_map(|(_, comment)| prose_words(comment)).collect()
}

/// The comments of shipped lines that hold nothing else, numbered from 1, without their slashes.
fn shipped_comments(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(source.text.lines()).filter(|(number, _)| !source.is_test(*number)).filter_map(|(number, line)| {
        let comment = line.trim_start().strip_prefix("//")?;
        Some((number, comment.trim_start_matches(['/', '!']).trim_start()))
    })
}

/// The words of a document outside its code blocks.
fn document_words(text: &str) -> Vec<String> {
    let mut is_code = false;
    let prose = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    prose.flat_map(prose_words).collect()
}

/// The words of a line outside backticks, in small letters.
fn prose_words(line: &str) -> Vec<String> {
    let outside = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == '\'';
    outside.split(|letter| !is_letter(letter)).filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect()
}

/// Comments that say nothing without the line before them.
pub(super) fn riddles(source: &Source) -> Vec<Violation> {
    if !source.has_extension("rs") {
        return Vec::new();
    }
    let lines: Vec<&str> = source.text.lines().collect();
    let begins = |number: usize| number < 2 || !lines[number - 2].trim_start().starts_with("///");
    shipped_comments(source)
        .filter(|(number, _)| lines[number - 1].trim_start().starts_with("/// ") && begins(*number))
        .filter(|(_, comment)| {
            comment.len() <= RIDDLE_LETTERS && RIDDLES.iter().any(|first| starts_with(comment, first))
        })
        .map(|(number, comment)| (number, format!("'{comment}' needs the line before it")))
        .collect()
}

fn starts_with(comment: &str, first: &str) -> bool {
    comment.strip_prefix(first).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

/// Types that share their name with another one, where they are more than [`SHARED_NAMES_AT_MOST`]: one finding, at the most frequent name.
pub(super) fn shared_names(sources: &[Source]) -> Vec<(usize, Violation)> {
    let mut types: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    for (index, source) in sources.iter().enumerate() {
        for (number, line) in source.shipped_lines() {
            if let Some(name) = declared_type(line) {
                types.entry(name).or_default().push((index, number));
            }
        }
    }
    let all: usize = types.values().map(Vec::len).sum();
    let shared: usize = types.values().map(Vec::len).filter(|count| *count > 1).sum();
    let most = types.iter().max_by_key(|(_, places)| places.len());
    let Some((name, places)) = most.filter(|_| shared * 100 > SHARED_NAMES_AT_MOST * all) else {
        return Vec::new();
    };
    let (index, line) = places[0];
    let text = format!(
        "{shared} of {all} types share their name with another, {SHARED_NAMES_AT_MOST} % allowed; {} are called {name}",
        places.len()
    );
    vec![(index, (line, text))]
}

/// The name of the type that a line of code declares.
fn declared_type(line: &str) -> Option<&str> {
    let mut words =
        line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').filter(|word| !word.is_empty());
    let first = words.by_ref().find(|word| !matches!(*word, "pub" | "crate" | "super" | "in"))?;
    let name = words.next()?;
    (TYPE_KEYWORDS.contains(&first) && name.starts_with(|letter: char| letter.is_ascii_uppercase())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> Source {
        Source::new("memwatch/src/a.rs", text)
    }

    #[test]
    fn tidy_reports_a_frequent_word_once_in_its_main_file() {
        let plain = "// The thread exits.\n".repeat(200);
        let files = [rust(&plain), rust("// Whoever reads\n// who holds\n// `who`\n"), rust("// whose\n")];
        let found = frequent_words(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].0 == 1 && found[0].1.1.starts_with("'who' 49 times"), "{found:?}");
        assert_eq!(frequent_words(&files[..1]), []);
    }

    #[test]
    fn code_blocks_literals_and_tests_are_not_counted() {
        let document = Source::new("docs/a.md", "```\nwho who\n```\nThe process exits. `who`\n");
        let test = rust("let a = \"who\";\n#[cfg(test)]\nmod tests {\n    // who\n}\n");
        assert_eq!(frequent_words(&[document, test]), []);
        let two = Source::new("docs/a.md", "It goes on and goes\non.\n");
        assert_eq!(frequent_words(&[two]).len(), 1);
    }

    #[test]
    fn tidy_reports_comments_that_depend_on_their_neighbours() {
        let found = |text| riddles(&rust(text)).len();
        assert_eq!(found("/// Bytes.\na: u64,\n/// And their count.\nb: u64,\n"), 1);
        assert_eq!(found("/// Likewise.\nb: u64,\n"), 1);
        assert_eq!(found("/// Bytes of the pool\n/// And more.\nb: u64,\n"), 0);
        assert_eq!(found("/// Andorra.\nb: u64,\n"), 0);
    }

    #[test]
    fn shared_names_are_found_above_the_limit() {
        let files = [rust("struct Row;\npub(crate) struct Other<T>(T);\n"), rust("pub(super) enum Row {}\n")];
        let found = shared_names(&files);
        assert!(found.len() == 1 && found[0].1.1.contains("2 of 3 types") && found[0].1.1.contains("Row"), "{found:?}");
        assert_eq!(
            shared_names(&[rust("struct A;\nstruct B;\n// struct A;\n#[cfg(test)]\nmod tests { struct B; }\n")]),
            []
        );
    }
}
