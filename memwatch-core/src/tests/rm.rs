//! Builds ioctls to the kernel driver for tests.

use memwatch_common::probes::PROBES;
use memwatch_common::rm::PARAMS_OFFSET;

use crate::input::Input;
use crate::input::rm::{Inside, RmCall};
use crate::words::{Tgid, Tid};

/// Layout of ALLOC in a version of the kernel driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocLayout {
    pub(crate) version: &'static str,
    size: u16,
    status_at: usize,
    /// Offset of the flags, in versions that moved the status to make place for them.
    flags_at: Option<usize>,
}

/// The four existing layouts, and NVOS21 of the newest version.
pub(crate) const LAYOUTS: [AllocLayout; 5] = [
    AllocLayout { version: "515.105.01", size: 40, status_at: 32, flags_at: None },
    AllocLayout { version: "530.41.03", size: 40, status_at: 36, flags_at: Some(32) },
    AllocLayout { version: "535.274.02", size: 48, status_at: 40, flags_at: Some(36) },
    AllocLayout { version: "580.159.04", size: 48, status_at: 40, flags_at: Some(36) },
    AllocLayout { version: "580.159.04", size: 32, status_at: 28, flags_at: Some(24) },
];
/// Layout in the measurements.
pub(crate) const NEWEST: AllocLayout = LAYOUTS[3];

/// An ioctl.
#[derive(Clone, Debug)]
pub(crate) struct Rm(pub(crate) RmCall);

impl Rm {
    pub(crate) fn new(nr: u8, size: u16) -> Self {
        Self(RmCall { tgid: Tgid(7), tid: Tid(7), nr, size, payload: Vec::new(), ..RmCall::default() })
    }

    pub(crate) fn word(self, at: usize, word: u32) -> Self {
        self.bytes(at, &word.to_le_bytes())
    }

    pub(crate) fn long(self, at: usize, long: u64) -> Self {
        self.bytes(at, &long.to_le_bytes())
    }

    pub(crate) fn bytes(mut self, at: usize, bytes: &[u8]) -> Self {
        let payload = &mut self.0.payload;
        payload.resize(payload.len().max(at + bytes.len()), 0);
        payload[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn param(self, at: usize, word: u32) -> Self {
        self.word(PARAMS_OFFSET + at, word)
    }

    pub(crate) fn process(mut self, tgid: u32) -> Self {
        (self.0.tgid, self.0.tid) = (Tgid(tgid), Tid(tgid));
        self
    }

    pub(crate) fn at(mut self, entered_ns: u64, returned_ns: u64) -> Self {
        (self.0.entered_ns, self.0.returned_ns) = (entered_ns, returned_ns);
        self
    }

    /// Places the request within a call of this libcuda function, if the function is probed.
    pub(crate) fn inside(mut self, symbol: &str, entered_ns: u64) -> Self {
        let row = PROBES.iter().find(|probe| probe.symbol == symbol);
        self.0.inside = row.map(|probe| Inside { probe: probe.id, entered_ns });
        self
    }

    pub(crate) fn stack(mut self, id: u64) -> Self {
        self.0.stack = id;
        self
    }

    pub(crate) fn refused(self, layout: AllocLayout, status: u32) -> Self {
        self.word(layout.status_at, status)
    }

    pub(crate) fn input(&self) -> Input {
        Input::Rm(Box::new(self.0.clone()))
    }
}

/// RM_ALLOC of an object.
pub(crate) fn made(layout: AllocLayout, (client, parent, object): (u32, u32, u32), class: u32) -> Rm {
    let rm = Rm::new(0x2b, layout.size).word(0, client).word(4, parent).word(8, object).word(12, class);
    layout.flags_at.map_or(rm.clone(), |at| rm.word(at, 0x80))
}

/// RM_ALLOC of a client: its number is in the field of the object.
pub(crate) fn client(layout: AllocLayout, number: u32) -> Rm {
    made(layout, (number, 0, number), 0x41)
}

/// RM_ALLOC of memory, with its attributes at return.
pub(crate) fn memory(
    layout: AllocLayout,
    names: (u32, u32, u32),
    class: u32,
    (asked, granted): (u64, u64),
    attr: u32,
) -> Rm {
    let mut rm = made(layout, names, class).param(24, attr).long(PARAMS_OFFSET + 64, granted);
    rm.0.asked_bytes = asked;
    rm
}

/// Video memory.
pub(crate) fn video(layout: AllocLayout, names: (u32, u32, u32), asked: u64, granted: u64) -> Rm {
    memory(layout, names, 0x40, (asked, granted), 0x1180_0000)
}

/// RM_FREE.
pub(crate) fn free(client: u32, object: u32) -> Rm {
    Rm::new(0x29, 16).word(0, client).word(8, object)
}

/// RM_DUP_OBJECT.
pub(crate) fn duplicate((client, parent, object): (u32, u32, u32), source: (u32, u32)) -> Rm {
    Rm::new(0x34, 28).word(0, client).word(4, parent).word(8, object).word(12, source.0).word(16, source.1)
}

/// RM_ALLOC_MEMORY of this number of bytes.
pub(crate) fn pinned((client, parent, object): (u32, u32, u32), bytes: u64) -> Rm {
    let rm = Rm::new(0x27, 56).word(0, client).word(4, parent).word(8, object).word(12, 0x71);
    rm.long(32, bytes.wrapping_sub(1))
}

/// Control that names the GPU of a subdevice, in sixteen bytes.
pub(crate) fn named(client: u32, subdevice: u32, uuid: [u8; 16]) -> Rm {
    let rm = Rm::new(0x2a, 32).word(0, client).word(4, subdevice).word(8, 0x2080_014a).word(24, 272);
    rm.param(4, 2).param(8, 16).bytes(PARAMS_OFFSET + 12, &uuid)
}

/// UVM's MAP_EXTERNAL_ALLOCATION, in the newer layout.
pub(crate) fn mapped((client, object): (u32, u32), base: u64, bytes: u64) -> Rm {
    Rm::new(33, 0).long(0, base).long(8, bytes).word(32, client).word(36, object)
}

/// UVM's FREE or UNMAP_EXTERNAL.
pub(crate) fn unmapped(nr: u8, base: u64, bytes: u64) -> Rm {
    Rm::new(nr, 0).long(0, base).long(8, bytes)
}
