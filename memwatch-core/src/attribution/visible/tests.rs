use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::input::{MigFacts, ProcessUse, Sensors};

const TGID: Tgid = Tgid(7);
/// The first two UUIDs share a prefix.
const UUIDS: [&str; 4] = ["GPU-aa10", "GPU-ab20", "GPU-bc30", "GPU-cd40"];

/// Returns a machine of whole GPUs of these models. NVML lists the process on all of them.
fn machine(models: &[&str]) -> Vec<DeviceFacts> {
    let device = |(index, model): (usize, &&str)| DeviceFacts {
        uuid: GpuUuid::new(UUIDS[index]),
        nvml_index: u32::try_from(index).expect("few devices"),
        name: (*model).to_owned(),
        pci_bus_id: None,
        mig: None,
        total_bytes: None,
        used_bytes: None,
        processes: Some(vec![ProcessUse { tgid: TGID, used_bytes: None, mps_client: false }]),
        cores: None,
        sensors: Sensors::default(),
    };
    models.iter().enumerate().map(device).collect()
}

fn seeing_all(list: Option<&str>, order: Option<&str>) -> GpuVisibility {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    GpuVisibility { visible_devices: owned(list), device_order: owned(order), sees_machine: true }
}

fn seen(visibility: &GpuVisibility, devices: &[DeviceFacts]) -> Vec<Option<String>> {
    let name = |ordinal| gpu(TGID, Ordinal(ordinal), visibility, devices).map(|uuid| uuid.as_str().to_owned());
    (0..3).map(name).collect()
}

/// Returns the GPU of each of the first three device numbers, in a process that sees the whole
/// machine.
fn reported(list: Option<&str>, order: Option<&str>, models: &[&str]) -> Vec<Option<String>> {
    seen(&seeing_all(list, order), &machine(models))
}

fn named<const N: usize>(uuids: [&str; N]) -> Vec<Option<String>> {
    let mut names: Vec<_> = uuids.map(|uuid| Some(uuid.to_owned())).to_vec();
    names.resize(3, None);
    names
}

#[test]
fn numbers_and_uuids_are_read_in_the_order_of_the_list() {
    let [a, b, ..] = UUIDS;
    assert_eq!(reported(None, None, &["H", "H"]), named([a, b]));
    assert_eq!(reported(Some("1,0"), None, &["H", "H"]), named([b, a]));
    assert_eq!(reported(Some(" 1 , GPU-aa"), None, &["H", "H"]), named([b, a]));
}

#[test]
fn visible_devices_end_at_the_first_invalid_entry_and_reject_duplicates() {
    let mut devices = machine(&["H", "H"]);
    devices[0].processes = Some(Vec::new());
    for list in ["1,-1,0", "1,2,0", "1,GPU-zz,0", "1,,0", "1,x,0"] {
        assert_eq!(seen(&seeing_all(Some(list), None), &devices), named([UUIDS[1]]), "{list}");
    }
    for list in ["", "-1", "1,1", "1,GPU-ab"] {
        assert_eq!(seen(&seeing_all(Some(list), None), &devices), named([]), "{list}");
    }
}

#[test]
fn among_different_models_numbers_need_the_order_of_the_bus() {
    let [a, b, ..] = UUIDS;
    assert_eq!(reported(Some("1,0"), None, &["H", "B"]), named([]));
    assert_eq!(reported(Some("1,0"), Some("FASTEST_FIRST"), &["H", "B"]), named([]));
    assert_eq!(reported(Some("1,0"), Some("PCI_BUS_ID"), &["H", "B"]), named([b, a]));
    assert_eq!(reported(Some("GPU-ab,GPU-aa"), None, &["H", "B"]), named([b, a]));
    assert_eq!(reported(Some("0,GPU-ab"), None, &["H", "B"]), [None, Some(b.to_owned()), None]);
}

#[test]
fn the_bus_decides_where_nvml_numbers_otherwise() {
    let mut devices = machine(&["H", "H"]);
    devices[0].pci_bus_id = Some("00000000:81:00.0".to_owned());
    devices[1].pci_bus_id = Some("00000000:1B:00.0".to_owned());
    assert_eq!(seen(&seeing_all(None, None), &devices), named([UUIDS[1], UUIDS[0]]));
}

#[test]
fn where_gpus_may_be_hidden_only_uuids_count() {
    let inside = |list| GpuVisibility { sees_machine: false, ..seeing_all(list, None) };
    let devices = machine(&["H", "H"]);
    assert_eq!(seen(&inside(None), &devices), named([]));
    assert_eq!(seen(&inside(Some("1,0")), &devices), named([]));
    assert_eq!(seen(&inside(Some("GPU-ab20,GPU-aa10")), &devices), named([UUIDS[1], UUIDS[0]]));
    assert_eq!(seen(&inside(Some("GPU-a,GPU-bc")), &machine(&["H"; 3])), [None, Some(UUIDS[2].to_owned()), None]);
}

