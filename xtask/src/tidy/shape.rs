//! Rules on size and naming of files, functions and modules.

use super::Violation;
use super::mask::is_word;
use super::source::Source;

/// Extensions of program text; documents may be longer.
const PROGRAM_TEXT: &[&str] = &["rs", "c", "h", "py"];
const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 60;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["util", "utils", "helper", "helpers", "manager"];

/// Program files are at most [`FILE_LINES`] lines long.
pub(super) fn file_length(source: &Source) -> Vec<Violation> {
    let lines = source.text.lines().count();
    let is_program = PROGRAM_TEXT.iter().any(|extension| source.has_extension(extension));
    if !is_program || lines <= FILE_LINES {
        return Vec::new();
    }
    vec![(FILE_LINES + 1, format!("{lines} lines, at most {FILE_LINES} are allowed"))]
}

/// No file has the marks of a merge that was not settled.
pub(super) fn conflict(source: &Source) -> Vec<Violation> {
    let is_mark = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    let lines = (1..).zip(source.text.lines()).filter(|(_, line)| is_mark(line));
    lines.map(|(number, _)| (number, "a merge that was not settled".to_owned())).collect()
}

/// Rust functions are at most [`FUNCTION_LINES`] lines long, signature and closing brace included.
pub(super) fn function_length(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    for (position, name) in functions(&source.code) {
        let Some(end) = body_end(&source.code, position) else {
            continue;
        };
        let lines = source.code[position..end].matches('\n').count() + 1;
        if lines > FUNCTION_LINES {
            let number = line_number(&source.code, position);
            found.push((number, format!("fn {name} has {lines} lines, at most {FUNCTION_LINES} are allowed")));
        }
    }
    found
}

/// No module is called `util` or the like.
pub(super) fn module_name(source: &Source) -> Vec<Violation> {
    if !source.has_extension("rs") {
        return Vec::new();
    }
    let in_path = source
        .path
        .trim_end_matches(".rs")
        .split('/')
        .filter(|part| EMPTY_NAMES.contains(part))
        .map(|part| (1, format!("a module named {part}")));
    let inline = source.code_lines().filter_map(|(number, line)| {
        let (_, rest) = line.split_once("mod ")?;
        let name = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?;
        EMPTY_NAMES.contains(&name).then(|| (number, format!("a module named {name}")))
    });
    in_path.chain(inline).collect()
}

/// Every named function: the position of its `fn`, and its name.
fn functions(code: &str) -> Vec<(usize, &str)> {
    let bytes = code.as_bytes();
    code.match_indices("fn ")
        .filter(|(position, _)| *position == 0 || !is_word(bytes[position - 1]))
        .map(|(position, keyword)| {
            let rest = &code[position + keyword.len()..];
            let length = rest.bytes().take_while(|byte| is_word(*byte)).count();
            (position, &rest[..length])
        })
        .filter(|(_, name)| !name.is_empty())
        .collect()
}

/// The position after a function's closing brace; nothing for a declaration without body.
fn body_end(code: &str, position: usize) -> Option<usize> {
    let mut brackets = 0_usize;
    let mut braces = 0_usize;
    for (offset, byte) in code[position..].bytes().enumerate() {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets = brackets.saturating_sub(1),
            b';' if brackets == 0 && braces == 0 => return None,
            b'{' => braces += 1,
            b'}' if braces == 1 && brackets == 0 => return Some(position + offset + 1),
            b'}' => braces = braces.saturating_sub(1),
            _ => {}
        }
    }
    None
}

fn line_number(code: &str, position: usize) -> usize {
    code[..position].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(lines: usize) -> String {
        format!("\nfn long(a: [u8; 3]) -> u8 {{\n{}}}\nfn short() {{}}\n", "    a(\"{\");\n".repeat(lines - 2))
    }

    #[test]
    fn the_marks_of_an_unsettled_merge_are_found_in_any_file() {
        let text = "a\n<<<<<<< ours\nb\n=======\nc\n>>>>>>> theirs\n";
        let lines: Vec<usize> = conflict(&Source::new("README.md", text)).iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 6]);
        assert_eq!(conflict(&Source::new("README.md", "=======\n<< a\n")), []);
    }

    #[test]
    fn a_function_of_sixty_lines_is_fine_and_one_of_sixty_one_is_not() {
        assert_eq!(function_length(&Source::new("a/src/b.rs", &function_of(60))).len(), 0);
        let found = function_length(&Source::new("a/src/b.rs", &function_of(61)));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, 2);
        assert!(found[0].1.contains("fn long has 61 lines"), "{found:?}");
    }

    #[test]
    fn declarations_and_function_types_have_no_length() {
        let text = format!("trait T {{ fn a(&self); }}\nstruct S {{ f: fn (u8) }}\n{}", "\n".repeat(100));
        assert_eq!(function_length(&Source::new("a/src/b.rs", &text)).len(), 0);
    }

    #[test]
    fn a_program_file_of_five_hundred_lines_is_fine_and_a_longer_one_is_not() {
        let lines = "x\n".repeat(500);
        assert_eq!(file_length(&Source::new("a/b.py", &lines)).len(), 0);
        assert_eq!(file_length(&Source::new("a/b.py", &format!("{lines}x\n"))).len(), 1);
        assert_eq!(file_length(&Source::new("a/b.md", &format!("{lines}x\n"))).len(), 0);
    }

    #[test]
    fn tidy_reports_vague_module_names_in_files_and_inline() {
        assert_eq!(module_name(&Source::new("a/src/utils.rs", "")).len(), 1);
        assert_eq!(module_name(&Source::new("a/src/manager/mod.rs", "")).len(), 1);
        assert_eq!(module_name(&Source::new("a/src/b.rs", "pub mod helpers {}\n")).len(), 1);
        assert_eq!(module_name(&Source::new("a/src/b.rs", "mod utility;\n// mod util\n")).len(), 0);
    }
}
