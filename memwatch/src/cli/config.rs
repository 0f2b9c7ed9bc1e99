//! Configuration files with defaults for output options. Command-line options override the user's
//! file, which overrides the machine's file.
//!
//! The files use a subset of TOML (`key = "text"`, `key = true`, `key = ["a", "b"]`, comments), and
//! each error names its line. A crate for full TOML would add five dependencies for these five
//! keys.

use std::io;
use std::path::{Path, PathBuf};

use clap::Command;

use crate::stranger_file::read_text;

/// Path of the machine's file.
const MACHINE: &str = "/etc/memwatch.toml";
/// Name of the user's file in the configuration directory.
const NAME: &str = "memwatch.toml";

/// Maximum size of a file in bytes, far above the size of five settings.
const MOST_BYTES: u64 = 64 << 10;

/// Valid keys, and the command that has the option; `None` for options of all commands.
const KEYS: [(&str, Option<&str>); 5] =
    [("ascii", None), ("color", None), ("columns", Some("ps")), ("sort", Some("ps")), ("units", None)];

/// One line: the default for an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigSetting {
    key: &'static str,
    values: Vec<String>,
}

/// Reads the settings of both files, the machine's first.
///
/// # Errors
/// If a line is not understood, or a file cannot be read. The error names file, line and key.
pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<ConfigSetting>, String> {
    let mut settings = Vec::new();
    for path in [Some(PathBuf::from(MACHINE)), of_user(variable)].into_iter().flatten() {
        match read_text(&path, MOST_BYTES) {
            Ok(text) => settings.extend(parse(&path, &text)?),
            // HOME may be another user's, as under sudo -u. Such a file is unreadable, and its
            // settings do not apply.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Ok(settings)
}

fn of_user(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(folder.join(NAME))
}

/// Applies the settings as defaults of their options.
pub(crate) fn applied(mut definition: Command, settings: &[ConfigSetting]) -> Command {
    for ConfigSetting { key, values } in settings {
        // clap requires `'static` defaults, and the definition lives as long as the program.
        let values: Vec<&'static str> = values.iter().map(|value| &*value.clone().leak()).collect();
        let with = |argument: clap::Arg| argument.default_values(values.clone());
        let owner = KEYS.iter().find(|(known, _)| known == key).and_then(|(_, owner)| *owner);
        definition = match owner {
            None => definition.mut_arg(*key, with),
            Some(command) => definition.mut_subcommand(command, |command| command.mut_arg(*key, with)),
        };
    }
    definition
}

fn parse(path: &Path, text: &str) -> Result<Vec<ConfigSetting>, String> {
    let mut settings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = without_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        let refused = |why: &str| format!("{}:{number}: {why}", path.display());
        let (key, value) = line.split_once('=').ok_or_else(|| refused("a line is key = \"value\""))?;
        let key = key.trim();
        let known = KEYS.iter().find(|(known, _)| *known == key);
        let Some((key, _)) = known else {
            let names = KEYS.map(|(name, _)| name).join(", ");
            return Err(refused(&format!("unknown key '{key}'; valid keys are {names}")));
        };
        let values = values(value.trim())
            .ok_or_else(|| refused(&format!("{key}: a value is \"text\", true, false or [\"a\", \"b\"]")))?;
        let setting = ConfigSetting { key, values };
        check(&setting).map_err(|why| refused(&format!("{key}: {why}")))?;
        settings.push(setting);
    }
    Ok(settings)
}

/// Strips a comment. A `#` outside of quotes begins it.
fn without_comment(line: &str) -> &str {
    split_unquoted(line, '#').next().unwrap_or(line)
}

/// Splits a text at each such character outside of quotes.
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    text.split(move |letter| {
        is_quoted ^= letter == '"';
        letter == separator && !is_quoted
    })
}