#[test]
fn a_list_that_nvml_contradicts_is_not_believed() {
    let mut devices = machine(&["H", "H", "H"]);
    // NVML shows memory on a GPU that the list leaves out.
    assert_eq!(seen(&seeing_all(Some("0,1"), None), &devices), named([]));
    devices[2].processes = Some(Vec::new());
    assert_eq!(seen(&seeing_all(Some("0,1"), None), &devices), named([UUIDS[0], UUIDS[1]]));
    // NVML shows no memory on the GPU that the number would mean.
    devices[0].processes = Some(Vec::new());
    assert_eq!(seen(&seeing_all(None, None), &devices), [None, Some(UUIDS[1].to_owned()), None]);
    devices[1].processes = None;
    assert_eq!(seen(&seeing_all(None, None), &devices), [None, Some(UUIDS[1].to_owned()), None]);
}

#[test]
fn visible_mig_instances_are_selected_by_uuid_or_gpu_and_ids_only() {
    let mut devices = machine(&["H MIG 1g.10gb", "H MIG 1g.10gb"]);
    for (place, device) in devices.iter_mut().enumerate() {
        device.uuid = GpuUuid::new(["MIG-aa10", "MIG-ab20"][place]);
        let instance = u32::try_from(place + 7).ok();
        let (parent_uuid, compute_instance_id) = (GpuUuid::new("GPU-f0"), Some(0));
        let profile = Some("1g.10gb".to_owned());
        device.mig = Some(MigFacts { parent_uuid, index: 0, profile, gpu_instance_id: instance, compute_instance_id });
    }
    devices[0].processes = Some(Vec::new());
    for list in ["MIG-ab20", "MIG-ab", "MIG-GPU-f0/8/0"] {
        assert_eq!(seen(&seeing_all(Some(list), None), &devices), named(["MIG-ab20"]), "{list}");
    }
    for list in ["0", "1", "GPU-f0", "MIG-", "MIG-GPU-f0/9/0"] {
        assert_eq!(seen(&seeing_all(Some(list), None), &devices), named([]), "{list}");
    }
    assert_eq!(seen(&seeing_all(None, None), &devices), named([]));
    let alone = [devices.remove(1)];
    assert_eq!(seen(&seeing_all(Some("GPU-f0"), None), &alone), named(["MIG-ab20"]));
}

/// Models the driver: returns the devices by number, as the process sees them. `order` has the
/// indices of the visible GPUs.
fn driver(list: Option<&str>, order: &[usize]) -> Vec<usize> {
    let Some(list) = list else { return order.to_vec() };
    let mut chosen = Vec::new();
    for word in list.split(',') {
        let begins: Vec<usize> = order.iter().copied().filter(|place| UUIDS[*place].starts_with(word)).collect();
        let device = match (word.starts_with("GPU-"), begins.as_slice()) {
            (true, [one]) => Some(*one),
            (true, _) => None,
            (false, _) => word.parse::<usize>().ok().and_then(|number| order.get(number).copied()),
        };
        let Some(device) = device else { break };
        if chosen.contains(&device) {
            return Vec::new();
        }
        chosen.push(device);
    }
    chosen
}

fn lists() -> impl Strategy<Value = Option<String>> {
    let words = ["0", "1", "2", "3", "GPU-a", "GPU-aa", "GPU-ab20", "GPU-b", "GPU-cd", "GPU-", "-1", "x", ""];
    prop::option::of(vec(select(words.to_vec()), 1..5).prop_map(|words| words.join(",")))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// For any visible subset, and any order of different models.
    #[test]
    fn visible_device_resolution_matches_the_driver(
        models in vec(select(vec!["H", "B"]), 1..5),
        list in lists(),
        by_bus: bool,
        visible in subsequence(vec![0_usize, 1, 2, 3], 1..=4),
        sees_machine: bool,
        by_speed in Just(vec![0_usize, 1, 2, 3]).prop_shuffle(),
        used in vec(any::<bool>(), 4),
    ) {
        let mut devices = machine(&models);
        let alike = models.iter().all(|model| *model == models[0]);
        let mut order: Vec<usize> = if alike || by_bus { (0..4).collect() } else { by_speed };
        order.retain(|place| *place < devices.len() && (sees_machine || visible.contains(place)));
        let truth = driver(list.as_deref(), &order);
        for (place, device) in devices.iter_mut().enumerate() {
            let number = truth.iter().position(|seen| *seen == place);
            if !number.is_some_and(|number| used[number]) {
                device.processes = Some(Vec::new());
            }
        }
        let device_order = by_bus.then(|| "PCI_BUS_ID".to_owned());
        let visibility = GpuVisibility { visible_devices: list, device_order, sees_machine };
        for (number, place) in truth.iter().enumerate() {
            let answer = gpu(TGID, Ordinal(i32::try_from(number).expect("few")), &visibility, &devices);
            let right = GpuUuid::new(UUIDS[*place]);
            prop_assert!(answer.is_none() || answer == Some(right.clone()), "{answer:?} for {right}");
            let numbers_only = visibility.visible_devices.as_ref().is_none_or(|list| !list.contains("GPU-"));
            if sees_machine && (alike || by_bus) && numbers_only && used[number] {
                prop_assert_eq!(answer, Some(right));
            }
        }
    }
}
