//! Name of the operator that a chunk is for: where the kernel half finds it, and the key by which
//! user space matches it to the chunk.

/// Location of the operator name in a library, packed into the attach cookie of a separate BPF
/// program: row 16 bits, distance 32, offset in words 10.
///
/// The probe and the `tls_index` of the thread-local variable are in the same file, so the distance
/// between them is the same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorPlan {
    /// Distance from the probed instruction to the variable's `tls_index`, in bytes.
    pub distance_bytes: i32,
    /// Offset into the variable, in bytes: whole words below [`OperatorPlan::OFFSETS`]. It leads to
    /// a `std::string_view` of libstdc++, which is the length and the address of the name.
    pub offset_bytes: u16,
}

impl OperatorPlan {
    /// Upper bound of the offsets that fit, in bytes.
    pub const OFFSETS: u16 = 1 << 13;

    /// Packs a row's id and the plan into the attach cookie.
    pub const fn cookie(self, row: u16) -> u64 {
        row as u64
            | (self.distance_bytes.cast_unsigned() as u64) << 16
            | ((self.offset_bytes % Self::OFFSETS / 8) as u64) << 48
    }

    /// Unpacks the row's id and the plan.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "every field is as wide as its place")]
    pub const fn from_cookie(cookie: u64) -> (u16, Self) {
        let distance_bytes = ((cookie >> 16) as u32).cast_signed();
        let offset_bytes = (cookie >> 48) as u16 % (Self::OFFSETS / 8) * 8;
        (cookie as u16, Self { distance_bytes, offset_bytes })
    }
}

/// Maximum length of an operator name, in bytes; longer names are not operators.
pub const LONGEST_OPERATOR_BYTES: u64 = 4096;

/// Key of a chunk in the record of its operator's name; unique together with the thread. Chunks are
/// at least 256 bytes apart (`kMinAllocationSize` in xla/tsl/framework/bfc_allocator.h).
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
    fn operator_plan_survives_its_cookie_with_and_without_only_listed() {
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
