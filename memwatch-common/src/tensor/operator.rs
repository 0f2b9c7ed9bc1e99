//! The name of the operator that a chunk is for: where the kernel half finds it, and by what user space knows its chunk.

/// Where a library keeps the name, packed in the attach cookie of a program of its own: row 16 bits, distance 32, offset in words 10.
///
/// The probe and the `tls_index` of the thread's variable lie in one file, so that the distance between them is the same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorPlan {
    /// From the probed instruction to the variable's `tls_index`, in bytes.
    pub distance_bytes: i32,
    /// Into the variable: whole words of 8 bytes below [`OperatorPlan::OFFSETS`]. A `std::string_view` of libstdc++ is there, which is the length and
    /// the address of the name.
    pub offset_bytes: u16,
}

impl OperatorPlan {
    /// Offsets in bytes that there is room for.
    pub const OFFSETS: u16 = 1 << 13;

    /// Packs a row's id and the plan into the attach cookie.
    pub const fn cookie(self, row: u16) -> u64 {
        row as u64
            | (self.distance_bytes.cast_unsigned() as u64) << 16
            | ((self.offset_bytes % Self::OFFSETS / 8) as u64) << 48
    }

    /// The row's id and the plan.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "every field is as wide as its place")]
    pub const fn from_cookie(cookie: u64) -> (u16, Self) {
        let distance_bytes = ((cookie >> 16) as u32).cast_signed();
        let offset_bytes = (cookie >> 48) as u16 % (Self::OFFSETS / 8) * 8;
        (cookie as u16, Self { distance_bytes, offset_bytes })
    }
}

/// Names that are longer are no operator's.
pub const LONGEST_OPERATOR_BYTES: u64 = 4096;

/// What a chunk is known by in the name's record, beside its thread: chunks lie 256 bytes apart (`kMinAllocationSize` in
/// xla/tsl/framework/bfc_allocator.h).
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lowest bits differ most")]
pub const fn chunk_key(allocator: u64, address: u64) -> u32 {
    (address >> 8) as u32 ^ (allocator >> 4) as u32
}

#[cfg(test)]
mod tests {
    use super::super::plan::ONLY_LISTED;
    use super::{OperatorPlan, chunk_key};

    #[test]
    fn a_plan_survives_its_cookie_whoever_it_is_attached_to() {
        for distance_bytes in [0, 1, -1, 0x011a_dc08, i32::MIN, i32::MAX] {
            for offset_bytes in [0, 8, 0x420, OperatorPlan::OFFSETS - 8] {
                let plan = OperatorPlan { distance_bytes, offset_bytes };
                for listed in [0, ONLY_LISTED] {
                    assert_eq!(OperatorPlan::from_cookie(plan.cookie(85) | listed), (85, plan));
                    assert_eq!((plan.cookie(u16::MAX) | listed) & ONLY_LISTED, listed);
                }
            }
        }
    }

    #[test]
    fn neighbours_and_the_chunks_of_another_arena_have_other_keys() {
        let key = chunk_key(0x5555_0000_1230, 0x7f00_0000_0000);
        assert_ne!(key, chunk_key(0x5555_0000_1230, 0x7f00_0000_0100));
        assert_ne!(key, chunk_key(0x5555_0000_9a80, 0x7f00_0000_0000));
    }
}
