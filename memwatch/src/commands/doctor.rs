//! `memwatch doctor`: checks whether this machine meets each requirement, with the exact fix if
//! not.
//!
//! Each module reads one part of the system and judges it by functions of values. The trial run
//! overrides the other checks: if it worked, tracing is possible, whatever a version or a
//! capability set suggests.

mod check;
mod json;
mod library;
mod nvml;
mod owners;
mod permission;
mod prices;
mod privilege;
mod system;
mod text;
mod trial;

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use check::{Barrier, Check, CheckState, Topic};
use library::Libraries;
use memwatch_core::attribution::price::Budget;
use memwatch_core::words::Tgid;
use nvml::{NvmlReport, Traces};
use prices::PredictedOverheadReport;
use privilege::Privilege;

use crate::exit::{Exit, ExitFailure};
use crate::options::{Checked, CommonArgs, tensors, values};
use crate::render::output::use_color;
use crate::sources::containers::RuntimeSockets;
use crate::sources::kernel::site::KernelVersion;

/// What to examine, and the form of the report.
#[derive(Clone, Debug, Default)]
pub(crate) struct DoctorOptions {
    /// Print JSON instead of text.
    pub(crate) json: bool,
    /// NVML library to use instead of the system's.
    pub(crate) nvml_library: Option<PathBuf>,
    /// Additional driver library files.
    pub(crate) libraries: Vec<PathBuf>,
    /// Sockets of the container runtimes.
    pub(crate) sockets: RuntimeSockets,
    /// Use colours in the text.
    pub(crate) color: bool,
    /// Print one line per probed function in the text.
    pub(crate) verbose: bool,
    /// Processes to predict the tracing overhead for.
    pub(crate) tgids: Vec<Tgid>,
    /// Budget of the prediction.
    pub(crate) budget: Budget,
}

/// All results.
#[derive(Debug)]
struct Diagnosis {
    release: String,
    program: String,
    checks: Vec<Check>,
    mechanism: Option<&'static str>,
    libraries: Libraries,
    nvml: Result<NvmlReport, String>,
    /// `None` if no process is given.
    prices: Option<PredictedOverheadReport>,
}

/// What `memwatch doctor` takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Doctor {
    /// Predict what tracing PyTorch would cost this process, level by level; may be repeated
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',')]
    #[arg(value_parser = values::tgid, allow_negative_numbers = true)]
    pub(crate) tgids: Vec<Tgid>,
    /// What tracing may cost a process: percent of one processor, such as 2%; 0 for nothing, none for no limit
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = tensors::budget)]
    #[arg(allow_negative_numbers = true, requires = "tgids")]
    pub(crate) budget: Budget,
}

impl Checked for Doctor {}

/// Runs `memwatch doctor`.
///
/// # Errors
/// A given process does not exist. Failed requirements are part of the report, not errors.
pub(crate) fn command(args: &Doctor, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let is_gone = |tgid: &&Tgid| !Path::new("/proc").join(tgid.0.to_string()).exists();
    if let Some(gone) = args.tgids.iter().find(is_gone) {
        return Err(ExitFailure::no_process(gone.0));
    }
    Ok(run(&DoctorOptions {
        json: common.json,
        nvml_library: common.nvml_lib.clone(),
        libraries: common.libcuda.clone(),
        sockets: common.sockets.places(),
        color: use_color(common),
        verbose: common.verbose > 0,
        tgids: args.tgids.clone(),
        budget: args.budget,
    }))
}

/// Examines this machine and prints the report. The exit code says whether memwatch can trace here.
fn run(options: &DoctorOptions) -> Exit {
    let diagnosis = examine(options);
    let report = if options.json { json::render(&diagnosis) } else { text::render(&diagnosis, options.color) };
    let mut out = std::io::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        // A reader that closed the pipe does not change the diagnosis.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("memwatch: the report cannot be written: {error}");
            Exit::Error
        }
        _ => diagnosis.exit(),
    }
}

