use super::*;
use crate::decode::decode;
use crate::input::{GpuVisibility, MigFacts, ProcessFacts, ProcessUse, Sensors};
use crate::test_calls::{
    ON_DEVICE, TestCall, ctx_get_device, device_get_pci_bus_id, device_get_uuid, mem_alloc, mem_create, mem_host_alloc,
};
use crate::words::{Ordinal, Tid};

const TGID: Tgid = Tgid(7);

fn bytes_uuid(prefix: &str, byte: u8) -> GpuUuid {
    GpuUuid::new(&GpuUuid::from_bytes([byte; 16]).as_str().replace("GPU-", prefix))
}

/// Returns a whole GPU whose list of processes includes the process or not.
fn gpu(byte: u8, listed: bool) -> DeviceFacts {
    let entry = ProcessUse { tgid: TGID, used_bytes: Some(1), mps_client: false };
    DeviceFacts {
        uuid: bytes_uuid("GPU-", byte),
        nvml_index: u32::from(byte),
        name: "H".to_owned(),
        pci_bus_id: Some(format!("00000000:{byte:02X}:00.0")),
        mig: None,
        total_bytes: None,
        used_bytes: None,
        processes: Some(if listed { vec![entry] } else { Vec::new() }),
        cores: None,
        sensors: Sensors::default(),
    }
}

/// Returns an instance of GPU 0xf0.
fn instance(byte: u8, listed: bool) -> DeviceFacts {
    let mig = MigFacts {
        parent_uuid: bytes_uuid("GPU-", 0xf0),
        index: u32::from(byte),
        profile: None,
        gpu_instance_id: None,
        compute_instance_id: None,
    };
    let pci_bus_id = Some("00000000:F0:00.0".to_owned());
    DeviceFacts { uuid: bytes_uuid("MIG-", byte), nvml_index: 0, pci_bus_id, mig: Some(mig), ..gpu(byte, listed) }
}

/// Returns a process older than the watch that has queried these UUIDs of its device 1 and holds
/// memory there.
fn process(answers: &[u8]) -> Process {
    let mut process = Process::new(TGID, Some(ProcessFacts { tgid: TGID.0, ..ProcessFacts::default() }), 5, 5);
    let asked = answers.iter().map(|byte| device_get_uuid(1, *byte));
    for call in asked.chain([mem_create(0x40, 7, (ON_DEVICE, 1))]) {
        report(&mut process, call);
    }
    process
}

#[test]
fn late_process_on_two_gpus_is_queried_until_its_threads_have_devices() {
    let mut process = process(&[]);
    let several = [gpu(1, true), gpu(2, true), gpu(3, false)];
    assert_eq!(
        is_unplaced(&process, &several),
        Some(UnplacedThreads::Quiet),
        "physical memory says itself where it is"
    );
    assert_eq!(is_unplaced(&process, &[gpu(1, true), gpu(2, false)]), None);
    report(&mut process, ctx_get_device(1).thread(8));
    report(&mut process, mem_alloc(0xd0, 1).thread(8));
    assert_eq!(is_unplaced(&process, &several), None);
    report(&mut process, mem_alloc(0xd1, 1).thread(9));
    assert_eq!(is_unplaced(&process, &several), Some(UnplacedThreads::Allocating));
    report(&mut process, mem_host_alloc(0xd2, 1).thread(10));
    process.ledger.end_thread(Tid(9));
    assert_eq!(is_unplaced(&process, &several), None, "it has ended");
    process.ledger.end_thread(Tid(8));
    assert_eq!(is_unplaced(&process, &several), None, "nobody is left to ask");
}

fn report(process: &mut Process, call: TestCall) {
    process.ledger.apply(&decode(&call.at(10, 11).0).expect("a call of the table"));
}

fn found(process: &Process, devices: &[DeviceFacts]) -> Option<GpuUuid> {
    resolve(process, DeviceRef::Ordinal(Ordinal(1)), devices)
}

#[test]
fn mig_instance_uuid_is_spelt_as_in_nvml_and_precedes_its_gpu_uuid() {
    let devices = [instance(1, false), instance(2, false)];
    for answers in [&[2][..], &[2, 0xf0], &[0xf0, 2]] {
        assert_eq!(found(&process(answers), &devices), Some(bytes_uuid("MIG-", 2)), "{answers:?}");
    }
    assert_eq!(found(&process(&[2]), &[]), Some(bytes_uuid("GPU-", 2)));
    assert_eq!(found(&process(&[0xf0, 2]), &[]), None, "nothing says which of them is the instance");
}

#[test]
fn mig_parent_uuid_is_resolved_by_the_nvml_process_lists() {
    let reported_parent = process(&[0xf0]);
    assert_eq!(found(&reported_parent, &[instance(1, false), gpu(3, true)]), Some(bytes_uuid("MIG-", 1)));
    assert_eq!(
        found(&reported_parent, &[instance(1, false), instance(2, true), gpu(3, true)]),
        Some(bytes_uuid("MIG-", 2))
    );
    assert_eq!(found(&reported_parent, &[instance(1, true), instance(2, true)]), None);
    assert_eq!(found(&reported_parent, &[instance(1, false), instance(2, false)]), None);
}

#[test]
fn the_bus_id_names_a_whole_gpu_or_the_gpu_of_some_instance() {
    let mut process = process(&[]);
    report(&mut process, device_get_pci_bus_id(1, "0000:02:00.0"));
    assert_eq!(found(&process, &[gpu(1, true), gpu(2, false)]), Some(bytes_uuid("GPU-", 2)));
    report(&mut process, device_get_pci_bus_id(1, "0000:f0:00.0"));
    assert_eq!(found(&process, &[gpu(1, true), instance(2, true), instance(3, false)]), Some(bytes_uuid("MIG-", 2)));
}

#[test]
fn the_environment_is_asked_last_and_only_for_a_number_of_the_process() {
    let mut process = process(&[]);
    let devices = [gpu(1, true), gpu(2, true)];
    assert_eq!(found(&process, &devices), None);
    let visibility = GpuVisibility { visible_devices: Some("1,0".to_owned()), device_order: None, sees_machine: true };
    process.facts = Some(ProcessFacts { visibility: Some(visibility), ..ProcessFacts::default() });
    assert_eq!(found(&process, &devices), Some(bytes_uuid("GPU-", 1)));
    assert_eq!(resolve(&process, DeviceRef::Unknown, &devices), None);
    assert_eq!(
        found(&process, &[gpu(1, false), gpu(2, true)]),
        Some(bytes_uuid("GPU-", 2)),
        "NVML's list outweighs it"
    );
}

#[test]
fn an_ended_process_stays_on_the_gpus_where_it_was_last_seen() {
    let mut process = process(&[]);
    remember(&mut process, &[gpu(1, false), gpu(2, true)]);
    process.end(20);
    let nobody = [gpu(1, false), gpu(2, false)];
    assert_eq!(found(&process, &nobody), Some(bytes_uuid("GPU-", 2)));
    let somebody_else_with_its_number = [gpu(1, true), gpu(2, false)];
    assert_eq!(found(&process, &somebody_else_with_its_number), Some(bytes_uuid("GPU-", 2)));
}
