//! Where a build's `ggml_backend_buffer` has its context: decoded from the code of two functions that answer its neighbours, and refused where that is not
//! as expected.

use std::fs::File;

use memwatch_common::tensor::TensorMeaning;
use object::ReadCache;

use crate::frameworks::getter::{code_of, returned};
use crate::frameworks::pytorch::{SymbolName, TensorPoint, symbols};
use crate::sources::kernel::resolve::{Layout, ResolveError};

/// `ggml_backend_buffer_get_size` reads the size, a word behind the context.
const GET_SIZE: SymbolName = name(1, "ggml_backend_buffer_get_size");
/// `ggml_backend_buffer_get_usage` reads the use, behind the size.
const GET_USAGE: SymbolName = name(2, "ggml_backend_buffer_get_usage");

const WORD_BYTES: u32 = 8;

const fn name(key: u16, name: &'static str) -> SymbolName {
    SymbolName { key, beginning: name, ending: name }
}

/// Where things lie in the buffers of one build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferLayout {
    /// The context, in bytes from the beginning: the size and the use follow.
    context: u16,
}

impl BufferLayout {
    /// Looks for it in the file; `None` where its code is not as expected.
    ///
    /// # Errors
    /// The file cannot be read or understood.
    pub(crate) fn of(file: &File) -> Result<Option<Self>, ResolveError> {
        let clone = file.try_clone().map_err(|_unreadable| ResolveError::Damaged { what: "file" })?;
        let cache = ReadCache::new(clone);
        let layout = Layout::parse(&cache)?;
        let found = symbols(file, &layout, &[GET_SIZE, GET_USAGE])?;
        let code = |name: SymbolName| found.functions.get(&name.key).and_then(|location| code_of(file, location));
        Ok(code(GET_SIZE).zip(code(GET_USAGE)).and_then(|(size, usage)| Self::decode(&size, &usage)))
    }

    fn decode(size: &[u8], usage: &[u8]) -> Option<Self> {
        let (size, usage) = (returned(size, true)?, returned(usage, false)?);
        let context = size.checked_sub(WORD_BYTES).filter(|_| usage == size + WORD_BYTES)?;
        u16::try_from(context).ok().map(|context| Self { context })
    }

    /// Has the rows that are about a buffer look at its context.
    pub(crate) fn complete(self, points: &mut [TensorPoint]) {
        let is_of_one = |point: &&mut TensorPoint| {
            matches!(point.row.meaning, TensorMeaning::BufferLabelled | TensorMeaning::BufferGoes)
        };
        points.iter_mut().filter(is_of_one).for_each(|point| point.plan = point.plan.counters_at(self.context));
    }
}

#[cfg(test)]
mod tests {
    use super::BufferLayout;

    /// Of llama.cpp in node-llama-cpp 3.22.1: `endbr64; test %rdi,%rdi; je; mov 0x68(%rdi),%rax; ret; push %rax`.
    const SIZE: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x85, 0xff, 0x74, 5, 0x48, 0x8b, 0x47, 0x68, 0xc3, 0x50];
    /// The same of the use: `mov 0x70(%rdi),%eax`.
    const USAGE: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x85, 0xff, 0x74, 4, 0x8b, 0x47, 0x70, 0xc3, 0x50];

    #[test]
    fn the_context_lies_before_the_size_and_that_before_the_use() {
        assert_eq!(BufferLayout::decode(SIZE, USAGE), Some(BufferLayout { context: 0x60 }));
        let older: &[u8] = &[0x48, 0x8b, 0x87, 0x88, 0, 0, 0, 0xc3];
        assert_eq!(
            BufferLayout::decode(older, &[0x8b, 0x87, 0x90, 0, 0, 0, 0xc3]),
            Some(BufferLayout { context: 0x80 })
        );
    }

    #[test]
    fn code_that_is_not_as_expected_is_refused() {
        assert_eq!(BufferLayout::decode(SIZE, SIZE), None);
        assert_eq!(BufferLayout::decode(USAGE, USAGE), None);
        for length in 0..SIZE.len() - 1 {
            assert_eq!(BufferLayout::decode(&SIZE[..length], USAGE), None, "{length}");
        }
        let mut first = SIZE.to_vec();
        first[12] = 0;
        assert_eq!(BufferLayout::decode(&first, USAGE), None, "nothing lies before the first word");
        assert_eq!(BufferLayout::decode(&[0x48, 0x8b, 0x87, 0, 0x10, 0, 0, 0xc3], USAGE), None, "no buffer is so long");
    }
}
