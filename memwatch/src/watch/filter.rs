//! `--gpu`: selects the GPUs of a snapshot to show.

use std::collections::BTreeSet;

use memwatch_core::input::NvmlState;
use memwatch_core::snapshot::{GpuView, Snapshot};
use memwatch_core::words::{GpuUuid, PciAddress};

use crate::render::sentences;

/// Minimum length of a UUID prefix without `GPU-`; a shorter word may be an index.
const SHORTEST_BARE: usize = 4;

/// A word that matches no GPU or several.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnknownGpu {
    /// No GPU has this index or UUID.
    #[error("there is no GPU {word}; {known}")]
    NoSuch {
        /// The word as typed.
        word: String,
        /// Sentence that lists the present GPUs.
        known: String,
    },
    /// Several UUIDs have this prefix.
    #[error("{word} is a prefix of several UUIDs; {known}")]
    Ambiguous {
        /// The word as typed.
        word: String,
        /// Sentence that lists the present GPUs.
        known: String,
    },
    /// Indexes come from NVML, which is not available.
    #[error("cannot find GPU {word} by index without NVML, use the UUID: {reason}")]
    NoIndexes {
        /// The word as typed.
        word: String,
        /// Reason why NVML is not available.
        reason: String,
    },
}

/// Selected GPUs. Without words, all GPUs are selected.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuFilter {
    words: Vec<String>,
}

impl GpuFilter {
    /// Parses the words of `--gpu`: indexes, UUIDs or their prefixes, with or without `GPU-`, or
    /// PCI bus ids. A MIG instance is named by its GPU's index and its own (`0:1`) or by its UUID.
    /// A word for the GPU selects all its instances.
    pub(crate) fn new(words: &[String]) -> Self {
        Self { words: words.to_vec() }
    }

    /// Reduces the snapshot to the selected GPUs and the processes with memory on them.
    ///
    /// Keeps memory whose device is unknown and may be a selected GPU, and target processes.
    ///
    /// # Errors
    /// A word matches no GPU or several. Before the first answer of NVML an unmatched word is no error.
    pub(crate) fn apply(&self, snapshot: &mut Snapshot) -> Result<(), UnknownGpu> {
        if self.words.is_empty() {
            return Ok(());
        }
        let mut chosen = BTreeSet::new();
        for word in &self.words {
            chosen.extend(find(word, snapshot)?);
        }
        let shown = |uuid: Option<&GpuUuid>| uuid.is_none_or(|uuid| chosen.contains(uuid));
        snapshot.gpus.retain(|gpu| shown(Some(&gpu.uuid)));
        for process in &mut snapshot.processes {
            process.gpus.retain(|gpu| shown(gpu.uuid.as_ref()));
            process.failures.retain(|failure| shown(failure.uuid.as_ref()));
            if let Some(tensors) = &mut process.tensors {
                tensors.allocators.retain(|allocator| shown(allocator.uuid.as_ref()));
                tensors.attribution.devices.retain(|device| shown(device.uuid.as_ref()));
            }
        }
        snapshot.processes.retain(|process| process.target || !process.gpus.is_empty());
        Ok(())
    }
}

/// Returns the GPUs that a word matches: one GPU or all its instances, or none before the first
/// answer of NVML.
fn find(word: &str, snapshot: &Snapshot) -> Result<BTreeSet<GpuUuid>, UnknownGpu> {
    let named = |names: &dyn Fn(&GpuView) -> bool| -> BTreeSet<GpuUuid> {
        snapshot.gpus.iter().filter(|gpu| names(gpu)).map(|gpu| gpu.uuid.clone()).collect()
    };
    let address = PciAddress::parse(word);
    let sits_there = |gpu: &GpuView| gpu.pci_bus_id.as_deref().and_then(PciAddress::parse) == address;
    let by_place = match address {
        Some(_) => named(&sits_there),
        None => named(&|gpu| sentences::place(gpu) == word || word.parse() == Ok(gpu.nvml_index)),
    };
    if !by_place.is_empty() {
        return Ok(by_place);
    }
    let (word_owned, known) = (|| word.to_owned(), || known(&snapshot.gpus));
    let of_processes = snapshot.processes.iter().flat_map(|process| &process.gpus).filter_map(|gpu| gpu.uuid.as_ref());
    let parents = snapshot.gpus.iter().filter_map(|gpu| gpu.mig.as_ref()).map(|mig| &mig.parent_uuid);
    let uuids: BTreeSet<_> = snapshot.gpus.iter().map(|gpu| &gpu.uuid).chain(of_processes).chain(parents).collect();
    let begins: Vec<_> = uuids.into_iter().filter(|uuid| begins_with(uuid, word)).collect();
    match (begins.as_slice(), &snapshot.nvml) {
        ([one], _) => {
            let instances = named(&|gpu| gpu.mig.as_ref().is_some_and(|mig| mig.parent_uuid == **one));
            Ok(if instances.is_empty() { BTreeSet::from([(*one).clone()]) } else { instances })
        }
        ([], NvmlState::Starting) => Ok(BTreeSet::new()),
        ([], NvmlState::Unavailable(reason)) => {
            Err(UnknownGpu::NoIndexes { word: word_owned(), reason: reason.clone() })
        }
        ([], NvmlState::Ok) => Err(UnknownGpu::NoSuch { word: word_owned(), known: known() }),
        _ => Err(UnknownGpu::Ambiguous { word: word_owned(), known: known() }),
    }
}

