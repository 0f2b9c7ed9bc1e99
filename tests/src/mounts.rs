//! A command in a mount namespace of its own, as every container has one: what is mounted there goes with the command.

use std::process::{Command, Stdio};

/// The command after a shell script has mounted something; `words` are the script's `$1`, `$2` and so on.
///
/// The process that is started becomes the command itself. `None`, with the reason on standard error, where nothing can be mounted.
pub fn after_mounting(script: &str, words: &[&str], command: &Command) -> Option<Command> {
    let allowed = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no mount namespace can be made here");
        return None;
    }
    let mut outer = Command::new("unshare");
    outer.args(["--mount", "--propagation", "private", "sh", "-c"]);
    outer.arg(format!("{script} && shift {} && exec \"$@\"", words.len())).arg("sh").args(words);
    outer.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    Some(outer)
}
