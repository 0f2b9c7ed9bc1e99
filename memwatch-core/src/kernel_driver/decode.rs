//! Decodes the result of an ioctl to the kernel driver. This is the only file that contains offsets
//! into ioctl arguments.
//!
//! Layouts: `nvos.h`, `cl0080.h`, `ctrl2080gpu.h` of NVIDIA's open-gpu-kernel-modules, 515.43.04 to
//! 595.45.04. An ioctl that breaks a rule common to all layouts is a [`RmViolation`]; its meaning is
//! not guessed.

use memwatch_common::rm::{
    Does, FLAG_ARGUMENT_UNREADABLE, FLAG_ASKED_UNREADABLE, FLAG_PARAMS_UNREADABLE, PARAMS_OFFSET, RmPlan,
    RmStatusOffset, plan,
};
use serde::{Deserialize, Serialize};

use crate::input::rm::RmCall;
use crate::words::GpuUuid;

/// All sizes are whole pages.
const PAGE_BYTES: u64 = 4096;
/// NV_ERR_NO_MEMORY (nvstatuscodes.h).
const NO_MEMORY: u32 = 0x51;
/// NVOS32_ALLOC_FLAGS_VIRTUAL: an address range without memory.
const VIRTUAL: u32 = 0x8_0000;
/// NV2080_CTRL_CMD_GPU_GET_GID_INFO, the form of NV0000_CTRL_CMD_GPU_GET_GID_INFO for a subdevice,
/// and the bit of its flags that selects sixteen bytes instead of text.
const GET_GID_INFO: u32 = 0x2080_014a;
const GID_BINARY: u32 = 2;
/// Length of a UUID as text: `GPU-` and sixteen hexadecimal bytes with four hyphens.
const GID_TEXT_BYTES: usize = 40;

/// Object classes (`cl*.h`).
const CLIENTS: [u32; 3] = [0x0, 0x1, 0x41];
const SYSTEM_MEMORY: u32 = 0x3e;
const VIDEO_MEMORY: u32 = 0x40;
const OS_DESCRIPTOR: u32 = 0x71;
const DEVICE: u32 = 0x80;
const SUBDEVICE: u32 = 0x2080;
const GPU_INSTANCE: u32 = 0xc637;
const COMPUTE_INSTANCE: u32 = 0xc638;

/// Functions of VID_HEAP_CONTROL.
const HEAP_ALLOCATE: u32 = 2;
const HEAP_FREE: u32 = 3;
const HEAP_OS_DESCRIPTOR: u32 = 27;

/// Identifies a live object of the kernel driver: its client's number, which is unique on the
/// machine, and its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// Client (`hClient`).
    pub client: u32,
    /// Object (`hObject`); the number of the client if the object is a client itself.
    pub object: u32,
}

/// Location of memory, and owner of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lies {
    /// Video memory of a GPU, which NVML charges.
    Video,
    /// Host memory, pages of the driver.
    DriverHost,
    /// Host memory, pinned pages of the process.
    PinnedHost,
}

/// Memory as requested and granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedMemory {
    /// Location of the memory.
    pub lies: Lies,
    /// Requested size, bytes; `None` if it could not be read.
    pub asked_bytes: Option<u64>,
    /// Granted size, bytes.
    pub granted_bytes: u64,
    /// Whether COHERENCY (bits 31:29 of `attr`) is 1. libcuda requests this for memory of pools and
    /// of `cuMemCreate`.
    pub coherency_1: bool,
}

/// Kind of a new object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New {
    /// A client.
    Client,
    /// A GPU, as a client sees it.
    Device,
    /// One GPU of a device, for devices made of several linked GPUs.
    Subdevice,
    /// A MIG instance, by NVML's GPU instance id.
    GpuInstance(u32),
    /// A compute instance of a MIG instance, by NVML's compute instance id.
    ComputeInstance(u32),
    /// Memory.
    Memory(GrantedMemory),
    /// An object of any other class.
    Other(u32),
}

