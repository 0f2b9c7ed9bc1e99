//! Attribution of a PyTorch program's memory by phase, module, call site and range. Each list adds
//! up to the bytes that the allocator has granted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::allocators::bfc::ArenaView;
use crate::allocators::ggml::BuffersView;
use crate::allocators::names::HeldAs;
use crate::allocators::pools::PoolsView;
use crate::allocators::pytorch::AllocatorView;
use crate::allocators::sampling::Estimate;
use crate::words::{GpuUuid, Name, json};

/// State of the frameworks' allocators in a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TensorsView {
    /// Caching allocators, by device.
    pub allocators: Vec<AllocatorView>,
    /// Device memory arenas of JAX, TensorFlow and ONNX Runtime.
    #[serde(default)]
    pub arenas: Vec<ArenaView>,
    /// Buffers of ggml; `None` if ggml is not probed.
    #[serde(default)]
    pub buffers: Option<BuffersView>,
    /// Pools of RAPIDS and CuPy; `None` if neither is probed.
    #[serde(default)]
    pub pools: Option<PoolsView>,
    /// Numbers of lost events and stacks, by cause.
    pub losses: BTreeMap<Name, u64>,
    /// Numbers of native stacks, by how they end: `complete`, `copy_ends`, `no_information`,
    /// `unreadable`, `contradictory`, `too_many_frames`, or `differing` if allocations on one
    /// Python stack have different frames from there on. Also allocations that should have had a
    /// native stack: `over_budget`, to keep the program fast, and `lost`, for lack of space.
    pub native_stacks: BTreeMap<Name, u64>,
    /// Number of stacks that were not kept, because the program has too many different ones: their
    /// allocations have a call site, but no stack.
    #[serde(default)]
    pub stacks_left_out: u64,
    /// Reason why memory held before the attach could not be read; `None` if it was read, or was
    /// not requested.
    pub allocator_state_refused: Option<Name>,
    /// Trace windows; `None` if tracing is permanent, or off.
    pub windows: Option<WindowsView>,
    /// Attribution of the memory.
    pub attribution: AttributionView,
}

/// Trace windows: call sites, phases and modules contain what was observed in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowsView {
    /// Number of windows.
    pub windows: u64,
    /// Number of further windows that were discarded because events were lost.
    pub discarded: u64,
    /// Total length of the windows, in nanoseconds.
    #[serde(serialize_with = "json::all_seconds")]
    pub open_ns: u64,
}

/// Attribution of the memory of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttributionView {
    /// Number of steps observed, of the optimizer with most of them; `None` if none was observed:
    /// there was none, or steps are not traced.
    pub steps: Option<u64>,
    /// Numbers of steps by optimizer class; those of one class are added up.
    pub optimizers: BTreeMap<String, u64>,
    /// Number of backward graph nodes that several threads may have created, so that their module
    /// is unknown.
    pub ambiguous_nodes: u64,
    /// Attribution by device of the process.
    #[serde(serialize_with = "json::apart")]
    pub devices: Vec<DeviceAttributionView>,
    /// The last allocations that PyTorch refused, oldest first.
    #[serde(serialize_with = "json::apart")]
    pub refusals: Vec<RefusalView>,
}

/// Attribution of one device of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceAttributionView {
    /// The process's own number of the device.
    pub device: i32,
    /// GPU; `None` if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// Allocated bytes in the allocator's own count.
    pub allocated_bytes: u64,
    /// Peak of the allocated bytes in the allocator's own count; `None` if it does not keep one.
    pub allocator_peak_bytes: Option<u64>,
    /// Allocated bytes that are in no row, because events were lost; negative if frees were lost.
    pub unplaced_bytes: i64,
    /// Sum of all rows.
    #[serde(serialize_with = "json::apart")]
    pub total: SumView,
    /// Memory by phase.
    #[serde(serialize_with = "json::apart")]
    pub phases: Vec<PhaseView>,
    /// Memory by module, most live bytes first.
    #[serde(serialize_with = "json::apart")]
    pub modules: Vec<ModuleView>,
    /// Memory by call site, most live bytes first.
    #[serde(serialize_with = "json::apart")]
    pub sites: Vec<SiteView>,
    /// Memory by range of the program, most live bytes first.
    #[serde(serialize_with = "json::apart")]
    pub ranges: Vec<RangeView>,
    /// The stacks with most live bytes.
    #[serde(serialize_with = "json::apart")]
    pub stacks: Vec<StackView>,
    /// Large blocks, largest first.
    #[serde(serialize_with = "json::apart")]
    pub large: Vec<LargeView>,
}

