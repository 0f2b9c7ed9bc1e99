//! Logger for `-v`: one line per message on standard error. Without `-v`, only errors are logged.

use log::{LevelFilter, Log, Metadata, Record};

use crate::printable::printable;

struct Stderr;

static STDERR: Stderr = Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The loader of the BPF programs logs each relocation: hundreds of lines about memwatch
        // itself.
        let about_loading = metadata.target().starts_with("aya_obj") && metadata.level() > LevelFilter::Info;
        metadata.level() <= log::max_level() && !about_loading
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let message = record.args().to_string();
            eprintln!("memwatch: {}: {}", record.level().as_str().to_ascii_lowercase(), printable(&message));
        }
    }

    fn flush(&self) {}
}

/// Installs the logger: `-v` shows information, `-vv` also debug messages, including those of the
/// BPF loader.
pub(crate) fn install(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Error,
        1 => LevelFilter::Info,
        _ => LevelFilter::Debug,
    };
    // The call fails only if it is made twice, and it is made once.
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(level);
    }
}