fn values(text: &str) -> Option<Vec<String>> {
    if matches!(text, "true" | "false") {
        return Some(vec![text.to_owned()]);
    }
    let quoted = |text: &str| {
        let inner = text.trim().strip_prefix('"')?.strip_suffix('"')?;
        (!inner.contains(['"', '\\'])).then(|| inner.to_owned())
    };
    match text.strip_prefix('[').and_then(|list| list.strip_suffix(']')) {
        Some(list) => split_unquoted(list, ',').filter(|word| !word.trim().is_empty()).map(quoted).collect(),
        None => quoted(text).map(|text| vec![text]),
    }
}

/// # Errors
/// If the option does not accept the value, with the option's message.
fn check(setting: &ConfigSetting) -> Result<(), String> {
    let definition = applied(super::MemwatchArgs::definition(), std::slice::from_ref(setting));
    let owner = KEYS.iter().find(|(known, _)| *known == setting.key).and_then(|(_, owner)| *owner);
    let words = std::iter::once("memwatch").chain(owner);
    definition.try_get_matches_from(words).map(drop).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.strip_prefix("error: ").unwrap_or(first).to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command as Chosen, MemwatchArgs};
    use crate::options::{ColorWhen, Units};
    use crate::render::text::columns::ProcessSort;

    fn settings(text: &str) -> Result<Vec<ConfigSetting>, String> {
        parse(Path::new("/etc/memwatch.toml"), text)
    }

    #[test]
    fn settings_are_defaults_and_a_typed_option_wins() {
        let text = "# looks\ncolor = \"never\"  # no colours\nascii = true\nsort = \"pid\"\ncolumns = [\"pid\", \"used\"]\nunits = \"si\"\n";
        let settings = settings(text).expect("it is understood");
        let read = |line: &str| MemwatchArgs::from_words_with(line.split(' '), &settings).expect("it is understood");
        let args = read("memwatch ps --sort peak");
        assert_eq!((args.common.color, args.common.ascii), (ColorWhen::Never, true));
        assert_eq!(args.common.units, Units::Si);
        let Some(Chosen::Ps(ps)) = args.command else { panic!() };
        assert_eq!((ps.sort, &ps.columns[..]), (ProcessSort::Peak, &["pid", "used"][..]));
        let Some(Chosen::Ps(ps)) = read("memwatch ps --by user").command else { panic!() };
        assert_eq!(ps.sort, ProcessSort::Pid, "and that is no conflict with rows of owners");
    }

    #[test]
    fn config_errors_name_file_line_and_key() {
        for (text, sentence) in [
            (
                "\nsizes = 3",
                "/etc/memwatch.toml:2: unknown key 'sizes'; valid keys are ascii, color, columns, sort, units",
            ),
            ("color", "/etc/memwatch.toml:1: a line is key"),
            ("color = never", "/etc/memwatch.toml:1: color: a value is"),
            ("color = \"pink\"", "/etc/memwatch.toml:1: color: invalid value 'pink'"),
            ("columns = [\"pid\", \"memory\"]", "/etc/memwatch.toml:1: columns: invalid value 'memory'"),
            ("ascii = \"perhaps\"", "/etc/memwatch.toml:1: ascii: invalid value 'perhaps'"),
        ] {
            let refusal = settings(text).expect_err(text);
            assert!(refusal.starts_with(sentence), "{refusal}");
        }
    }

    #[test]
    fn user_config_file_is_in_the_xdg_or_home_config_directory() {
        let of = |set: &'static [(&str, &str)]| {
            of_user(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("HOME", "/home/a")]), Some(PathBuf::from("/home/a/.config/memwatch.toml")));
        assert_eq!(of(&[("HOME", "/home/a"), ("XDG_CONFIG_HOME", "/c")]), Some(PathBuf::from("/c/memwatch.toml")));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn commas_and_number_signs_in_quotes_are_part_of_a_value() {
        let parts = |line| values(without_comment(line).trim());
        let list = |parts: &[&str]| Some(parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
        assert_eq!(parts(r#"["a,b", "c" , "d#e",]  # two, or three"#), list(&["a,b", "c", "d#e"]));
        assert_eq!((parts(r#""a,b""#), parts("[]")), (list(&["a,b"]), list(&[])));
        assert_eq!((parts(r#"["a"#), parts(r#"["a" "b"]"#)), (None, None));
    }
}
