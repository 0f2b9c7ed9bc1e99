//! Tests that each compare PyTorch jobs of their own, whatever else runs: two run at a time. They wait for Python for most of their time.

mod arenas;
mod budget;
mod diff;
mod export;
mod forecast;
mod fragment;
mod hard_to_read;
mod holdings;
mod keepers;
mod kernel_driver;
mod kinds;
mod late_books;
mod late_names;
mod leak;
mod native;
mod newcomer;
mod oom;
mod profile;
mod pytorch;
mod samples;
mod simulate;
mod tensors;
mod tensors_more;
mod timeline;
mod versions;
mod windows;
