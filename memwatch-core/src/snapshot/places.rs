//! Whose a PyTorch program's memory is: by stage, layer, line and phase. Each list adds up to what its allocator has granted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::allocators::AllocatorView;
use super::arenas::ArenaView;
use super::buffers::BuffersView;
use super::pools::PoolsView;
use crate::allocators::names::HeldAs;
use crate::allocators::sampling::Estimate;
use crate::words::{GpuUuid, Name, json};

/// What memwatch knows of a process's PyTorch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TensorsView {
    /// Its caching allocators, by device.
    pub allocators: Vec<AllocatorView>,
    /// Its arenas in device memory, of JAX, TensorFlow and ONNX Runtime.
    #[serde(default)]
    pub arenas: Vec<ArenaView>,
    /// Its buffers, of ggml; `None` where its functions are not probed.
    #[serde(default)]
    pub buffers: Option<BuffersView>,
    /// Its pools, of RAPIDS and CuPy; `None` where neither's functions are probed.
    #[serde(default)]
    pub pools: Option<PoolsView>,
    /// Events and stacks that did not arrive, by cause.
    pub losses: BTreeMap<Name, u64>,
    /// Its native stacks by what ended them: `complete`, `copy_ends`, `no_information`, `unreadable`, `contradictory`,
    /// `too_many_frames`, or `differing` where allocations on one Python stack have different frames from there on; and
    /// allocations without one that were to have one: `over_budget`, to keep the program fast, and `lost`, where there was no room for it.
    pub native_stacks: BTreeMap<Name, u64>,
    /// Stacks that were not kept, since the program has too many different ones: what was allocated on them has a line and no stack.
    #[serde(default)]
    pub stacks_left_out: u64,
    /// Why what it held before the attach could not be read from its memory; `None` where it could, or was not wanted.
    pub books_refused: Option<Name>,
    /// The windows in which it was traced; `None` where it is all the time, or never.
    pub windows: Option<WindowsView>,
    /// Whose its memory is.
    pub places: PlacesView,
}

/// Windows of tracing: what lines, stages and layers have is what was seen in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowsView {
    /// How many there were.
    pub windows: u64,
    /// How many more were not counted, since events of them were lost.
    pub discarded: u64,
    /// How long they were in all, nanoseconds.
    #[serde(serialize_with = "json::all_seconds")]
    pub open_ns: u64,
}

/// Whose the memory of one process is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlacesView {
    /// How many steps were seen to end: of the optimizer with most of them. `None` where none was: there was none, or nobody looked for them.
    pub steps: Option<u64>,
    /// Steps by the class of the optimizer: those of one class count together.
    pub optimizers: BTreeMap<String, u64>,
    /// Nodes of the backward graph that several threads may have made: their layer is not known.
    pub ambiguous_nodes: u64,
    /// By device of the process.
    #[serde(serialize_with = "json::apart")]
    pub devices: Vec<DevicePlacesView>,
    /// The last allocations that PyTorch could not make, oldest first.
    #[serde(serialize_with = "json::apart")]
    pub refusals: Vec<RefusalView>,
}

/// One device of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DevicePlacesView {
    /// The process's own number of it.
    pub device: i32,
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// What the allocator says that it has granted.
    pub allocated_bytes: u64,
    /// The most that it had granted, by its own count; `None` where it does not keep one.
    pub allocator_peak_bytes: Option<u64>,
    /// What of that is in no place, since events were lost; negative where frees were.
    pub unplaced_bytes: i64,
    /// All places together.
    #[serde(serialize_with = "json::apart")]
    pub total: SumView,
    /// By stage.
    #[serde(serialize_with = "json::apart")]
    pub stages: Vec<StageView>,
    /// By layer, those with most live bytes first.
    #[serde(serialize_with = "json::apart")]
    pub layers: Vec<LayerView>,
    /// By line, likewise.
    #[serde(serialize_with = "json::apart")]
    pub sites: Vec<SiteView>,
    /// By range that the program opened, likewise.
    #[serde(serialize_with = "json::apart")]
    pub phases: Vec<PhaseView>,
    /// The stacks with most live bytes.
    #[serde(serialize_with = "json::apart")]
    pub stacks: Vec<StackView>,
    /// Large blocks, largest first.
    #[serde(serialize_with = "json::apart")]
    pub large: Vec<LargeView>,
}

impl DevicePlacesView {
    /// The most that was allocated: by the allocator's own count where it keeps one, else the most that was seen.
    pub fn peak_bytes(&self) -> u64 {
        // The program may begin its peak again; but of what was not traced all the time, the allocator alone knows it.
        match self.allocator_peak_bytes {
            Some(own_bytes) if self.total.at_least => own_bytes,
            own => own.unwrap_or(0).max(self.total.peak_bytes),
        }
    }
}

