//! memwatch's own modules, compiled from their place in memwatch. Only parts of them are used.

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/sources/build_id.rs"]
pub(crate) mod build_id;

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/sources/grpc.rs"]
pub(crate) mod grpc;

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/sources/kernel"]
pub(crate) mod kernel {
    pub(crate) mod resolve;
    pub(crate) mod site;
}

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/sources/library"]
pub(crate) mod library {
    mod host;
    pub(crate) mod limits;
    mod maps;

    pub(crate) mod loader {
        mod dynamic;

        /// Returns the lists of directories in an ELF file.
        pub(crate) fn search_paths(file: &[u8]) -> Vec<Vec<u8>> {
            dynamic::search_paths_of(file)
        }
    }

    /// Returns the paths of the driver libraries in a `maps` file.
    pub(crate) fn driver_libraries(maps: &[u8]) -> Vec<Vec<u8>> {
        let found = maps::library_mappings(maps, &["libcuda.so"]).expect("reading from memory does not fail");
        assert!(found.libraries.len() <= limits::MOST_OF_PROCESS);
        found.libraries.into_iter().map(|mapping| mapping.path).collect()
    }

    /// Returns the paths of the driver libraries in a loader's cache.
    pub(crate) fn cached_libraries(cache: &[u8]) -> Vec<&[u8]> {
        host::cached(cache, "libcuda.so").collect()
    }
}

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/sources/login_users.rs"]
pub(crate) mod login_users;

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/sources/owner_queues/mod.rs"]
pub(crate) mod owner_queues;

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/stranger_file/elf.rs"]
pub(crate) mod elf;

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/sources/procfs/mod.rs"]
pub(crate) mod procfs;
