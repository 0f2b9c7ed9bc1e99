//! Hands the kernel half, which `cargo xtask build` makes for its own target, to `include_bytes!`.

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
}
