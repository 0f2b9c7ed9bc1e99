//! Builds the rows of memory by call site, module and phase: named, largest first, with a remainder
//! row beyond the bound of a list.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::fragmentation::{self, Fragmentation};
use super::libraries::{code_text, library_line, library_lines, library_text};
use super::named;
use super::native::{ends, frame, native_view};
use crate::allocators::TensorLedger;
use crate::allocators::bfc::view::arenas;
use crate::allocators::ggml::view::buffers;
use crate::allocators::names::{
    CallSite, HeldAs, LibraryKey, ModuleEntry, ModuleKey, NameTable, NativeCode, RangeKey, SiteKey, TorchModule,
};
use crate::allocators::places::{BlockSum, CallPath, DeviceAttribution, LiveBlock, ModuleSum, PhaseRow, RangeSum};
use crate::allocators::pools::view::pools;
use crate::allocators::pytorch::view::allocators;
use crate::allocators::pytorch::{DeviceAllocator, StatFamily, StatScope};
use crate::allocators::sampling::{Estimate, SampleKey};
use crate::allocators::threads::{Attribution, Phase, PhaseEvidence};
use crate::decode::StackRef;
use crate::snapshot::{
    AttributionView, CallPathView, DeviceAttributionView, DeviceCallPaths, LargeView, ModuleView, PhaseBytesView,
    PhaseView, PlaceNameView, RangeView, RefusalView, SiteView, StackView, SumView, TensorsView, WhoseView,
    WindowsView, add, largest,
};
use crate::stack::PythonCode;
use crate::words::{GpuUuid, Name, Ordinal};

/// Maximum number of call sites.
const SITES: usize = 1024;
/// Maximum number of modules.
const MODULES: usize = 4096;
/// Maximum numbers of stacks, and of frames per stack.
const STACKS: usize = 16;
const FRAMES: usize = 64;
/// Maximum number of large blocks.
const LARGE: usize = 256;

