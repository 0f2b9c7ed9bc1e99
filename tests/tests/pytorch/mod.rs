//! PyTorch's allocators: totals, statistics, lines, modules, levels of tracing.

mod allocators;
mod budget;
mod jobs;
mod kinds;
mod late_names;
mod late_state;
mod lines;
mod native;
mod programs;
mod remembered;
mod samples;
mod serving;
mod tensors;
mod versions;
mod windows;
