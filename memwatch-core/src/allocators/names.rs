//! Interns call sites, modules, models and ranges as numbers, so that events carry no text.
//!
//! Every table is bounded. Entries added to a full table share the row for the rest.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::decode::StackRef;
use crate::input::holdings::HoldingClass;
use crate::stack::PythonCode;

/// Maximum number of call sites.
const SITES: usize = 1 << 16;
/// Maximum number of library lines.
const LIBRARIES: usize = 1 << 16;
/// Maximum number of modules.
const MODULES: usize = 1 << 14;
/// Maximum number of range names. Programs may put the step number into them.
const RANGES: usize = 256;

/// Call site of an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallSite {
    /// Call sites beyond the limit.
    Rest,
    /// Allocated before the attach.
    BeforeAttach,
    /// The stack was not requested, was too expensive, could not be read or was lost.
    NotKnown(StackRef),
    /// A thread without Python frames.
    NoPython,
    /// A Python line.
    Line(PythonCode),
    /// The backward pass of what this line computed.
    BackwardOf(PythonCode),
    /// A function, in a thread without Python frames.
    Native(NativeCode),
    /// Allocated before the attach; identified by reading the process's memory.
    Held(HeldAs),
    /// Allocated while no events were traced.
    Untraced,
    /// Allocated while no events were traced; identified by reading the process's memory.
    UntracedHeld(HeldAs),
}

/// What a block is and what retains it, read from the process's memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeldAs {
    /// Class of the block.
    pub class: HoldingClass,
    /// Name of the block, with `*` for every index; `None` if it has none.
    pub name: Option<Arc<str>>,
}

impl HeldAs {
    /// Returns the class and the name, such as `parameters h.*.attn.weight` or `cuBLAS workspaces`.
    pub fn text(&self) -> String {
        match &self.name {
            Some(name) => format!("{} {name}", self.class.label()),
            None => self.class.label().to_owned(),
        }
    }
}

/// A function in native code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NativeCode {
    /// Function name, without parameters.
    pub function: Arc<str>,
    /// File name of the library.
    pub library: Arc<str>,
}

/// Row of a call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SiteKey(#[serde(deserialize_with = "row::<_, SITES>")] pub(super) u32);

impl SiteKey {
    pub(super) const REST: Self = Self(0);
    /// Blocks allocated before the attach.
    pub const BEFORE_ATTACH: Self = Self(1);
    pub(super) const NO_PYTHON: Self = Self(2);
    const NOT_ASKED: Self = Self(3);
    const OVER_BUDGET: Self = Self(4);
    const UNREADABLE: Self = Self(5);
    /// The stack has a number, but the stack itself was lost.
    pub(super) const MISSING: Self = Self(6);
    /// The block is small and its stack was not sampled.
    const NOT_DRAWN: Self = Self(7);
    /// Blocks allocated while no events were traced.
    pub const UNTRACED: Self = Self(8);

    /// Returns the key of this row.
    #[cfg(test)]
    pub(crate) const fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// Returns the row for a stack without frames.
    pub(super) const fn without_frames(stack: StackRef) -> Self {
        match stack {
            StackRef::NotAsked => Self::NOT_ASKED,
            StackRef::NoPython | StackRef::Native(_) => Self::NO_PYTHON,
            StackRef::OverBudget => Self::OVER_BUDGET,
            StackRef::Unreadable => Self::UNREADABLE,
            StackRef::Known(_) => Self::MISSING,
            StackRef::NotDrawn => Self::NOT_DRAWN,
        }
    }
}

/// Library line that allocated, called from the program's line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LibraryLine {
    /// Library lines beyond the limit.
    Rest,
    /// No library: the program's line allocated, or there is no line.
    None,
    /// A line of a package or of torch.
    Line(PythonCode),
}

/// Row of a library line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LibraryKey(#[serde(deserialize_with = "row::<_, LIBRARIES>")] u32);

impl LibraryKey {
    /// No library: the program's line allocated, or there is no line.
    pub const NONE: Self = Self(1);
}

/// Module that a block was allocated for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ModuleEntry {
    /// Modules beyond the limit.
    Rest,
    /// Allocated before the attach.
    BeforeAttach,
    /// The stack or the graph node is unknown.
    NotKnown,
    /// Outside of any module.
    None,
    /// A PyTorch module.
    Module(TorchModule),
    /// A TensorFlow operator, by name.
    Operator(Arc<str>),
    /// Allocated while no events were traced.
    Untraced,
}

