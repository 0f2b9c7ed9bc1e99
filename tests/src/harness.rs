//! Runs integration tests. A test that cannot run here is ignored with the reason, and counted as
//! such; it never passes.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{catch_unwind, resume_unwind, set_hook, take_hook};
use std::process::ExitCode;
use std::thread;

pub use inventory::submit;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Environment variable with the number of tests that have to pass in this program.
const REQUIRED: &str = "MEMWATCH_TESTS_REQUIRED";

/// A registered test: see [`crate::test`].
pub struct Test {
    /// Path of its module, with the program's name first.
    pub module: &'static str,
    /// Name of the function.
    pub name: &'static str,
    /// Whether no other test may run beside it.
    pub is_alone: bool,
    /// The function.
    pub run: fn(),
}

inventory::collect!(Test);

/// Why a test cannot run here.
struct CannotRun(String);

/// Ends the test that calls this as ignored: what it needs is missing here.
///
/// # Panics
/// Always, with a payload that the harness recognises.
pub fn cannot_run(reason: impl Into<String>) -> ! {
    resume_unwind(Box::new(CannotRun(reason.into())))
}

thread_local! {
    /// Location and message of the thread's last panic; `None` in threads that run no test.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs the registered tests as the arguments of the program say.
pub fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    keep_panics();
    let run = |is_alone: bool, arguments: &Arguments| {
        let tests = inventory::iter::<Test>.into_iter().filter(|test| test.is_alone == is_alone);
        libtest_mimic::run(arguments, tests.map(trial).collect())
    };
    let together = run(false, &arguments);
    let alone = run(true, &Arguments { test_threads: Some(1), ..arguments });
    let passed = together.num_passed + alone.num_passed;
    let required = std::env::var(REQUIRED).ok().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    if passed < required {
        eprintln!("{passed} tests passed, and tests/required.txt requires {required}");
        return ExitCode::FAILURE;
    }
    if together.has_failed() || alone.has_failed() { ExitCode::from(101) } else { ExitCode::SUCCESS }
}

/// Keeps the panic of a test for the list of failures. Panics of other threads are printed.
fn keep_panics() {
    let print = take_hook();
    set_hook(Box::new(move |info| {
        let is_of_test = PANIC.with_borrow_mut(|kept| match kept {
            Some(text) => {
                *text = info.to_string();
                true
            }
            None => false,
        });
        if !is_of_test {
            print(info);
        }
    }));
}

fn trial(test: &'static Test) -> Trial {
    let module = test.module.split_once("::").map_or("", |(_, module)| module);
    let name = format!("{module}::{}", test.name);
    Trial::ignorable_test(name.clone(), move || {
        // A thread of its own, since the test may change what belongs to a thread.
        let thread = thread::Builder::new().name(name).spawn(|| outcome(test.run))?;
        thread.join().unwrap_or_else(|payload| resume_unwind(payload))
    })
}

/// Runs a test on this thread.
fn outcome(run: fn()) -> Result<Completion, Failed> {
    PANIC.set(Some(String::new()));
    let Err(payload) = catch_unwind(run) else { return Ok(Completion::Completed) };
    match payload.downcast::<CannotRun>() {
        Ok(cannot_run) => Ok(Completion::ignored_with(cannot_run.0)),
        Err(payload) => Err(text_of(&*payload).into()),
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let name = thread::current().name().unwrap_or_default().to_owned();
    let kept = PANIC.take().filter(|kept| !kept.is_empty());
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    format!("thread '{name}' {}", kept.or(text).unwrap_or_else(|| "panicked".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_cannot_run_is_ignored_and_one_that_panics_fails() {
        let ignored = outcome(|| cannot_run("uprobes need root")).ok().unwrap();
        assert!(matches!(&ignored, Completion::Ignored { reason: Some(reason) } if reason == "uprobes need root"));
        let failed = outcome(|| panic!("{} is not 2", 1)).err().unwrap();
        assert!(failed.message().is_some_and(|text| text.ends_with("1 is not 2")), "{failed:?}");
        assert!(matches!(outcome(|| {}), Ok(Completion::Completed)));
    }
}
