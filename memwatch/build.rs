//! Passes the kernel half, which `cargo xtask build` compiles for its own target, and the plot
//! library, which it gets from npm, to `include_bytes!`.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-env-changed=MEMWATCH_EBPF_OBJECT");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let object =
        std::env::var_os("MEMWATCH_EBPF_OBJECT").map_or_else(|| root.join("target/bpf/memwatch-ebpf"), PathBuf::from);
    println!("cargo::rerun-if-changed={}", object.display());
    assert!(
        object.is_file(),
        "the kernel half is not built: {} is missing. Run `cargo xtask build`, or name it in MEMWATCH_EBPF_OBJECT.",
        object.display()
    );
    let object = object.canonicalize().expect("an existing file has a canonical path");
    println!("cargo::rustc-env=MEMWATCH_EBPF_OBJECT_PATH={}", object.display());
    println!("cargo::rustc-env=MEMWATCH_LAYOUT={:08x}", layout(&root));
    plot_library(&root.join("target/web/node_modules/uplot"));
}

/// Checksum of the layout of records and maps: kernel halves with the same checksum can replace
/// each other. Covers the sources that define the layout, without comments and empty lines: the
/// common crate and the kernel half's map declarations.
fn layout(root: &Path) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for path in sources(&root.join("memwatch-common/src")) {
        for line in code(&path) {
            sum.update(line.as_bytes());
        }
    }
    for path in sources(&root.join("memwatch-ebpf/src")) {
        let mut is_inside = false;
        for line in code(&path) {
            is_inside |= line.split(' ').any(|word| word == "static");
            if is_inside {
                sum.update(line.as_bytes());
            }
            is_inside &= !line.ends_with(';');
        }
    }
    sum.finalize()
}

fn code(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("a source file is text");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.map(ToOwned::to_owned).collect()
}

/// Returns the Rust files below a directory, without tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be listed").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Embeds the plot library. Without it, the page has tables and no plots, and says so: compiling,
/// checking and testing memwatch do not need npm.
fn plot_library(folder: &Path) {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let empty = out.join("empty");
    std::fs::write(&empty, "").expect("the folder is ours");
    // `cargo xtask build` touches this file after it has installed the packages that it names.
    println!("cargo::rerun-if-changed=web/package-lock.json");
    for (variable, file) in [
        ("MEMWATCH_UPLOT_JS", "dist/uPlot.iife.min.js"),
        ("MEMWATCH_UPLOT_CSS", "dist/uPlot.min.css"),
        ("MEMWATCH_UPLOT_LICENSE", "LICENSE"),
    ] {
        let path = folder.join(file).canonicalize().unwrap_or_else(|_| empty.clone());
        println!("cargo::rustc-env={variable}={}", path.display());
    }
}