impl DeviceAttributionView {
    /// Returns the peak of the allocated bytes: the allocator's own, if it keeps one, else the
    /// observed one.
    pub fn peak_bytes(&self) -> u64 {
        // The program may reset the allocator's peak, so the larger one counts. If tracing was not
        // permanent, only the allocator knows the peak.
        match self.allocator_peak_bytes {
            Some(own_bytes) if self.total.at_least => own_bytes,
            own => own.unwrap_or(0).max(self.total.peak_bytes),
        }
    }
}

/// Memory of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumView {
    /// Live bytes.
    #[serde(serialize_with = "json::apart")]
    pub live_bytes: u64,
    /// Peak of the live bytes; an upper bound for a remainder row.
    pub peak_bytes: u64,
    /// Live bytes at the peak of the device's total.
    pub at_peak_bytes: u64,
    /// Bytes of all blocks since the attach.
    pub total_bytes: u64,
    /// Number of blocks since the attach.
    pub allocations: u64,
    /// Number of blocks freed.
    pub frees: u64,
    /// Mean lifetime of the freed blocks, in nanoseconds; `None` if none was freed.
    #[serde(serialize_with = "json::seconds")]
    pub mean_lifetime_ns: Option<u64>,
    /// Longest lifetime of the freed blocks, in nanoseconds; `None` if none was freed.
    #[serde(serialize_with = "json::seconds")]
    pub longest_lifetime_ns: Option<u64>,
    /// Estimate of the total bytes, from trace windows or from the sampled small blocks; `None` if
    /// everything is traced and every block has a stack.
    #[serde(serialize_with = "json::apart")]
    pub sampled: Option<Estimate>,
    /// Estimate of the live bytes, from the sampled small blocks; `None` if everything is traced
    /// and every block has a stack.
    #[serde(serialize_with = "json::apart")]
    pub sampled_live: Option<Estimate>,
    /// Whether tracing had gaps, so that all numbers but the live bytes are lower bounds.
    #[serde(serialize_with = "json::apart")]
    pub at_least: bool,
}

impl SumView {
    /// Returns whether all numbers but the live bytes are lower bounds: blocks were sampled, or
    /// tracing had gaps.
    pub const fn is_lower_bound(&self) -> bool {
        self.at_least || self.sampled_live.is_some()
    }
}

/// Memory of a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseView {
    /// `forward`, `backward`, `optimizer`, `outside`, `not_known`, `preexisting` or `untraced`.
    pub phase: Name,
    /// Whether the blocks were recomputed because they were not kept for the backward pass.
    pub recomputed: bool,
    /// Whether the blocks were allocated during a CUDA graph capture.
    pub captured: bool,
    /// Memory of the phase.
    #[serde(serialize_with = "json::apart")]
    pub sum: SumView,
}

