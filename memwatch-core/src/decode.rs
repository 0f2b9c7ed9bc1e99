//! Records become calls. The only file that knows argument positions.

use memwatch_common::probes::{self, ArrayShape, LinearKind, LinearSize, Meaning, Probe};
use memwatch_common::record::{CallRecord, FLAG_OUT_UNREADABLE, FLAG_PEEK_UNREADABLE};

use crate::words::{ContextHandle, Ordinal, Span, Tgid, Tid};

/// A returned call with its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The calling process.
    pub tgid: Tgid,
    /// The calling thread.
    pub tid: Tid,
    /// The function.
    pub symbol: &'static str,
    /// `CLOCK_BOOTTIME` at entry, nanoseconds.
    pub entered_ns: u64,
    /// `CLOCK_BOOTTIME` at return, nanoseconds.
    pub returned_ns: u64,
    /// `CUresult`; 0 is success.
    pub status: i32,
    /// What it asked for.
    pub action: Action,
}

impl Call {
    /// When it was inside the driver.
    pub const fn span(&self) -> Span {
        Span { entered_ns: self.entered_ns, returned_ns: self.returned_ns }
    }
}

/// Where physical memory lies: `CUmemLocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// On the device with this ordinal.
    Device(Ordinal),
    /// In host memory.
    Host,
    /// The struct could not be read, or names a type this version does not know.
    Unknown,
}

/// What a call asked for. Words that only a successful call yields (addresses, handles) are 0 in a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the words of the dictionary")]
pub enum Action {
    /// A linear grant.
    Allocate { kind: LinearKind, address: u64, bytes: u64 },
    /// Free of a device-side address of any kind.
    Free { address: u64 },
    /// Free of pinned host memory.
    FreeHost { address: u64 },
    /// Page-locks an existing host range.
    RegisterHost { address: u64, bytes: u64 },
    /// Ends that.
    UnregisterHost { address: u64 },
    /// Stream-ordered grant; without a pool from the current one of the device.
    AllocateFromPool { address: u64, bytes: u64, pool: Option<u64> },
    /// Physical memory.
    CreatePhysical { handle: u64, bytes: u64, location: Location },
    /// A handle reference less.
    ReleasePhysical { handle: u64 },
    /// A handle reference more, on the memory that is mapped at an address.
    RetainPhysical { handle: u64, address: u64 },
    /// A handle to another owner's memory.
    ImportPhysical { handle: u64 },
    /// A mapping more.
    Map { address: u64, bytes: u64, handle: u64 },
    /// All mappings in a range less.
    Unmap { address: u64, bytes: u64 },
    /// Another process's memory becomes visible here.
    OpenAlias { address: u64 },
    /// And no longer.
    CloseAlias { address: u64 },
    /// An array; its size is an estimate from its shape.
    CreateArray { handle: u64, estimated_bytes: u64 },
    /// An array less.
    DestroyArray { handle: u64 },
    /// A primary context reference more.
    RetainPrimary { context: ContextHandle, device: Ordinal },
    /// A primary context reference less.
    ReleasePrimary { device: Ordinal },
    /// A primary context torn down.
    ResetPrimary { device: Ordinal },
    /// A new context, current on the thread.
    CreateContext { context: ContextHandle, device: Ordinal },
    /// A context torn down.
    DestroyContext { context: ContextHandle },
    /// The thread's current context replaced; `None` pops.
    SetContext { context: Option<ContextHandle> },
    /// The thread's context stack grows.
    PushContext { context: ContextHandle },
    /// The thread's context stack shrinks.
    PopContext,
    /// The program learnt a device's UUID, and so do we.
    DeviceUuid { device: Ordinal, uuid: [u8; 16] },
}

