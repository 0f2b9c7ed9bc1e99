use super::*;
use std::path::PathBuf;
use std::time::Duration;

use memwatch_core::features::simulate::model::PolicyPlan;
use memwatch_core::words::Tgid;

use crate::commands::places::args::WhereRowKind;
use crate::commands::simulate::args::Simulate;
use crate::options::ColorWhen;

fn args(line: &str) -> MemwatchArgs {
    MemwatchArgs::from_words(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn refusal(line: &str) -> String {
    let error = MemwatchArgs::from_words(line.split(' ')).expect_err(line);
    assert_eq!(error.exit_code(), 2, "{line}");
    error.to_string()
}

/// Returns what clap prints instead of running, such as a help page.
fn refused(line: &str) -> String {
    MemwatchArgs::from_words(line.split(' ')).expect_err(line).to_string()
}

#[test]
fn cli_definition_is_consistent() {
    MemwatchArgs::definition().debug_assert();
}

#[test]
fn the_short_help_fits_a_screen_and_lists_every_command_by_group() {
    let help = refused("memwatch -h");
    assert!(help.lines().count() <= 40, "{help}");
    let groups: Vec<_> = ["Watch", "Check", "Record", "Show", "Machine"]
        .iter()
        .map(|group| help.lines().position(|line| line == *group).unwrap_or_else(|| panic!("{group}: {help}")))
        .collect();
    assert!(groups.is_sorted(), "{help}");
    let definition = MemwatchArgs::definition();
    for command in definition.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        let is_listed =
            |line: &str| line.strip_prefix("  ").is_some_and(|line| line.split(' ').next() == Some(command.get_name()));
        assert!(help.lines().any(is_listed), "{}: {help}", command.get_name());
    }
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
}

#[test]
fn each_option_that_the_short_help_names_exists() {
    let definition = MemwatchArgs::definition();
    let all: Vec<_> = std::iter::once(&definition)
        .chain(definition.get_subcommands())
        .flat_map(clap::Command::get_arguments)
        .filter_map(clap::Arg::get_long)
        .chain(["help"])
        .collect();
    let help = refused("memwatch -h");
    let named =
        help.split(|letter: char| letter.is_whitespace() || letter == ',').filter_map(|word| word.strip_prefix("--"));
    let named: Vec<_> = named.collect();
    assert!(named.len() > 8, "{help}");
    for option in named {
        assert!(all.contains(&option), "--{option}: {help}");
    }
}

#[test]
fn cli_rare_options_are_hidden_from_command_help() {
    for command in ["ps", "where", "oom", "run", "agent"] {
        let help = refused(&format!("memwatch {command} --help"));
        for option in ["--docker-socket", "--cri-socket", "--kubelet-socket", "--no-agent", "--libcuda", "--cgroup"] {
            assert!(!help.contains(option), "{command}: {help}");
        }
    }
}

#[test]
fn a_bare_number_is_a_pid_and_any_other_bare_word_a_name() {
    let live = args("memwatch 12 train.py -p 34");
    assert!(live.command.is_none());
    assert_eq!(
        (&live.targets.selected.tgids[..], &live.targets.selected.choice.names[..]),
        (&[Tgid(34), Tgid(12)][..], &["train.py".to_owned()][..])
    );
    let commands = [
        "ps", "where", "stats", "oom", "events", "leak", "fragment", "report", "simulate", "explain", "timeline",
        "snapshot",
    ];
    for command in commands {
        for selected in [
            "7",
            "train.py",
            "-p 7",
            "--name a*",
            "--container c",
            "--pod p",
            "--user u",
            "--slurm-job 1",
            "--in f",
            "--since 1m --until 14:05",
        ] {
            args(&format!("memwatch {command} {selected}"));
        }
    }
    let Some(Command::Where(found)) = args("memwatch where 7 --by phase").command else { panic!() };
    assert_eq!(found.places.subject.selected.tgids, [Tgid(7)]);
    args("memwatch record 7 -o f.mwr");
    args("memwatch flamegraph train.py -o f.html");
}

#[test]
fn there_is_a_completion_script_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        args(&format!("memwatch completions {shell}"));
        let mut script = Vec::new();
        let shell = clap::ValueEnum::from_str(shell, false).expect("it is a shell");
        clap_complete::generate::<clap_complete::Shell, _>(
            shell,
            &mut MemwatchArgs::definition(),
            "memwatch",
            &mut script,
        );
        let script = String::from_utf8(script).expect("it is text");
        assert!(script.contains("flamegraph"), "{script}");
    }
    assert!(refusal("memwatch completions tcsh").contains("bash, zsh or fish"));
}

