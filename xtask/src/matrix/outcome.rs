//! Short descriptions of a version's result.

/// Judges the output of the tests.
pub(super) fn judged(text: &str, tests: usize, is_success: bool) -> String {
    let ignored = |line: &str| Some(line.split_once("ignored (")?.1.strip_suffix(')')?.to_owned());
    if let Some(line) = text.lines().find_map(ignored) {
        return format!("skipped: {}", reason(&line));
    }
    if is_success {
        let are_all = text.matches(" 1 passed").count() == tests;
        return if are_all { "equal".to_owned() } else { "skipped: there is no such test".to_owned() };
    }
    let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
    let says = lines.nth(1).unwrap_or("the test does not build");
    match python_error(text) {
        // The framework itself failed.
        Some(error) if says.contains("the script failed") => format!("does not run here: {}", reason(error)),
        _ => format!("not equal: {}", reason(says)),
    }
}

/// Describes an environment that could not be made.
pub(super) fn not_made(error: &str) -> String {
    format!("not tried: {}", reason(error))
}

/// Returns the last line of Python output that names an exception.
fn python_error(text: &str) -> Option<&str> {
    let is_error = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        (name.ends_with("Error") || name.ends_with("Exception")) && !name.contains(' ')
    };
    text.lines().rfind(is_error)
}

/// Returns the beginning of a message, short enough for a table cell.
fn reason(message: &str) -> String {
    const MOST: usize = 160;
    let line = message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let line: String = line.chars().map(|letter| if letter == '|' { '/' } else { letter }).collect();
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_a_few_words() {
        assert_eq!(judged("test a ... ok\ntest result: ok. 1 passed; 0 failed", 1, true), "equal");
        assert_eq!(
            judged("test a ... ignored (uprobes need root)\ntest result: ok. 0 passed", 1, true),
            "skipped: uprobes need root"
        );
        assert_eq!(judged("test result: ok. 0 passed", 1, true), "skipped: there is no such test");
        assert_eq!(judged("thread 'a' panicked at b.rs:1:\nleft | right\n", 1, false), "not equal: left / right");
        assert_eq!(judged("error: no", 1, false), "not equal: the test does not build");
        assert!(reason(&"a".repeat(300)).chars().count() < 170);
    }

    #[test]
    fn a_framework_that_ends_itself_says_why() {
        let text = "Traceback (most recent call last):\n  File \"a.py\"\nImportError: numpy is too new\n\
            thread 'a' panicked at b.rs:1:\nthe script failed: exit status: 1\n";
        assert_eq!(judged(text, 1, false), "does not run here: ImportError: numpy is too new");
    }
}