impl Action {
    /// The bytes asked for, where the call is one whose failure means that memory was not to be had.
    pub const fn requested_bytes(&self) -> Option<u64> {
        match *self {
            Self::Allocate { bytes, .. }
            | Self::AllocateFromPool { bytes, .. }
            | Self::CreatePhysical { bytes, .. }
            | Self::CreateArray { estimated_bytes: bytes, .. } => Some(bytes),
            _ => None,
        }
    }
}

/// A record this version has no meaning for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The probe id stands in no row.
    #[error("record of probe {0}, which is not in the table")]
    UnknownProbe(u16),
    /// The call succeeded, but the address or handle it yielded could not be read.
    #[error("the result of {0} could not be read")]
    ResultUnreadable(&'static str),
}

/// Reads a record's meaning from its row.
///
/// # Errors
/// [`DecodeError`]; the call's effect is then unknown.
pub fn decode(record: &CallRecord) -> Result<Call, DecodeError> {
    let probe = probes::by_id(record.probe).ok_or(DecodeError::UnknownProbe(record.probe))?;
    let unreadable = record.flags & FLAG_OUT_UNREADABLE != 0;
    if record.status == 0 && unreadable && !matches!(probe.meaning, Meaning::PopContext) {
        return Err(DecodeError::ResultUnreadable(probe.symbol));
    }
    Ok(Call {
        tgid: Tgid(record.tgid),
        tid: Tid(record.tid),
        symbol: probe.symbol,
        entered_ns: record.entered_ns,
        returned_ns: record.returned_ns,
        status: record.status,
        action: action(probe, record),
    })
}

fn action(probe: &Probe, record: &CallRecord) -> Action {
    let args = &record.args;
    let out = record.out[0];
    match probe.meaning {
        Meaning::Allocate { kind, size } => Action::Allocate { kind, address: out, bytes: linear_bytes(size, record) },
        Meaning::Free | Meaning::FreeAsync => Action::Free { address: args[0] },
        Meaning::FreeHost => Action::FreeHost { address: args[0] },
        Meaning::RegisterHost => Action::RegisterHost { address: args[0], bytes: args[1] },
        Meaning::UnregisterHost => Action::UnregisterHost { address: args[0] },
        Meaning::AllocateFromPool { pool, stream: _ } => {
            Action::AllocateFromPool { address: out, bytes: args[1], pool: pool.map(|index| argument(record, index)) }
        }
        Meaning::CreatePhysical => Action::CreatePhysical { handle: out, bytes: args[1], location: location(record) },
        Meaning::ReleasePhysical => Action::ReleasePhysical { handle: args[0] },
        Meaning::RetainPhysical => Action::RetainPhysical { handle: out, address: args[1] },
        Meaning::ImportPhysical => Action::ImportPhysical { handle: out },
        Meaning::Map => Action::Map { address: args[0], bytes: args[1], handle: args[3] },
        Meaning::Unmap => Action::Unmap { address: args[0], bytes: args[1] },
        Meaning::OpenAlias => Action::OpenAlias { address: out },
        Meaning::CloseAlias => Action::CloseAlias { address: args[0] },
        Meaning::CreateArray(shape) => Action::CreateArray { handle: out, estimated_bytes: array_bytes(shape, record) },
        Meaning::DestroyArray => Action::DestroyArray { handle: args[0] },
        _ => context_action(probe.meaning, record),
    }
}

fn context_action(meaning: Meaning, record: &CallRecord) -> Action {
    let args = &record.args;
    let context = ContextHandle(args[0]);
    let created = ContextHandle(record.out[0]);
    match meaning {
        Meaning::RetainPrimary => Action::RetainPrimary { context: created, device: ordinal(args[1]) },
        Meaning::ReleasePrimary => Action::ReleasePrimary { device: ordinal(args[0]) },
        Meaning::ResetPrimary => Action::ResetPrimary { device: ordinal(args[0]) },
        Meaning::CreateContext { device } => {
            Action::CreateContext { context: created, device: ordinal(argument(record, device)) }
        }
        Meaning::DestroyContext => Action::DestroyContext { context },
        Meaning::SetContext => Action::SetContext { context: (args[0] != 0).then_some(context) },
        Meaning::PushContext => Action::PushContext { context },
        Meaning::DeviceUuid => {
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(&record.out[0].to_le_bytes());
            uuid[8..].copy_from_slice(&record.out[1].to_le_bytes());
            Action::DeviceUuid { device: ordinal(args[1]), uuid }
        }
        _ => Action::PopContext,
    }
}

