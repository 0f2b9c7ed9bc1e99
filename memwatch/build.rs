//! Hands the kernel half, which `cargo xtask build` makes for its own target, and the plot library, which it takes from npm, to `include_bytes!`.

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
    plot_library(&root.join("target/web/node_modules/uplot"));
}

/// Where it is not there the page has tables and no plots, and says so: nobody needs npm to compile, check or test memwatch.
fn plot_library(folder: &Path) {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let empty = out.join("empty");
    std::fs::write(&empty, "").expect("the folder is ours");
    // `cargo xtask build` touches it when it has installed what it names.
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
