//! Imports of a PyTorch wheel's libraries from libraries outside the wheel.

use anyhow::{Context as _, Result};
use object::elf::{STT_OBJECT, STT_TLS};
use object::read::ReadCache;
use object::{NameOrOrdinal, Object as _};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;

/// Prefixes of the libraries that a GPU machine has and the wheel does not contain.
const VENDOR_PREFIXES: &[&str] = &["libcu", "libnv", "libnccl"];
/// The driver itself, which is simulated elsewhere.
const DRIVER: &str = "libcuda.so.1";
/// Libraries without symbol versions: their functions are recognised by prefix.
const UNVERSIONED: &[(&str, &str)] = &[
    ("nccl", "libnccl.so"),
    ("cupti", "libcupti.so"),
    ("cusparseLt", "libcusparseLt.so"),
    ("cuFile", "libcufile.so"),
    ("nvshmem", "libnvshmem_host.so"),
];

/// Symbols that a library must export.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    /// Names of functions.
    pub(super) functions: BTreeSet<String>,
    /// Names of variables.
    pub(super) variables: BTreeSet<String>,
    /// Version of the symbols, if they have one.
    pub(super) version: Option<String>,
}

/// Returns the interfaces that the shared objects in `folder` need, by file name of the library.
///
/// # Errors
/// A file cannot be read or is not a valid ELF file.
pub(super) fn read(folder: &Path) -> Result<BTreeMap<String, Interface>> {
    let mut interfaces = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", folder.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "so") {
            add_file(&path, &mut interfaces)
                .with_context(|| format!("cannot read the imports of {}", path.display()))?;
        }
    }
    Ok(interfaces)
}

fn add_file(path: &Path, interfaces: &mut BTreeMap<String, Interface>) -> Result<()> {
    // These files are up to a gigabyte long; the cache reads only the few tables that are needed.
    let cache = ReadCache::new(File::open(path)?);
    let file = object::read::elf::ElfFile64::<object::Endianness, _>::parse(&cache)?;
    let mut needed = Vec::new();
    for library in file.import_libraries()? {
        let name = String::from_utf8_lossy(library?.name()).into_owned();
        if is_vendors(&name) {
            interfaces.entry(name.clone()).or_default();
            needed.push(name);
        }
    }
    for import in file.imports()? {
        let import = import?;
        let NameOrOrdinal::Name(name) = import.name() else { continue };
        let name = String::from_utf8_lossy(name);
        let library = String::from_utf8_lossy(import.library());
        let object::ImportFlags::Elf { st_info, version, .. } = import.flags() else { continue };
        let owner = if library.is_empty() { owner_by_name(&name, &needed) } else { Some(library.as_ref()) };
        let Some(owner) = owner.filter(|owner| is_vendors(owner)) else { continue };
        let interface = interfaces.entry(owner.to_owned()).or_default();
        let is_variable = [STT_OBJECT, STT_TLS].contains(&st_info.st_type());
        let names = if is_variable { &mut interface.variables } else { &mut interface.functions };
        names.insert(name.into_owned());
        if let Some(version) = version {
            interface.version = Some(String::from_utf8_lossy(version).into_owned());
        }
    }
    Ok(())
}

fn is_vendors(library: &str) -> bool {
    library != DRIVER && VENDOR_PREFIXES.iter().any(|prefix| library.starts_with(prefix))
}

/// Returns the library among `needed` that a symbol without version belongs to.
fn owner_by_name<'a>(symbol: &str, needed: &'a [String]) -> Option<&'a str> {
    let (_, library) = UNVERSIONED.iter().find(|(prefix, _)| symbol.starts_with(prefix))?;
    needed.iter().find(|name| name.starts_with(library)).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_and_system_libraries_are_left_alone() {
        assert!(is_vendors("libcudart.so.13"));
        assert!(is_vendors("libnccl.so.2"));
        assert!(!is_vendors("libcuda.so.1"));
        assert!(!is_vendors("libc.so.6"));
    }

    #[test]
    fn a_symbol_without_version_goes_to_a_needed_library() {
        let needed = ["libcufile.so.0".to_owned(), "libnccl.so.2".to_owned()];
        assert_eq!(owner_by_name("ncclAllReduce", &needed), Some("libnccl.so.2"));
        assert_eq!(owner_by_name("cuptiSubscribe", &needed), None);
        assert_eq!(owner_by_name("malloc", &needed), None);
    }

    #[test]
    fn a_real_library_is_read() {
        let folder = std::env::temp_dir().join(format!("memwatch-imports-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::copy(std::env::current_exe().unwrap(), folder.join("program.so")).unwrap();
        let interfaces = read(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(interfaces.unwrap(), BTreeMap::new());
    }
}