/// Returns the view of a process's tensors; `uuid` returns the GPU of a device.
pub(super) fn tensors(ledger: &TensorLedger, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> TensorsView {
    let (places, names, threads) = (ledger.attribution(), ledger.names(), ledger.threads());
    let steps = threads.steps_by_optimizer();
    let device = |(&ordinal, device): (&Ordinal, &DeviceAttribution)| {
        let allocator = ledger.allocators().get(&ordinal);
        let fragments = allocator.map(|allocator| fragmentation::by_module(places, ordinal, allocator));
        let list = AttributionLists { ledger, names, ordinal, device, fragments: fragments.unwrap_or_default() };
        DeviceAttributionView {
            device: ordinal.0,
            uuid: uuid(ordinal),
            allocated_bytes: device.allocated_bytes(),
            allocator_peak_bytes: allocator.and_then(|allocator| own_peak_bytes(ledger, ordinal, allocator)),
            unplaced_bytes: device.unplaced_bytes(),
            total: list.sum(device.total()),
            phases: list.phases(),
            modules: list.modules(),
            sites: list.sites(),
            ranges: list.ranges(),
            stacks: list.stacks(),
            large: large(names, places.large().filter(|block| block.ordinal == ordinal)),
        }
    };
    let sees_steps = ledger.sees_steps();
    // A device whose allocator was only ever read, and never traced, has no attribution.
    let is_followed = |ordinal| {
        ledger.allocators().get(&ordinal).is_none_or(|allocator| !allocator.is_stopped()) || places.has_traced(ordinal)
    };
    let refusals = places.refused().iter().map(|refusal| RefusalView {
        device: refusal.ordinal.0,
        wanted_bytes: refusal.wanted_bytes,
        time_ns: refusal.time_ns,
        whose: whose(names, &refusal.whose),
    });
    TensorsView {
        allocators: allocators(ledger, &uuid),
        arenas: arenas(ledger.arenas(), &uuid),
        buffers: buffers(ledger.buffers(), &uuid),
        pools: pools(ledger.pools(), &uuid),
        losses: named(ledger.losses()),
        native_stacks: ends(ledger.stacks()),
        stacks_left_out: ledger.stacks().unkept(),
        allocator_state_refused: ledger.allocator_state_refused().cloned(),
        windows: ledger.sampling().map(|sampling| WindowsView {
            windows: sampling.windows(),
            discarded: sampling.discarded(),
            open_ns: sampling.open_ns(),
        }),
        attribution: AttributionView {
            steps: Some(threads.steps()).filter(|steps| *steps > 0 && sees_steps),
            optimizers: steps
                .into_iter()
                .filter(|_| sees_steps)
                .map(|(name, steps)| (name.to_owned(), steps))
                .collect(),
            ambiguous_nodes: threads.ambiguous_nodes(),
            refusals: refusals.collect(),
            devices: places.devices().iter().filter(|(ordinal, _)| is_followed(**ordinal)).map(device).collect(),
        },
    }
}

/// Returns the peak in PyTorch's own count, if PyTorch is alone on the device.
fn own_peak_bytes(ledger: &TensorLedger, ordinal: Ordinal, allocator: &DeviceAllocator) -> Option<u64> {
    let is_alone = ledger.has_only_pytorch(ordinal) && allocator.peaks_begun_ns().is_none();
    let peak = allocator.number(StatFamily::AllocatedBytes, StatScope::All, "peak").filter(|_| is_alone)?;
    u64::try_from(peak.known()?).ok()
}

/// Returns the names of a call site, without memory.
pub(crate) fn site_name(names: &NameTable, key: SiteKey) -> SiteView {
    let site = names.site_of(key);
    let code = code_of(site);
    let native = native_of(site);
    SiteView {
        kind: site_kind(site),
        file: code.map(|code| &code.file).or(native.map(|code| &code.library)).map(ToString::to_string),
        line: code.and_then(|code| code.line),
        function: code.map(|code| &code.function).or(native.map(|code| &code.function)).map(ToString::to_string),
        held: held_of(site).cloned(),
        library_lines: Vec::new(),
        sum: SumView::default(),
    }
}

pub(crate) fn call_paths(ledger: &TensorLedger, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> Vec<DeviceCallPaths> {
    let device = |(ordinal, device): (&Ordinal, &DeviceAttribution)| {
        let list =
            AttributionLists { ledger, names: ledger.names(), ordinal: *ordinal, device, fragments: HashMap::new() };
        DeviceCallPaths {
            device: ordinal.0,
            uuid: uuid(*ordinal),
            unplaced_bytes: device.unplaced_bytes(),
            total: list.sum(device.total()),
            call_paths: list.call_paths(),
        }
    };
    ledger.attribution().devices().iter().map(device).collect()
}

/// Builds the lists of one device.
struct AttributionLists<'a> {
    ledger: &'a TensorLedger,
    names: &'a NameTable,
    ordinal: Ordinal,
    device: &'a DeviceAttribution,
    fragments: HashMap<ModuleKey, Fragmentation>,
}

impl AttributionLists<'_> {
    /// Returns a sum with an estimate, if trace windows may show only a part of it.
    fn sampled(&self, key: SampleKey, sum: &BlockSum) -> SumView {
        let estimate = || {
            let sampling = self.ledger.sampling()?;
            let allocator = self.ledger.allocators().get(&self.ordinal)?;
            let counted = allocator.number(StatFamily::AllocatedBytes, StatScope::All, "allocated")?.known()?;
            let estimate = sampling.estimate(self.ordinal, key, u64::try_from(counted).ok()?)?;
            // Bytes traced before the first window are known exactly.
            let before_bytes = sum.total_bytes.saturating_sub(sampling.seen_bytes(self.ordinal, key));
            Some(estimate.plus(Estimate::exactly(before_bytes)))
        };
        SumView { sampled: estimate(), ..self.sum(sum) }
    }

    fn sum(&self, sum: &BlockSum) -> SumView {
        SumView {
            live_bytes: sum.live_bytes,
            peak_bytes: sum.peak_bytes,
            at_peak_bytes: self.device.at_peak_bytes(sum),
            total_bytes: sum.total_bytes,
            allocations: sum.allocations,
            frees: sum.frees,
            mean_lifetime_ns: sum.mean_lifetime_ns(),
            longest_lifetime_ns: sum.mean_lifetime_ns().map(|_| sum.longest_ns),
            sampled: None,
            sampled_live: None,
            at_least: self.ledger.has_gaps(),
        }
    }

    fn phases(&self) -> Vec<PhaseView> {
        self.device.phases().map(|(row, sum)| self.phase(row, sum)).collect()
    }

    fn phase(&self, row: PhaseRow, sum: &BlockSum) -> PhaseView {
        PhaseView {
            phase: phase_name(row.phase),
            recomputed: row.recomputed,
            captured: row.captured,
            sum: self.sampled(SampleKey::Phase(row), sum),
        }
    }

    fn modules(&self) -> Vec<ModuleView> {
        largest(self.device.modules().map(|(key, module)| self.module(key, module)).collect(), MODULES)
    }

    fn module(&self, key: ModuleKey, module: &ModuleSum) -> ModuleView {
        let mut phases = BTreeMap::new();
        for ((phase, live), total) in Phase::ALL.iter().zip(module.live_by_phase).zip(module.total_by_phase) {
            if live > 0 || total > 0 {
                phases.insert(phase_name(*phase), PhaseBytesView { live_bytes: live, total_bytes: total });
            }
        }
        let named = self.names.module_of(key);
        let torch = torch_module(named);
        let fragments = self.fragments.get(&key).copied().unwrap_or_default();
        ModuleView {
            kind: module_kind(named),
            model: torch.map(|module| module.model.to_string()),
            name: torch.map_or_else(|| operator_of(named), |module| module.name.as_ref()).map(ToString::to_string),
            class: torch.map(|module| module.class.to_string()),
            sum: self.sampled(SampleKey::Module(key), &module.sum),
            phases,
            host_duration_ns: Some(module.host_duration_ns).filter(|time_ns| *time_ns > 0),
            rounding_bytes: fragments.rounding_bytes,
            total_rounding_bytes: module.total_rounding_bytes(),
            nearby_split_bytes: fragments.nearby_split_bytes,
        }
    }

    fn sites(&self) -> Vec<SiteView> {
        let mut libraries = library_lines(self.names, self.device);
        let site = |(key, sum): (SiteKey, &BlockSum)| SiteView {
            library_lines: libraries.remove(&key).unwrap_or_default(),
            ..self.site(key, sum)
        };
        largest(self.device.sites().map(site).collect(), SITES)
    }

    fn site(&self, key: SiteKey, sum: &BlockSum) -> SiteView {
        let mut all = self.sampled(SampleKey::Site(key), sum);
        if let Some(drawn) = self.device.drawn(key) {
            all.sampled_live = Some(drawn.live(sum.live_bytes));
            // An estimate from trace windows already covers the sampled blocks.
            all.sampled = all.sampled.or_else(|| Some(drawn.total(sum.total_bytes)));
        }
        SiteView { sum: all, ..site_name(self.names, key) }
    }

    fn ranges(&self) -> Vec<RangeView> {
        let view = |(key, range): (Option<RangeKey>, &RangeSum)| {
            let name = key.map(|key| self.names.range_of(key)).filter(|name| !name.is_empty());
            let kind = match (key, name) {
                (None, _) => "none",
                (Some(_), None) => "rest",
                (Some(_), Some(_)) => "range",
            };
            // A window shows only parts of ranges.
            let is_range = key.is_some() && self.ledger.sampling().is_none();
            RangeView {
                kind: kind.into(),
                name: name.map(ToString::to_string),
                temporary_bytes: is_range.then_some(range.temporary_bytes),
                temporary_blocks: is_range.then_some(range.temporary_blocks),
                most_temporary_bytes: is_range.then_some(range.most_temporary_bytes),
                sum: self.sum(&range.sum),
            }
        };
        largest(self.device.ranges().map(view).collect(), usize::MAX)
    }

    fn stacks(&self) -> Vec<StackView> {
        let mut sums: BTreeMap<u64, SumView> = BTreeMap::new();
        // A fixed order: the last digit of a mean of means depends on it.
        let mut call_paths: Vec<_> = self.device.call_paths().collect();
        call_paths.sort_unstable_by_key(|(call_path, _)| *call_path);
        for (call_path, sum) in call_paths {
            let (Some(id), sum) = (call_path.stack, self.sum(sum)) else { continue };
            sums.entry(id).and_modify(|all| add(all, &sum)).or_insert(sum);
        }
        let mut all: Vec<_> = sums.into_iter().filter(|(_, sum)| sum.live_bytes > 0).collect();
        all.sort_by(|(one, first), (other, second)| {
            second.live_bytes.cmp(&first.live_bytes).then_with(|| self.lines(Some(*one)).cmp(self.lines(Some(*other))))
        });
        let view = |(id, sum): (u64, SumView)| {
            let (python, native) = (self.ledger.stacks().get(id), self.ledger.stacks().native(id));
            if python.is_none() && native.is_none() {
                return None;
            }
            let frames = python.map(|stack| stack.frames.iter().take(FRAMES).map(frame).collect());
            Some(StackView {
                frames: frames.unwrap_or_default(),
                truncated: python.is_some_and(|stack| stack.truncated || stack.frames.len() > FRAMES),
                native: native.map(|native| native_view(python.map(|python| &**python), native)),
                sum,
            })
        };
        all.into_iter().filter_map(view).take(STACKS).collect()
    }

    /// Returns the Python code of a stack, by which rows with equal sums are ordered, since stack
    /// numbers differ between sessions.
    fn lines(&self, stack: Option<u64>) -> impl Iterator<Item = Option<&PythonCode>> {
        let stack = stack.and_then(|id| self.ledger.stacks().get(id));
        stack.into_iter().flat_map(|stack| stack.frames.iter().map(|frame| frame.code.as_ref()))
    }

    fn call_paths(&self) -> Vec<CallPathView> {
        let mut all: Vec<_> = self.device.call_paths().filter(|(_, sum)| sum.is_used()).collect();
        all.sort_unstable_by(|(one, first), (other, second)| {
            let by_line = || self.lines(one.stack).cmp(self.lines(other.stack));
            second.live_bytes.cmp(&first.live_bytes).then_with(by_line).then_with(|| one.cmp(other))
        });
        let view = |(call_path, sum): (CallPath, &BlockSum)| {
            let stack = call_path.stack.and_then(|id| self.ledger.stacks().get(id));
            let at_peak_bytes = self.device.at_peak_bytes(sum);
            let called = Some(call_path.library).filter(|called| *called != LibraryKey::NONE);
            let library = called.map(|called| library_line(self.names, called, (sum, at_peak_bytes)));
            CallPathView {
                phase: self.phase(call_path.row, sum),
                site: SiteView { library_lines: library.into_iter().collect(), ..self.site(call_path.site, sum) },
                frames: stack.map_or_else(Vec::new, |stack| stack.frames.iter().map(frame).collect()),
                truncated: stack.is_some_and(|stack| stack.truncated),
            }
        };
        all.into_iter().map(view).collect()
    }
}

