//! The names of places: sites, layers, models and phases as numbers, so that an event costs no text.
//!
//! Every list is bounded: what comes when it is full shares the row of the rest.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::decode::StackRef;
use crate::input::holdings::HoldingClass;
use crate::stack::PythonCode;

/// How many sites are distinguished.
const SITES: usize = 1 << 16;
/// How many lines of libraries are.
const LIBRARIES: usize = 1 << 16;
/// How many layers are.
const LAYERS: usize = 1 << 14;
/// How many names of ranges are: programs may put a step's number into them.
const PHASES: usize = 256;

/// Where in the program memory was allocated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Site {
    /// More sites than are distinguished.
    Rest,
    /// Older than the watch.
    BeforeAttach,
    /// The stack was not asked for, was too expensive, could not be read or did not arrive.
    NotKnown(StackRef),
    /// A thread that runs no Python.
    NoPython,
    /// A line of Python.
    Line(PythonCode),
    /// The backward pass of what this line computed.
    BackwardOf(PythonCode),
    /// A function, in a thread that runs no Python.
    Native(NativeCode),
    /// Older than the watch: what it is was read from the process's memory.
    Held(HeldAs),
    /// Allocated while no event was traced.
    Untraced,
    /// The same, and what it is was read from the process's memory.
    UntracedHeld(HeldAs),
}

/// What a block is, and who keeps it, by the process's memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeldAs {
    /// Its class.
    pub class: HoldingClass,
    /// The name, with `*` for every index; `None` where it has none.
    pub name: Option<Arc<str>>,
}

impl HeldAs {
    /// `parameters h.*.attn.weight`, `cuBLAS workspaces`.
    pub fn text(&self) -> String {
        match &self.name {
            Some(name) => format!("{} {name}", self.class.label()),
            None => self.class.label().to_owned(),
        }
    }
}

/// A place in native code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NativeCode {
    /// The function, without its parameters.
    pub function: Arc<str>,
    /// The name of the file that it is in.
    pub library: Arc<str>,
}

/// A row in the lists of sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SiteKey(#[serde(deserialize_with = "row::<_, SITES>")] pub(super) u32);

impl SiteKey {
    pub(super) const REST: Self = Self(0);
    /// Of what was there before the watch.
    pub const BEFORE_ATTACH: Self = Self(1);
    pub(super) const NO_PYTHON: Self = Self(2);
    const NOT_ASKED: Self = Self(3);
    const OVER_BUDGET: Self = Self(4);
    const UNREADABLE: Self = Self(5);
    /// The stack has a number, and what it is did not arrive.
    pub(super) const MISSING: Self = Self(6);
    /// The block is small, and its stack was not drawn.
    const NOT_DRAWN: Self = Self(7);
    /// Of what was allocated while no event was traced.
    pub const UNTRACED: Self = Self(8);

    /// The row of this number.
    #[cfg(test)]
    pub(crate) const fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// The site of a stack that has no frames.
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

/// What the program's line called that allocated memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Library {
    /// More lines of libraries than are distinguished.
    Rest,
    /// No library: the line itself allocated, or there is none.
    None,
    /// A line of a package, or of torch.
    Line(PythonCode),
}

/// A row in the list of lines of libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LibraryKey(#[serde(deserialize_with = "row::<_, LIBRARIES>")] u32);

impl LibraryKey {
    /// The line itself allocated, or there is none.
    pub const NONE: Self = Self(1);
}

/// Whose computation memory was allocated for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layer {
    /// More layers than are distinguished.
    Rest,
    /// Older than the watch.
    BeforeAttach,
    /// The stack or the node of the graph is not known.
    NotKnown,
    /// No module's.
    None,
    /// A module's.
    Module(Module),
    /// An operator's of TensorFlow, by its name.
    Operator(Arc<str>),
    /// Allocated while no event was traced.
    Untraced,
}

/// A `torch.nn.Module`, or several that are used alike: one name in one model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Module {
    /// The model it is in: its class, and `#2` and so on where there are several of the class.
    pub model: Arc<str>,
    /// Its name in the model, as `named_modules()` has it, without what wrappers put in; empty for the model itself; `None` where it is not found
    /// there.
    pub name: Option<Arc<str>>,
    /// Its class.
    pub class: Arc<str>,
}

/// A row in the lists of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LayerKey(#[serde(deserialize_with = "row::<_, LAYERS>")] pub(super) u32);

impl LayerKey {
    /// Of what was there before the watch.
    pub const BEFORE_ATTACH: Self = Self(1);
    pub(super) const NOT_KNOWN: Self = Self(2);
    pub(super) const NONE: Self = Self(3);
    /// Of what was allocated while no event was traced.
    pub const UNTRACED: Self = Self(4);

    /// The row of this number.
    #[cfg(test)]
    pub(crate) const fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// Whether it is a module's.
    pub(super) const fn is_module(self) -> bool {
        self.0 > Self::UNTRACED.0
    }
}

/// A row in the lists of phases: the name of a range that the program opened. The first is the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PhaseKey(#[serde(deserialize_with = "row::<_, PHASES>")] pub(super) u32);

/// A row that a list may have: lists of sums are as long as the largest row asks for.
fn row<'de, D: Deserializer<'de>, const MOST: usize>(deserializer: D) -> Result<u32, D::Error> {
    let row = u32::deserialize(deserializer)?;
    if (row as usize) < MOST { Ok(row) } else { Err(D::Error::custom("no list has so many rows")) }
}