fn examine(options: &DoctorOptions) -> Diagnosis {
    let release = system::release();
    let classic = permission::is_classic(&release);
    let privilege = Privilege::of_this_process(classic);
    let mut checks = system::checks(&release);
    checks.extend(permission::checks(&privilege));
    let mut trial = trial::run(&privilege);
    if trial.kernel.is_some() {
        checks.iter_mut().for_each(believe_trial);
    }
    checks.append(&mut trial.checks);
    let mechanism = trial.kernel.as_ref().map(|kernel| kernel.mechanism.name());
    let libraries = library::examine(&options.libraries, trial.kernel.as_mut(), KernelVersion::from_release(&release));
    let driver = nvml::driver_version();
    let nvml = nvml::ask(options.nvml_library.clone());
    let traces = if nvml.is_ok() { Traces::Found } else { libraries.traces(&privilege) };
    checks.push(nvml::judge_driver(driver.as_deref(), traces));
    checks.push(libraries.judge(driver.is_some() || nvml.is_ok(), &privilege));
    checks.extend(libraries.checks(&privilege, options.verbose));
    checks.extend(nvml::checks(&nvml, driver.as_deref()));
    checks.extend(owners::checks(&options.sockets));
    let is_asked_for = !options.tgids.is_empty();
    let prices =
        is_asked_for.then(|| prices::predict((&options.tgids, options.budget), trial.kernel.as_mut(), &privilege));
    Diagnosis { release, program: privilege.program(), checks, mechanism, libraries, nvml, prices }
}

/// Downgrades failed checks that the successful trial run disproves. Foreign process ids falsify
/// the reports without affecting the trial, so that check stays.
fn believe_trial(check: &mut Check) {
    let concerns_trial =
        matches!(check.topic, Topic::Kernel | Topic::Permission) && check.id != permission::PID_NAMESPACE;
    if concerns_trial && check.state.barrier().is_some() {
        check.state = CheckState::Degraded;
        check.fact.push_str("; yet the trial run worked");
    }
}

impl Diagnosis {
    /// Returns the highest barrier: permission does not help if the machine cannot trace.
    fn barrier(&self) -> Option<Barrier> {
        self.checks.iter().filter_map(|check| check.state.barrier()).max()
    }

    fn exit(&self) -> Exit {
        match self.barrier() {
            None => Exit::Ok,
            Some(Barrier::Permission) => Exit::NotPermitted,
            Some(Barrier::Machine) => Exit::Unsupported,
        }
    }

    /// Returns the whole report in one sentence.
    fn summary(&self) -> String {
        let Some(barrier) = self.barrier() else { return self.readiness() };
        let standing = |check: &&Check| check.state.barrier() == Some(barrier);
        let names: Vec<&str> = self.checks.iter().filter(standing).map(|check| check.id).collect();
        let fix = self.checks.iter().filter(standing).find_map(|check| check.fixes.first());
        let fix = fix.map_or_else(String::new, |fix| format!(". Next: {fix}"));
        match barrier {
            Barrier::Permission => format!("not ready: permission is missing ({}){fix}", names.join(", ")),
            Barrier::Machine => format!("not ready: this machine cannot ({}){fix}", names.join(", ")),
        }
    }

    fn readiness(&self) -> String {
        let limits = self.checks.iter().filter(|check| check.state == CheckState::Degraded).count();
        let limits = match limits {
            0 => String::new(),
            limits => format!(" ({} above)", check::count(limits, "limit")),
        };
        let functions: usize = self.libraries.usable().map(|file| file.functions.len()).sum();
        if functions == 0 {
            return format!("ready, but there is no libcuda: nothing to watch yet{limits}");
        }
        let files = check::count(self.libraries.usable().count(), "library file");
        let gpus =
            self.nvml.as_ref().map_or_else(|_| "no NVML".to_owned(), |report| check::count(report.gpus.len(), "GPU"));
        format!("ready: {} in {files}, {gpus}{limits}", check::count(functions, "function"))
    }
}

#[cfg(test)]
mod tests;
