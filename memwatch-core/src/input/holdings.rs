//! What a PyTorch process holds, by name: every block that it has, with the tensor in it and who keeps that, read from its memory.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::words::{Ordinal, Tgid};

/// The blocks of a process that its program has, and what is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// The process.
    pub tgid: Tgid,
    /// When the reading of its blocks began: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// One per block, by device and address.
    pub rows: Vec<Holding>,
    /// Python objects that were looked at.
    pub objects: u64,
    /// Python objects that are tensors in one of the blocks.
    pub tensors: u64,
    /// Names that were left out, because what leads to them had changed when it was read again.
    pub dropped_names: u64,
    /// Objects or tensors may be missing: the process changed them meanwhile, has more than are looked at, or the time was over.
    pub is_partial: bool,
    /// Why the reading ended before it was through; `None` where it was.
    pub cut_by: Option<Cut>,
    /// Why there are no names at all.
    pub without_names: Option<String>,
    /// How many bytes of the process were read for the names.
    pub read_bytes: u64,
    /// What could be held with less.
    pub advice: Vec<Advice>,
}

/// A block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The device.
    pub ordinal: Ordinal,
    /// The block's first address.
    pub address: u64,
    /// The block's size in bytes.
    pub block_bytes: u64,
    /// The size of the storage in it, in bytes; none where no storage is known. Of several storages in a block, the first.
    pub storage_bytes: Option<u64>,
    /// What it is.
    pub class: HoldingClass,
    /// Its name: of a parameter, a gradient or a buffer as `named_parameters()` has it, of an optimizer's state `exp_avg of` that name, else the
    /// shortest path to it.
    pub name: Option<String>,
    /// Further names of the same class: of tied weights, and of tensors that share a storage.
    pub other_names: Vec<String>,
    /// References to its tensors that were found, from Python.
    pub references: u32,
    /// Python objects that are tensors of it.
    pub tensors: u32,
    /// The shape of the tensor of the name.
    pub shape: Option<Vec<u64>>,
    /// Its elements, as `torch.dtype` names them.
    pub dtype: Option<String>,
    /// Its class in Python, such as `Parameter`.
    pub tensor_type: Option<String>,
    /// Of what is saved for backward: the tensor whose graph it belongs to.
    pub kept_by: Option<String>,
    /// The module whose parameter or buffer it is, or the gradient or state of one.
    pub owner: Option<OwnerModule>,
    /// When its name was read, where this reading did not find it and an earlier one did: the block has stood since. `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(default)]
    pub named_ns: Option<u64>,
}

/// A `torch.nn.Module` that a tensor belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerModule {
    /// The address of its object.
    pub address: u64,
    /// Its class.
    pub class: Arc<str>,
    /// Its name, as `named_modules()` of the outermost module has it; empty for that itself.
    pub name: Arc<str>,
    /// The address of the outermost module that it is in.
    pub root_address: u64,
    /// The class of that.
    pub root_class: Arc<str>,
}

impl Holding {
    /// A block of which nothing else is known.
    pub const fn unknown(ordinal: Ordinal, address: u64, block_bytes: u64) -> Self {
        Self {
            ordinal,
            address,
            block_bytes,
            storage_bytes: None,
            class: HoldingClass::NoPythonObject,
            name: None,
            other_names: Vec::new(),
            references: 0,
            tensors: 0,
            shape: None,
            dtype: None,
            tensor_type: None,
            kept_by: None,
            owner: None,
            named_ns: None,
        }
    }

    /// The path of the module that a parameter, a gradient, a buffer or an optimizer's state belongs to; the empty one is the model itself.
    pub fn module(&self) -> Option<&str> {
        let name = self.name.as_deref()?;
        let name = match self.class {
            HoldingClass::Parameter | HoldingClass::Gradient | HoldingClass::Buffer => name,
            HoldingClass::OptimizerState => name.split_once(" of ")?.1,
            _ => return None,
        };
        Some(name.rsplit_once('.').map_or("", |(module, _)| module))
    }

    /// The name with `*` for every index and number in it: of many of a kind, one.
    pub fn pattern(&self) -> Option<String> {
        let name = self.name.as_deref()?;
        if let Some(owner) = self.lost_module() {
            return Some(format!("<{}>", owner.root_class));
        }
        Some(match (self.class, name.split_once(" of ")) {
            (HoldingClass::OptimizerState, Some((key, parameter))) => format!("{key} of {}", indexed(parameter)),
            _ => indexed(name),
        })
    }

    /// The module whose part it is, where no variable leads to the model: all parts of such a model are one thing.
    pub fn lost_module(&self) -> Option<&OwnerModule> {
        self.owner.as_ref().filter(|_| self.class == HoldingClass::Unreachable)
    }

    /// Whether something leads to it. In a reading that was made in the middle of a change, nothing may seem to.
    pub const fn is_found(&self) -> bool {
        match self.class {
            HoldingClass::Unreachable
            | HoldingClass::CppOnly
            | HoldingClass::NoPythonObject
            | HoldingClass::Changed
            | HoldingClass::NotRead => false,
            HoldingClass::SavedForBackward => self.kept_by.is_some(),
            _ => true,
        }
    }

    /// What keeps it, for what is saved for backward, with `*` for every index: of many of a kind, one.
    pub fn keeper_pattern(&self) -> Option<String> {
        self.kept_by.as_deref().map(indexed)
    }
}

