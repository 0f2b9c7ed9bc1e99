//! The table of commands. A new command is a row here and a directory under `commands`. Commands
//! about the command line itself are in `cli`.

use crate::agent;
use crate::cli::table::commands;
use crate::cli::{advanced, completions, man};
use crate::commands::{
    diff, doctor, events, explain, export, fleet, fragment, holdings, leak, oom, places, ps, record, report, run,
    simulate, snapshot, stats, timeline, web,
};

commands! {
    Watch {
        /// List processes by GPU memory: used, allocated, peak, failed
        Ps(ps::args::Ps) => awaited ps::run;
        /// Find what holds PyTorch memory: lines, modules or phases
        Where(places::args::Where) => awaited places::run;
        /// Name what a PyTorch process holds: parameters, gradients, caches
        Holdings(holdings::args::HoldingsArgs) => awaited holdings::run;
        /// Explain all that NVML charges a process: context, code, libraries
        Explain(explain::args::Explain) => awaited explain::run;
        /// Print what memory_stats() of PyTorch or JAX has, from outside
        Stats(stats::args::Stats) => awaited stats::stats;
    }
    Check {
        /// Explain out-of-memory failures, and forecast the next one
        Oom(oom::args::Oom) => awaited oom::run;
        /// List events: failures, forecasts, memory left behind
        Events(events::args::Events) => awaited events::run;
        /// Find memory leaks: what grows, how fast, and what keeps it
        Leak(leak::args::Leak) => awaited leak::run;
        /// Show cached memory that PyTorch cannot use: fragmentation
        Fragment(fragment::args::Fragment) => awaited fragment::run;
        /// Replay a program with other PYTORCH_CUDA_ALLOC_CONF settings
        Simulate(simulate::args::Simulate) => awaited simulate::run;
    }
    Record {
        /// Start a program, watch it from its first allocation, summarize
        Run(run::args::RunArgs) => awaited run::run_command;
        /// Record to a file, for --in of other commands
        Record(record::args::RecordArgs) => awaited record::record;
        /// Report everything in sections, of processes or of a recording
        Report(report::args::ReportArgs) => awaited report::run;
        /// Compare two recordings by line, module and phase
        Diff(diff::args::Diff) => awaited diff::run;
    }
    Show {
        /// Memory over time as a table, chart or Perfetto trace
        Timeline(timeline::args::Timeline) => awaited timeline::run;
        /// Draw a flame graph of the Python stacks that hold memory
        Flamegraph(export::args::Flamegraph) => awaited export::flamegraph;
        /// Write a snapshot for pytorch.org/memory_viz, from outside
        Snapshot(snapshot::args::Pickle) => awaited snapshot::snapshot;
        /// Write the stacks for pprof, speedscope, csv, parquet and more
        Export(export::args::ExportArgs) => awaited export::export;
    }
    Machine {
        /// Watch the whole machine and serve memwatch and Prometheus
        Agent(agent::args::AgentArgs) => direct crate::commands::agent::run;
        /// List workloads, nodes or GPUs of many machines, from a Prometheus
        Fleet(fleet::args::FleetArgs) => awaited fleet::run;
        /// Open the agent's page in a browser, or print its link
        Web(web::args::Web) => awaited web::run;
        /// Check what works on this machine, and how to fix the rest
        Doctor(doctor::Doctor) => direct doctor::command;
    }
    Hidden {
        /// Options that few need, and exit codes
        #[command(hide = true)]
        Advanced(advanced::Advanced) => direct advanced::run;
        /// Watch processes for a client of the agent, which starts it
        #[command(hide = true)]
        Worker(agent::watches::worker::WorkerArgs) => awaited agent::watches::worker::run;
        /// Print a completion script: bash, zsh or fish
        #[command(hide = true)]
        Completions(completions::Completions) => direct completions::run;
        /// Write the man pages into a directory, or the first of them to standard output
        #[command(hide = true)]
        Man(man::Man) => direct man::run;
    }
}
