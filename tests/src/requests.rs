//! Requests that the simulated libcuda made of the simulated kernel driver, read from its journal
//! (`GPUSIM_RM_LOG`).
//!
//! The columns are those of `tests/gpusim/device/journal.h`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

/// Allocates an object (RM_ALLOC).
pub const ALLOC: u32 = 0x2b;
/// Pins host memory (RM_ALLOC_MEMORY).
pub const ALLOC_MEMORY: u32 = 0x27;
/// Frees an object and all its descendants (RM_FREE).
pub const FREE: u32 = 0x29;
/// Duplicates another process's object (RM_DUP_OBJECT).
pub const DUP: u32 = 0x34;
/// Allocates or frees video memory (RM_VID_HEAP_CONTROL).
pub const HEAP: u32 = 0x4a;
/// Sends a control command (RM_CONTROL).
pub const CONTROL: u32 = 0x2a;
/// Maps memory (UVM_MAP_EXTERNAL_ALLOCATION).
pub const MAP: u32 = 33;

/// Ends a mapping within an address range that remains (UVM_UNMAP_EXTERNAL).
pub const UNMAP_PART: u32 = 66;

/// Class of video memory (NV01_MEMORY_LOCAL_USER).
pub const VIDEO_MEMORY: u32 = 0x40;
/// Class of the driver's own host memory (NV01_MEMORY_SYSTEM).
pub const HOST_MEMORY: u32 = 0x3e;
/// Class of a process's pinned pages (NV01_MEMORY_SYSTEM_OS_DESCRIPTOR).
pub const PINNED_MEMORY: u32 = 0x71;

/// One request, logged when it returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    /// Process id.
    pub tgid: u32,
    /// Request number; for UVM the whole ioctl request.
    pub number: u32,
    /// Size of the argument in bytes; 0 for UVM.
    pub bytes: u32,
    /// Whether the request was wrapped in another one.
    pub is_wrapped: bool,
    /// Class of the object, or the command of a control request.
    pub class: u32,
    /// Client handle.
    pub client: u32,
    /// Handle of the object's parent.
    pub parent: u32,
    /// Handle of the object.
    pub object: u32,
    /// Requested bytes.
    pub asked_bytes: u64,
    /// Bytes granted.
    pub granted_bytes: u64,
    /// Status; 0 is success.
    pub status: u32,
    /// Return value of the ioctl.
    pub answer: i32,
    /// Address of the mapping.
    pub address: u64,
    /// Length of the mapping in bytes.
    pub length: u64,
    /// Client and object that a duplicate was made of.
    pub source: (u32, u32),
}

impl LoggedRequest {
    /// Returns whether the request succeeded.
    pub const fn is_granted(&self) -> bool {
        self.answer == 0 && self.status == 0
    }

    /// Returns whether the request allocates video memory.
    pub const fn is_video_memory(&self) -> bool {
        self.class == VIDEO_MEMORY && (self.number == ALLOC || (self.number == HEAP && self.asked_bytes > 0))
    }

    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let hexadecimal = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
        let decimal = |index: usize| fields.get(index)?.parse().ok();
        Some(Self {
            tgid: fields.first()?.parse().ok()?,
            number: hexadecimal(1)?,
            bytes: fields.get(2)?.parse().ok()?,
            is_wrapped: *fields.get(3)? == "wrapped",
            class: hexadecimal(4)?,
            client: hexadecimal(5)?,
            parent: hexadecimal(6)?,
            object: hexadecimal(7)?,
            asked_bytes: decimal(8)?,
            granted_bytes: decimal(9)?,
            status: hexadecimal(10)?,
            answer: fields.get(11)?.parse().ok()?,
            address: u64::from_str_radix(fields.get(12)?, 16).ok()?,
            length: decimal(13)?,
            source: (hexadecimal(14)?, hexadecimal(15)?),
        })
    }
}

/// Reads a journal. The file does not exist if no request was made; that gives an empty list.
///
/// # Panics
/// When a line cannot be parsed.
pub fn read(path: &Path) -> Vec<LoggedRequest> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| LoggedRequest::parse(line).unwrap_or_else(|| panic!("no request: {line}"))).collect()
}

/// Returns the bytes of video memory that are still allocated after the requests of one process,
/// given in the order in which they returned.
pub fn live_bytes(requests: &[LoggedRequest]) -> u64 {
    let mut live: HashMap<(u32, u32), u64> = HashMap::new();
    let mut below: HashMap<(u32, u32), HashSet<(u32, u32)>> = HashMap::new();
    for request in requests.iter().filter(|request| request.is_granted()) {
        let key = (request.client, request.object);
        let is_made = matches!(request.number, ALLOC | ALLOC_MEMORY | DUP) || request.is_video_memory();
        if is_made && request.client != request.object {
            below.entry((request.client, request.parent)).or_default().insert(key);
        }
        if request.is_video_memory() {
            live.insert(key, request.granted_bytes);
        }
        if matches!(request.number, FREE | HEAP) && !request.is_video_memory() {
            let mut gone = vec![key];
            while let Some(key) = gone.pop() {
                live.remove(&key);
                gone.extend(below.remove(&key).unwrap_or_default());
            }
        }
    }
    live.values().sum()
}