/// Memory of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleView {
    /// `module`, or `operator` for an operator of TensorFlow; `none`, `not_known`, `preexisting`,
    /// `untraced` or `rest` for rows without a module.
    pub kind: Name,
    /// Class of the model, with `#2` and so on if there are several.
    pub model: Option<String>,
    /// Name in `named_modules()`; empty for the model itself, `None` if it is not found there. For
    /// an operator its name: its kind in eager execution, the name of the graph node in a
    /// `tf.function`; a long name is reduced to `…` and its end.
    pub name: Option<String>,
    /// Class of the module.
    pub class: Option<String>,
    /// Memory of the module.
    #[serde(serialize_with = "json::apart")]
    pub sum: SumView,
    /// Bytes by phase; empty phases are left out.
    pub phases: BTreeMap<Name, PhaseBytesView>,
    /// Time in nanoseconds of the host's clock that threads worked for the module: from its
    /// allocations to the thread's next one within a phase of a step. `None` if there is no such
    /// time.
    #[serde(serialize_with = "json::seconds")]
    pub host_duration_ns: Option<u64>,
    /// Rounding of the live blocks in bytes; `None` if the requested size of some of them is
    /// unknown.
    pub rounding_bytes: Option<u64>,
    /// Rounding of all blocks since the attach in bytes; `None` if the requested size of some of
    /// them is unknown.
    pub total_rounding_bytes: Option<u64>,
    /// Free bytes that cannot be released, in the segments that contain live blocks of the module;
    /// other modules may share them. `None` if the segments are unknown.
    pub nearby_split_bytes: Option<u64>,
}

/// Bytes of a module in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseBytesView {
    /// Live bytes.
    pub live_bytes: u64,
    /// Bytes of all blocks since the attach.
    pub total_bytes: u64,
}

/// Memory of a call site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteView {
    /// `line`, or `backward_of` for the backward pass of what the line computed; `native` for a
    /// function in a thread without Python; `no_python`, `preexisting`, `untraced`, `rest`; and
    /// `not_asked`, `over_budget`, `unreadable`, `missing` or `not_sampled` (a small block, counted in
    /// the estimates of call sites) if the stack is unknown.
    pub kind: Name,
    /// Source file; for a native function the name of the file that contains its code.
    pub file: Option<String>,
    /// Line in the file.
    pub line: Option<u32>,
    /// Function.
    pub function: Option<String>,
    /// For pre-existing memory: its content, from the process's memory; `None` if it is unknown.
    pub held: Option<HeldAs>,
    /// Lines of packages and of torch that the call site called, most live bytes first; they add up
    /// to the call site's bytes. Empty if it called none.
    #[serde(default)]
    pub library_lines: Vec<LibraryLineView>,
    /// Memory of the call site.
    #[serde(serialize_with = "json::apart")]
    pub sum: SumView,
}

/// Memory allocated in a line of a package or of torch for one call site of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryLineView {
    /// `line`; `none` for allocations of the program's line itself, and `rest` for lines beyond the
    /// bound of the list.
    pub kind: Name,
    /// Source file.
    pub file: Option<String>,
    /// Line in the file.
    pub line: Option<u32>,
    /// Function.
    pub function: Option<String>,
    /// Live bytes.
    #[serde(rename = "allocated_bytes")]
    pub live_bytes: u64,
    /// Live bytes at the peak of the device's total.
    pub at_peak_bytes: u64,
    /// Bytes of all blocks since the attach.
    pub total_bytes: u64,
}

/// Memory of a range that the program opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeView {
    /// `range`; `none` for memory outside of ranges, `rest` for names beyond the bound of the list.
    pub kind: Name,
    /// Name of the range.
    pub name: Option<String>,
    /// Bytes of blocks freed before the end of the range that allocated them; `None` outside of
    /// ranges.
    pub temporary_bytes: Option<u64>,
    /// Number of blocks freed before the end of the range that allocated them; `None` outside of
    /// ranges.
    pub temporary_blocks: Option<u64>,
    /// Peak of these blocks between a start of the range and its end, in bytes.
    pub most_temporary_bytes: Option<u64>,
    /// Memory of the range.
    #[serde(serialize_with = "json::apart")]
    pub sum: SumView,
}

/// All call paths to the memory of one device, which add up to its total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCallPaths {
    /// The process's own number of the device.
    pub device: i32,
    /// GPU; `None` if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// Allocated bytes that are in no call path: see [`DeviceAttributionView`].
    pub unplaced_bytes: i64,
    /// Sum of all call paths.
    pub total: SumView,
    /// Call paths, most live bytes first.
    pub call_paths: Vec<CallPathView>,
}

