//! Decodes the offsets of a `ggml_backend_buffer`'s context and of a tensor's name from the code of
//! getters of these or neighbouring fields. Unexpected code is refused.

use std::fs::File;

use memwatch_common::tensor::TensorMeaning;

use crate::frameworks::getter::{code_of, pointed_to, returned};
use crate::frameworks::points::TensorPoint;
use crate::frameworks::symbols::{SymbolName, symbols};
use crate::sources::kernel::resolve::{ResolveError, SymbolLayout};
use crate::stranger_file::ElfReader;

/// `ggml_backend_buffer_get_size` returns the size, one word after the context.
const GET_SIZE: SymbolName = name(1, "ggml_backend_buffer_get_size");
/// `ggml_backend_buffer_get_usage` returns the usage, one word after the size.
const GET_USAGE: SymbolName = name(2, "ggml_backend_buffer_get_usage");

/// `ggml_get_name` returns a pointer to the name.
const GET_NAME: SymbolName = name(3, "ggml_get_name");

const WORD_BYTES: u32 = 8;

/// A symbol name that must match completely.
pub(super) const fn name(key: u16, name: &'static str) -> SymbolName {
    SymbolName { key, beginning: name, ending: name }
}

/// Field offsets of buffers and tensors in one build of ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GgmlLayout {
    /// Offset of the buffer's context in bytes; size and usage follow.
    context: u16,
    /// Offset of a tensor's name in bytes; `None` if the code does not show it.
    name: Option<u16>,
}

impl GgmlLayout {
    /// Finds the layout in the library's file; `None` if the code is not as expected.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub(crate) fn of(file: &File) -> Result<Option<Self>, ResolveError> {
        let clone = file.try_clone().map_err(|_unreadable| ResolveError::Damaged { what: "file" })?;
        let cache = ElfReader::new(clone);
        let layout = SymbolLayout::parse(&cache)?;
        let found = symbols(file, &layout, &[GET_SIZE, GET_USAGE, GET_NAME])?;
        let code = |name: SymbolName| found.functions.get(&name.key).and_then(|location| code_of(file, location));
        let name = code(GET_NAME).unwrap_or_default();
        Ok(code(GET_SIZE).zip(code(GET_USAGE)).and_then(|(size, usage)| Self::decode(&size, &usage, &name)))
    }

    fn decode(size: &[u8], usage: &[u8], name: &[u8]) -> Option<Self> {
        let (size, usage) = (returned(size, true)?, returned(usage, false)?);
        let context = size.checked_sub(WORD_BYTES).filter(|_| usage == size + WORD_BYTES)?;
        let name = pointed_to(name).and_then(|name| u16::try_from(name).ok());
        u16::try_from(context).ok().map(|context| Self { context, name })
    }

    /// Adds the context's offset to the points for buffers and the name's offset to the point for
    /// tensors, which is dropped if that offset is unknown.
    pub(crate) fn complete(self, points: &mut Vec<TensorPoint>) {
        points.retain(|point| point.row.meaning != TensorMeaning::BufferTensor || self.name.is_some());
        for point in points {
            point.plan = match (point.row.meaning, self.name) {
                (TensorMeaning::BufferLabelled | TensorMeaning::BufferGoes, _) => point.plan.counters_at(self.context),
                (TensorMeaning::BufferTensor, Some(name)) => point.plan.tensor_name_at(name),
                _ => continue,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GgmlLayout;

    /// Size getter of llama.cpp in node-llama-cpp 3.22.1: `endbr64; test %rdi,%rdi; je; mov
    /// 0x68(%rdi),%rax; ret; push %rax`.
    const SIZE: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x85, 0xff, 0x74, 5, 0x48, 0x8b, 0x47, 0x68, 0xc3, 0x50];
    /// Usage getter of the same build: `mov 0x70(%rdi),%eax`.
    const USAGE: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x85, 0xff, 0x74, 4, 0x8b, 0x47, 0x70, 0xc3, 0x50];

    /// Name getter of the same build: `endbr64; lea 0x100(%rdi),%rax; ret`.
    const NAME: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x87, 0, 1, 0, 0, 0xc3];

    #[test]
    fn ggml_layout_offsets_are_derived_from_size_and_usage() {
        assert_eq!(GgmlLayout::decode(SIZE, USAGE, NAME), Some(GgmlLayout { context: 0x60, name: Some(0x100) }));
        let older: &[u8] = &[0x48, 0x8b, 0x87, 0x88, 0, 0, 0, 0xc3];
        assert_eq!(
            GgmlLayout::decode(older, &[0x8b, 0x87, 0x90, 0, 0, 0, 0xc3], &[]),
            Some(GgmlLayout { context: 0x80, name: None }),
            "a name that is not found is absent"
        );
    }

    #[test]
    fn code_that_is_not_as_expected_is_refused() {
        assert_eq!(GgmlLayout::decode(SIZE, SIZE, NAME), None);
        assert_eq!(GgmlLayout::decode(USAGE, USAGE, NAME), None);
        for length in 0..SIZE.len() - 1 {
            assert_eq!(GgmlLayout::decode(&SIZE[..length], USAGE, NAME), None, "{length}");
        }
        let mut first = SIZE.to_vec();
        first[12] = 0;
        assert_eq!(GgmlLayout::decode(&first, USAGE, NAME), None, "nothing lies before the first word");
        assert_eq!(
            GgmlLayout::decode(&[0x48, 0x8b, 0x87, 0, 0x10, 0, 0, 0xc3], USAGE, NAME),
            None,
            "no buffer is so long"
        );
    }
}
