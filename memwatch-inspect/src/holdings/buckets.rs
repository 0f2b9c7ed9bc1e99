//! Identifies the buckets in which `DistributedDataParallel` collects gradients. Only its reducer
//! holds them, a C++ object with a Python wrapper.

use memwatch_core::input::holdings::HoldingClass;

use super::chains::ChainWord;
use super::claims::Claim;
use super::graph::vector_bytes;
use super::rtti::CppKind;
use super::survey::Survey;
use crate::memory::{MemoryAccess, at};
use crate::python::classes::Role;

/// Class of the module, and its attribute for the reducer.
const MODULE: &str = "DistributedDataParallel";
const REDUCER: &str = "reducer";
/// Offset at which pybind11 stores the address of the wrapped C++ object (`simple_value_holder` in
/// pybind11/cast.h).
const VALUE: u32 = 16;
/// Words of the reducer that are searched: `buckets_` is among the first.
const REDUCER_WORDS: usize = 256;

impl<M: MemoryAccess> Survey<'_, M> {
    /// Claims the buckets of all reducers, unless the blocks have other claims.
    pub(super) fn claim_buckets(&mut self) {
        let modules = self.heap.iter().filter(|(_, class)| class.role == Role::Module && class.name == MODULE);
        for (module, _) in modules.collect::<Vec<_>>() {
            self.claim_buckets_of(module);
        }
    }

    fn claim_buckets_of(&mut self, module: u64) -> Option<()> {
        let objects = self.heap.objects();
        let attributes = objects.attributes(module)?;
        let reducer = attributes.iter().find(|entry| objects.text(entry.key).as_deref() == Some(REDUCER))?;
        let value = at(reducer.value, VALUE)?;
        let pass = self.pass;
        let wrapped = ChainWord { slot: value, target: pass.u64(value)? };
        let chain = self.chains.refer(None, self.heap, ChainWord { slot: reducer.slot, target: reducer.value });
        let chain = self.chains.link(Some(chain), [wrapped; 2]);
        let words = pass.sparsely(|| pass.words(wrapped.target, REDUCER_WORDS))?;
        for index in 0..words.len() {
            let Some(bytes) = vector_bytes(&words[index..]) else { continue };
            let inner = pass.sparsely(|| pass.words(words[index], usize::try_from(bytes / 8).ok()?));
            for word in inner.unwrap_or_default() {
                let tensor = pass.sparsely(|| {
                    let is_tensor = self.classes.kind(word) == Some(CppKind::Tensor);
                    is_tensor.then(|| self.layout.read(pass, &self.classes, word)).flatten()
                });
                let Some(tensor) = tensor else { continue };
                let block = self.blocks.index(tensor.data).filter(|block| self.claims[*block].is_empty());
                let claim = Claim {
                    class: HoldingClass::Tensor,
                    name: Some(format!("gradient buckets of {MODULE}")),
                    tensor: self.tensors.len(),
                    tensor_type: None,
                    kept_by: None,
                    owner: None,
                    chain: self.chains.link(Some(chain), tensor.words),
                };
                self.tensors.push(tensor);
                self.claim(block, claim);
            }
        }
        Some(())
    }
}
