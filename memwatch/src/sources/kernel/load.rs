//! Loads the kernel half and attaches its process events.

use std::sync::LazyLock;

use aya::maps::{Array, HashMap, MapData, MapError};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::uprobe::{UProbeLink, UProbeLinkId};
use aya::programs::{ProgramError, ProgramType, RawTracePoint, UProbe};
use aya::sys::{BpfHelper, UProbeMultiFeature, is_helper_supported, is_uprobe_multi_supported};
use aya::{Ebpf, EbpfError, EbpfLoader, include_bytes_aligned};
use memwatch_common::arming::{ArmGroup, GROUPS};
use memwatch_common::shares::NOBODY;

use super::btf::{Btf, BtfError};
use super::offsets::offsets;
use super::pins::{EVENTS, PINNED_MAPS, PinnedObjects};
use super::shares::{GIVE_BACK, LoginUsers, ShareError};
use crate::sources::cgroup::own_limit::room;
use crate::sources::clock;

/// Whether a `uprobe_multi` link to one process covers all its threads (Linux 6.10; commit
/// 46ba0e49b642) and not only the main thread.
static SEES_ALL_THREADS: LazyLock<bool> =
    LazyLock::new(|| is_uprobe_multi_supported(UProbeMultiFeature::ProcessScopedPidFilter).unwrap_or(false));

static OBJECT: &[u8] = include_bytes_aligned!(env!("MEMWATCH_EBPF_OBJECT_PATH"));

/// The kernel's type information, from which the offsets of struct members are read.
pub(crate) const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Map of the processes whose exit is reported.
const KNOWN: &str = "KNOWN";
/// Flag: insert only if there is no such entry (include/uapi/linux/bpf.h).
pub(crate) const BPF_NOEXIST: u64 = 1;

/// Returns the name of a kernel half. Two kernel halves can share records and maps only if their
/// names are equal. The name encodes the layout (`build.rs`) and the sizes of the ring and of the
/// allocation map.
pub(crate) fn kernel_half(ring_bytes: u32) -> String {
    format!("layout-{}-{ring_bytes:x}-{:x}", env!("MEMWATCH_LAYOUT"), room())
}

/// Load options of the kernel half.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadOptions {
    /// Watch every process. Otherwise only the processes given to [`KernelHalf::watch`] and their
    /// future children are watched.
    pub(crate) all_processes: bool,
    /// Size of the ring buffer in bytes: a power of two and a multiple of the page size.
    pub(crate) ring_bytes: u32,
    /// Use classic uprobes even where `uprobe_multi` works.
    pub(crate) classic_uprobes: bool,
    /// Enable logging in the kernel half, which costs time.
    pub(crate) diagnostics: bool,
}

/// Mechanism by which probes are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// One link for all functions of a file (Linux 6.6).
    UprobeMulti,
    /// One perf event per function.
    Classic,
}

impl Mechanism {
    /// Returns the name in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::UprobeMulti => "uprobe_multi",
            Self::Classic => "uprobe",
        }
    }

    /// Whether probes in one process cover all its threads. A classic uprobe runs its program in
    /// every thread that hits it, as long as one event has the process in its filter.
    pub(crate) fn attaches_to_processes(self) -> bool {
        self == Self::Classic || *SEES_ALL_THREADS
    }

    /// Returns the entry and return programs of calls.
    pub(crate) const fn programs(self) -> (&'static str, &'static str) {
        match self {
            Self::UprobeMulti => ("mw_call_enter", "mw_call_return"),
            Self::Classic => ("mw_enter_classic", "mw_return_classic"),
        }
    }

    /// Returns the entry and return programs of the stubs that call `ioctl`.
    pub(crate) const fn ioctl_programs(self) -> (&'static str, &'static str) {
        match self {
            Self::UprobeMulti => ("mw_ioctl_enter", "mw_ioctl_return"),
            Self::Classic => ("mw_ioctl_enter_classic", "mw_ioctl_return_classic"),
        }
    }
}