/// What one place has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumView {
    /// Bytes of its live blocks.
    #[serde(serialize_with = "json::apart")]
    pub live_bytes: u64,
    /// The most there were; of a row for the rest at most this.
    pub peak_bytes: u64,
    /// What was live of it when the device's total was highest.
    pub at_peak_bytes: u64,
    /// Bytes of all its blocks since the attach.
    pub total_bytes: u64,
    /// Their number.
    pub allocations: u64,
    /// How many of them were freed.
    pub frees: u64,
    /// How long those had lived on average, nanoseconds; `None` where none was freed.
    #[serde(serialize_with = "json::seconds")]
    pub mean_lifetime_ns: Option<u64>,
    /// And the longest.
    #[serde(serialize_with = "json::seconds")]
    pub longest_lifetime_ns: Option<u64>,
    /// What all its blocks have come to, by the windows in which it was traced, or by those of its small blocks that were drawn; `None` where all of
    /// it is traced, and every block has a stack.
    #[serde(serialize_with = "json::apart")]
    pub sampled: Option<Estimate>,
    /// What its live blocks come to, by those of its small ones that were drawn; likewise.
    #[serde(serialize_with = "json::apart")]
    pub sampled_live: Option<Estimate>,
    /// Events of some time were not traced: there may have been more of everything but of live bytes.
    #[serde(serialize_with = "json::apart")]
    pub at_least: bool,
}

impl SumView {
    /// Whether there may have been more of everything but of live bytes: blocks were sampled, or events of some time were not traced.
    pub const fn is_lower_bound(&self) -> bool {
        self.at_least || self.sampled_live.is_some()
    }
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageView {
    /// `forward`, `backward`, `optimizer`, `outside`, `not_known` or `preexisting`.
    pub stage: Name,
    /// Computed again, since it was not kept for the backward pass.
    pub recomputed: bool,
    /// Allocated while a CUDA graph was captured.
    pub captured: bool,
    /// What it has.
    #[serde(serialize_with = "json::apart")]
    pub sum: SumView,
}

/// A layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerView {
    /// `module`, or `operator` for one of TensorFlow; `none`, `not_known`, `preexisting` or `rest` for the rows of what has none.
    pub kind: Name,
    /// The model's class, and `#2` and so on where there are several.
    pub model: Option<String>,
    /// As `named_modules()` has it; empty for the model itself, `None` where it is not found there. Of an operator its name: that of its kind where it runs
    /// at once, that of the graph's node in a `tf.function`; of a longer one `…` and its end.
    pub name: Option<String>,
    /// The module's class.
    pub class: Option<String>,
    /// What it has.
    #[serde(serialize_with = "json::apart")]
    pub sum: SumView,
    /// The same by stage; stages without any are left out.
    pub stages: BTreeMap<Name, StageBytesView>,
    /// How long threads were at work for it by the host's clock, nanoseconds: from its allocations to the thread's next, within a stage of a step.
    /// `None` where it has no such time.
    #[serde(serialize_with = "json::seconds")]
    pub host_duration_ns: Option<u64>,
    /// What was rounded up of its live blocks; `None` where what was asked for is not known of all of them.
    pub rounding_bytes: Option<u64>,
    /// Of all its blocks since the attach, likewise.
    pub total_rounding_bytes: Option<u64>,
    /// Free blocks that cannot be given back, in the segments in which its live blocks lie: also other layers'. `None` where those are not known.
    pub nearby_split_bytes: Option<u64>,
}

/// A layer's bytes in one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageBytesView {
    /// Of live blocks.
    pub live_bytes: u64,
    /// Of all its blocks since the attach.
    pub total_bytes: u64,
}

/// A line of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteView {
    /// `line`, or `backward_of` for the backward pass of what the line computed; `native` for a function in a thread without Python;
    /// `no_python`, `preexisting`, `rest`, and `not_asked`, `over_budget`, `unreadable`, `missing` or `not_sampled` (a small block, whose bytes are in
    /// the estimates of lines) where the stack is not known.
    pub kind: Name,
    /// The file; of a native function the name of that with its code.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The function.
    pub function: Option<String>,
    /// Of what is pre-existing: what it is by the process's memory; `None` where that does not say it.
    pub held: Option<HeldAs>,
    /// The lines of packages and of torch that it called, those with most live bytes first: they add up to what it has. Empty where it called none.
    #[serde(default)]
    pub library_lines: Vec<LibraryLineView>,
    /// What it has.
    #[serde(serialize_with = "json::apart")]
    pub sum: SumView,
}

/// A line of a package or of torch, by what was allocated in it for one line of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryLineView {
    /// `line`; `none` for what the program's line allocated itself, and `rest` for more lines than are listed.
    pub kind: Name,
    /// The file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The function.
    pub function: Option<String>,
    /// Bytes of its live blocks.
    #[serde(rename = "allocated_bytes")]
    pub live_bytes: u64,
    /// What was live of it when the device's total was highest.
    pub at_peak_bytes: u64,
    /// Bytes of all its blocks since the attach.
    pub total_bytes: u64,
}

