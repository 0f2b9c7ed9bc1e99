//! Generates the help: commands by group, then the most common options. The other options are in
//! `memwatch help advanced`.

use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::cli::commands::GROUPS;
use crate::options::ADVANCED;

/// Group of commands that the help does not list.
const HIDDEN: &str = "Hidden";
/// Name of the page with rarely used options.
const ADVANCED_PAGE: &str = "advanced";

/// Options shared by all commands. Each word that begins with `--` is an option of some command.
const SHARED: &str = "\
Processes  PID or NAME, --pid, --gpu, --user, --container, --pod, --slurm-job
Past       --in FILE (a recording), --since 10m, --until 14:05 (agent history)
Output     --json, --color, --ascii, --verbose
More       memwatch COMMAND --help, memwatch help advanced";

const EXAMPLES: &str = "\
Examples:
  sudo memwatch                             every process that uses a GPU, live
  sudo memwatch 1234                        one process, live
  sudo memwatch run -o job.mwr -- python3 train.py
  sudo memwatch where train.py --by module  which modules hold its memory
  memwatch oom --in job.mwr                 why it ran out of memory
  sudo memwatch ps --by container           GPU memory by container, pod, job, user or gpu
  sudo memwatch -d 1m --json | jq .         one JSON object per interval";

const EXIT_CODES: &str = "\
Exit codes:
  0 success, 1 error, 2 wrong usage, 3 --fail-on matched, 4 permission denied, 5 not supported,
  6 process gone or not found
  run: the program's own code, or 128+N if signal N ended it;
       125 memwatch failed, 126 program not executable, 127 program not found";

/// Adds the generated help texts to the program and to `advanced`.
pub(crate) fn dressed(command: Command) -> Command {
    let options = command.clone().help_template("{options}").render_long_help();
    let page = advanced(&command);
    let groups = groups(&command);
    command
        .help_template("{about}\n\n{usage-heading} {usage}\n\n{before-help}{after-help}")
        .override_usage("memwatch [PID|NAME]... [OPTIONS]            (live view)\n       memwatch <COMMAND> [PID|NAME]... [OPTIONS]")
        .before_help(groups.clone())
        .before_long_help(groups)
        .after_help(SHARED)
        .after_long_help(format!("{SHARED}\n\n{EXAMPLES}\n\nOptions of the live view:\n{options}"))
        .mut_subcommand(ADVANCED_PAGE, |advanced| advanced.help_template(page))
}

/// Returns the commands with their descriptions, by group.
fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (group, names) in GROUPS.iter().filter(|(group, _)| *group != HIDDEN) {
        writeln!(text, "{group}").expect("a String takes any text");
        for name in names.iter().map(|name| kebab(name)) {
            let about = command.find_subcommand(&name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            writeln!(text, "  {name:<12}{about}").expect("a String takes any text");
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// Returns the options under [`ADVANCED`], the hidden commands and the exit codes.
fn advanced(command: &Command) -> String {
    let options = command.get_arguments().filter(|option| option.get_help_heading() == Some(ADVANCED));
    let shown = options.map(|option| option.clone().hide(false).global(false));
    let page =
        Command::new(ADVANCED_PAGE).disable_help_flag(true).max_term_width(100).args(shown.collect::<Vec<Arg>>());
    let options = page.help_template("{options}").render_long_help();
    let mut text = format!("{options}\n\nOther commands:\n");
    let hidden = GROUPS.iter().filter(|(group, _)| *group == HIDDEN).flat_map(|(_, names)| *names);
    for name in hidden.map(|name| kebab(name)) {
        let about = command.find_subcommand(&name).and_then(Command::get_about);
        let about = about.map(ToString::to_string).unwrap_or_default();
        writeln!(text, "  {name:<12}{about}").expect("a String takes any text");
    }
    // Braces are special in a template.
    format!("{}\n{EXIT_CODES}\n", text.replace(['{', '}'], ""))
}

/// Converts a variant name to a command name: `ResetPeaks` to `reset-peaks`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
