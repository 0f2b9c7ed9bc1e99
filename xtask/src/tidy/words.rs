//! Rules on single words.

use super::Violation;
use super::mask::is_word;
use super::source::Source;

const UNFINISHED: &[&str] = &["TODO", "FIXME", "XXX"];

/// Shipped code does not unwrap.
pub(super) fn unwrap(source: &Source) -> Vec<Violation> {
    source
        .shipped_lines()
        .filter(|(_, line)| line.contains(".unwrap()"))
        .map(|(number, _)| (number, "unwrap() outside tests".to_owned()))
        .collect()
}

/// Nothing of ours is called `pid`: the kernel and the screen mean different things by it.
///
/// Reading a field `.pid` is fine, since a type of ours cannot have one: its declaration would be found here.
pub(super) fn process_word(source: &Source) -> Vec<Violation> {
    source
        .code_lines()
        .filter(|(_, line)| words(line).any(|(start, word)| word == "pid" && !line[..start].ends_with('.')))
        .map(|(number, _)| (number, "'pid' as a name".to_owned()))
        .collect()
}

/// Nothing is left for later in the code.
pub(super) fn unfinished(source: &Source) -> Vec<Violation> {
    numbered(&source.text)
        .filter_map(|(number, line)| {
            let (_, word) = words(line).find(|(_, word)| UNFINISHED.contains(word))?;
            Some((number, format!("{word} in the tree")))
        })
        .collect()
}

/// The kernel half knows no CUDA function: it serves every row of the table alike.
pub(super) fn cuda_name(source: &Source) -> Vec<Violation> {
    if !source.is_below("memwatch-ebpf/src") {
        return Vec::new();
    }
    let is_cuda = |word: &str| word.starts_with("cu") && word.as_bytes().get(2).is_some_and(u8::is_ascii_uppercase);
    numbered(&source.text)
        .filter_map(|(number, line)| {
            let (_, word) = words(line).find(|(_, word)| is_cuda(word))?;
            Some((number, format!("the CUDA name {word} in the kernel half")))
        })
        .collect()
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}

/// The identifiers and numbers of a line, with their positions.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_border = |letter: char| !u8::try_from(letter).is_ok_and(is_word);
    line.split(is_border)
        .filter(|word| !word.is_empty())
        .map(move |word| (word.as_ptr().addr() - line.as_ptr().addr(), word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [usize; 0] = [];

    fn found(rule: fn(&Source) -> Vec<Violation>, path: &str, text: &str) -> Vec<usize> {
        rule(&Source::new(path, text)).into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn unwrap_is_for_tests() {
        let text = "fn a() { b.unwrap(); }\n// c.unwrap()\nfn d() { e.unwrap_or(1); }\n#[cfg(test)]\nmod tests { fn f() { g.unwrap(); } }\n";
        assert_eq!(found(unwrap, "memwatch/src/a.rs", text), [1]);
        assert_eq!(found(unwrap, "tests/tests/a.rs", "fn a() { b.unwrap(); }\n"), NOTHING);
    }

    #[test]
    fn pid_is_found_as_a_name_only() {
        for text in ["let pid = 1;", "fn a(pid: u32) {}", "struct S { pid: u32 }", "S { pid, .. }"] {
            assert_eq!(found(process_word, "memwatch/src/a.rs", text), [1], "{text}");
        }
        for text in
            ["let a = info.pid;", "#[arg(long = \"pid\")]", "// the pid", "let t: libc::pid_t = 1;", "pidfd_open()"]
        {
            assert_eq!(found(process_word, "memwatch/src/a.rs", text), NOTHING, "{text}");
        }
        assert_eq!(found(process_word, "tests/a.c", "pid = fork();"), NOTHING);
    }

    #[test]
    fn unfinished_work_is_found_in_any_file() {
        for word in UNFINISHED {
            assert_eq!(found(unfinished, "a/b.py", &format!("ok\n# {word}: later\n")), [2]);
        }
        assert_eq!(found(unfinished, "a/b.sh", "mktemp /tmp/a.XXXXXX\n"), NOTHING);
    }

    #[test]
    fn the_kernel_half_names_no_cuda_function() {
        assert_eq!(found(cuda_name, "memwatch-ebpf/src/main.rs", "// for cuMemAlloc_v2\n"), [1]);
        assert_eq!(found(cuda_name, "memwatch-ebpf/src/main.rs", "let current = cursor; fOcuS\n"), NOTHING);
        assert_eq!(found(cuda_name, "memwatch-common/src/probes.rs", "cuMemAlloc_v2\n"), NOTHING);
    }
}
