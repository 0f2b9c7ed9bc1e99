//! Decodes reports of ggml about buffers of any backend. Buffers are identified by their contexts.

use memwatch_common::tensor::{TensorMeaning, TensorRecord};
use serde::{Deserialize, Serialize};

use crate::words::Ordinal;

/// Change of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferChange {
    /// Address of the buffer's context, the backend's own object; no two buffers share one at a
    /// time. For a part of the pool for temporaries, its first address.
    pub context: u64,
    /// Kind of the change.
    pub turn: BufferTurn,
}

/// Start of a tensor's name, as copied from the program's memory: NUL-terminated unless truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorName(pub [u64; 6]);

/// Location of a tensor in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorPlace {
    /// First address of the buffer's memory.
    pub base: u64,
    /// Offset of the tensor in the buffer, bytes.
    pub offset_bytes: u64,
    /// Name of the tensor.
    pub name: TensorName,
}

impl TensorName {
    /// Returns the name as text. Invalid UTF-8 is replaced; a truncated name ends with `…`.
    pub fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        match bytes.iter().position(|byte| *byte == 0) {
            Some(end) => String::from_utf8_lossy(&bytes[..end]).into_owned(),
            None => format!("{}…", String::from_utf8_lossy(&bytes)),
        }
    }

    /// Returns whether the name is one that llama.cpp gives to cached keys, values and states:
    /// `cache_k_l0`, and `v`, `r`, `s` (src/llama-kv-cache.cpp, src/llama-memory-recurrent.cpp).
    pub fn is_of_cache(&self) -> bool {
        let front = self.0[0].to_le_bytes();
        matches!(front, [b'c', b'a', b'c', b'h', b'e', b'_', b'k' | b'v' | b'r' | b's', b'_'])
    }
}

/// Kind of a change of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BufferTurn {
    /// The buffer is created. In a buffer of the CUDA backend, the context starts with the device
    /// and address; for other backends, these fields are meaningless.
    Made {
        /// Size, bytes.
        bytes: u64,
        /// CUDA device ordinal.
        ordinal: Ordinal,
        /// First address of the buffer's memory.
        address: u64,
    },
    /// The program labels the buffer with its use.
    Labelled(BufferUsage),
    /// A tensor is placed in a buffer. The location identifies the buffer, and the context is 0.
    Holds(TensorPlace),
    /// The buffer is about to be freed.
    Goes,
    /// The pool for temporaries has mapped more memory.
    Grows {
        /// Mapped bytes.
        bytes: u64,
        /// CUDA device ordinal of the memory.
        ordinal: Ordinal,
    },
    /// The pool for temporaries is about to free all its memory. Its first address is the context.
    Shrinks {
        /// Freed bytes.
        bytes: u64,
    },
}

/// Use of a buffer: `ggml_backend_buffer_usage` (ggml/include/ggml-backend.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferUsage {
    /// The weights of a model.
    Weights,
    /// Working memory of a graph.
    Compute,
    /// llama.cpp's cache of keys and values, which it does not label. Recognised by the name of a
    /// tensor in it.
    #[serde(rename = "kv_cache")]
    KvCache,
    /// The CUDA backend's pool for temporaries of a graph: not a buffer, and it never shrinks in
    /// use.
    Scratch,
    /// Any other use.
    #[default]
    Other,
}

impl BufferUsage {
    /// All uses, in screen order.
    pub const ALL: [Self; 5] = [Self::Weights, Self::Compute, Self::KvCache, Self::Scratch, Self::Other];

    /// Name in JSON.
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
    /// Decodes a record with readable peeked words; `None` if its row is not about a buffer.
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
    use memwatch_common::record::RingRecord;
    use memwatch_common::tensor::{FLAG_EXTRA_UNREADABLE, TensorRecord};

    use super::{BufferChange, BufferTurn, BufferUsage, TensorName, TensorPlace};
    use crate::decode::{TensorChange, decode_tensor};
    use crate::words::Ordinal;

    fn change(probe: u16, flags: u8, args: [u64; 6], extra: [u64; 2]) -> Option<TensorChange> {
        let record = TensorRecord { kind: 3, probe, flags, tgid: 7, tid: 8, args, extra, ..TensorRecord::default() };
        decode_tensor(&RingRecord::Tensor(record)).map(|event| event.what)
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

    /// Returns a tensor name in its recorded form, truncated if it is longer than the copied bytes.
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
    fn ggml_pool_growth_has_an_address_and_the_device_of_the_access() {
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
    fn ggml_buffer_free_is_decoded_by_its_context() {
        let goes = change(66, 0, [1, 0, 0, 0, 0, 0], [0x50, 4096]);
        assert_eq!(goes, Some(TensorChange::Buffer(BufferChange { context: 0x50, turn: BufferTurn::Goes })));
    }
}