/// A `torch.nn.TorchModule`, or several of the same name in one model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TorchModule {
    /// Model of the module: its class name, with `#2` and so on if there are several of that class.
    pub model: Arc<str>,
    /// Name as in `named_modules()` of the model, without prefixes added by wrappers; empty for the
    /// model itself; `None` if the module is not found there.
    pub name: Option<Arc<str>>,
    /// Class name of the module.
    pub class: Arc<str>,
}

/// Row of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModuleKey(#[serde(deserialize_with = "row::<_, MODULES>")] pub(super) u32);

impl ModuleKey {
    /// Blocks allocated before the attach.
    pub const BEFORE_ATTACH: Self = Self(1);
    pub(super) const NOT_KNOWN: Self = Self(2);
    pub(super) const NONE: Self = Self(3);
    /// Blocks allocated while no events were traced.
    pub const UNTRACED: Self = Self(4);

    /// Returns the key of this row.
    #[cfg(test)]
    pub(crate) const fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// Returns whether the row is that of a module or operator.
    pub(super) const fn is_module(self) -> bool {
        self.0 > Self::UNTRACED.0
    }
}

/// Row of the name of a range that the program opens. Row 0 is the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RangeKey(#[serde(deserialize_with = "row::<_, RANGES>")] pub(super) u32);

/// Deserialises a row number, and rejects one beyond the limit: lists of sums are allocated up to
/// the largest row.
fn row<'de, D: Deserializer<'de>, const MOST: usize>(deserializer: D) -> Result<u32, D::Error> {
    let row = u32::deserialize(deserializer)?;
    if (row as usize) < MOST { Ok(row) } else { Err(D::Error::custom("the row number exceeds the limit of its table")) }
}

/// Interned names of one process.
#[derive(Clone, Debug)]
pub struct NameTable {
    sites: Interned<CallSite>,
    libraries: Interned<LibraryLine>,
    modules: Interned<ModuleEntry>,
    ranges: Interned<Arc<str>>,
}

impl Default for NameTable {
    fn default() -> Self {
        use StackRef::{Known, NotAsked, NotDrawn, OverBudget, Unreadable};
        let [not_asked, over_budget] = [NotAsked, OverBudget].map(CallSite::NotKnown);
        let [unreadable, missing, not_drawn] = [Unreadable, Known(0), NotDrawn].map(CallSite::NotKnown);
        let [rest, before, no_python] = [CallSite::Rest, CallSite::BeforeAttach, CallSite::NoPython];
        let sites =
            [rest, before, no_python, not_asked, over_budget, unreadable, missing, not_drawn, CallSite::Untraced];
        let modules = [
            ModuleEntry::Rest,
            ModuleEntry::BeforeAttach,
            ModuleEntry::NotKnown,
            ModuleEntry::None,
            ModuleEntry::Untraced,
        ];
        Self {
            sites: Interned::new(SITES, sites),
            libraries: Interned::new(LIBRARIES, [LibraryLine::Rest, LibraryLine::None]),
            modules: Interned::new(MODULES, modules),
            ranges: Interned::new(RANGES, [Arc::from("")]),
        }
    }
}

impl NameTable {
    /// Returns the row of a call site, adding it if necessary.
    pub(super) fn site(&mut self, site: CallSite) -> SiteKey {
        SiteKey(self.sites.key(site))
    }

    /// Returns the row of a library line, adding it if necessary.
    pub(super) fn library(&mut self, library: LibraryLine) -> LibraryKey {
        LibraryKey(self.libraries.key(library))
    }

    /// Returns the row of a module, adding it if necessary.
    pub(super) fn module(&mut self, module: TorchModule) -> ModuleKey {
        ModuleKey(self.modules.key(ModuleEntry::Module(module)))
    }

    /// Returns the row of a TensorFlow operator, adding it if necessary.
    pub(super) fn operator(&mut self, name: &str) -> ModuleKey {
        ModuleKey(self.modules.key(ModuleEntry::Operator(name.into())))
    }

    /// Returns the row of a range name, adding it if necessary.
    pub(super) fn range(&mut self, name: &str) -> RangeKey {
        let known = self.ranges.ids.get(name).copied();
        RangeKey(known.unwrap_or_else(|| self.ranges.key(name.into())))
    }

