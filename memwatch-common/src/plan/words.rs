//! Readable text for a capture plan: `docs/reference/probes.md` is generated from it.

use core::fmt;

use super::{CapturePlan, DIGEST, DIGEST_WORDS, FILE_IN_ARGUMENT_1, FILE_IN_OUT_WORD, NO_ARGUMENT, ON_STACK};

impl fmt::Display for CapturePlan {
    /// Writes what is copied besides the six argument registers, the status and the times; `-` for
    /// nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every field by name, so that a new field does not compile until it is handled here. The
        // allocation map and the loss policy are not part of what is captured.
        let Self {
            out: [first, second],
            out_offset_words: [first_offset, second_offset],
            out_is_16_bytes,
            peek,
            peek_words,
            peek_offset_bytes,
            peek_at_return,
            file,
            book: _,
            tolerant: _,
        } = *self;
        let mut list = PartList { f, is_begun: false };
        if first != NO_ARGUMENT {
            let bytes = if out_is_16_bytes { 16 } else { 8 };
            list.add(format_args!(
                "{bytes} bytes {}",
                PointedMemory { argument: first, offset_bytes: 8 * u16::from(first_offset) }
            ))?;
        }
        if second != NO_ARGUMENT {
            list.add(format_args!(
                "8 bytes {}",
                PointedMemory { argument: second, offset_bytes: 8 * u16::from(second_offset) }
            ))?;
        }
        let place = PointedMemory { argument: peek, offset_bytes: peek_offset_bytes };
        let when = if peek_at_return { " at return" } else { "" };
        match peek_words {
            0 => {}
            DIGEST if peek == ON_STACK => {
                list.add(format_args!("a digest of {} bytes on the stack", 8 * DIGEST_WORDS))?;
            }
            DIGEST => list.add(format_args!("a digest of {} bytes {place}{when}", 8 * DIGEST_WORDS))?,
            words => list.add(format_args!("{} bytes {place}{when}", 8 * u32::from(words)))?,
        }
        match file {
            FILE_IN_ARGUMENT_1 => list.add(format_args!("which open file argument 1 is"))?,
            FILE_IN_OUT_WORD => list.add(format_args!("which open file the first of these is"))?,
            _ => {}
        }
        if list.is_begun { Ok(()) } else { list.add(format_args!("-")) }
    }
}

/// Writes parts with semicolons between them.
struct PartList<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    is_begun: bool,
}

impl PartList<'_, '_> {
    fn add(&mut self, part: fmt::Arguments<'_>) -> fmt::Result {
        if self.is_begun {
            self.f.write_str("; ")?;
        }
        self.is_begun = true;
        self.f.write_fmt(part)
    }
}

/// Memory that an argument points to.
struct PointedMemory {
    argument: u8,
    offset_bytes: u16,
}

impl fmt::Display for PointedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset_bytes {
            0 => write!(f, "behind argument {}", self.argument),
            offset_bytes => write!(f, "at +{offset_bytes} behind argument {}", self.argument),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{CapturePlan, ON_STACK};
    use std::string::ToString as _;

    #[test]
    fn a_plan_says_what_it_captures() {
        let plan = CapturePlan::registers();
        assert_eq!(plan.to_string(), "-");
        assert_eq!(plan.out(0).to_string(), "8 bytes behind argument 0");
        assert_eq!(
            plan.out_at(4, 104).out(1).to_string(),
            "8 bytes at +104 behind argument 4; 8 bytes behind argument 1"
        );
        assert_eq!(plan.out_16(0, 0).to_string(), "16 bytes behind argument 0");
        assert_eq!(plan.peek(1, 0, 3).to_string(), "24 bytes behind argument 1");
        assert_eq!(plan.out(0).peek(2, 8, 1).to_string(), "8 bytes behind argument 0; 8 bytes at +8 behind argument 2");
        assert_eq!(plan.digest(ON_STACK).to_string(), "a digest of 64 bytes on the stack");
        assert_eq!(plan.digest_out(0).to_string(), "a digest of 64 bytes behind argument 0 at return");
        assert_eq!(
            plan.out(0).file_in_out_word().to_string(),
            "8 bytes behind argument 0; which open file the first of these is"
        );
    }
}
