//! Builds the stand-in libraries for one wheel from our C sources, plus an entry for every other
//! name that the wheel imports.

use super::Wheel;
use super::imports::{self, Interface};
use crate::run;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::process::Command;

/// Sources of each library that has some, by prefix of the library's file name.
const SOURCES: &[(&str, &[&str])] = &[
    (
        "libcudart.so",
        &[
            "context.c",
            "copy.c",
            "device.c",
            "device_properties.c",
            "driver_entry.c",
            "error.c",
            "event.c",
            "graph.c",
            "kernel_registry.c",
            "launch.c",
            "memory.c",
            "pool.c",
            "stream.c",
        ],
    ),
    ("libcublas.so", &["cublas.c", "cublas_memory.c"]),
    ("libcublasLt.so", &["cublaslt.c"]),
    ("libcudnn.so", &["cudnn.c", "cudnn_descriptors.c", "cudnn_backend.c", "cudnn_rnn.c"]),
    ("libcufft.so", &["cufft.c"]),
    ("libcupti.so", &["cupti.c"]),
    ("libnccl.so", &["nccl.c"]),
];
/// Sources of all other libraries.
const REFUSING: &[&str] = &["refusing.c"];
/// Source in every library.
const COMMON: &str = "stand_in.c";
const STAMP: &str = ".complete";
/// Size of variables: their real size is not recorded where they are imported, and is smaller.
const VARIABLE_BYTES: usize = 65536;

/// Builds the stand-ins for `wheel`, which has its own libraries in `torch_libraries`, unless they
/// were built from the same sources.
///
/// # Errors
/// The imports cannot be read, or the C compiler fails.
pub(super) fn ensure(wheel: &Wheel, sources: &Path, torch_libraries: &Path, folder: &Path) -> Result<()> {
    let wanted = fingerprint(wheel, sources)?;
    if fs::read_to_string(folder.join(STAMP)).is_ok_and(|made_from| made_from == wanted) {
        return Ok(());
    }
    let interfaces = imports::read(torch_libraries)?;
    let partial = folder.with_extension("partial");
    for old in [folder, &partial] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    let generated = partial.join("generated");
    fs::create_dir_all(&generated).with_context(|| format!("cannot create {}", generated.display()))?;
    for (library, interface) in &interfaces {
        build(wheel, sources, &partial, library, interface).with_context(|| format!("cannot build {library}"))?;
    }
    write(&partial.join(STAMP), &wanted)?;
    fs::rename(&partial, folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// Whether a complete directory of stand-ins exists.
pub(super) fn is_made(folder: &Path) -> bool {
    folder.join(STAMP).is_file()
}

fn build(wheel: &Wheel, sources: &Path, folder: &Path, library: &str, interface: &Interface) -> Result<()> {
    let entries = folder.join(format!("generated/{library}.c"));
    let map = folder.join(format!("generated/{library}.map"));
    write(&entries, &entries_source(interface))?;
    write(&map, &version_script(interface))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]);
    // The generated entries have the names of functions that the compiler knows, but other types.
    compiler.args(["-Wall", "-Wextra", "-fno-builtin"]);
    compiler.arg("-I").arg(sources);
    compiler.arg(format!("-DCUDA_MAJOR={}", wheel.cuda_major));
    compiler.arg(format!("-DCUDNN_VERSION={}", wheel.cudnn_version));
    compiler.arg(format!("-DNCCL_VERSION={}", wheel.nccl_version));
    compiler.arg(format!("-Wl,-soname,{library}")).arg("-Wl,--no-undefined");
    compiler.arg(format!("-Wl,--version-script={}", map.display()));
    compiler.arg("-o").arg(folder.join(library)).arg(&entries);
    compiler.args(sources_of(library).chain([COMMON]).map(|name| sources.join(name)));
    compiler.arg("-ldl");
    run::run_quietly(&mut compiler)
}

fn sources_of(library: &str) -> impl Iterator<Item = &'static str> {
    let own = SOURCES.iter().find(|(stem, _)| library.starts_with(stem)).map(|(_, sources)| *sources);
    own.unwrap_or(REFUSING).iter().copied()
}

/// Generates an entry per imported name. The entries are weak, so that a function of our sources
/// with the same name replaces them. Callers print the result of functions named `...ErrorString`,
/// so these return a text.
fn entries_source(interface: &Interface) -> String {
    let mut text = "#include \"stand_in.h\"\n\n\
        #define ENTRY(name) __attribute__((weak)) EXPORT long name(void) { return stand_in_missing(#name); }\n\
        #define TEXT(name) __attribute__((weak)) EXPORT const char *name(void) { return \"not simulated\"; }\n\
        #define VARIABLE(name) __attribute__((weak)) EXPORT char name[VARIABLE_BYTES];\n\n"
        .replace("VARIABLE_BYTES", &VARIABLE_BYTES.to_string());
    for name in &interface.functions {
        let kind = if name.ends_with("ErrorString") { "TEXT" } else { "ENTRY" };
        writeln!(text, "{kind}({name})").expect("a string takes any text");
    }
    for name in &interface.variables {
        writeln!(text, "VARIABLE({name})").expect("a string takes any text");
    }
    text
}

fn version_script(interface: &Interface) -> String {
    format!("{} {{ global: *; }};\n", interface.version.as_deref().unwrap_or_default())
}

/// Returns a fingerprint of everything that affects the libraries.
fn fingerprint(wheel: &Wheel, sources: &Path) -> Result<String> {
    let mut files: BTreeMap<OsString, Vec<u8>> = BTreeMap::new();
    for entry in fs::read_dir(sources).with_context(|| format!("cannot list {}", sources.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", sources.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "c" || extension == "h") {
            let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            // By file name, so that checkouts in other directories share the libraries.
            files.insert(path.file_name().unwrap_or_default().to_owned(), text);
        }
    }
    let mut hasher = DefaultHasher::new();
    // These modules determine what is built.
    include_str!("stand_ins.rs").hash(&mut hasher);
    include_str!("imports.rs").hash(&mut hasher);
    files.hash(&mut hasher);
    Ok(format!("torch {} {:016x}\n", wheel.version, hasher.finish()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(version: Option<&str>) -> Interface {
        Interface {
            functions: ["cudaMalloc".to_owned(), "nvrtcGetErrorString".to_owned()].into(),
            variables: ["state".to_owned()].into(),
            version: version.map(str::to_owned),
        }
    }

    #[test]
    fn every_import_gets_an_entry() {
        let text = entries_source(&interface(None));
        for entry in ["ENTRY(cudaMalloc)", "TEXT(nvrtcGetErrorString)", "VARIABLE(state)"] {
            assert!(text.lines().any(|line| line == entry), "{text}");
        }
    }

    #[test]
    fn symbols_carry_the_version_that_is_asked_for() {
        assert_eq!(version_script(&interface(Some("libcudart.so.13"))), "libcudart.so.13 { global: *; };\n");
        assert_eq!(version_script(&interface(None)), " { global: *; };\n");
    }

    #[test]
    fn a_library_is_distinguished_from_one_with_a_longer_name() {
        assert_eq!(sources_of("libcublas.so.13").collect::<Vec<_>>(), ["cublas.c", "cublas_memory.c"]);
        assert_eq!(sources_of("libcublasLt.so.13").collect::<Vec<_>>(), ["cublaslt.c"]);
        assert_eq!(sources_of("libcusolver.so.12").collect::<Vec<_>>(), REFUSING);
    }
}
