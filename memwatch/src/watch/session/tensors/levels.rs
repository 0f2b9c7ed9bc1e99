//! Tracing level of each process: lowers, raises and measures it while the process is watched.

use memwatch_core::input::TensorLevel;
use memwatch_core::words::Tgid;

use super::super::input_sink::InputSink;
use super::super::price::{Probing, Tried};
use super::{TensorProcess, TensorTracing};
use crate::frameworks::watch::FrameworkWatch;
use crate::sources::kernel::load::KernelHalf;

impl TensorTracing {
    /// Changes the tracing level of processes whose tensor event rate has changed.
    pub(super) fn look_at_prices(&mut self, kernel: &mut KernelHalf, sink: &mut InputSink) {
        let Self { prices, processes, torch, .. } = self;
        let changed = |(tgid, process): (&u32, &mut TensorProcess)| {
            let whose = (*tgid, probing(torch, sink, *tgid));
            Some((*tgid, prices.look_again(whose, &mut process.governor, &mut process.rate)?))
        };
        let changed: Vec<(u32, (TensorLevel, TensorLevel))> = processes.iter_mut().filter_map(changed).collect();
        for (tgid, (before, level)) in changed {
            if level < before {
                self.lower(kernel, tgid, level);
            } else {
                // The choice must precede the first event of the new level.
                self.report_choices(sink);
                let missing = self.torch.change(kernel, tgid, self.torch.request_at(level));
                self.begin(kernel, (tgid, missing), sink);
            }
        }
    }

    /// Advances the overhead measurements.
    pub(super) fn try_out(&mut self, kernel: &mut KernelHalf, sink: &mut InputSink) {
        let Self { prices, processes, torch, .. } = self;
        let trying = processes.iter_mut().filter(|(_, process)| process.governor.is_trying());
        let tried: Vec<(u32, Tried)> = trying
            .map(|(tgid, process)| {
                let (whose, counted) = ((*tgid, probing(torch, sink, *tgid)), process.numbers.counted());
                (*tgid, prices.try_out(whose, &mut process.governor, &process.rate, counted))
            })
            .collect();
        for (tgid, tried) in tried {
            match tried {
                Tried::Wait => {}
                Tried::Load(is_on) => self.torch.load(kernel, tgid, is_on),
                Tried::Chosen { before, level } => {
                    self.torch.load(kernel, tgid, false);
                    if level < before {
                        self.lower(kernel, tgid, level);
                    } else {
                        self.report_choices(sink);
                    }
                }
            }
        }
    }

    fn lower(&mut self, kernel: &mut KernelHalf, tgid: u32, level: TensorLevel) {
        self.torch.change(kernel, tgid, self.torch.request_at(level));
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.numbers.forget();
        }
        self.choose_stacks(kernel, tgid);
    }
}

fn probing(torch: &FrameworkWatch, sink: &InputSink, tgid: u32) -> Probing {
    Probing {
        several: torch.needs_several_probes(tgid),
        load_percent: torch.load_percent(tgid),
        gpu_percent: sink.state().gpu_percent(Tgid(tgid)),
    }
}