#[test]
fn no_words_mean_every_process_once_a_second() {
    let args = args("memwatch");
    assert!(args.command.is_none() && !args.once && !args.common.json);
    assert_eq!(args.targets, TargetArgs::default());
    assert_eq!(args.pace, IntervalArgs { interval: Duration::from_secs(1), duration: None });
}

#[test]
fn targets_may_be_repeated_and_joined_by_commas() {
    let args = args("memwatch -p 12,34 --pid=56 -g 0,GPU-8f3c --gpu MIG-1a/2");
    assert_eq!(args.targets.selected.tgids, [Tgid(12), Tgid(34), Tgid(56)]);
    assert_eq!(args.targets.gpus, ["0", "GPU-8f3c", "MIG-1a/2"]);
}

#[test]
fn times_have_units_and_default_to_seconds() {
    for (text, want_ms) in
        [("500ms", 500), ("1", 1_000), ("0.5", 500), ("1s", 1_000), ("1.5m", 90_000), ("2h", 7_200_000)]
    {
        assert_eq!(args(&format!("memwatch -i {text}")).pace.interval, Duration::from_millis(want_ms), "{text}");
    }
    assert_eq!(args("memwatch -d 1d").pace.duration, Some(Duration::from_hours(24)));
}

#[test]
fn bad_values_are_refused_with_a_sentence() {
    for (line, sentence) in [
        ("memwatch -i 0", "the shortest interval is 100ms"),
        ("memwatch -i 99ms", "the shortest interval is 100ms"),
        ("memwatch -i abc", "a time is a number with a unit"),
        ("memwatch -i 1e3", "a time is a number with a unit"),
        ("memwatch -i inf", "a time is a number with a unit"),
        ("memwatch -i 1..5", "a time is a number with a unit"),
        ("memwatch -i 1.2.3s", "a time is a number with a unit"),
        ("memwatch -d 1w", "a time is a number with a unit"),
        ("memwatch -d 0", "the duration must be greater than 0"),
        ("memwatch -d 1000d", "more than a year"),
        ("memwatch -p 0", "a process id is a number from 1 on"),
        ("memwatch -p -5", "a process id is a number from 1 on"),
        ("memwatch -p 1,x", "a process id is a number from 1 on"),
        ("memwatch -p 4294967296", "a process id is a number from 1 on"),
        ("memwatch -g a;b", "a GPU is an index"),
        ("memwatch --ring-bytes 3M", "a power of two"),
        ("memwatch --ring-bytes 2K", "a power of two"),
        ("memwatch --ring-bytes 4G", "a power of two"),
        ("memwatch --color sometimes", "invalid value 'sometimes'"),
        ("memwatch --nope", "unexpected argument '--nope'"),
        ("memwatch -i -1", "a time is a number with a unit"),
        ("memwatch -1 -d 5", "cannot be used with"),
        ("memwatch run", "<CMD>..."),
        ("memwatch doctor -i 5", "unexpected argument '-i'"),
        ("memwatch ps -i 1", "unexpected argument '-i'"),
        ("memwatch stats --reset-peaks", "--pid <PID>"),
        ("memwatch record", "--output <FILE>"),
        ("memwatch record -o f --max-size 5T", "a size is a number of bytes"),
        ("memwatch record -o f --keep newest", "--max-size"),
        ("memwatch leak --since 10m -d 5s", "cannot be used with"),
        ("memwatch timeline --until 10m -d 5s", "cannot be used with"),
        ("memwatch ps --since sometimes", "a time is 14:05"),
        ("memwatch agent --history /h --history-size 100K", "the minimum is 1M"),
        ("memwatch ps --in f --until soon", "a time is 14:05"),
        ("memwatch where", "--pid <PID>"),
        ("memwatch where --in f -d 5s", "cannot be used with"),
        ("memwatch stats --in f -i 1s", "cannot be used with"),
        ("memwatch report --force", "--plot <FILE>"),
        ("memwatch leak -p 1 --fail-on all", "possible values"),
        ("memwatch simulate --in f -s max_split_size_mb:8", "an integer of at least 20"),
        ("memwatch stats -p 1 --reset-peaks -d 5s", "--reset-peaks goes with --interval"),
        ("memwatch stats --in f --reset-peaks", "cannot be used with"),
        ("memwatch where -p 1 --by phase --native", "--native goes with --by line"),
        ("memwatch where -p 1 --fragmentation", "--fragmentation goes with --by module"),
        ("memwatch leak 7 --read-only --in f", "cannot be used with"),
        ("memwatch leak --read-only --since 10m", "cannot be used with"),
        ("memwatch leak --read-only", "name a process"),
        ("memwatch leak 7 -i 1s", "--read-only"),
        ("memwatch leak 7 --no-children", "--no-children needs --in"),
        ("memwatch snapshot 7 8", "one process"),
        ("memwatch ps --by user --sort pid", "cannot be used with"),
        ("memwatch ps --by user --format csv", "cannot be used with"),
        ("memwatch ps --columns memory", "pre-existing"),
    ] {
        let text = refusal(line);
        assert!(text.contains(sentence), "{line}: {text}");
    }
}