/// `h.0.attn.weight` → `h.*.attn.weight`.
fn numbered_parts(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.split('.').map(|part| if is_number(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

/// `kept[3]`, `requests['req2']` → `kept[*]`, `requests[*]`; `layers.0.keys` → `layers.*.keys`.
fn indexed(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, behind)) = rest.split_once('[') {
        // A key may hold a bracket of its own.
        let end = match behind.strip_prefix('\'') {
            Some(key) => key.find("']").map(|end| end + 2),
            None => behind.find(']'),
        };
        pattern += before;
        pattern += "[*]";
        rest = end.and_then(|end| behind.get(end + 1..)).unwrap_or("");
    }
    numbered_parts(&uncounted(&(pattern + rest)))
}

/// `head(.next ×31).item` → `head(.next ×*).item`: of a linked list.
fn uncounted(name: &str) -> String {
    let mut parts = name.split('×');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += "×";
        let rest = part.trim_start_matches(|letter: char| letter.is_ascii_digit());
        text += if rest.len() < part.len() { "*" } else { "" };
        text += rest;
    }
    text
}

/// What a block is. One that is several things is the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldingClass {
    /// A parameter of a module.
    Parameter,
    /// A buffer of a module.
    Buffer,
    /// The gradient of a tensor.
    Gradient,
    /// The state of an optimizer.
    OptimizerState,
    /// A tensor that a variable leads to.
    Tensor,
    /// Saved by a node of an autograd graph.
    SavedForBackward,
    /// A tensor that only objects refer to which no variable leads to: a cycle that waits for the collector, or what C++ keeps.
    Unreachable,
    /// A Python tensor that no Python object refers to.
    CppOnly,
    /// A workspace of cuBLAS.
    CublasWorkspace,
    /// No Python object: it stood still, all objects were read, and none of them is a tensor in it.
    #[default]
    NoPythonObject,
    /// What led to it changed while it was read, or it came and went meanwhile.
    Changed,
    /// The reading ended before it was known.
    NotRead,
}

impl HoldingClass {
    /// All of them, in order.
    pub const ALL: [Self; 12] = [
        Self::Parameter,
        Self::Buffer,
        Self::Gradient,
        Self::OptimizerState,
        Self::Tensor,
        Self::SavedForBackward,
        Self::Unreachable,
        Self::CppOnly,
        Self::CublasWorkspace,
        Self::NoPythonObject,
        Self::Changed,
        Self::NotRead,
    ];

    /// Its name in a table.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Parameter => "parameters",
            Self::Buffer => "buffers",
            Self::Gradient => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Tensor => "tensors",
            Self::SavedForBackward => "saved for backward",
            Self::Unreachable => "unreachable objects",
            Self::CppOnly => "held by C++ only",
            Self::CublasWorkspace => "cuBLAS workspaces",
            Self::NoPythonObject => "no Python object",
            Self::Changed => "changed while it was read",
            Self::NotRead => "not read",
        }
    }

    /// Whether it says who keeps the memory.
    pub const fn is_named(self) -> bool {
        !matches!(self, Self::CppOnly | Self::NoPythonObject | Self::Changed | Self::NotRead)
    }
}

/// Why a reading ended before it was through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// The time that it may take was over.
    Time,
    /// The process has more than is looked at.
    Size,
}

/// What could be held with less.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What it is.
    pub kind: AdviceKind,
    /// How many bytes it concerns.
    pub bytes: u64,
    /// In how many blocks.
    pub count: u64,
    /// The name of the largest.
    pub example: String,
}

/// A kind of advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdviceKind {
    /// Tensors of float32 with the shapes of parameters of 16 bits: copies in full precision.
    FullPrecisionCopies,
    /// Storages of which less than half is in any tensor: views keep them whole.
    MostlyUnusedStorage,
    /// Parameters without a gradient, while others have one.
    NoGradient,
    /// Tensors that only a traceback leads to.
    Traceback,
    /// Tensors that only objects refer to which no variable leads to.
    Unreachable,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(class: HoldingClass, name: &str) -> Holding {
        Holding { class, name: Some(name.to_owned()), ..Holding::unknown(Ordinal(0), 0, 0) }
    }

    fn pattern(class: HoldingClass, name: &str) -> Option<String> {
        named(class, name).pattern()
    }

    #[test]
    fn a_pattern_has_a_star_for_every_index() {
        let tensor = |name| pattern(HoldingClass::Tensor, name).expect("a pattern");
        assert_eq!(tensor("train.py:main: history[31]"), "train.py:main: history[*]");
        assert_eq!(tensor("server.requests['a]b'].layers[0].keys"), "server.requests[*].layers[*].keys");
        assert_eq!(tensor("edit.head(.next ×31).item"), "edit.head(.next ×*).item");
        assert_eq!(tensor("cut[1"), "cut[*]");
        assert_eq!(tensor("cut['1"), "cut[*]");
        assert_eq!(pattern(HoldingClass::Parameter, "h.10.ln_1.weight").as_deref(), Some("h.*.ln_1.weight"));
        let state = pattern(HoldingClass::OptimizerState, "exp_avg of 0.layers.3.weight");
        assert_eq!(state.as_deref(), Some("exp_avg of *.layers.*.weight"));
    }

    #[test]
    fn state_of_an_optimizer_belongs_to_the_module_of_its_parameter() {
        let module = |class, name: &str| named(class, name).module().map(str::to_owned);
        assert_eq!(module(HoldingClass::OptimizerState, "exp_avg of h.0.weight").as_deref(), Some("h.0"));
        assert_eq!(module(HoldingClass::Parameter, "weight").as_deref(), Some(""));
        assert_eq!(module(HoldingClass::Tensor, "a.b"), None);
    }
}
