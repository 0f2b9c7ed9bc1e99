//! What ggml reports of a buffer, of whatever backend: those know one another by their contexts.

use memwatch_common::tensor::{TensorMeaning, TensorRecord};
use serde::{Deserialize, Serialize};

use crate::words::Ordinal;

/// What becomes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferChange {
    /// The address of its context: the backend's own object, which no two buffers share at a time. Of a piece of the pool for temporaries, where it begins.
    pub context: u64,
    /// What.
    pub turn: BufferTurn,
}

/// The beginning of a tensor's name, as the tensor has it: bytes of a stranger, of which a 0 ends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorName(pub [u64; 6]);

/// A tensor has a place in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorPlace {
    /// Where the buffer's memory begins.
    pub base: u64,
    /// How far into it the tensor begins, in bytes.
    pub offset_bytes: u64,
    /// What it is called.
    pub name: TensorName,
}

impl TensorName {
    /// As text; what is no UTF-8 is replaced, and what has been cut off shows as `…`.
    pub fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        match bytes.iter().position(|byte| *byte == 0) {
            Some(end) => String::from_utf8_lossy(&bytes[..end]).into_owned(),
            None => format!("{}…", String::from_utf8_lossy(&bytes)),
        }
    }

    /// Whether llama.cpp calls the keys, values and states that it keeps of a text so: `cache_k_l0`, and `v`, `r`, `s` (src/llama-kv-cache.cpp,
    /// src/llama-memory-recurrent.cpp).
    pub fn is_of_cache(&self) -> bool {
        let front = self.0[0].to_le_bytes();
        matches!(front, [b'c', b'a', b'c', b'h', b'e', b'_', b'k' | b'v' | b'r' | b's', b'_'])
    }
}

/// The same without whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BufferTurn {
    /// It is made. Where it is a buffer of CUDA's backend, its context begins with these; else they are words without meaning.
    Made {
        /// Its size in bytes.
        bytes: u64,
        /// The device, by CUDA's number.
        ordinal: Ordinal,
        /// Where its memory begins.
        address: u64,
    },
    /// The program says what it is for.
    Labelled(BufferUsage),
    /// A tensor is put into one; which one, the place says, and the context is 0.
    Holds(TensorPlace),
    /// It is about to be given back.
    Goes,
    /// The pool for temporaries has mapped more memory.
    Grows {
        /// So much, in bytes.
        bytes: u64,
        /// The device that it is for, by CUDA's number.
        ordinal: Ordinal,
    },
    /// It is about to give all its memory back, which begins there.
    Shrinks {
        /// So much, in bytes.
        bytes: u64,
    },
}

/// What a buffer is for: `ggml_backend_buffer_usage` (ggml/include/ggml-backend.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferUsage {
    /// The weights of a model.
    Weights,
    /// What a graph computes with.
    Compute,
    /// llama.cpp's cache of keys and values, which it does not label: a tensor in it has a name that says so.
    #[serde(rename = "kv_cache")]
    KvCache,
    /// The pool of CUDA's backend for what a graph computes with for a moment: no buffer, and never smaller than it was.
    Scratch,
    /// None of these.
    #[default]
    Other,
}

impl BufferUsage {
    /// All, in the order of screens.
    pub const ALL: [Self; 5] = [Self::Weights, Self::Compute, Self::KvCache, Self::Scratch, Self::Other];

    /// Its name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Compute => "compute",
            Self::KvCache => "kv_cache",
            Self::Scratch => "scratch",
            Self::Other => "other",
        }
    }

    const fn of_number(number: u64) -> Self {
        match number {
            1 => Self::Weights,
            2 => Self::Compute,
            _ => Self::Other,
        }
    }
}

