//! The paths that a piece of Rust names.

use super::mask::is_word;

/// Every path that starts at one of `roots` (`crate`, `std`, …), with the number of its line.
///
/// Nested imports are written out: `use std::{fs, time::{self, Instant}}` gives `std::fs`, `std::time` and
/// `std::time::Instant`. The code must be masked.
pub(super) fn paths(code: &str, roots: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let bytes = code.as_bytes();
    for root in roots {
        for (position, _) in code.match_indices(root) {
            let end = position + root.len();
            let is_inner = position > 0 && (is_word(bytes[position - 1]) || bytes[position - 1] == b':');
            if is_inner || bytes.get(end).copied().is_some_and(is_word) {
                continue;
            }
            let tail = code[end..].trim_start();
            if let Some(tree) = tail.strip_prefix("::") {
                let number = code[..position].matches('\n').count() + 1;
                let mut reader = TreeReader { rest: tree };
                reader.read(root, &mut |path| found.push((number, path)));
            } else if code[..position].trim_end().ends_with("use") {
                found.push((code[..position].matches('\n').count() + 1, (*root).to_owned()));
            }
        }
    }
    found
}

struct TreeReader<'code> {
    rest: &'code str,
}

impl TreeReader<'_> {
    /// Reads what follows `prefix::`: a name, a name with more behind it, or a group.
    fn read(&mut self, prefix: &str, emit: &mut impl FnMut(String)) {
        self.skip_space();
        if self.eat("{") {
            loop {
                self.skip_space();
                if self.eat("}") || self.rest.is_empty() {
                    return;
                }
                let before = self.rest.len();
                self.read(prefix, emit);
                self.skip_to_separator();
                if self.rest.len() == before {
                    return;
                }
            }
        }
        let length = self.rest.bytes().take_while(|byte| is_word(*byte)).count();
        let (name, rest) = self.rest.split_at(length);
        self.rest = rest;
        let path = if name.is_empty() || name == "self" { prefix.to_owned() } else { format!("{prefix}::{name}") };
        if !name.is_empty() && self.eat("::") {
            self.read(&path, emit);
        } else {
            emit(path);
        }
    }

    /// Skips an `as name` and the comma behind an entry of a group.
    fn skip_to_separator(&mut self) {
        let length = self.rest.find([',', '}', ';']).unwrap_or(self.rest.len());
        self.rest = &self.rest[length..];
        self.eat(",");
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(code: &str, roots: &[&str]) -> Vec<String> {
        paths(code, roots).into_iter().map(|(_, path)| path).collect()
    }

    #[test]
    fn nested_imports_are_written_out() {
        let code = "use std::{fs, time::{self, Instant as Now}, io::*};";
        assert_eq!(named(code, &["std"]), ["std::fs", "std::time", "std::time::Instant", "std::io"]);
    }

    #[test]
    fn paths_in_expressions_count_too() {
        assert_eq!(named("let a = std::env::var(x);", &["std"]), ["std::env::var"]);
        assert_eq!(named("use libc; use aya as b;", &["libc", "aya"]), ["libc", "aya"]);
    }

    #[test]
    fn tidy_import_root_matches_whole_words_only() {
        assert_eq!(named("let crate_std::x = my::std::fs; nostd::fs", &["std"]), [""; 0]);
    }
}
