//! Runs a virtual machine and evaluates its output.

use crate::gpusim::{self, Compiler};
use crate::run::line;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Time limit in seconds: on emulated hardware the tests take minutes.
const AT_MOST_SECONDS: &str = "2400";
/// Prefixes of the relevant output lines, which the script in the machine prints.
const RELEASE: &str = "KERNEL ";
const MECHANISM: &str = "MECHANISM ";
const FRAMEWORKS: &str = "FRAMEWORKS ";
/// Prefix of doctor's fact if the kernel loads the programs.
const LOADED: &str = "loaded: ";
const RESULT: &str = "test result: ";
const ENDED: &str = "ENDED";

/// A processor of a virtual machine.
pub(super) struct Processor {
    /// Kernel's name of the processor.
    pub(super) name: &'static str,
    /// Debian's name of the processor.
    pub(super) debian: &'static str,
    /// Debian's package with a kernel for virtual machines.
    pub(super) kernel_package: &'static str,
    /// Compiler for this processor.
    pub(super) compiler: Compiler,
    emulator: &'static str,
    machine: &'static [&'static str],
    console: &'static str,
}

pub(super) const X86_64: Processor = Processor {
    name: "x86_64",
    debian: "amd64",
    kernel_package: "linux-image-cloud-amd64",
    compiler: gpusim::OWN,
    emulator: "qemu-system-x86_64",
    machine: &["-cpu", "max"],
    console: "ttyS0",
};

pub(super) const AARCH64: Processor = Processor {
    name: "aarch64",
    debian: "arm64",
    kernel_package: "linux-image-cloud-arm64",
    compiler: gpusim::AARCH64,
    emulator: "qemu-system-aarch64",
    machine: &["-machine", "virt", "-cpu", "max,pauth-impdef=on"],
    console: "ttyAMA0",
};

/// Result of a run.
#[derive(Debug)]
pub(super) struct MachineOutcome {
    /// Release of the kernel.
    pub(super) release: String,
    /// Mechanism that probes functions.
    pub(super) mechanism: String,
    /// Whether the kernel loads the programs that trace framework allocators.
    pub(super) frameworks: &'static str,
    /// Number of tests that passed.
    pub(super) tests: String,
    /// Whether all tests passed.
    pub(super) is_fine: bool,
}

/// Starts a virtual machine, and waits until it exits.
///
/// # Errors
/// The machine does not start, or exits before its tests are done.
pub(super) fn run(processor: &Processor, kernel: &Path, archive: &Path) -> Result<MachineOutcome> {
    let mut machine = Command::new("timeout");
    machine.args([AT_MOST_SECONDS, processor.emulator, "-accel", "tcg,thread=multi", "-smp", "2", "-m", "3072"]);
    machine.args(processor.machine).args(["-nic", "none", "-display", "none", "-no-reboot", "-monitor", "none"]);
    machine.arg("-kernel").arg(kernel).arg("-initrd").arg(archive).args(["-serial", "stdio"]);
    machine.arg("-append").arg(format!("console={} quiet panic=-1", processor.console));
    let words = line(&machine);
    let mut machine = machine.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("qemu does not start")?;
    let output = machine.stdout.take().context("its output is a pipe")?;
    let mut lines = Vec::new();
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
        println!("{line}");
        lines.push(line);
    }
    machine.wait()?;
    outcome(&lines).with_context(|| format!("the machine did not end its tests: {words}"))
}

/// Evaluates the output lines; an error if the last one is missing.
fn outcome(lines: &[String]) -> Result<MachineOutcome> {
    let after = |mark: &str| lines.iter().find_map(|line| line.strip_prefix(mark)).map(str::to_owned);
    if !lines.iter().any(|line| line == ENDED) {
        bail!("its last output line is {:?}", lines.last().map_or("", String::as_str));
    }
    let result = after(RESULT).context("it ran no test")?;
    let counted: Vec<&str> = result.split(';').map(str::trim).collect();
    let passed = counted.first().copied().unwrap_or_default();
    let failed = counted.get(1).copied().unwrap_or_default();
    let has_passed = passed.starts_with("ok. ") && !passed.starts_with("ok. 0 ");
    let takes_frameworks =
        after(FRAMEWORKS).context("doctor does not say whether frameworks can be traced")?.starts_with(LOADED);
    let passed = passed.split_once(". ").map_or(passed, |(_, passed)| passed);
    Ok(MachineOutcome {
        release: after(RELEASE).context("it printed no version")?,
        mechanism: after(MECHANISM).context("doctor named no way to probe")?,
        frameworks: if takes_frameworks { "yes" } else { "no" },
        tests: if has_passed { passed.to_owned() } else { format!("{passed}, {failed}") },
        is_fine: has_passed && takes_frameworks,
    })
}

#[cfg(test)]
mod tests {
    use super::outcome;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn kernel_run_output_is_parsed_and_a_partial_one_refused() {
        let refused = "KERNEL 6.1.0\nMECHANISM classic uprobes\nFRAMEWORKS the kernel refused it\n";
        let begin = "KERNEL 6.1.0\nMECHANISM classic uprobes\nFRAMEWORKS loaded: tensors can be traced\n";
        let good = outcome(&lines(&format!("{begin}test result: ok. 4 passed; 0 failed; 0 ignored\nENDED"))).unwrap();
        assert_eq!((good.tests.as_str(), good.is_fine, good.release.as_str()), ("4 passed", true, "6.1.0"));
        let bad =
            outcome(&lines(&format!("{begin}test result: FAILED. 3 passed; 1 failed; 0 ignored\nENDED"))).unwrap();
        assert_eq!((bad.tests.as_str(), bad.is_fine), ("3 passed, 1 failed", false));
        let none = outcome(&lines(&format!("{begin}test result: ok. 0 passed; 0 failed\nENDED"))).unwrap();
        assert!(!none.is_fine, "a test that is not there has not passed");
        let untraced = outcome(&lines(&format!("{refused}test result: ok. 4 passed; 0 failed\nENDED"))).unwrap();
        assert_eq!((untraced.frameworks, untraced.is_fine), ("no", false));
        assert!(outcome(&lines(&format!("{begin}test result: ok. 4 passed; 0 failed"))).is_err());
        assert!(outcome(&lines("ENDED")).is_err());
    }
}