impl BufferChange {
    /// What a record says whose peeks could be read; `None` where its row is about something else.
    pub(super) fn of(record: &TensorRecord, meaning: TensorMeaning) -> Option<Self> {
        let [first, second, third, ..] = record.args;
        let [first_peek, second_peek] = record.extra;
        let lower_half = |word: u64| word & u64::from(u32::MAX);
        Some(match meaning {
            TensorMeaning::BufferMade => {
                let ordinal = Ordinal(u32::try_from(lower_half(first_peek)).ok()?.cast_signed());
                let turn = BufferTurn::Made { bytes: second, ordinal, address: second_peek };
                Self { context: third, turn }
            }
            TensorMeaning::BufferLabelled => {
                let turn = BufferTurn::Labelled(BufferUsage::of_number(lower_half(second)));
                Self { context: first_peek, turn }
            }
            TensorMeaning::BufferTensor => {
                let place = TensorPlace { base: first_peek, offset_bytes: second_peek, name: TensorName(record.args) };
                Self { context: 0, turn: BufferTurn::Holds(place) }
            }
            TensorMeaning::BufferGoes => Self { context: first_peek, turn: BufferTurn::Goes },
            TensorMeaning::ScratchGrows => {
                let ordinal = Ordinal(u32::try_from(first_peek >> 32).ok()?.cast_signed());
                Self { context: first, turn: BufferTurn::Grows { bytes: second, ordinal } }
            }
            TensorMeaning::ScratchGoes => Self { context: first, turn: BufferTurn::Shrinks { bytes: second } },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use memwatch_common::record::Record;
    use memwatch_common::tensor::{FLAG_EXTRA_UNREADABLE, TensorRecord};

    use super::{BufferChange, BufferTurn, BufferUsage, TensorName, TensorPlace};
    use crate::decode::{TensorChange, decode_tensor};
    use crate::words::Ordinal;

    fn change(probe: u16, flags: u8, args: [u64; 6], extra: [u64; 2]) -> Option<TensorChange> {
        let record = TensorRecord { kind: 3, probe, flags, tgid: 7, tid: 8, args, extra, ..TensorRecord::default() };
        decode_tensor(&Record::Tensor(record)).map(|event| event.what)
    }

    #[test]
    fn a_buffer_has_its_size_its_context_and_what_that_begins_with() {
        let made = change(64, 0, [1, 4096, 0x50, 0, 0, 0], [0xdead_beef_0000_0001, 0x7f00]);
        let turn = BufferTurn::Made { bytes: 4096, ordinal: Ordinal(1), address: 0x7f00 };
        assert_eq!(made, Some(TensorChange::Buffer(BufferChange { context: 0x50, turn })), "the device is half a word");
        assert_eq!(
            change(64, FLAG_EXTRA_UNREADABLE, [1, 0, 0, 0, 0, 0], [0; 2]),
            None,
            "one of no bytes has no context"
        );
    }

    #[test]
    fn a_use_is_known_by_its_number_and_a_later_one_is_another() {
        let usage = |number| match change(65, 0, [1, number, 0, 0, 0, 0], [0x50, 4096]) {
            Some(TensorChange::Buffer(BufferChange { context: 0x50, turn: BufferTurn::Labelled(usage) })) => usage,
            other => panic!("{other:?}"),
        };
        let of = [1, 2, 0, 9, 0xff_0000_0001].map(usage);
        let [weights, compute, any, later, upper] = of;
        assert_eq!(
            (weights, compute, any, later),
            (BufferUsage::Weights, BufferUsage::Compute, BufferUsage::Other, BufferUsage::Other)
        );
        assert_eq!(upper, BufferUsage::Weights, "the number is half a register");
        let names: Vec<_> =
            BufferUsage::ALL.into_iter().map(|usage| serde_json::to_string(&usage).expect("a word")).collect();
        assert_eq!(names, BufferUsage::ALL.map(|usage| format!("\"{}\"", usage.name())));
    }

    /// A name as a tensor has it, cut off where it is longer than what is read.
    fn name(text: &str) -> TensorName {
        let mut words = [0; 6];
        for (at, byte) in text.bytes().take(48).enumerate() {
            words[at / 8] |= u64::from(byte) << (at % 8 * 8);
        }
        TensorName(words)
    }

    #[test]
    fn a_tensor_has_a_name_and_a_place() {
        let called = name("blk.0.attn_q.weight");
        let place = TensorPlace { base: 0x7f00, offset_bytes: 4096, name: called };
        let expected = BufferChange { context: 0, turn: BufferTurn::Holds(place) };
        assert_eq!(change(82, 0, called.0, [0x7f00, 4096]), Some(TensorChange::Buffer(expected)));
        assert_eq!(change(82, FLAG_EXTRA_UNREADABLE, called.0, [0x7f00, 4096]), None);
        assert_eq!(called.text(), "blk.0.attn_q.weight");
        let long = "x".repeat(60);
        assert_eq!(name(&long).text(), format!("{}…", &long[..48]));
        assert_eq!(TensorName([0xff; 6]).text(), "\u{fffd}", "a byte that is no text, and the end");
    }

    #[test]
    fn a_cache_is_known_by_the_names_that_llama_cpp_gives_its_tensors() {
        for of_cache in ["cache_k_l0", "cache_v_l31", "cache_r_l2", "cache_s_l2 (view)"] {
            assert!(name(of_cache).is_of_cache(), "{of_cache}");
        }
        for other in ["cache", "cache_x_l0", "cached_k_l0", "blk.0.cache_k_l0", ""] {
            assert!(!name(other).is_of_cache(), "{other}");
        }
    }

    #[test]
    fn the_pool_for_temporaries_has_an_address_and_grows_on_the_device_of_the_access() {
        let grows = BufferTurn::Grows { bytes: 4096, ordinal: Ordinal(3) };
        let expected = BufferChange { context: 0x7f00, turn: grows };
        assert_eq!(
            change(86, 0, [0x7f00, 4096, 0x50, 1, 0, 0], [3 << 32 | 1, 3]),
            Some(TensorChange::Buffer(expected))
        );
        assert_eq!(change(86, FLAG_EXTRA_UNREADABLE, [0x7f00, 4096, 0x50, 1, 0, 0], [0; 2]), None);
        let expected = BufferChange { context: 0x7f00, turn: BufferTurn::Shrinks { bytes: 8192 } };
        assert_eq!(change(87, 0, [0x7f00, 8192, 0, 0, 0, 0], [0; 2]), Some(TensorChange::Buffer(expected)));
    }

    #[test]
    fn one_that_goes_is_named_by_its_context() {
        let goes = change(66, 0, [1, 0, 0, 0, 0, 0], [0x50, 4096]);
        assert_eq!(goes, Some(TensorChange::Buffer(BufferChange { context: 0x50, turn: BufferTurn::Goes })));
    }
}