fn begins_with(uuid: &GpuUuid, word: &str) -> bool {
    let starts = |text: &str| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    let bare = uuid.as_str().split_once('-').map(|(_, bare)| bare);
    starts(uuid.as_str()) || (word.len() >= SHORTEST_BARE && bare.is_some_and(starts))
}

fn known(gpus: &[GpuView]) -> String {
    if gpus.is_empty() {
        return "this machine has no GPUs".to_owned();
    }
    let names: Vec<_> = gpus.iter().map(|gpu| format!("{} ({})", sentences::place(gpu), gpu.uuid)).collect();
    format!("this machine has {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture::{INSTANCE_0, INSTANCE_1, UUID_0, UUID_1, busy_node, divided_node, training_node};

    fn filtered(words: &[&str]) -> Result<Snapshot, UnknownGpu> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let mut snapshot = busy_node();
        GpuFilter::new(&words).apply(&mut snapshot).map(|()| snapshot)
    }

    fn shown(words: &[&str]) -> Vec<u32> {
        filtered(words).expect("known GPUs").gpus.iter().map(|gpu| gpu.nvml_index).collect()
    }

    #[test]
    fn a_gpu_is_named_by_index_uuid_or_the_uuids_beginning() {
        assert_eq!(shown(&[]), [0, 1]);
        assert_eq!(shown(&["1"]), [1]);
        assert_eq!(shown(&[UUID_0]), [0]);
        assert_eq!(shown(&["gpu-8F"]), [0]);
        assert_eq!(shown(&[&UUID_1[4..8]]), [1]);
        assert_eq!(shown(&["1", UUID_0]), [0, 1]);
    }

    #[test]
    fn instances_are_named_one_by_one_or_all_of_a_gpu_at_once() {
        let shown = |word: &str| {
            let mut snapshot = divided_node();
            let applied = GpuFilter::new(&[word.to_owned()]).apply(&mut snapshot);
            applied.map(|()| snapshot.gpus.iter().map(|gpu| gpu.uuid.as_str().to_owned()).collect::<Vec<_>>())
        };
        let named = |uuids: &[&str]| Ok(uuids.iter().map(|uuid| (*uuid).to_owned()).collect::<Vec<_>>());
        for (word, uuids) in [
            ("0", &[UUID_0][..]),
            ("1", &[INSTANCE_0, INSTANCE_1]),
            ("1:1", &[INSTANCE_1]),
            (&INSTANCE_0[..8], &[INSTANCE_0]),
            (&UUID_1[..8], &[INSTANCE_0, INSTANCE_1]),
            ("0000:1c:00.0", &[INSTANCE_0, INSTANCE_1]),
        ] {
            assert_eq!(shown(word), named(uuids), "{word}");
        }
        let refusal = shown("1:2").expect_err("there are two").to_string();
        assert!(refusal.contains(&format!("1:0 ({INSTANCE_0}), 1:1 ({INSTANCE_1})")), "{refusal}");
        assert!(matches!(shown("MIG-"), Err(UnknownGpu::Ambiguous { .. })));
    }

    #[test]
    fn processes_elsewhere_are_left_out() {
        let snapshot = filtered(&["1"]).expect("a known GPU");
        let tgids: Vec<_> = snapshot.processes.iter().map(|process| process.tgid.0).collect();
        assert_eq!(tgids, [2002, 4321]);
        let on = snapshot.processes.iter().flat_map(|process| &process.gpus);
        assert!(on.clone().count() > 0);
        assert!(on.filter_map(|gpu| gpu.uuid.as_ref()).all(|uuid| uuid.as_str() == UUID_1));
    }

    #[test]
    fn tensors_elsewhere_are_left_out() {
        let mut snapshot = busy_node();
        let mut tensors = training_node().processes[0].tensors.clone().expect("it trains");
        let mut second = tensors.attribution.devices[0].clone();
        (second.device, second.uuid) = (1, Some(GpuUuid::new(UUID_1)));
        tensors.attribution.devices.push(second);
        snapshot.processes[0].target = true;
        snapshot.processes[0].tensors = Some(tensors);
        GpuFilter::new(&["1".to_owned()]).apply(&mut snapshot).expect("a known GPU");
        let left = snapshot.processes[0].tensors.as_ref().expect("it is a target");
        assert_eq!(left.attribution.devices.iter().map(|device| device.device).collect::<Vec<_>>(), [1]);
        assert_eq!(left.allocators.len(), 0);
    }

    #[test]
    fn an_unknown_gpu_is_refused_with_the_known_ones() {
        let refusal = filtered(&["7"]).expect_err("no such GPU").to_string();
        assert_eq!(refusal, format!("there is no GPU 7; this machine has 0 ({UUID_0}), 1 ({UUID_1})"));
        let refusal = filtered(&["GPU-"]).expect_err("two GPUs").to_string();
        assert!(refusal.starts_with("GPU- is a prefix of several UUIDs; this machine has 0"), "{refusal}");
    }

    #[test]
    fn without_nvml_only_uuids_can_be_found() {
        let mut snapshot = busy_node();
        snapshot.gpus.clear();
        snapshot.nvml = NvmlState::Starting;
        let by_index = GpuFilter::new(&["0".to_owned()]);
        assert_eq!(by_index.apply(&mut snapshot.clone()), Ok(()));
        snapshot.nvml = NvmlState::Unavailable("no driver".to_owned());
        let refusal = by_index.apply(&mut snapshot.clone()).expect_err("no indexes").to_string();
        assert_eq!(refusal, "cannot find GPU 0 by index without NVML, use the UUID: no driver");
        assert_eq!(GpuFilter::new(&[UUID_0.to_owned()]).apply(&mut snapshot), Ok(()));
    }
}
