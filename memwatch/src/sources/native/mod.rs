//! Native frames from copies of a thread's stack, from outside: `.eh_frame` says how to find the caller of each instruction, since neither PyTorch
//! nor CPython keeps frame pointers. Where it does not say, the stack ends, and the reason is reported: nothing is guessed.
//!
//! All that is read is a stranger's: bounded, and no panic whatever it is. The crate framehop goes on by frame pointers where there is no unwind
//! information, which would be a guess here.

mod image;
mod maps;
mod names;
mod rules;
mod unwind;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use memwatch_common::native::NativeItem;
use memwatch_core::stack::native::{NativeEnd, NativeFrame, NativeRole, NativeStack};

pub(crate) use image::Image;

use image::Images;
use maps::Maps;
use names::Names;

/// Frames of one stack that are kept.
const MOST_FRAMES: usize = 512;
/// Different stacks of threads without Python that are distinguished in a process; what comes after has none.
const MOST_STACKS: usize = 1 << 14;

/// What is known of files, for all processes.
#[derive(Debug, Default)]
pub(crate) struct NativeFiles {
    images: Images,
    names: Names,
}

impl NativeFiles {
    /// Forgets the files that none of these processes has, where there are many.
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
    /// Stacks of threads without Python, by their frames: each copy has a number of its own, the same frames have one.
    known: HashMap<Box<[(usize, u64)]>, u64>,
    /// The frames that allocations on each Python stack have in common, and what is behind them.
    common: HashMap<u64, (Vec<(usize, u64)>, NativeEnd)>,
}

/// A stack that was unwound.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unwound {
    /// The number that the stack has from now on; 0 where there are more than are distinguished.
    pub(crate) id: u64,
    /// The stack, unless the number had it before.
    pub(crate) stack: Option<NativeStack>,
}

impl NativeProcess {
    /// Of this process.
    pub(crate) fn new(tgid: u32) -> Self {
        Self { maps: Maps::new(tgid), known: HashMap::new(), common: HashMap::new() }
    }

    /// The files that it has, or that its stacks name.
    fn images(&self) -> impl Iterator<Item = usize> {
        let of_stacks = self.common.values().flat_map(|(places, _)| places.iter().map(|(image, _)| *image));
        self.maps.images().chain(of_stacks)
    }

    /// The frames of a copy that belongs to a Python stack: of the first, and of a later one that has not all that those before have in common.
    pub(crate) fn unwind(&mut self, files: &mut NativeFiles, copy: &NativeItem<'_>) -> Option<NativeStack> {
        let (places, end) = self.places(files, copy);
        if let Some((common, common_end)) = self.common.get_mut(&copy.id) {
            let same = common.iter().zip(&places).take_while(|(one, other)| one == other).count();
            // What ends earlier for a reason of its own contradicts nothing.
            if same >= common.len().min(places.len()) && !(end == NativeEnd::Complete && same < common.len()) {
                return None;
            }
            common.truncate(same);
            *common_end = NativeEnd::Differing;
            return Some(named(files, common, NativeEnd::Differing));
        }
        // Nothing is known of what was forgotten: that it is the same cannot be stated of it.
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

    /// The same of a thread without Python.
    pub(crate) fn distinguish(&mut self, files: &mut NativeFiles, copy: &NativeItem<'_>) -> Unwound {
        let (places, end) = self.places(files, copy);
        // What ended otherwise is another stack, whatever it has in common.
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

    /// Where each frame is: a file, and an address in it.
    fn places(&mut self, files: &mut NativeFiles, copy: &NativeItem<'_>) -> (Vec<(usize, u64)>, NativeEnd) {
        self.maps.be_as_new_as(copy.time_ns, &mut files.images);
        unwind::unwind(&self.maps, &mut files.images, copy)
    }
}

fn named(files: &mut NativeFiles, places: &[(usize, u64)], end: NativeEnd) -> NativeStack {
    // All of them are there: of a process that is followed no file is forgotten.
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
