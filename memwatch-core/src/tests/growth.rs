//! Growth rates of GPUs and workloads, as an agent is asked for them.

use super::*;
use crate::snapshot::WorkloadGpuView;

const MIB: u64 = 1 << 20;
const TRAIN: &str = "17db96a24ae1e9dd57143e62b1cb0d2d35e693c65c774c7470e87b0572e07c1a";
const SERVE: &str = "27db96a24ae1e9dd57143e62b1cb0d2d35e693c65c774c7470e87b0572e07c1b";

/// Returns GPU A with these processes and `used_bytes` in use of 1000 MiB.
fn gpu_a(used_bytes: u64, processes: &[u32]) -> DeviceFacts {
    let list =
        processes.iter().map(|tgid| ProcessUse { tgid: Tgid(*tgid), used_bytes: None, mps_client: false }).collect();
    DeviceFacts {
        total_bytes: Some(1000 * MIB),
        used_bytes: Some(used_bytes),
        processes: Some(list),
        cores: None,
        sensors: Sensors::default(),
        ..device(GPU_A, 0, [])
    }
}

/// Returns two containers: one grows by 10 MiB a second, the other does not grow. Growth is
/// measured if `is_asked`.
fn two_containers(is_asked: bool) -> TestPipeline {
    let mut watch = TestPipeline::begin();
    if is_asked {
        watch.pipeline.watch_growth();
    }
    watch.reading(vec![gpu_a(100 * MIB, &[7, 8])]);
    watch.starts_in(TRAIN, 7).starts_in(SERVE, 8);
    watch.calls([mem_alloc(0x8000_0000, 50 * MIB).process(8)]);
    watch
}

/// Continues the growth for these seconds.
fn grow(watch: &mut TestPipeline, seconds: std::ops::Range<u64>, processes: &[u32]) {
    for second in seconds {
        watch.calls([mem_alloc(0x1000_0000 + second * 16 * MIB, 10 * MIB).process(7)]);
        watch.reading(vec![gpu_a((110 + 10 * second) * MIB, processes)]).tick();
    }
}

fn of_container(watch: &TestPipeline, id: &str) -> WorkloadGpuView {
    let all = watch.snapshot().workloads.into_iter();
    let mut own = all.filter(|workload| workload.container.as_ref().is_some_and(|name| id.starts_with(name.as_str())));
    own.next().expect("it is listed").gpus.remove(0)
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn is_about(number: Option<f64>, wanted: u64) -> bool {
    number.is_some_and(|number| (number / wanted as f64 - 1.0).abs() < 0.02)
}

#[test]
fn growth_rate_gives_a_gpu_its_seconds_to_full() {
    let mut watch = two_containers(true);
    grow(&mut watch, 0..10, &[7, 8]);
    assert_eq!((watch.gpu(GPU_A).seconds_to_full, of_container(&watch, TRAIN).growth_bytes_per_second), (None, None));
    grow(&mut watch, 10..40, &[7, 8]);
    let left = watch.gpu(GPU_A).seconds_to_full;
    assert!(is_about(left, 50), "500 of 1000 MiB are in use: {left:?}");
    let rate = of_container(&watch, TRAIN).growth_bytes_per_second;
    assert!(is_about(rate, 10 * MIB), "{rate:?}");
    assert_eq!(of_container(&watch, SERVE).growth_bytes_per_second, None);
}

#[test]
fn growth_is_withdrawn_when_it_stops_or_the_gpu_is_shared() {
    let mut watch = two_containers(true);
    grow(&mut watch, 0..40, &[7, 8]);
    watch.reading(vec![gpu_a(510 * MIB, &[7, 8, 9])]).tick();
    assert_eq!(watch.gpu(GPU_A).seconds_to_full, None, "somebody has come");
    assert!(of_container(&watch, TRAIN).growth_bytes_per_second.is_some());
    watch.ticks(20);
    assert_eq!(of_container(&watch, TRAIN).growth_bytes_per_second, None, "no more was kept for a while");
}

#[test]
fn growth_is_not_reported_unless_requested() {
    let mut watch = two_containers(false);
    grow(&mut watch, 0..40, &[7, 8]);
    assert_eq!((watch.gpu(GPU_A).seconds_to_full, of_container(&watch, TRAIN).growth_bytes_per_second), (None, None));
}

#[test]
fn of_very_many_workloads_the_first_512_are_followed() {
    let mut watch = TestPipeline::begin();
    watch.pipeline.watch_growth();
    watch.reading(vec![gpu_a(100 * MIB, &[])]);
    (0..600).for_each(|tgid| {
        watch.starts_in(&format!("{tgid:064x}"), 1000 + tgid);
    });
    for second in 0..60_u64 {
        for tgid in 1000..1600_u32 {
            let address = (u64::from(tgid) << 32) + second * 16 * MIB;
            watch.calls([mem_alloc(address, MIB).process(tgid)]);
        }
        watch.tick();
    }
    let workloads = watch.snapshot().workloads;
    let gpus = workloads.iter().flat_map(|workload| &workload.gpus);
    assert_eq!(gpus.filter(|gpu| gpu.growth_bytes_per_second.is_some()).count(), 512);
}