/// Why the kernel half cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The kernel has no type information.
    #[error("this kernel has no BTF: {KERNEL_BTF} cannot be read")]
    NoBtf(#[source] std::io::Error),
    /// The type information lacks a required member.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The shares of its tables cannot be set up.
    #[error(transparent)]
    Shares(#[from] ShareError),
    /// The kernel refused the object.
    #[error("the kernel refused memwatch's maps")]
    Object(#[source] Box<EbpfError>),
    /// The kernel refused a program.
    #[error("the kernel refused memwatch's program {program}")]
    Program {
        /// Name.
        program: &'static str,
        /// Error of the kernel.
        #[source]
        cause: Box<ProgramError>,
    },
    /// The embedded object lacks a map or a program.
    #[error("memwatch was built with a kernel half that has no {0}")]
    Missing(&'static str),
    /// A map could not be written.
    #[error("process {tgid} cannot be added to the kernel's list of targets")]
    Watch {
        /// Process.
        tgid: u32,
        /// Error of the kernel.
        #[source]
        cause: MapError,
    },
    /// A map could not be read or written.
    #[error("the kernel half's table {table} cannot be used")]
    Table {
        /// Name.
        table: &'static str,
        /// Error of the kernel.
        #[source]
        cause: MapError,
    },
    /// The time of the attach could not be written to the kernel half.
    #[error("the kernel half cannot be informed that its probes are in place")]
    Arm(#[source] MapError),
    /// A link could not be pinned in bpffs.
    #[error("the probes of {program} cannot be pinned: {reason}")]
    Pin {
        /// Program of the link.
        program: &'static str,
        /// Reason.
        reason: String,
    },
}

impl LoadError {
    /// Whether the cause is a missing permission.
    pub(crate) fn is_permission(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if let Some(io) = error.downcast_ref::<std::io::Error>() {
                return io.kind() == std::io::ErrorKind::PermissionDenied;
            }
            cause = error.source();
        }
        false
    }
}

/// The loaded kernel half.
pub(crate) struct KernelHalf {
    /// Maps, programs, and links that are not pinned.
    pub(crate) ebpf: Ebpf,
    /// How probes are attached.
    pub(crate) mechanism: Mechanism,
    /// Whether control group moves of known processes are reported.
    pub(crate) reports_moves: bool,
    /// Whether watched programs get probes. False with a budget of 0.
    pub(crate) places_probes: bool,
    /// Login users, for the shares of its tables.
    pub(crate) login_users: LoginUsers,
    /// Pinned objects, if any.
    pub(crate) pins: Option<PinnedObjects>,
    /// Pinned links of the process events. Without pinning, the programs own the links.
    _events: Vec<PinnedLink>,
}

/// Link of a probe.
#[derive(Debug)]
pub(crate) enum HeldLink {
    /// Owned by a program. Ends with this process.
    Own(&'static str, UProbeLinkId),
    /// Pinned. Outlives this process.
    Pinned(PinnedLink),
}

/// A link that was taken out of the kernel half to be removed. Removing it may take a while and
/// does not need the kernel half.
pub(crate) enum TakenLink {
    /// See [`HeldLink::Own`].
    Own(UProbeLink),
    /// See [`HeldLink::Pinned`].
    Pinned(PinnedLink),
}

impl TakenLink {
    /// Removes the probe.
    pub(crate) fn end(self) {
        match self {
            Self::Own(link) => drop(link),
            // The link ends when its descriptor is closed.
            Self::Pinned(link) => match link.unpin() {
                Ok(link) => drop(link),
                Err(error) => log::warn!("cannot remove an unused probe: {}", chain(&error)),
            },
        }
    }
}

impl KernelHalf {
    /// Loads all programs and attaches the process events. No library is probed yet.
    pub(crate) fn load(options: LoadOptions) -> Result<Self, LoadError> {
        Self::load_pinned(options, None)
    }

    /// Does the same as [`Self::load`] with pinned maps, and pins all links.
    pub(crate) fn load_pinned(options: LoadOptions, mut pins: Option<PinnedObjects>) -> Result<Self, LoadError> {
        let bytes = std::fs::read(KERNEL_BTF).map_err(LoadError::NoBtf)?;
        let btf = Btf::parse(&bytes)?;
        let offsets = offsets(&btf)?;
        let watch_all = u8::from(options.all_processes);
        let level = if options.diagnostics { aya_log::Level::Debug as u8 } else { 0 };
        let (can_loop, addresses) = (u8::from(can_loop()), room());
        let mut loader = EbpfLoader::new();
        for (name, offset_bytes) in &offsets {
            loader.override_global(name, offset_bytes, true);
        }
        for name in PINNED_MAPS {
            if let Some(pins) = &pins {
                loader.map_pin_path(name, pins.map(name));
            }
        }
        let mut ebpf = loader
            .override_global("CAN_LOOP", &can_loop, true)
            .override_global("RING_BYTES", &options.ring_bytes, true)
            .override_global("ADDRESS_ENTRIES", &addresses, true)
            .override_global("WATCH_ALL", &watch_all, true)
            .override_global("AYA_LOG_LEVEL", &level, true)
            .map_max_entries("RECORDS", options.ring_bytes)
            .map_max_entries("ADDRESSES", addresses)
            .load(OBJECT)
            .map_err(|cause| LoadError::Object(Box::new(cause)))?;
        let mechanism = mechanism(options.classic_uprobes);
        let (entry, leave) = mechanism.programs();
        for program in [entry, leave] {
            uprobe(&mut ebpf, program)?.load().map_err(refused(program))?;
        }
        tracepoint(&mut ebpf, GIVE_BACK)?.load().map_err(refused(GIVE_BACK))?;
        let login_users = LoginUsers::open(&mut ebpf)?;
        let mut events = Vec::new();
        for (program, tracepoint) in
            [("mw_fork", "task_newtask"), ("mw_exec", "sched_process_exec"), ("mw_exit", "sched_process_exit")]
        {
            events.extend(start_tracepoint(&mut ebpf, program, tracepoint, &mut pins)?);
        }
        // A kernel without control groups lacks this tracepoint and has nothing to report.
        let moves = start_tracepoint(&mut ebpf, "mw_move", "cgroup_attach_task", &mut pins);
        if let Err(error) = &moves {
            log::info!("moves between control groups are not reported: {}", chain(error));
        }
        let reports_moves = moves.is_ok();
        events.extend(moves.ok().flatten());
        let mut kernel =
            Self { ebpf, mechanism, reports_moves, places_probes: true, login_users, pins, _events: events };
        kernel.arm_what_nobody_changes()?;
        Ok(kernel)
    }

    /// Arms groups of files that were left unarmed by a memwatch killed during an attach. Must be
    /// called before any attach.
    fn arm_what_nobody_changes(&mut self) -> Result<(), LoadError> {
        let mut armed = self.armed()?;
        for group in 0..GROUPS {
            if armed.get(&group, 0).map_err(LoadError::Arm)? == 0 {
                armed.set(group, &clock::boottime_ns(), 0).map_err(LoadError::Arm)?;
            }
        }
        Ok(())
    }

    /// Whether the kernel half reports exec and exit of this process.
    pub(crate) fn knows(&self, tgid: u32) -> bool {
        let known = self.ebpf.map(KNOWN).and_then(|map| HashMap::<&MapData, u32, u32>::try_from(map).ok());
        known.is_some_and(|known| known.get(&tgid, 0).is_ok())
    }

    /// Pins a link if pinning is enabled. `label` is the purpose of the link.
    pub(crate) fn hold(
        &mut self,
        program: &'static str,
        link: UProbeLinkId,
        label: &str,
    ) -> Result<HeldLink, LoadError> {
        let Some(pins) = &mut self.pins else { return Ok(HeldLink::Own(program, link)) };
        let refused = |reason| LoadError::Pin { program, reason };
        let link = uprobe(&mut self.ebpf, program)?.take_link(link).map_err(|error| refused(chain(&error)))?;
        let link = FdLink::try_from(link).map_err(|error| refused(chain(&error)))?;
        pins.pin(link, label).map(HeldLink::Pinned).map_err(|error| refused(chain(&error)))
    }

    /// Takes a link out of the kernel half. The probe stays until [`TakenLink::end`].
    ///
    /// # Errors
    /// A sentence: the link is unknown.
    pub(crate) fn take(&mut self, link: HeldLink) -> Result<TakenLink, String> {
        match link {
            HeldLink::Own(program, link) => {
                let loaded = uprobe(&mut self.ebpf, program).map_err(|error| chain(&error))?;
                loaded.take_link(link).map(TakenLink::Own).map_err(|error| chain(&error))
            }
            HeldLink::Pinned(link) => Ok(TakenLink::Pinned(link)),
        }
    }

    /// Removes a probe.
    pub(crate) fn release(&mut self, link: HeldLink) -> Result<(), String> {
        match link {
            HeldLink::Own(program, link) => {
                let loaded = uprobe(&mut self.ebpf, program).map_err(|error| chain(&error))?;
                loaded.detach(link).map_err(|error| chain(&error))
            }
            // The link ends when its descriptor is closed.
            HeldLink::Pinned(link) => link.unpin().map(drop).map_err(|error| chain(&error)),
        }
    }

    /// Sets the time since which all probes of a group of files are in place, in `CLOCK_BOOTTIME`
    /// nanoseconds; 0 while probes are being attached or removed.
    pub(crate) fn arm(&mut self, files: ArmGroup, now_ns: u64) -> Result<(), LoadError> {
        self.armed()?.set(files.number(), &now_ns, 0).map_err(LoadError::Arm)
    }

    fn armed(&mut self) -> Result<Array<&mut MapData, u64>, LoadError> {
        let map = self.ebpf.map_mut("ARMED_NS").ok_or(LoadError::Missing("ARMED_NS"))?;
        Array::try_from(map).map_err(LoadError::Arm)
    }

    /// Adds a target: its calls and those of its future children are recorded.
    pub(crate) fn watch(&mut self, tgid: u32) -> Result<(), LoadError> {
        const TARGETS: &str = "WATCHED";
        let map = self.ebpf.map_mut(TARGETS).ok_or(LoadError::Missing(TARGETS))?;
        let refused = |cause| LoadError::Watch { tgid, cause };
        let mut map: HashMap<&mut MapData, u32, u8> = HashMap::try_from(map).map_err(refused)?;
        map.insert(&tgid, &1, 0).map_err(refused)?;
        self.make_known(tgid)
    }

    /// Makes the kernel half report exec and exit of this process.
    pub(crate) fn make_known(&mut self, tgid: u32) -> Result<(), LoadError> {
        let map = self.ebpf.map_mut(KNOWN).ok_or(LoadError::Missing(KNOWN))?;
        let refused = |cause| LoadError::Watch { tgid, cause };
        let mut map: HashMap<&mut MapData, u32, u32> = HashMap::try_from(map).map_err(refused)?;
        match map.insert(&tgid, &NOBODY, BPF_NOEXIST) {
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            answer => answer.map_err(refused),
        }
    }
}

/// Whether Python stacks can be walked (Linux 5.17).
fn can_loop() -> bool {
    is_helper_supported(ProgramType::KProbe, BpfHelper::BPF_FUNC_loop).unwrap_or(false)
}

/// Returns one of the uprobe programs.
pub(crate) fn uprobe<'a>(ebpf: &'a mut Ebpf, program: &'static str) -> Result<&'a mut UProbe, LoadError> {
    ebpf.program_mut(program).and_then(|found| <&mut UProbe>::try_from(found).ok()).ok_or(LoadError::Missing(program))
}

/// Returns a uprobe program. Loads it on first use.
pub(crate) fn loaded_uprobe<'a>(ebpf: &'a mut Ebpf, program: &'static str) -> Result<&'a mut UProbe, LoadError> {
    let found = uprobe(ebpf, program)?;
    if found.fd().is_err() {
        found.load().map_err(refused(program))?;
    }
    Ok(found)
}

fn tracepoint<'a>(ebpf: &'a mut Ebpf, program: &'static str) -> Result<&'a mut RawTracePoint, LoadError> {
    ebpf.program_mut(program).and_then(|found| found.try_into().ok()).ok_or(LoadError::Missing(program))
}

fn start_tracepoint(
    ebpf: &mut Ebpf,
    program: &'static str,
    tracepoint: &str,
    pins: &mut Option<PinnedObjects>,
) -> Result<Option<PinnedLink>, LoadError> {
    let loaded = self::tracepoint(ebpf, program)?;
    loaded.load().map_err(refused(program))?;
    let link = loaded.attach(tracepoint).map_err(refused(program))?;
    let Some(pins) = pins else { return Ok(None) };
    let link = loaded.take_link(link).map_err(refused(program))?;
    let pinned = pins.pin(link.into(), EVENTS);
    pinned.map(Some).map_err(|error| LoadError::Pin { program, reason: chain(&error) })
}

fn refused(program: &'static str) -> impl Fn(ProgramError) -> LoadError {
    move |cause| LoadError::Program { program, cause: Box::new(cause) }
}

/// Whether attaching needs CAP_SYS_ADMIN because classic uprobes are used: by option, or because
/// the kernel supports no others (which only privileged processes can find out).
pub(crate) fn takes_sys_admin(classic_uprobes: bool) -> bool {
    mechanism(classic_uprobes) == Mechanism::Classic
}

fn mechanism(classic_uprobes: bool) -> Mechanism {
    let multi = !classic_uprobes && is_uprobe_multi_supported(UProbeMultiFeature::LinkCreation).unwrap_or(false);
    if multi { Mechanism::UprobeMulti } else { Mechanism::Classic }
}

/// Formats an error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// Whether a test may start and probe programs that use a GPU. If not, prints the reason to
/// standard error.
///
/// The integration tests watch the whole machine and would report such programs.
#[cfg(test)]
pub(crate) fn may_probe() -> bool {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: uprobes need root");
        return false;
    }
    if std::env::var_os("MEMWATCH_TESTS_BESIDE").is_some() {
        eprintln!("SKIPPED: other tests watch this machine now; cargo xtask test probes runs it alone");
        return false;
    }
    true
}

#[cfg(test)]
mod tests {
    use aya::programs::Program;

    use super::{KernelHalf, LoadOptions};

    #[test]
    fn the_kernel_takes_every_program_also_the_ones_that_are_loaded_on_demand() {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED: programs are loaded by root");
            return;
        }
        let options =
            LoadOptions { all_processes: true, ring_bytes: 1 << 20, classic_uprobes: false, diagnostics: false };
        let mut kernel = KernelHalf::load(options).expect("the kernel half is loaded");
        let mut loaded = 0;
        for (name, program) in kernel.ebpf.programs_mut() {
            if let Program::UProbe(program) = program
                && program.fd().is_err()
            {
                program.load().unwrap_or_else(|error| panic!("{name}: {error:?}"));
                loaded += 1;
            }
        }
        assert!(loaded > 0);
    }
}