#[test]
fn budget_arguments_are_validated_and_doctor_budget_needs_a_pid() {
    for (line, sentence) in [
        ("memwatch doctor -p x", "a process id is a number from 1 on"),
        ("memwatch doctor --budget 1%", "--pid <PID>"),
        ("memwatch doctor -p 5 --budget abc", "a budget is a part of one processor"),
        ("memwatch --budget -1", "a budget is a part of one processor"),
        ("memwatch --budget abc", "a budget is a part of one processor"),
        ("memwatch -p 5 --log a.log --budget 5%", "leave out --budget"),
        ("memwatch where -p 5 --budget abc", "a budget is a part of one processor"),
        ("memwatch where -p 5 --budget 0", "`memwatch holdings`"),
        ("memwatch leak -p 5 --budget 0", "`memwatch leak --read-only`"),
        ("memwatch leak -p 5 --budget 1% --read-only", "cannot be used with"),
        ("memwatch where --in a.mwr --budget 1%", "cannot be used with"),
    ] {
        let text = refusal(line);
        assert!(text.contains(sentence), "{line}: {text}");
    }
}

#[test]
fn an_option_of_the_live_view_is_not_silently_ignored_before_a_command() {
    for (line, flag) in [
        ("memwatch -p 5 ps", "--pid"),
        ("memwatch -g 0 run -- true", "--gpu"),
        ("memwatch -i 1s doctor", "--interval"),
        ("memwatch -d 1s ps", "--duration"),
        ("memwatch -1 ps", "--once"),
        ("memwatch 1234 ps", "PID|NAME"),
        ("memwatch --tensors where", "--tensors"),
        ("memwatch --log a.log doctor", "--log"),
    ] {
        let text = refusal(line);
        assert!(text.contains(&format!("'{flag}' does not belong before")), "{line}: {text}");
    }
}

#[test]
fn a_word_that_is_nearly_a_command_selects_no_process() {
    for (line, command) in [("memwatch staats", "stats"), ("memwatch snapshots --pid 5", "snapshot")] {
        let text = refusal(line);
        assert!(text.contains(&format!("nearest is 'memwatch {command}'")), "{line}: {text}");
    }
    for line in ["memwatch train.py", "memwatch --name staats", "memwatch python3", "memwatch vllm", "memwatch ray"] {
        assert!(MemwatchArgs::from_words(line.split(' ')).is_ok(), "{line}");
    }
}