/// Memory of one call path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPathView {
    /// Phase, with the memory of the call path.
    pub phase: PhaseView,
    /// Call site, or the reason why there is none.
    pub site: SiteView,
    /// Python stack, innermost frame first; empty if there is none.
    pub frames: Vec<FrameView>,
    /// Whether the stack has further frames.
    pub truncated: bool,
}

/// A Python stack, or the native stack of a thread without Python.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackView {
    /// Frames, innermost first.
    pub frames: Vec<FrameView>,
    /// Whether the stack has further frames.
    pub truncated: bool,
    /// The stack with native frames; `None` if the thread's stack was not copied. For a Python
    /// stack it ends where its allocations differ; of each thread's allocations the first, the
    /// second, the fourth and so on are examined.
    pub native: Option<NativeView>,
    /// Memory of the stack; `peak_bytes` is an upper bound if it ran in several phases.
    #[serde(serialize_with = "json::apart")]
    pub sum: SumView,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameView {
    /// Source file; `None` if the code could not be read.
    pub file: Option<String>,
    /// Line in the file.
    pub line: Option<u32>,
    /// Function.
    pub function: Option<String>,
    /// Class of the module that the frame calls.
    pub module: Option<String>,
}

/// A stack with native frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeView {
    /// Frames, innermost first; Python frames replace the interpreter loops that ran them.
    pub frames: Vec<MergedFrameView>,
    /// Reason why the native stack ends, as in [`TensorsView::native_stacks`].
    pub end: Name,
    /// Index of the first frame from which native frames are missing; `None` if none are missing.
    pub cut: Option<usize>,
    /// Whether the interpreter loops found do not match the Python frames.
    pub mismatched: bool,
}

/// A frame of a stack with native frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedFrameView {
    /// `python`; `native`, or `interpreter` for a native function of the interpreter itself.
    pub kind: Name,
    /// Source file; for a native frame the file that contains its code.
    pub file: Option<String>,
    /// Line in the file; unknown for a native frame.
    pub line: Option<u32>,
    /// Function, for a native frame with its parameter types; `None` if it has no symbol.
    pub function: Option<String>,
    /// Function without the parameter types.
    pub name: Option<String>,
    /// For a native frame: its address in the file, before relocation.
    pub address: Option<u64>,
    /// Class of the module that the frame calls.
    pub module: Option<String>,
}

/// A large block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargeView {
    /// Address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the allocation: `CLOCK_BOOTTIME`, in nanoseconds; `None` if it precedes the session.
    #[serde(serialize_with = "json::date")]
    pub granted_ns: Option<u64>,
    /// Attribution.
    #[serde(serialize_with = "json::apart")]
    pub whose: WhoseView,
}

/// An allocation that PyTorch refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// The process's own number of the device.
    pub device: i32,
    /// Requested bytes.
    #[serde(serialize_with = "json::requested_bytes")]
    pub wanted_bytes: u64,
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// Attribution of the request.
    #[serde(serialize_with = "json::apart")]
    pub whose: WhoseView,
}

/// Attribution of one block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhoseView {
    /// Phase, as in [`PhaseView`].
    pub phase: Name,
    /// Evidence for the phase: `node`, `range`, `frames` or `none`.
    pub by: Name,
    /// Number of steps finished at that time.
    pub step: u64,
    /// Call site, as in [`SiteView`].
    #[serde(rename = "call_site")]
    pub site: PlaceNameView,
    /// Line of a package or of torch that the call site called, such as
    /// `/…/site-packages/torch/_utils.py:12 f`; `None` if it called none.
    #[serde(default)]
    pub library: Option<String>,
    /// Module, as in [`ModuleView`].
    pub module: PlaceNameView,
}

/// Name of a call site or a module in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceNameView {
    /// Kind, as in [`SiteView`] or [`ModuleView`].
    pub kind: Name,
    /// `train.py:12 main`, or `Net layers.0.fc1 Linear`; `None` if the kind says everything.
    pub name: Option<String>,
}
