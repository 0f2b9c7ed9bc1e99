//! Capture plan of a call: one plan per probe, packed into the uprobe's 64-bit attach cookie.

mod words;

pub(crate) const NO_ARGUMENT: u8 = 0xF;

/// What to copy of one call besides its registers, status and times.
///
/// Packed into the 64 bits of a cookie, from the low end, in bits: probe 16, out arguments 4 + 4,
/// is one 16-byte out argument 1, peek words 3, peek argument 4, peek offset 10, out offsets 5 + 5,
/// peek at return 1, file 2, book 3, tolerant 1. Above these are the file's
/// [`crate::arming::ArmGroup`] and [`ONLY_LISTED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturePlan {
    pub(crate) out: [u8; 2],
    pub(crate) out_offset_words: [u8; 2],
    pub(crate) out_is_16_bytes: bool,
    pub(crate) peek: u8,
    pub(crate) peek_words: u8,
    pub(crate) peek_offset_bytes: u16,
    pub(crate) peek_at_return: bool,
    pub(crate) file: u8,
    pub(crate) book: MapUpdate,
    pub(crate) tolerant: bool,
}

/// Effect of a successful call on the kernel half's allocation map and sizes
/// ([`crate::capture::CaptureKernel::credit`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MapUpdate {
    /// No effect.
    None = 0,
    /// Adds the address in the first out word, with argument 1 bytes.
    Credit = 1,
    /// Adds the address in the first out word, with the second out word times argument 3 bytes.
    CreditRows = 2,
    /// Removes the address in argument 0, at the call's entry.
    Debit = 3,
    /// The call frees addresses without naming them, so the allocation map cannot follow.
    Teardown = 4,
}

impl MapUpdate {
    #[inline(always)]
    const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Credit,
            2 => Self::CreditRows,
            3 => Self::Debit,
            4 => Self::Teardown,
            _ => Self::None,
        }
    }
}

/// Cookie flag: the probe is attached to all processes, because this kernel would attach it to a
/// single thread of the intended process. Only calls of processes in the kernel half's list are
/// wanted ([`crate::capture::CaptureKernel::listed`]).
pub const ONLY_LISTED: u64 = 1 << 63;

/// Pseudo-argument of [`CapturePlan::digest`] for data that the caller passes on its stack.
pub const ON_STACK: u8 = 6;
/// Value of `peek_words` for a digest.
pub(crate) const DIGEST: u8 = 7;
/// Number of words that a digest covers.
pub(crate) const DIGEST_WORDS: usize = 8;
pub(crate) const FILE_IN_ARGUMENT_1: u8 = 1;
pub(crate) const FILE_IN_OUT_WORD: u8 = 2;

impl CapturePlan {
    /// Copies the registers only.
    pub const fn registers() -> Self {
        Self {
            out: [NO_ARGUMENT; 2],
            out_offset_words: [0; 2],
            out_is_16_bytes: false,
            peek: NO_ARGUMENT,
            peek_words: 0,
            peek_offset_bytes: 0,
            peek_at_return: false,
            file: 0,
            book: MapUpdate::None,
            tolerant: false,
        }
    }

    /// At return, also reads the eight bytes that argument `argument` points to. May be used twice.
    #[must_use]
    pub const fn out(self, argument: u8) -> Self {
        self.out_at(argument, 0)
    }

    /// At return, also reads the eight bytes at `offset_bytes` (a multiple of 8 below 256) in what
    /// argument `argument` points to. May be used twice.
    ///
    /// # Panics
    /// At compile time, if the offset does not fit in a cookie.
    #[must_use]
    pub const fn out_at(mut self, argument: u8, offset_bytes: u8) -> Self {
        assert!(offset_bytes.is_multiple_of(8));
        let index = if self.out[0] == NO_ARGUMENT { 0 } else { 1 };
        self.out[index] = argument;
        self.out_offset_words[index] = offset_bytes / 8;
        self
    }

    /// At return, also reads the sixteen bytes at `offset_bytes` in what argument `argument` points
    /// to.
    #[must_use]
    pub const fn out_16(self, argument: u8, offset_bytes: u8) -> Self {
        let mut plan = self.out_at(argument, offset_bytes);
        plan.out_is_16_bytes = true;
        plan
    }

