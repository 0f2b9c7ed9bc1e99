//! Questions to the list of all frameworks' descriptors.

use std::collections::BTreeSet;

use memwatch_common::tensor::FrameworkLibrary;
use memwatch_core::words::Framework;

use super::descriptor::{BlockCounter, FrameworkDescriptor, Keeps, LibraryRow};

/// Frameworks, in the order in which their libraries are probed.
#[derive(Clone, Copy)]
pub(crate) struct FrameworkList(pub(crate) &'static [&'static FrameworkDescriptor]);

impl FrameworkList {
    /// Returns the libraries of all frameworks.
    pub(crate) fn libraries(self) -> impl Iterator<Item = &'static LibraryRow> {
        self.0.iter().flat_map(|descriptor| descriptor.libraries)
    }

    /// Returns a library's entry; `None` for the interpreter's library, which has no allocator.
    pub(crate) fn row_of(self, library: FrameworkLibrary) -> Option<&'static LibraryRow> {
        self.libraries().find(|row| row.id == library)
    }

    /// Returns the kind of memory that a library's allocator manages; `None` for the interpreter's
    /// library.
    pub(crate) fn keeps(self, library: FrameworkLibrary) -> Option<Keeps> {
        self.row_of(library).map(|row| row.keeps)
    }

    /// Returns the libraries from which events of blocks come.
    pub(crate) fn block_libraries(self) -> impl Iterator<Item = FrameworkLibrary> {
        self.libraries().filter(|row| row.keeps.sends_blocks()).map(|row| row.id)
    }

    /// Whether a path is that of one of the framework's libraries.
    pub(crate) fn is_of(self, framework: Framework, path: &[u8]) -> bool {
        let mut own = self.0.iter().filter(|one| one.framework == framework).flat_map(|one| one.libraries);
        own.any(|row| row.name.is_at(path))
    }

    /// Returns the framework of a process that maps a file; `None` if the file shows none.
    pub(crate) fn marked_by(self, path: &[u8]) -> Option<Framework> {
        let marked = self.0.iter().find(|one| one.marks.iter().any(|mark| mark.is_at(path)));
        marked.map(|one| one.framework)
    }

    /// Returns the frameworks of which one of these files is a library.
    pub(crate) fn among<'path>(self, paths: impl Iterator<Item = &'path [u8]>) -> BTreeSet<Framework> {
        let is_there = |path: &'path [u8]| self.0.iter().filter(move |one| self.is_of(one.framework, path));
        paths.flat_map(is_there).map(|one| one.framework).collect()
    }

    /// Begins to count the blocks of a process that maps a library, by the allocators' counters;
    /// `None` if they cannot be read.
    pub(crate) fn begin_count(self, library: FrameworkLibrary, tgid: u32) -> Option<Box<dyn BlockCounter>> {
        let is_its = |one: &&&FrameworkDescriptor| one.libraries.iter().any(|row| row.id == library);
        self.0.iter().find(is_its)?.begin_count?(tgid)
    }

    /// Returns how often an event of an allocator passes the function of a probe, in hundredths;
    /// `None` if not every event does.
    pub(crate) fn load_percent(self, row: u16) -> Option<u64> {
        let mut functions = self.0.iter().flat_map(|one| one.event_functions);
        functions.find(|function| function.row == row).map(|function| function.percent)
    }
}

#[cfg(test)]
mod tests {
    use memwatch_common::tensor::{FrameworkLibrary, TENSOR_PROBES, TensorProbe};
    use memwatch_core::words::Framework;

    use crate::frameworks::FRAMEWORKS;

    #[test]
    fn every_library_of_the_table_of_functions_has_a_row_but_the_interpreters() {
        for library in TENSOR_PROBES.iter().map(|TensorProbe { library, .. }| *library) {
            let has_row = FRAMEWORKS.keeps(library).is_some();
            assert_eq!(has_row, library != FrameworkLibrary::Python, "{library:?}");
        }
    }

    #[test]
    fn a_library_is_known_by_the_name_of_its_file() {
        let is_of = |framework, path| FRAMEWORKS.is_of(framework, path);
        assert!(is_of(Framework::Ggml, b"/opt/llama/libggml-base.so.0 (deleted)"));
        assert!(!is_of(Framework::Ggml, b"/opt/llama/libggml.so"), "its functions are in the others");
        assert!(!is_of(Framework::PyTorch, b"/opt/llama/libggml-base.so"));
        assert!(is_of(Framework::CuPy, b"/s/cupy/cuda/memory.cpython-313-x86_64-linux-gnu.so"));
        assert!(!is_of(Framework::CuPy, b"/s/other/cuda/memory.cpython-313-x86_64-linux-gnu.so"), "of another package");
    }

    #[test]
    fn a_framework_has_the_libraries_that_the_core_attributes_to_it() {
        for descriptor in FRAMEWORKS.0 {
            let own = descriptor.libraries.iter().map(|row| Framework::of_library(row.id));
            assert!(own.clone().count() > 0 && own.clone().all(|framework| framework == Some(descriptor.framework)));
        }
    }
}