fn large<'a>(names: &NameTable, blocks: impl Iterator<Item = &'a LiveBlock>) -> Vec<LargeView> {
    let mut blocks: Vec<_> = blocks.collect();
    blocks.sort_unstable_by_key(|block| (Reverse(block.bytes), block.address));
    let view = |block: &LiveBlock| LargeView {
        address: block.address,
        bytes: block.bytes,
        granted_ns: Some(block.granted_ns).filter(|granted_ns| *granted_ns > 0),
        whose: whose(names, &block.whose),
    };
    blocks.into_iter().take(LARGE).map(view).collect()
}

/// Returns the names in a block's attribution.
pub(crate) fn whose(names: &NameTable, whose: &Attribution) -> WhoseView {
    let by = match whose.by {
        PhaseEvidence::Node => "node",
        PhaseEvidence::Range => "range",
        PhaseEvidence::Frames => "frames",
        PhaseEvidence::Nothing => "none",
    };
    WhoseView {
        phase: phase_name(whose.phase),
        by: by.into(),
        step: whose.step,
        site: site_text(names, whose.site),
        library: library_text(names, whose.library),
        module: module_name(names, whose.module),
    }
}

/// Returns `Net layers.0.fc1 Linear`; only `Net` for the model itself.
fn torch_module_name(module: &TorchModule) -> String {
    match module.name.as_deref() {
        Some("") => module.model.to_string(),
        name => format!("{} {} {}", module.model, name.unwrap_or("?"), module.class),
    }
}

