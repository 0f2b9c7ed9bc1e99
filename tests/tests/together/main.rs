//! Tests that each compare PyTorch jobs of their own, whatever else runs: two run at a time. They wait for Python for most of their time.

mod diff;
mod export;
mod holdings;
mod late_books;
mod leak;
mod native;
mod newcomer;
mod pytorch;
mod simulate;
mod tensors;
mod tensors_more;
mod timeline;
mod versions;