/// Result of an ioctl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RmEvent {
    /// An object was created.
    Made {
        /// Key of the object.
        key: ObjectKey,
        /// Parent object.
        parent: u32,
        /// Kind of the object.
        new: New,
    },
    /// An object was freed, with all its descendants.
    Freed(ObjectKey),
    /// An object was duplicated.
    Duplicated {
        /// Key of the duplicate.
        key: ObjectKey,
        /// Parent of the duplicate.
        parent: u32,
        /// Key of the original.
        source: ObjectKey,
    },
    /// An allocation failed for lack of memory.
    Refused {
        /// Requesting client and intended parent.
        parent: ObjectKey,
        /// Requested location.
        lies: Lies,
        /// Requested size, bytes; `None` if it could not be read.
        asked_bytes: Option<u64>,
    },
    /// The GPU of a subdevice was queried.
    Named {
        /// Subdevice.
        key: ObjectKey,
        /// UUID of the GPU.
        uuid: GpuUuid,
    },
    /// Memory was mapped.
    Mapped {
        /// First address.
        base: u64,
        /// Size, bytes.
        bytes: u64,
        /// Mapped memory object, as decoded with each of the two possible layouts.
        candidates: [ObjectKey; 2],
    },
    /// A mapping was removed.
    Unmapped {
        /// First address.
        base: u64,
    },
    /// The ioctl is not relevant.
    Nothing,
}

/// Reason why an ioctl's result cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RmViolation {
    /// Number and size match no known layout.
    Layout,
    /// The argument could not be read, so the result is unknown.
    Unreadable,
    /// The client number is outside the valid ranges.
    Client,
    /// The size is 0, smaller than requested, or not a multiple of the page size.
    Size,
    /// The size exceeds the memory of every GPU of the machine.
    TooLarge,
    /// The location is invalid.
    Location,
    /// The parent is neither a device nor a subdevice.
    Parent,
}

impl RmViolation {
    /// Reason as the end of a sentence, for display.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Layout => "an ioctl has a size that no known driver has",
            Self::Unreadable => "an ioctl could not be read",
            Self::Client => "a client number is invalid",
            Self::Size => "a granted size is smaller than requested or not a whole number of pages",
            Self::TooLarge => "a size is more than any GPU has",
            Self::Location => "a memory object has an invalid location",
            Self::Parent => "the parent of a memory object is not a device",
        }
    }
}

/// Decodes the result of a call for this branch of the kernel driver (such as 580).
///
/// # Errors
/// If the call breaks a rule that all known layouts share.
pub fn decode(call: &RmCall, branch: Option<u32>) -> Result<RmEvent, RmViolation> {
    let plan = *plan(call.nr, call.size).ok_or(RmViolation::Layout)?;
    if call.flags & FLAG_ARGUMENT_UNREADABLE != 0 {
        // Mapped addresses only refine the result, so a lost mapping does no harm.
        let matters = !matches!(plan.does, Does::Map | Does::Unmap | Does::Control);
        return if matters { Err(RmViolation::Unreadable) } else { Ok(RmEvent::Nothing) };
    }
    if call.answer != 0 {
        return Ok(RmEvent::Nothing);
    }
    match (status(call, plan, branch), plan.does) {
        (0, does) => success(call, does),
        (NO_MEMORY, does) => Ok(refused(call, does)),
        _ => Ok(RmEvent::Nothing),
    }
}

/// Returns the status word. If two offsets are possible, the driver's branch decides: ALLOC of 40
/// bytes uses the second offset from branch 525, ALLOC of 32 bytes from 535. Without a known
/// branch, both words must be 0.
fn status(call: &RmCall, plan: RmPlan, branch: Option<u32>) -> u32 {
    let word = |at: u8| call.word(usize::from(at));
    match plan.status {
        RmStatusOffset::At(at) => word(at),
        RmStatusOffset::OneOf(first, second) => {
            let moved = if plan.size == 40 { 525 } else { 535 };
            match branch {
                Some(branch) if branch >= moved => word(second),
                Some(_) => word(first),
                None => word(first).max(word(second)),
            }
        }
        RmStatusOffset::None => 0,
    }
}