    /// Returns the call site of a row.
    pub fn site_of(&self, key: SiteKey) -> &CallSite {
        self.sites.item(key.0)
    }

    /// Returns the library line of a row.
    pub fn library_of(&self, key: LibraryKey) -> &LibraryLine {
        self.libraries.item(key.0)
    }

    /// Returns the module of a row.
    pub fn module_of(&self, key: ModuleKey) -> &ModuleEntry {
        self.modules.item(key.0)
    }

    /// Returns the range name of a row; empty for the rest.
    pub fn range_of(&self, key: RangeKey) -> &Arc<str> {
        self.ranges.item(key.0)
    }
}

/// Serialised form, without the rows that every process has.
#[derive(Serialize, Deserialize)]
struct StoredNames<S, B, L, P> {
    sites: S,
    libraries: B,
    modules: L,
    ranges: P,
}

impl Serialize for NameTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = Self::default();
        let (sites, modules) = (self.sites.beyond(&all.sites), self.modules.beyond(&all.modules));
        let (libraries, ranges) = (self.libraries.beyond(&all.libraries), self.ranges.beyond(&all.ranges));
        StoredNames { sites, libraries, modules, ranges }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for NameTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kept: StoredNames<Vec<CallSite>, Vec<LibraryLine>, Vec<ModuleEntry>, Vec<Arc<str>>> =
            StoredNames::deserialize(deserializer)?;
        let mut names = Self::default();
        for site in kept.sites {
            names.sites.key(site);
        }
        for library in kept.libraries {
            names.libraries.key(library);
        }
        for module in kept.modules {
            names.modules.key(module);
        }
        for range in kept.ranges {
            names.ranges.key(range);
        }
        Ok(names)
    }
}

/// Items by number. Item 0 stands for all that are added when the list is full.
#[derive(Clone, Debug)]
struct Interned<T> {
    ids: HashMap<T, u32>,
    items: Vec<T>,
    most: usize,
}

impl<T: Clone + Eq + Hash> Interned<T> {
    fn new<const N: usize>(most: usize, first: [T; N]) -> Self {
        let mut list = Self { ids: HashMap::new(), items: Vec::new(), most };
        for item in first {
            list.key(item);
        }
        list
    }

    fn key(&mut self, item: T) -> u32 {
        if let Some(id) = self.ids.get(&item) {
            return *id;
        }
        let Some(id) = u32::try_from(self.items.len()).ok().filter(|_| self.items.len() < self.most) else {
            return 0;
        };
        self.items.push(item.clone());
        self.ids.insert(item, id);
        id
    }

    fn item(&self, id: u32) -> &T {
        // Keys come from `key` only and lists never shrink, so only an inconsistent saved state has
        // others.
        self.items.get(id as usize).unwrap_or(&self.items[0])
    }

    /// Returns the items after those of `first`.
    fn beyond(&self, first: &Self) -> &[T] {
        self.items.get(first.items.len()..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_list_gives_everything_new_to_the_rest() {
        let mut names = NameTable::default();
        let keys: Vec<_> = (0..RANGES + 10).map(|number| names.range(&format!("step {number}"))).collect();
        assert_eq!(names.range("step 7"), keys[7]);
        assert_eq!(&**names.range_of(keys[7]), "step 7");
        assert_eq!(keys.last(), Some(&RangeKey(0)));
        assert_eq!(&**names.range_of(RangeKey(0)), "");
    }

    #[test]
    fn every_reason_for_no_frames_has_its_row() {
        let names = NameTable::default();
        for reason in [StackRef::NotAsked, StackRef::OverBudget, StackRef::Unreadable] {
            assert_eq!(names.site_of(SiteKey::without_frames(reason)), &CallSite::NotKnown(reason));
        }
        assert_eq!(names.site_of(SiteKey::without_frames(StackRef::NoPython)), &CallSite::NoPython);
        assert_eq!(names.site_of(SiteKey::without_frames(StackRef::Known(7))), &CallSite::NotKnown(StackRef::Known(0)));
        assert_eq!(names.module_of(ModuleKey::NONE), &ModuleEntry::None);
        assert_eq!(names.module_of(ModuleKey::NOT_KNOWN), &ModuleEntry::NotKnown);
    }
}
