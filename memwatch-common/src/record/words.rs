//! Encoding of all records: the kind in the first byte, then words without padding.

use super::RecordError;

/// Kind of a record: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A [`super::CallRecord`].
    Call = 1,
    /// A [`super::ProcessRecord`].
    Process = 2,
    /// A [`crate::tensor::TensorRecord`].
    Tensor = 3,
    /// A [`crate::tensor::TextRecord`].
    Text = 4,
    /// A [`crate::tensor::StackRecord`] and its frames.
    Stack = 5,
    /// A [`crate::tensor::StatisticsRecord`].
    Statistics = 6,
    /// A [`crate::native::NativeRecord`].
    Native = 7,
    /// A [`crate::rm::RmRecord`].
    Rm = 8,
}

impl RecordKind {
    /// Returns the kind with this number; the numbers are the same in all versions.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Call,
            2 => Self::Process,
            3 => Self::Tensor,
            4 => Self::Text,
            5 => Self::Stack,
            6 => Self::Statistics,
            7 => Self::Native,
            8 => Self::Rm,
            _ => return None,
        })
    }
}

/// Reads native-endian integers off the front of a slice. The caller has checked the length.
pub(crate) struct WordReader<'a>(pub(crate) &'a [u8]);

impl<'a> WordReader<'a> {
    pub(super) fn of<const EXPECTED: usize>(bytes: &'a [u8]) -> Result<Self, RecordError> {
        if bytes.len() == EXPECTED {
            Ok(Self(bytes))
        } else {
            Err(RecordError::Length { expected: EXPECTED, got: bytes.len() })
        }
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut word = [0; N];
        if let Some((head, tail)) = self.0.split_at_checked(N) {
            word.copy_from_slice(head);
            self.0 = tail;
        }
        word
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }
    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }
    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }
    pub(crate) fn i32(&mut self) -> i32 {
        i32::from_ne_bytes(self.take())
    }
    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }
}
