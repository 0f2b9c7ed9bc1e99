//! Runs other programs: the pinned cargo, and any command with its failure explained.

use crate::repo::{self, Repo};
use anyhow::{Context as _, Result, bail};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

/// Removes variables from our environment that the outer `cargo` set.
///
/// They would make the pinned toolchain's cargo use the outer toolchain's compiler and libraries,
/// and would reach the programs under test.
pub(crate) fn forget_outer_cargo() {
    let outer: Vec<_> = std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.to_str().is_some_and(is_set_by_cargo_run))
        .collect();
    let library_path = std::env::var_os("LD_LIBRARY_PATH").map(|paths| own_library_path(&paths));
    // SAFETY: called first thing in main, before any other thread exists.
    unsafe {
        for name in outer {
            std::env::remove_var(name);
        }
        match library_path {
            Some(Some(paths)) => std::env::set_var("LD_LIBRARY_PATH", paths),
            Some(None) => std::env::remove_var("LD_LIBRARY_PATH"),
            None => {}
        }
    }
}

/// Whether `cargo run` or a rustup proxy sets this variable for the program it starts.
fn is_set_by_cargo_run(name: &str) -> bool {
    const EXACT: &[&str] = &["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC", "RUST_RECURSION_COUNT", "OUT_DIR"];
    const PREFIXES: &[&str] = &["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
    EXACT.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the user's part of a library path, without toolchains and cargo's build directories.
fn own_library_path(paths: &OsStr) -> Option<std::ffi::OsString> {
    let foreign = |path: &Path| {
        let text = path.to_string_lossy();
        text.contains("/toolchains/") || text.ends_with("/deps") || text.contains("/target/")
    };
    let kept: Vec<_> =
        std::env::split_paths(paths).filter(|path| !path.as_os_str().is_empty() && !foreign(path)).collect();
    if kept.is_empty() {
        return None;
    }
    std::env::join_paths(kept).ok()
}

/// Returns a command of the pinned toolchain, such as `cargo` or `rustc`, in the repository's root.
pub(crate) fn pinned(repo: &Repo, program: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", repo::rust_version(), program]).current_dir(repo.root());
    command
}

/// Runs a command on our terminal.
///
/// # Errors
/// The command cannot be started or fails; the error has the command line.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", line(command)))?;
    if !status.success() {
        bail!("{status}: {}", line(command));
    }
    Ok(())
}

/// Runs a command, and prints its output only if it fails.
///
/// # Errors
/// The command cannot be started or fails; the error has the last lines of the output.
pub(crate) fn run_quietly(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {}", line(command)))?;
    expect_success(command, &output)
}

/// Runs a command and returns its output.
///
/// # Errors
/// Those of [`run_quietly`].
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", line(command)))?;
    expect_success(command, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command and returns the first line of its output.
///
/// # Errors
/// Those of [`run_quietly`].
pub(crate) fn first_line(command: &mut Command) -> Result<String> {
    Ok(output(command)?.lines().next().unwrap_or_default().to_owned())
}

/// Whether a command can be started and succeeds. Discards its output.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn expect_success(command: &Command, output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(40)..].join("\n");
    bail!("{}: {}\n{tail}", output.status, line(command));
}

/// Formats a command as on a shell's command line, with its environment variables.
pub(crate) fn line(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        let value = value?;
        Some(format!("{}={}", name.to_string_lossy(), quoted(value)))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    variables.chain(words.map(quoted)).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy().replace('\u{1f}', " ");
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,+@%".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        let mut command = Command::new("cargo");
        command.args(["test", "two words", "it's"]).env("A", "1").env_remove("B");
        assert_eq!(line(&command), r"A=1 cargo test 'two words' 'it'\''s'");
    }

    #[test]
    fn a_failure_shows_what_the_command_stated() {
        let error = run_quietly(Command::new("sh").args(["-c", "echo reason >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("reason") && text.contains("exit status: 3"), "{text}");
    }

    #[test]
    fn only_the_users_own_library_path_is_kept() {
        let kept = own_library_path(OsStr::new("/r/target/debug/deps:/opt/lib:/h/.rustup/toolchains/x/lib"));
        assert_eq!(kept.as_deref(), Some(OsStr::new("/opt/lib")));
        assert_eq!(own_library_path(OsStr::new("/r/target/debug:/h/toolchains/x/lib")), None);
    }

    #[test]
    fn cargos_own_settings_stay() {
        assert!(is_set_by_cargo_run("CARGO_PKG_NAME"));
        assert!(!is_set_by_cargo_run("CARGO_TARGET_DIR"));
        assert!(!is_set_by_cargo_run("CARGO_HOME"));
        assert!(!is_set_by_cargo_run("RUSTFLAGS"));
    }
}