#[test]
fn common_options_are_accepted_before_or_after_the_command() {
    for line in ["memwatch --json --nvml-lib /a -v ps", "memwatch ps --json --nvml-lib /a -v"] {
        let args = args(line);
        assert!(matches!(args.command, Some(Command::Ps(_))), "{line}");
        assert!(args.common.json, "{line}");
        assert_eq!((args.common.nvml_lib, args.common.verbose), (Some(PathBuf::from("/a")), 1), "{line}");
    }
}

#[test]
fn the_hidden_options_serve_tests() {
    let common = args("memwatch --ring-bytes 64K --classic-uprobes --libcuda /a --libcuda /b").common;
    assert_eq!((common.ring_bytes, common.classic_uprobes), (Some(65_536), true));
    assert_eq!(common.libcuda, [PathBuf::from("/a"), PathBuf::from("/b")]);
    let help = MemwatchArgs::definition().render_long_help().to_string();
    assert!(!help.contains("ring-bytes") && !help.contains("classic-uprobes"));
    assert!(!help.contains("--docker-socket"));
    let advanced = refused("memwatch help advanced");
    assert!(advanced.contains("--docker-socket") && advanced.contains("Exit codes:"), "{advanced}");
    assert!(advanced.contains("completions"), "{advanced}");
    assert!(!advanced.contains("ring-bytes"), "{advanced}");
}

#[test]
fn an_agent_asks_an_nvml_or_none() {
    let Some(Command::Agent(agent)) = args("memwatch agent --no-nvml").command else { panic!("not an agent") };
    assert!(agent.no_nvml);
    assert!(refusal("memwatch agent --no-nvml --nvml-lib /a").contains("cannot be used with"));
}

#[test]
fn cli_run_passes_words_after_the_dashes_to_the_program() {
    let args = args("memwatch run --json -- python3 train.py --pid 5 -h");
    let Some(Command::Run(run)) = args.command else { panic!("not a run") };
    assert_eq!(run.program, ["python3", "train.py", "--pid", "5", "-h"]);
    assert!(args.common.json);
}

#[test]
fn analysis_commands_accept_recordings_and_time_windows() {
    for command in [
        "ps", "stats", "where", "snapshot", "leak", "oom", "events", "simulate", "fragment", "report", "timeline",
        "explain",
    ] {
        args(&format!("memwatch {command} --in job.mwr"));
        args(&format!("memwatch {command} --in job.mwr --pid 7"));
    }
    let commands = [
        "ps", "leak", "oom", "events", "explain", "timeline", "report", "stats", "where", "snapshot", "simulate",
        "fragment",
    ];
    for command in commands {
        args(&format!("memwatch {command} --since 2h --until 14:05"));
    }
    args("memwatch events --follow --since 10m");
    for period in ["--in job.mwr", "--until 14:05"] {
        refusal(&format!("memwatch events --follow {period}"));
    }
    let Some(Command::Leak(leak)) = args("memwatch leak --since 10m").command else { panic!() };
    assert!(!leak.subject.past.window.is_whole() && leak.subject.past.recording.is_none());
    let Some(Command::Record(record)) = args("memwatch record -p 7 -o job.mwr --max-size 2G").command else { panic!() };
    assert_eq!((record.recorder.max_size, record.duration, record.recorder.force), (Some(2 << 30), None, false));
}

