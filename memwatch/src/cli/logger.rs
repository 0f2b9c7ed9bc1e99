//! What `-v` shows: one line per message on standard error. Nothing is logged without it.

use log::{LevelFilter, Log, Metadata, Record};

use crate::printable::printable;

struct Stderr;

static STDERR: Stderr = Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The loader of the kernel half logs each relocation: hundreds of lines about memwatch itself.
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

/// Lets messages through: `-v` information, `-vv` what the kernel half says, too.
pub(crate) fn install(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Error,
        1 => LevelFilter::Info,
        _ => LevelFilter::Debug,
    };
    // Fails only when called twice; it is called once.
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(level);
    }
}
