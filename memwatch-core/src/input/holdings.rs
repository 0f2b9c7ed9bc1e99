//! Live objects of a PyTorch process by name, read from its memory: each block in use, with its
//! tensor and the tensor's retainer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::words::{Ordinal, Tgid};

/// Blocks in use by a process's program, with their contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// Process of the blocks.
    pub tgid: Tgid,
    /// Time at which reading the blocks began: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// One row per block, in order of device and address.
    pub rows: Vec<Holding>,
    /// Number of Python objects examined.
    pub objects: u64,
    /// Number of Python objects that are tensors in one of the blocks.
    pub tensors: u64,
    /// Number of names dropped because the path to the object had changed when it was read again.
    pub dropped_names: u64,
    /// Whether objects or tensors may be missing: the process changed them during the reading, has
    /// more than the limit, or the time limit was reached.
    pub is_partial: bool,
    /// Reason why the reading ended early; `None` if it completed.
    pub cut_by: Option<Cut>,
    /// Reason why no names are available.
    pub without_names: Option<String>,
    /// Bytes read from the process for the names.
    pub read_bytes: u64,
    /// Ways to use less memory.
    pub advice: Vec<MemoryAdvice>,
}

/// A block in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Device of the block.
    pub ordinal: Ordinal,
    /// First address of the block.
    pub address: u64,
    /// Size of the block, bytes.
    pub block_bytes: u64,
    /// Size of the storage in the block, bytes; `None` if no storage is known. If a block has
    /// several storages, the first.
    pub storage_bytes: Option<u64>,
    /// Class of the contents.
    pub class: HoldingClass,
    /// Name of the contents. For a parameter, gradient or buffer, the name in `named_parameters()`;
    /// for an optimizer's state, `exp_avg of` that name; otherwise the shortest path to the tensor.
    pub name: Option<String>,
    /// Other names of the same class, from tied weights and from tensors that share a storage.
    pub other_names: Vec<String>,
    /// Number of references from Python found to its tensors.
    pub references: u32,
    /// Number of Python tensor objects with this storage.
    pub tensors: u32,
    /// Shape of the named tensor.
    pub shape: Option<Vec<u64>>,
    /// Element type, as named by `torch.dtype`.
    pub dtype: Option<String>,
    /// Python class of the tensor, such as `Parameter`.
    pub tensor_type: Option<String>,
    /// Retainer of a tensor saved for backward: the tensor at the root of its graph.
    pub kept_by: Option<String>,
    /// Module to which the parameter or buffer belongs, directly or as its gradient or optimizer
    /// state.
    pub owner: Option<OwnerModule>,
    /// Time at which the name was read, if this reading did not find it but an earlier one did and
    /// the block has remained since. `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(default)]
    pub named_ns: Option<u64>,
}

/// A `torch.nn.Module` that a tensor belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerModule {
    /// Address of the module object.
    pub address: u64,
    /// Class of the module.
    pub class: Arc<str>,
    /// Name in `named_modules()` of the outermost module; empty for the outermost module itself.
    pub name: Arc<str>,
    /// Address of the outermost module.
    pub root_address: u64,
    /// Class of the outermost module.
    pub root_class: Arc<str>,
}

impl Holding {
    /// Creates the row of a block with unknown contents.
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

    /// Returns the path of the module that a parameter, gradient, buffer or optimizer state belongs
    /// to. An empty path is the model itself.
    pub fn module(&self) -> Option<&str> {
        let name = self.name.as_deref()?;
        let name = match self.class {
            HoldingClass::Parameter | HoldingClass::Gradient | HoldingClass::Buffer => name,
            HoldingClass::OptimizerState => name.split_once(" of ")?.1,
            _ => return None,
        };
        Some(name.rsplit_once('.').map_or("", |(module, _)| module))
    }

    /// Returns the name with `*` for every index and number, for grouping.
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

    /// Returns the module that the tensor belongs to, if the model is unreachable: all parts of
    /// such a model form one group.
    pub fn lost_module(&self) -> Option<&OwnerModule> {
        self.owner.as_ref().filter(|_| self.class == HoldingClass::Unreachable)
    }

    /// Returns whether a path to the tensor was found. A reading during a change of the program may
    /// miss existing paths.
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

    /// Returns the retainer of a tensor saved for backward, with `*` for every index, for grouping.
    pub fn retainer_pattern(&self) -> Option<String> {
        self.kept_by.as_deref().map(indexed)
    }
}

/// Replaces numeric path components: `h.0.attn.weight` → `h.*.attn.weight`.
fn numbered_parts(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.split('.').map(|part| if is_number(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

/// Replaces indices: `kept[3]`, `requests['req2']` → `kept[*]`, `requests[*]`; `layers.0.keys` →
/// `layers.*.keys`.
fn indexed(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, behind)) = rest.split_once('[') {
        // A key may contain a bracket.
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

/// Replaces counts in a linked list: `head(.next ×31).item` → `head(.next ×*).item`.
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

/// Class of a block's contents. If several classes apply, the first one counts.
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
    /// A tensor reachable from a variable.
    Tensor,
    /// A tensor saved by a node of an autograd graph.
    SavedForBackward,
    /// A tensor that is only referenced by unreachable objects: by a cycle that waits for the
    /// garbage collector, or by an object kept by C++.
    Unreachable,
    /// A Python tensor without a reference from a Python object.
    CppOnly,
    /// A workspace of cuBLAS.
    CublasWorkspace,
    /// Memory without a Python object: the block did not change, all objects were read, and none of
    /// them is a tensor in it.
    #[default]
    NoPythonObject,
    /// A block that was allocated or freed, or had its references changed, during the reading.
    Changed,
    /// A block not classified before the reading ended.
    NotRead,
}

impl HoldingClass {
    /// All classes, in order.
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

    /// Label in tables.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Parameter => "parameters",
            Self::Buffer => "buffers",
            Self::Gradient => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Tensor => "tensors",
            Self::SavedForBackward => "saved for backward",
            Self::Unreachable => "unreachable objects",
            Self::CppOnly => "referenced by C++ only",
            Self::CublasWorkspace => "cuBLAS workspaces",
            Self::NoPythonObject => "no Python object",
            Self::Changed => "changed during the reading",
            Self::NotRead => "not read",
        }
    }

    /// Returns whether the class identifies a retainer of the memory.
    pub const fn is_named(self) -> bool {
        !matches!(self, Self::CppOnly | Self::NoPythonObject | Self::Changed | Self::NotRead)
    }
}

/// Reason why a reading ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// The time limit was reached.
    Time,
    /// The process exceeds the size limits of a reading.
    Size,
}

/// Advice on how to use less memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAdvice {
    /// Kind of the advice.
    pub kind: AdviceKind,
    /// Bytes concerned.
    pub bytes: u64,
    /// Number of blocks concerned.
    pub count: u64,
    /// Name of the largest object.
    pub example: String,
}

/// A kind of advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdviceKind {
    /// Tensors of float32 with the shapes of 16-bit parameters: copies in full precision.
    FullPrecisionCopies,
    /// Storages of which less than half is used by tensors: views keep the whole storage alive.
    MostlyUnusedStorage,
    /// Parameters without a gradient, while others have one.
    NoGradient,
    /// Tensors reachable only from a traceback.
    Traceback,
    /// Tensors referenced only by unreachable objects.
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