fn argument(record: &CallRecord, index: u8) -> u64 {
    record.args.get(usize::from(index)).copied().unwrap_or(0)
}

/// The low four bytes of a register: the upper half of a 32-bit argument is undefined.
fn low_u32(register: u64) -> u32 {
    let [a, b, c, d, ..] = register.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn ordinal(register: u64) -> Ordinal {
    Ordinal(low_u32(register).cast_signed())
}

fn linear_bytes(size: LinearSize, record: &CallRecord) -> u64 {
    match size {
        LinearSize::Argument(index) => argument(record, index),
        LinearSize::Pitched { height } => {
            // A failed call yields no pitch: the width in bytes (argument 2) is then the best known lower bound of it.
            let pitch = if record.status == 0 { record.out[1] } else { record.args[2] };
            pitch.saturating_mul(argument(record, height))
        }
    }
}

/// `CUmemLocation` in one word: the type in the low half, the id in the high half (cuda.h 13.5).
fn location(record: &CallRecord) -> Location {
    if record.flags & FLAG_PEEK_UNREADABLE != 0 {
        return Location::Unknown;
    }
    let id = low_u32(record.peek[0] >> 32);
    match low_u32(record.peek[0]) {
        1 => Location::Device(Ordinal(id.cast_signed())),
        2..=4 => Location::Host,
        // DEVICE_LOCALITY_DOMAIN: the device is the low byte of the id.
        6 => Location::Device(Ordinal(id.cast_signed() & 0xFF)),
        _ => Location::Unknown,
    }
}

/// `CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING` (cuda.h): no memory comes with the array.
const ARRAY_WITHOUT_MEMORY: u32 = 0x40 | 0x80;

/// Elements times element size, as cuda-driver's descriptors give them; the driver pads and tiles beyond that.
fn array_bytes(shape: ArrayShape, record: &CallRecord) -> u64 {
    let [width, height, third, fourth, fifth] = record.peek;
    let (depth, format_and_channels, flags) = match shape {
        ArrayShape::Flat => (1, third, 0),
        ArrayShape::Solid | ArrayShape::Mipmapped => (third, fourth, low_u32(fifth)),
    };
    if flags & ARRAY_WITHOUT_MEMORY != 0 {
        return 0;
    }
    let element_bits = element_bits(low_u32(format_and_channels), low_u32(format_and_channels >> 32));
    let bits = [height.max(1), depth.max(1), element_bits].iter().fold(width, |bits, n| bits.saturating_mul(*n));
    let level = bits.div_ceil(8);
    match shape {
        // Each further level has an eighth to a quarter of the one before; a third more is the usual bound.
        ArrayShape::Mipmapped if low_u32(record.args[2]) > 1 => level.saturating_add(level / 3),
        _ => level,
    }
}

/// Bits of an array element, by `CUarray_format` (cuda.h). A block-compressed format (BC1 to BC7) stands for the whole element, any
/// other for one channel; planar video formats count as bytes.
fn element_bits(format: u32, channels: u32) -> u64 {
    let channels = u64::from(channels);
    match format {
        0x91 | 0x92 | 0x97 | 0x98 => 4,
        0x93..=0x96 | 0x99..=0x9e => 8,
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => 16 * channels,
        0x03 | 0x0a | 0x20 => 32 * channels,
        _ => 8 * channels,
    }
}

#[cfg(test)]
#[path = "tests/decode.rs"]
mod tests;
