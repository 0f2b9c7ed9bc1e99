use memwatch_common::record::{ProcessEvent, ProcessRecord};

use super::TensorTracing;
use crate::frameworks::watch::{FrameworkWatch, TensorLevel, TensorRequest};
use crate::sources::kernel::site::KernelVersion;
use crate::watch::session::SessionOptions;

fn remembered_ends(level: TensorLevel) -> usize {
    let version = KernelVersion::from_release("6.18.0").expect("a release");
    let torch = FrameworkWatch::new(version, TensorRequest::of(level));
    let mut tensors = TensorTracing::new(torch, &SessionOptions::default());
    for tgid in 1..=100 {
        tensors.note_life(&ProcessRecord { event: ProcessEvent::Exit as u8, tgid, ..ProcessRecord::default() });
    }
    tensors.replaced.len()
}

#[test]
fn watch_without_tensors_remembers_no_ended_processes() {
    assert_eq!(remembered_ends(TensorLevel::Off), 0);
    assert_eq!(remembered_ends(TensorLevel::Blocks), 100);
}