/// All names of one process.
#[derive(Clone, Debug)]
pub struct Names {
    sites: Interned<Site>,
    libraries: Interned<Library>,
    layers: Interned<Layer>,
    phases: Interned<Arc<str>>,
}

impl Default for Names {
    fn default() -> Self {
        use StackRef::{Known, NotAsked, NotDrawn, OverBudget, Unreadable};
        let [not_asked, over_budget] = [NotAsked, OverBudget].map(Site::NotKnown);
        let [unreadable, missing, not_drawn] = [Unreadable, Known(0), NotDrawn].map(Site::NotKnown);
        let [rest, before, no_python] = [Site::Rest, Site::BeforeAttach, Site::NoPython];
        let sites = [rest, before, no_python, not_asked, over_budget, unreadable, missing, not_drawn, Site::Untraced];
        let layers = [Layer::Rest, Layer::BeforeAttach, Layer::NotKnown, Layer::None, Layer::Untraced];
        Self {
            sites: Interned::new(SITES, sites),
            libraries: Interned::new(LIBRARIES, [Library::Rest, Library::None]),
            layers: Interned::new(LAYERS, layers),
            phases: Interned::new(PHASES, [Arc::from("")]),
        }
    }
}

impl Names {
    /// The row of a site.
    pub(super) fn site(&mut self, site: Site) -> SiteKey {
        SiteKey(self.sites.key(site))
    }

    /// The row of what a line called.
    pub(super) fn library(&mut self, library: Library) -> LibraryKey {
        LibraryKey(self.libraries.key(library))
    }

    /// The row of a layer.
    pub(super) fn layer(&mut self, module: Module) -> LayerKey {
        LayerKey(self.layers.key(Layer::Module(module)))
    }

    /// The row of an operator.
    pub(super) fn operator(&mut self, name: &str) -> LayerKey {
        LayerKey(self.layers.key(Layer::Operator(name.into())))
    }

    /// The row of a phase.
    pub(super) fn phase(&mut self, name: &str) -> PhaseKey {
        let known = self.phases.ids.get(name).copied();
        PhaseKey(known.unwrap_or_else(|| self.phases.key(name.into())))
    }

    /// What a row of sites is.
    pub fn site_of(&self, key: SiteKey) -> &Site {
        self.sites.item(key.0)
    }

    /// What a row of lines of libraries is.
    pub fn library_of(&self, key: LibraryKey) -> &Library {
        self.libraries.item(key.0)
    }

    /// What a row of layers is.
    pub fn layer_of(&self, key: LayerKey) -> &Layer {
        self.layers.item(key.0)
    }

    /// What a row of phases is; empty for the rest.
    pub fn phase_of(&self, key: PhaseKey) -> &Arc<str> {
        self.phases.item(key.0)
    }
}

/// As they are kept: the rows that every process has are left out.
#[derive(Serialize, Deserialize)]
struct StoredNames<S, B, L, P> {
    sites: S,
    libraries: B,
    layers: L,
    phases: P,
}

impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = Self::default();
        let (sites, layers) = (self.sites.beyond(&all.sites), self.layers.beyond(&all.layers));
        let (libraries, phases) = (self.libraries.beyond(&all.libraries), self.phases.beyond(&all.phases));
        StoredNames { sites, libraries, layers, phases }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kept: StoredNames<Vec<Site>, Vec<Library>, Vec<Layer>, Vec<Arc<str>>> =
            StoredNames::deserialize(deserializer)?;
        let mut names = Self::default();
        for site in kept.sites {
            names.sites.key(site);
        }
        for library in kept.libraries {
            names.libraries.key(library);
        }
        for layer in kept.layers {
            names.layers.key(layer);
        }
        for phase in kept.phases {
            names.phases.key(phase);
        }
        Ok(names)
    }
}

/// Things by number. The first stands for all that come when the list is full.
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
        // A key comes from `key` alone, and a list never shrinks: only a state that is not what was kept has others.
        self.items.get(id as usize).unwrap_or(&self.items[0])
    }

    /// What it has that came after these.
    fn beyond(&self, first: &Self) -> &[T] {
        self.items.get(first.items.len()..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_list_gives_everything_new_to_the_rest() {
        let mut names = Names::default();
        let keys: Vec<_> = (0..PHASES + 10).map(|number| names.phase(&format!("step {number}"))).collect();
        assert_eq!(names.phase("step 7"), keys[7]);
        assert_eq!(&**names.phase_of(keys[7]), "step 7");
        assert_eq!(keys.last(), Some(&PhaseKey(0)));
        assert_eq!(&**names.phase_of(PhaseKey(0)), "");
    }

    #[test]
    fn every_reason_for_no_frames_has_its_row() {
        let names = Names::default();
        for reason in [StackRef::NotAsked, StackRef::OverBudget, StackRef::Unreadable] {
            assert_eq!(names.site_of(SiteKey::without_frames(reason)), &Site::NotKnown(reason));
        }
        assert_eq!(names.site_of(SiteKey::without_frames(StackRef::NoPython)), &Site::NoPython);
        assert_eq!(names.site_of(SiteKey::without_frames(StackRef::Known(7))), &Site::NotKnown(StackRef::Known(0)));
        assert_eq!(names.layer_of(LayerKey::NONE), &Layer::None);
        assert_eq!(names.layer_of(LayerKey::NOT_KNOWN), &Layer::NotKnown);
    }
}
