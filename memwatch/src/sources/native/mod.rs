//! Unwinds native frames from copies of a thread's stack. `.eh_frame` shows how to find the caller
//! of each instruction, since neither PyTorch nor CPython keeps frame pointers. Where it has no
//! information, the stack ends with a reason: nothing is guessed.
//!
//! All data read is untrusted: sizes are limited, and no input causes a panic. The crate framehop
//! is not used because it falls back to frame pointers without unwind information, which would be a
//! guess here.

mod image;
mod maps;
mod names;
mod rules;
mod unwind;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use memwatch_common::native::NativeItem;
use memwatch_core::stack::native::{NativeEnd, NativeFrame, NativeRole, NativeStack};

pub(crate) use image::CodeImage;

use image::Images;
use maps::Maps;
use names::FunctionNames;

/// Maximum number of frames of a stack.
const MOST_FRAMES: usize = 512;
/// Maximum number of distinct stacks of a process's threads without Python; further ones get no
/// stack.
const MOST_STACKS: usize = 1 << 14;

/// Cached data of files, shared by all processes.
#[derive(Debug, Default)]
pub(crate) struct NativeFiles {
    images: Images,
    names: FunctionNames,
}

impl NativeFiles {
    /// Drops the files that none of these processes uses, if there are many.
    pub(crate) fn keep_those_of<'a>(&mut self, processes: impl Iterator<Item = &'a NativeProcess>) {
        if self.images.are_many() {
            let used: BTreeSet<usize> = processes.flat_map(NativeProcess::images).collect();
            self.images.keep(&used);
            self.names.keep(&used);
        }
    }
}

/// The native stacks of one process.
#[derive(Debug)]
pub(crate) struct NativeProcess {
    maps: Maps,
    /// Ids of stacks of threads without Python, by frames. Each copy has its own id; equal frames
    /// share one.
    known: HashMap<Box<[(usize, u64)]>, u64>,
    /// Frames common to all copies of each Python stack, and why they end.
    common: HashMap<u64, (Vec<(usize, u64)>, NativeEnd)>,
}

/// An unwound stack.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unwound {
    /// Id of the stack; 0 if there are more than [`MOST_STACKS`].
    pub(crate) id: u64,
    /// The stack; `None` if it is known under this id.
    pub(crate) stack: Option<NativeStack>,
}

impl NativeProcess {
    /// Creates the state of a process.
    pub(crate) fn new(tgid: u32) -> Self {
        Self { maps: Maps::new(tgid), known: HashMap::new(), common: HashMap::new() }
    }

    /// Returns the numbers of the files that the process maps or its stacks refer to.
    fn images(&self) -> impl Iterator<Item = usize> {
        let of_stacks = self.common.values().flat_map(|(places, _)| places.iter().map(|(image, _)| *image));
        self.maps.images().chain(of_stacks)
    }

    /// Unwinds a copy that belongs to a Python stack. Returns the stack for the first copy, and for
    /// a later copy that shortens the frames common to all copies.
    pub(crate) fn unwind(&mut self, files: &mut NativeFiles, copy: &NativeItem<'_>) -> Option<NativeStack> {
        let (places, end) = self.places(files, copy);
        if let Some((common, common_end)) = self.common.get_mut(&copy.id) {
            let same = common.iter().zip(&places).take_while(|(one, other)| one == other).count();
            // A copy that ends early for a reason of its own contradicts nothing.
            if same >= common.len().min(places.len()) && !(end == NativeEnd::Complete && same < common.len()) {
                return None;
            }
            common.truncate(same);
            *common_end = NativeEnd::Differing;
            return Some(named(files, common, NativeEnd::Differing));
        }
        // The earlier copy was dropped, so whether this one is the same is unknown.
        if copy.is_again() {
            return None;
        }
        if self.common.len() >= MOST_STACKS {
            self.common.clear();
        }
        let stack = named(files, &places, end);
        self.common.insert(copy.id, (places, end));
        Some(stack)
    }

    /// Unwinds a copy of a thread without Python.
    pub(crate) fn distinguish(&mut self, files: &mut NativeFiles, copy: &NativeItem<'_>) -> Unwound {
        let (places, end) = self.places(files, copy);
        // A different reason for the end makes a different stack.
        let key: Box<[(usize, u64)]> = places.iter().copied().chain([(usize::MAX, end as u64)]).collect();
        if let Some(id) = self.known.get(&key) {
            return Unwound { id: *id, stack: None };
        }
        if self.known.len() >= MOST_STACKS {
            return Unwound { id: 0, stack: None };
        }
        self.known.insert(key, copy.id);
        Unwound { id: copy.id, stack: Some(named(files, &places, end)) }
    }

    /// Returns file number and address of each frame.
    fn places(&mut self, files: &mut NativeFiles, copy: &NativeItem<'_>) -> (Vec<(usize, u64)>, NativeEnd) {
        self.maps.begin_use();
        let unwound = unwind::unwind(&mut self.maps, &mut files.images, copy);
        if self.maps.are_used_ones_present() {
            return unwound;
        }
        self.maps.be_as_new_as(copy.time_ns, &mut files.images);
        unwind::unwind(&mut self.maps, &mut files.images, copy)
    }
}

fn named(files: &mut NativeFiles, places: &[(usize, u64)], end: NativeEnd) -> NativeStack {
    // All files are present: those of traced processes are not dropped.
    let frames = places.iter().map_while(|(index, address)| {
        let (image, library) = files.images.named(*index)?;
        let name = files.names.of(*index, image, *address);
        Some(NativeFrame {
            function: name.as_ref().map(|name| Arc::clone(&name.full)),
            name: name.map(|name| name.short),
            library,
            address: *address,
            role: NativeRole::Code,
        })
    });
    NativeStack::new(frames.collect(), end)
}

#[cfg(test)]
mod tests;
