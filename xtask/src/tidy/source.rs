//! The files that tidy looks at.

use super::mask::mask;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::Path;

/// Folders that hold nothing of ours.
const SKIPPED_FOLDERS: &[&str] = &["target", "__pycache__", "node_modules"];
/// Hidden folders that are ours.
const HIDDEN_FOLDERS: &[&str] = &[".ci", ".cargo", ".github"];
/// What we write, by the end of the name; anything else is data.
const EXTENSIONS: &[&str] = &["rs", "c", "h", "py", "sh", "toml", "md", "yml", "yaml"];

/// One file of the working tree.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    /// All of it.
    pub(crate) text: String,
    /// For Rust: the text without comments and literals, at the same positions.
    pub(super) code: String,
    /// For Rust: per line, whether it is compiled for tests only.
    is_test_line: Vec<bool>,
}

impl Source {
    /// Takes a file in.
    pub(super) fn new(path: &str, text: &str) -> Self {
        let is_rust = has_extension(path, "rs");
        let code = if is_rust { mask(text) } else { String::new() };
        let is_test_line = if is_test_path(path) { vec![true; text.lines().count()] } else { test_lines(&code) };
        Self { path: path.to_owned(), text: text.to_owned(), code, is_test_line }
    }

    /// Whether the file's name ends so.
    pub(super) fn has_extension(&self, extension: &str) -> bool {
        has_extension(&self.path, extension)
    }

    /// Whether the file lies in this folder of the working tree.
    pub(super) fn is_below(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Rust's lines without comments and literals, numbered from 1, tests included.
    pub(super) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.lines())
    }

    /// As [`Source::code_lines`], without what is compiled for tests only.
    pub(super) fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code_lines().filter(|(number, _)| !self.is_test(*number))
    }

    /// Whether this line, numbered from 1, is compiled for tests only.
    pub(super) fn is_test(&self, number: usize) -> bool {
        self.is_test_line.get(number - 1).copied().unwrap_or(false)
    }
}

/// Reads every file of ours in the working tree, in the order of their paths.
///
/// # Errors
/// When a folder cannot be listed or a file is no UTF-8 text.
pub(crate) fn read_tree(root: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                if is_ours(&name) {
                    folders.push(path);
                }
            } else if EXTENSIONS.iter().any(|extension| has_extension(&name, extension)) {
                let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let relative = path.strip_prefix(root).expect("the walk starts at the root");
                sources.push(Source::new(&relative.to_string_lossy(), &text));
            }
        }
    }
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    mark_test_files(&mut sources);
    Ok(sources)
}

/// Marks whole files that some other file includes under `#[cfg(test)]`, and the files of their submodules.
fn mark_test_files(sources: &mut [Source]) {
    let files: Vec<String> = sources.iter().flat_map(test_module_files).collect();
    for source in sources {
        let is_test = files
            .iter()
            .any(|file| source.path == *file || source.is_below(file.trim_end_matches(".rs").trim_end_matches("/mod")));
        if is_test {
            source.is_test_line.fill(true);
        }
    }
}

/// Where the files of a source's `#[cfg(test)] mod name;` may lie.
fn test_module_files(source: &Source) -> Vec<String> {
    let (folder, name) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let own_folder = match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
        _ => source.path.trim_end_matches(".rs").to_owned(),
    };
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let mut files = Vec::new();
    for start in (0..lines.len()).filter(|index| lines[*index] == "#[cfg(test)]") {
        let attributes = lines[start..].iter().take_while(|line| line.starts_with("#[")).count();
        let quoted = |line: &&str| line.strip_prefix("#[path = \"")?.strip_suffix("\"]").map(str::to_owned);
        let given = lines[start..start + attributes].iter().find_map(quoted);
        let module = lines.get(start + attributes).and_then(|line| line.strip_suffix(';')?.split("mod ").nth(1));
        match (given, module) {
            (Some(path), Some(_)) => files.push(format!("{folder}/{path}")),
            (None, Some(module)) => {
                files.extend([format!("{own_folder}/{module}.rs"), format!("{own_folder}/{module}/mod.rs")]);
            }
            (_, None) => {}
        }
    }
    files
}

fn is_ours(folder_name: &str) -> bool {
    !SKIPPED_FOLDERS.contains(&folder_name) && (!folder_name.starts_with('.') || HIDDEN_FOLDERS.contains(&folder_name))
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// Whether a whole file is test code by its place: anything below a `tests` folder.
fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| part == "tests")
}

/// Marks the lines of every item under `#[cfg(test)]`: in formatted code, such an item ends where its brace closes.
fn test_lines(code: &str) -> Vec<bool> {
    let mut marks = Vec::new();
    let mut depth = 0_usize;
    let mut inside = false;
    for line in code.lines() {
        inside |= line.trim_start().starts_with("#[cfg(test)]");
        marks.push(inside);
        let opened = line.matches('{').count();
        let closed = line.matches('}').count();
        if inside {
            let before = depth;
            depth = (depth + opened).saturating_sub(closed);
            let ends_without_body = before == 0 && opened == 0 && line.trim_end().ends_with(';');
            inside = !(ends_without_body || (closed > 0 && depth == 0));
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_under_cfg_test_are_test_lines() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\nfn c() {}\n";
        let source = Source::new("x/src/lib.rs", text);
        let tests: Vec<_> = (1..=7).filter(|number| source.is_test(*number)).collect();
        assert_eq!(tests, [2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_module_under_cfg_test_makes_its_files_test_files() {
        let parent =
            "#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod tests;\n#[cfg(test)]\npub(crate) mod fixture;\nfn a() {}\n";
        let files = [
            ("x/src/a.rs", parent),
            ("x/src/a_tests.rs", "fn a() {}\n"),
            ("x/src/a/fixture.rs", "fn a() {}\n"),
            ("x/src/a/fixture/part.rs", "fn a() {}\n"),
            ("x/src/fixture.rs", "fn a() {}\n"),
        ];
        let mut sources = files.map(|(path, text)| Source::new(path, text));
        mark_test_files(&mut sources);
        assert_eq!(sources.each_ref().map(|source| source.is_test(1)), [true, true, true, true, false]);
        assert!(!sources[0].is_test(6));
    }

    #[test]
    fn a_folder_is_matched_by_whole_names() {
        let source = Source::new("memwatch-core/src/lib.rs", "");
        assert!(source.is_below("memwatch-core/src") && !source.is_below("memwatch"));
    }
}