/// Returns the name of a call site, such as `train.py:36 Trainer.step`.
pub(crate) fn site_text(names: &NameTable, key: SiteKey) -> PlaceNameView {
    let site = names.site_of(key);
    let line = code_of(site).map(code_text);
    let native = || native_of(site).map(|NativeCode { function, library }| format!("{function}  {library}"));
    let name = line.or_else(native).or_else(|| held_of(site).map(HeldAs::text));
    PlaceNameView { kind: site_kind(site), name }
}

/// Returns the name of a module.
pub(crate) fn module_name(names: &NameTable, key: ModuleKey) -> PlaceNameView {
    let module = names.module_of(key);
    let name = torch_module(module).map(torch_module_name).or_else(|| operator_of(module).map(ToString::to_string));
    PlaceNameView { kind: module_kind(module), name }
}

/// Returns the name of a phase in JSON.
pub(crate) const fn phase_name(phase: Phase) -> Name {
    Name::Borrowed(match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Optimizer => "optimizer",
        Phase::Outside => "outside",
        Phase::NotKnown => "not_known",
        Phase::BeforeAttach => "preexisting",
        Phase::Untraced => "untraced",
    })
}

const fn module_kind(module: &ModuleEntry) -> Name {
    Name::Borrowed(match module {
        ModuleEntry::Rest => "rest",
        ModuleEntry::BeforeAttach => "preexisting",
        ModuleEntry::Untraced => "untraced",
        ModuleEntry::NotKnown => "not_known",
        ModuleEntry::None => "none",
        ModuleEntry::Module(_) => "module",
        ModuleEntry::Operator(_) => "operator",
    })
}