fn success(call: &RmCall, does: Does) -> Result<RmEvent, RmViolation> {
    let key = ObjectKey { client: call.word(0), object: call.word(8) };
    let parent = call.word(4);
    match does {
        Does::Alloc => made(call),
        Does::AllocMemory => {
            let lies = match call.word(12) {
                OS_DESCRIPTOR => Lies::PinnedHost,
                SYSTEM_MEMORY => Lies::DriverHost,
                class => return valid(RmEvent::Made { key, parent, new: New::Other(class) }, key),
            };
            let new = New::Memory(pages(lies, call.long(32)));
            valid(RmEvent::Made { key, parent, new }, key)
        }
        Does::Free => Ok(RmEvent::Freed(key)),
        Does::Heap => heap(call),
        Does::Dup => {
            let source = ObjectKey { client: call.word(12), object: call.word(16) };
            valid(RmEvent::Duplicated { key, parent, source }, key)
        }
        Does::Control => Ok(named(call)),
        Does::Map => {
            let at = |client, object| ObjectKey { client: call.word(client), object: call.word(object) };
            Ok(RmEvent::Mapped { base: call.long(0), bytes: call.long(8), candidates: [at(24, 28), at(32, 36)] })
        }
        Does::Unmap => Ok(RmEvent::Unmapped { base: call.long(0) }),
    }
}

/// Checks the client number: RS_CLIENT_HANDLE_BASE, or RS_CLIENT_VF_HANDLE_BASE in a virtual
/// machine with a part of a GPU (resserv.h).
fn valid(event: RmEvent, key: ObjectKey) -> Result<RmEvent, RmViolation> {
    let is_client = key.client >> 20 == 0xc1d || key.client >> 28 == 0xe;
    if is_client { Ok(event) } else { Err(RmViolation::Client) }
}

fn made(call: &RmCall) -> Result<RmEvent, RmViolation> {
    let (object, class) = (call.word(8), call.word(12));
    if CLIENTS.contains(&class) {
        let key = ObjectKey { client: object, object };
        return valid(RmEvent::Made { key, parent: 0, new: New::Client }, key);
    }
    let key = ObjectKey { client: call.word(0), object };
    let new = match class {
        DEVICE => New::Device,
        SUBDEVICE => New::Subdevice,
        GPU_INSTANCE => New::GpuInstance(call.param(8)),
        COMPUTE_INSTANCE => New::ComputeInstance(call.param(8)),
        _ if call.flags & FLAG_PARAMS_UNREADABLE != 0 => return Err(RmViolation::Unreadable),
        SYSTEM_MEMORY | VIDEO_MEMORY if call.param(8) & VIRTUAL == 0 => New::Memory(granted(call, class)?),
        OS_DESCRIPTOR => New::Memory(pages(Lies::PinnedHost, call.long_param(24))),
        class => New::Other(class),
    };
    valid(RmEvent::Made { key, parent: call.word(4), new }, key)
}

/// NV_MEMORY_ALLOCATION_PARAMS: `attr` at offset 24, size at offset 64.
fn granted(call: &RmCall, class: u32) -> Result<GrantedMemory, RmViolation> {
    sized(call, lies(class, call.param(24))?, call.param(24), call.long_param(64))
}

fn asked(call: &RmCall) -> Option<u64> {
    (call.flags & FLAG_ASKED_UNREADABLE == 0).then_some(call.asked_bytes)
}

fn sized(call: &RmCall, lies: Lies, attr: u32, granted_bytes: u64) -> Result<GrantedMemory, RmViolation> {
    let asked_bytes = asked(call);
    let is_enough = asked_bytes.is_none_or(|asked| (1..=granted_bytes).contains(&asked));
    if granted_bytes == 0 || !granted_bytes.is_multiple_of(PAGE_BYTES) || !is_enough {
        return Err(RmViolation::Size);
    }
    Ok(GrantedMemory { lies, asked_bytes, granted_bytes, coherency_1: attr >> 29 == 1 })
}