/// A range that the program opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseView {
    /// `phase`; `none` for what is in none, `rest` for more names than are distinguished.
    pub kind: Name,
    /// Its name.
    pub name: Option<String>,
    /// Bytes of its blocks that were freed before the range ended in which they were allocated; `None` for what is in no range.
    pub temporary_bytes: Option<u64>,
    /// Their number.
    pub temporary_blocks: Option<u64>,
    /// The most that there was of them from a beginning of the range to its end, in bytes.
    pub most_temporary_bytes: Option<u64>,
    /// What it has.
    #[serde(serialize_with = "json::apart")]
    pub sum: SumView,
}

/// The ways to the memory of one device: all of them, so that they add up to its total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCallPaths {
    /// The process's own number of it.
    pub device: i32,
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// What the allocator has granted and is in no call path: see [`DevicePlacesView`].
    pub unplaced_bytes: i64,
    /// All call paths together.
    pub total: SumView,
    /// Those with most live bytes first.
    pub call_paths: Vec<CallPathView>,
}

/// The way to some blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPathView {
    /// The stage.
    pub stage: StageView,
    /// The line, or why there is none.
    pub site: SiteView,
    /// The Python stack, innermost frame first; empty where there is none.
    pub frames: Vec<FrameView>,
    /// There are more frames than these.
    pub truncated: bool,
}

/// A Python stack, or the native one of a thread without Python, which has no other frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackView {
    /// Innermost first.
    pub frames: Vec<FrameView>,
    /// There are more frames than these.
    pub truncated: bool,
    /// The same with native frames; `None` where the thread's stack was not copied. A Python stack's is as far as the allocations on it
    /// have the same, of which the first, the second, the fourth and so on of each thread are looked at.
    pub native: Option<NativeView>,
    /// What it has; of one that ran in several stages, `peak_bytes` is at most this.
    #[serde(serialize_with = "json::apart")]
    pub sum: SumView,
}

/// A frame of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameView {
    /// The file; `None` where the code could not be read.
    pub file: Option<String>,
    /// The line.
    pub line: Option<u32>,
    /// The function.
    pub function: Option<String>,
    /// The class of the module whose call it is.
    pub module: Option<String>,
}

/// A stack with native frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeView {
    /// Innermost first; frames of Python in the place of the interpreter's loop that they ran in.
    pub frames: Vec<MergedFrameView>,
    /// Why there are no more native frames: as in [`TensorsView::native_stacks`].
    pub end: Name,
    /// From this frame on native ones are missing; `None` where all are there.
    pub cut: Option<usize>,
    /// The loops of the interpreter that were found are not the ones that the Python frames ran in.
    pub mismatched: bool,
}

/// A frame of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedFrameView {
    /// `python`; `native`, or `interpreter` for a native function of the interpreter's own.
    pub kind: Name,
    /// The file: of a native frame the one that the code is from.
    pub file: Option<String>,
    /// The line; of a native frame it is not known.
    pub line: Option<u32>,
    /// The function, of a native frame with the types of its parameters; `None` where it has no symbol.
    pub function: Option<String>,
    /// The function without those types.
    pub name: Option<String>,
    /// Of a native frame: the address in its file, before relocation.
    pub address: Option<u64>,
    /// The class of the module whose call it is.
    pub module: Option<String>,
}

/// A large block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargeView {
    /// Its address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Since when it is there: `CLOCK_BOOTTIME`, nanoseconds; `None` for longer than it is watched.
    #[serde(serialize_with = "json::date")]
    pub granted_ns: Option<u64>,
    /// Whose it is.
    #[serde(serialize_with = "json::apart")]
    pub whose: WhoseView,
}

/// An allocation that PyTorch could not make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// The process's own number of the device.
    pub device: i32,
    /// What was wanted.
    #[serde(serialize_with = "json::requested_bytes")]
    pub wanted_bytes: u64,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// Whose it would have been.
    #[serde(serialize_with = "json::apart")]
    pub whose: WhoseView,
}

/// Whose one block is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhoseView {
    /// As in [`StageView`].
    pub stage: Name,
    /// What reported the stage: `node`, `range`, `frames` or `none`.
    pub by: Name,
    /// Steps done by then.
    pub step: u64,
    /// Where: as in [`SiteView`].
    pub site: PlaceNameView,
    /// The line of a package or of torch that it called, such as `/…/site-packages/torch/_utils.py:12 f`; `None` where it called none.
    #[serde(default)]
    pub library: Option<String>,
    /// For which module: as in [`LayerView`].
    pub layer: PlaceNameView,
}

/// A place in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceNameView {
    /// As in [`SiteView`] or [`LayerView`].
    pub kind: Name,
    /// `train.py:12 main`, or `Net layers.0.fc1 Linear`; `None` where the kind says all.
    pub name: Option<String>,
}
