//! Shortens names for narrow columns.

use std::path::Path;

use memwatch_core::snapshot::ProcessView;

use crate::render::sentences;

/// Strips the directories of the first absolute path in a text: `backward of net.py:9 forward`.
pub(crate) fn short_path(text: &str) -> String {
    shorten(text, |word| word.starts_with('/'))
}

/// Returns a process's command without the directories of the program and of its Python script.
pub(crate) fn short_command(process: &ProcessView) -> String {
    shorten(&sentences::short_command(process), |word| Path::new(word).extension().is_some_and(|end| end == "py"))
}

fn shorten(text: &str, is_file: impl Fn(&str) -> bool) -> String {
    let mut words: Vec<&str> = text.split(' ').collect();
    if let Some(word) = words.iter_mut().find(|word| is_file(word)) {
        *word = word.rsplit('/').next().unwrap_or(word);
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture::quiet_node;

    #[test]
    fn the_first_file_loses_its_folders_and_nothing_else_does() {
        assert_eq!(short_path("backward of /srv/jobs/net.py:9 forward"), "backward of net.py:9 forward");
        assert_eq!(short_path("net.py:9 forward"), "net.py:9 forward");
        assert_eq!(short_path("(no module)"), "(no module)");
        let mut process = quiet_node().processes.remove(0);
        process.command = "/usr/bin/python3 -u /srv/train.py --data /srv/data".to_owned();
        assert_eq!(short_command(&process), "python3 -u train.py --data /srv/data");
    }
}