/// LOCATION, bits 26:25 of `attr`: 0 is video memory, 1 host memory, 3 any.
fn lies(class: u32, attr: u32) -> Result<Lies, RmViolation> {
    match (class, (attr >> 25) & 3) {
        (_, 2) => Err(RmViolation::Location),
        (VIDEO_MEMORY, 0) => Ok(Lies::Video),
        _ => Ok(Lies::DriverHost),
    }
}

/// Describes pinned pages, given the offset of their last byte.
const fn pages(lies: Lies, limit: u64) -> GrantedMemory {
    let granted_bytes = limit.saturating_add(1);
    GrantedMemory { lies, asked_bytes: Some(granted_bytes), granted_bytes, coherency_1: false }
}

fn heap(call: &RmCall) -> Result<RmEvent, RmViolation> {
    let (client, parent) = (call.word(0), call.word(4));
    match call.word(8) {
        HEAP_ALLOCATE if call.word(52) & VIRTUAL == 0 => {
            let (key, attr) = (ObjectKey { client, object: call.word(44) }, call.word(56));
            // The answer overwrites the requested size, which is not read at the entry.
            let unread = RmCall { flags: call.flags | FLAG_ASKED_UNREADABLE, ..RmCall::default() };
            let granted = sized(&unread, lies(VIDEO_MEMORY, attr)?, attr, call.long(88))?;
            valid(RmEvent::Made { key, parent, new: New::Memory(granted) }, key)
        }
        HEAP_OS_DESCRIPTOR => {
            let key = ObjectKey { client, object: call.word(40) };
            let new = New::Memory(pages(Lies::PinnedHost, call.long(72)));
            valid(RmEvent::Made { key, parent, new }, key)
        }
        HEAP_FREE => Ok(RmEvent::Freed(ObjectKey { client, object: call.word(44) })),
        _ => Ok(RmEvent::Nothing),
    }
}

fn refused(call: &RmCall, does: Does) -> RmEvent {
    let (class, attr) = (call.word(12), call.param(24));
    let parent = ObjectKey { client: call.word(0), object: call.word(4) };
    let lies = match does {
        Does::Alloc if matches!(class, VIDEO_MEMORY | SYSTEM_MEMORY) && call.param(8) & VIRTUAL == 0 => {
            lies(class, attr).unwrap_or(Lies::Video)
        }
        Does::AllocMemory if class == OS_DESCRIPTOR => {
            let asked_bytes = Some(call.long(32).saturating_add(1));
            return RmEvent::Refused { parent, lies: Lies::PinnedHost, asked_bytes };
        }
        _ => return RmEvent::Nothing,
    };
    RmEvent::Refused { parent, lies, asked_bytes: asked(call).filter(|bytes| *bytes > 0) }
}

/// GET_GID_INFO: flags at offset 4, length at 8, data at 12.
fn named(call: &RmCall) -> RmEvent {
    if call.word(8) != GET_GID_INFO || call.flags & FLAG_PARAMS_UNREADABLE != 0 {
        return RmEvent::Nothing;
    }
    let key = ObjectKey { client: call.word(0), object: call.word(4) };
    let data = PARAMS_OFFSET + 12;
    if call.param(4) & GID_BINARY != 0 {
        let bytes: [u8; 16] = call.bytes(data);
        return if bytes == [0; 16] {
            RmEvent::Nothing
        } else {
            RmEvent::Named { key, uuid: GpuUuid::from_bytes(bytes) }
        };
    }
    let text: [u8; GID_TEXT_BYTES] = call.bytes(data);
    let is_uuid = |text: &&str| text.starts_with("GPU-") && text.bytes().all(|byte| byte.is_ascii_graphic());
    match core::str::from_utf8(&text).ok().filter(is_uuid) {
        Some(text) => {
            RmEvent::Named { key, uuid: GpuUuid::new(&text.to_ascii_lowercase().replacen("gpu-", "GPU-", 1)) }
        }
        None => RmEvent::Nothing,
    }
}

#[cfg(test)]
#[path = "tests/decode.rs"]
mod tests;