    /// Also reads `words` (1, 3 or 5) eight-byte words at `offset_bytes` in the struct that
    /// `argument` points to.
    ///
    /// # Panics
    /// At compile time, if the offset or the number of words does not fit in a cookie.
    #[must_use]
    pub const fn peek(mut self, argument: u8, offset_bytes: u16, words: u8) -> Self {
        assert!(offset_bytes < 1024 && (words == 1 || words == 3 || words == 5));
        self.peek = argument;
        self.peek_words = words;
        self.peek_offset_bytes = offset_bytes;
        self
    }

    /// Also stores a digest in the first two peek words: of the 64 bytes that `argument` points to,
    /// or that are above the return address with [`ON_STACK`].
    #[must_use]
    pub const fn digest(mut self, argument: u8) -> Self {
        self.peek = argument;
        self.peek_words = DIGEST;
        self.peek_offset_bytes = if argument == ON_STACK { 8 } else { 0 };
        self
    }

    /// Like [`Self::digest`], of bytes that the call itself writes.
    #[must_use]
    pub const fn digest_out(self, argument: u8) -> Self {
        let mut plan = self.digest(argument);
        plan.peek_at_return = true;
        plan
    }

    /// Also stores in the first peek word which open file the descriptor in argument 1 is.
    #[must_use]
    pub const fn file_in_argument_1(mut self) -> Self {
        self.file = FILE_IN_ARGUMENT_1;
        self
    }

    /// Also stores in the first peek word which open file the descriptor in the first out word is.
    #[must_use]
    pub const fn file_in_out_word(mut self) -> Self {
        self.file = FILE_IN_OUT_WORD;
        self
    }

    /// Also updates the kernel half's allocation map.
    #[must_use]
    pub const fn book(mut self, book: MapUpdate) -> Self {
        self.book = book;
        self
    }

    /// Does not count unreadable words as a loss, except the first peeked word: that word decides
    /// whether the others were needed.
    #[must_use]
    pub const fn tolerant(mut self) -> Self {
        self.tolerant = true;
        self
    }

    /// Whether unreadable out words are not counted as a loss.
    pub const fn is_tolerant(&self) -> bool {
        self.tolerant
    }

    /// Returns the number of out words that this plan fills in [`crate::record::CallRecord::out`].
    pub const fn out_words(&self) -> usize {
        if self.out_is_16_bytes || self.out[1] != NO_ARGUMENT {
            2
        } else if self.out[0] != NO_ARGUMENT {
            1
        } else {
            0
        }
    }

    /// Returns the number of words that this plan fills in [`crate::record::CallRecord::peek`].
    pub const fn peek_words(&self) -> usize {
        match (self.peek_words, self.file) {
            (DIGEST, _) => 2,
            (0, FILE_IN_ARGUMENT_1 | FILE_IN_OUT_WORD) => 1,
            (words, _) => words as usize,
        }
    }

    /// Packs a probe's id and plan into an attach cookie.
    pub const fn cookie(self, probe: u16) -> u64 {
        (probe as u64)
            | (self.out[0] as u64) << 16
            | (self.out[1] as u64) << 20
            | (self.out_is_16_bytes as u64) << 24
            | (self.peek_words as u64) << 25
            | (self.peek as u64) << 28
            | (self.peek_offset_bytes as u64) << 32
            | (self.out_offset_words[0] as u64) << 42
            | (self.out_offset_words[1] as u64) << 47
            | (self.peek_at_return as u64) << 52
            | (self.file as u64) << 53
            | (self.book as u64) << 55
            | (self.tolerant as u64) << 58
    }

    /// Unpacks the probe id and plan of an attach cookie.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "every field is masked to its width")]
    pub fn from_cookie(cookie: u64) -> (u16, Self) {
        let bits = |shift: u32, mask: u64| ((cookie >> shift) & mask) as u8;
        let plan = Self {
            out: [bits(16, 0xF), bits(20, 0xF)],
            out_offset_words: [bits(42, 0x1F), bits(47, 0x1F)],
            out_is_16_bytes: bits(24, 1) == 1,
            peek: bits(28, 0xF),
            peek_words: bits(25, 7),
            peek_offset_bytes: ((cookie >> 32) & 0x3FF) as u16,
            peek_at_return: bits(52, 1) == 1,
            file: bits(53, 3),
            book: MapUpdate::from_number(bits(55, 7)),
            tolerant: bits(58, 1) == 1,
        };
        ((cookie & 0xFFFF) as u16, plan)
    }
}