const fn torch_module(module: &ModuleEntry) -> Option<&TorchModule> {
    if let ModuleEntry::Module(module) = module { Some(module) } else { None }
}

const fn operator_of(module: &ModuleEntry) -> Option<&Arc<str>> {
    if let ModuleEntry::Operator(name) = module { Some(name) } else { None }
}

const fn site_kind(site: &CallSite) -> Name {
    Name::Borrowed(match site {
        CallSite::Rest => "rest",
        CallSite::BeforeAttach | CallSite::Held(_) => "preexisting",
        CallSite::Untraced | CallSite::UntracedHeld(_) => "untraced",
        CallSite::NoPython | CallSite::NotKnown(StackRef::NoPython | StackRef::Native(_)) => "no_python",
        CallSite::NotKnown(StackRef::NotAsked) => "not_asked",
        CallSite::NotKnown(StackRef::OverBudget) => "over_budget",
        CallSite::NotKnown(StackRef::Unreadable) => "unreadable",
        CallSite::NotKnown(StackRef::Known(_)) => "missing",
        CallSite::NotKnown(StackRef::NotDrawn) => "not_sampled",
        CallSite::Line(_) => "line",
        CallSite::BackwardOf(_) => "backward_of",
        CallSite::Native(_) => "native",
    })
}

const fn code_of(site: &CallSite) -> Option<&PythonCode> {
    if let CallSite::Line(code) | CallSite::BackwardOf(code) = site { Some(code) } else { None }
}

const fn native_of(site: &CallSite) -> Option<&NativeCode> {
    if let CallSite::Native(code) = site { Some(code) } else { None }
}

const fn held_of(site: &CallSite) -> Option<&HeldAs> {
    if let CallSite::Held(held) | CallSite::UntracedHeld(held) = site { Some(held) } else { None }
}

#[cfg(test)]
#[path = "tests/places.rs"]
mod tests;