#[test]
fn a_report_takes_a_recording_or_processes() {
    let looks = |words: &str| {
        let Some(Command::Report(report)) = args(words).command else { panic!("{words}") };
        report.looks()
    };
    for file in ["job.mwr", "/tmp/job", "./job"] {
        let looks = looks(&format!("memwatch report {file}"));
        assert!(looks.targets.selected.is_everybody(), "{looks:?}");
        assert_eq!(looks.past.recording, Some(file.into()));
    }
    let named = looks("memwatch report train.py 7");
    assert_eq!((&named.targets.selected.choice.names[..], named.past.recording), (&["train.py".to_owned()][..], None));
    let both = looks("memwatch report job.mwr --in other.mwr");
    assert_eq!(both.past.recording, Some("other.mwr".into()), "the word is a process of the recording");
    assert!(refusal("memwatch report --only nothing").contains("there is where, oom, leak"));
    assert!(refusal("memwatch report --plot a.png").contains(".svg or .html"));
}

#[test]
fn explain_and_fragment_take_in_the_questions_by_name_line_and_setting() {
    let Some(Command::Explain(explain)) = args("memwatch explain 7 --by phase -n 3").command else { panic!() };
    let found = explain.by_code(WhereRowKind::Phase);
    let Some(Command::Where(expected)) = args("memwatch where 7 --by phase -n 3").command else { panic!() };
    assert_eq!(found, expected);
    let Some(Command::Explain(explain)) = args("memwatch explain 7 --by name").command else { panic!() };
    let Some(Command::Holdings(expected)) = args("memwatch holdings 7").command else { panic!() };
    assert_eq!(explain.by_name(), expected);
    assert!(refusal("memwatch explain 7 --by name -d 3s").contains("--by name reads once"));
    let what_if = |words: &str| {
        let Some(Command::Fragment(fragment)) = args(words).command else { panic!("{words}") };
        Simulate::of(fragment.subject, fragment.duration, &fragment.what_if).plans()
    };
    assert_eq!(what_if("memwatch fragment 7 --what-if"), PolicyPlan::usual());
    let one = what_if("memwatch fragment --in f --what-if=max_split_size_mb:256");
    let Some(Command::Simulate(expected)) = args("memwatch simulate --in f -s max_split_size_mb:256").command else {
        panic!()
    };
    assert_eq!(one, expected.plans());
    assert!(refusal("memwatch fragment 7 --what-if -r 2G").contains("cannot be used with"));
}

#[test]
fn colours_follow_flag_then_environment_then_terminal() {
    let with = |set: &'static [(&str, &str)]| {
        move |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    };
    assert!(ColorWhen::Auto.decide(true, with(&[])));
    assert!(!ColorWhen::Auto.decide(false, with(&[])));
    assert!(!ColorWhen::Auto.decide(true, with(&[("NO_COLOR", "1")])));
    assert!(ColorWhen::Auto.decide(true, with(&[("NO_COLOR", "")])));
    assert!(ColorWhen::Auto.decide(false, with(&[("CLICOLOR_FORCE", "1")])));
    assert!(!ColorWhen::Auto.decide(false, with(&[("CLICOLOR_FORCE", "0")])));
    assert!(!ColorWhen::Auto.decide(true, with(&[("TERM", "dumb")])));
    assert!(ColorWhen::Always.decide(false, with(&[("NO_COLOR", "1")])));
    assert!(!ColorWhen::Never.decide(true, with(&[("CLICOLOR_FORCE", "1")])));
}

#[test]
fn tensors_that_are_asked_for_need_an_own_watch_and_the_default_does_not() {
    for asked in ["memwatch -p 1 --tensors", "memwatch -p 1 --tensors=blocks", "memwatch -p 1 --log trace.log"] {
        assert!(args(asked).tensors.is_asked_for(), "{asked}");
    }
    for not_asked in ["memwatch -p 1", "memwatch -p 1 --tensors=off"] {
        assert!(!args(not_asked).tensors.is_asked_for(), "{not_asked}");
    }
    assert_eq!(args("memwatch -p 1").tensors.request(true).level, crate::frameworks::watch::TensorLevel::Modules);
    assert_eq!(args("memwatch").tensors.request(false).level, crate::frameworks::watch::TensorLevel::Off);
    assert!(refusal("memwatch where -p 1 --by phase --fragmentation").contains("goes with --by module"));
    assert!(refusal("memwatch --tensors=all").contains("off, blocks, lines or modules"));
}
