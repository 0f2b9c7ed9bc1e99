//! memwatch's own modules, compiled from where they lie. Each is used in part.

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/sources/kernel"]
pub(crate) mod kernel {
    pub(crate) mod resolve;
    pub(crate) mod site;
}

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/sources/library"]
pub(crate) mod library {
    mod maps;

    /// The paths of the driver libraries that a `maps` file names.
    pub(crate) fn driver_libraries(maps: &[u8]) -> Vec<Vec<u8>> {
        let found = maps::library_mappings(maps, &["libcuda.so"]).expect("reading from memory does not fail");
        found.into_iter().map(|mapping| mapping.path).collect()
    }
}

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/sources/procfs/mod.rs"]
pub(crate) mod procfs;
