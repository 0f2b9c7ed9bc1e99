//! Reads the keys of the maps of memwatch's kernel half from outside.

use std::fs;

use aya::maps::{HashMap, Map, MapData, MapInfo};
use memwatch_common::capture::InFlight;

/// Returns the processes that have an entry in a map of the kernel half, in no particular order.
///
/// # Panics
/// When that memwatch does not run or has no such map.
pub fn processes_in(memwatch_tgid: u32, table: KernelMap) -> Vec<u32> {
    let data = MapData::from_id(id_of(memwatch_tgid, table.name())).expect("the table is there");
    match table {
        KernelMap::Known => keys::<u32, u32>(data).collect(),
        KernelMap::InFlight => keys::<u64, [u8; size_of::<InFlight>()]>(data).map(upper_half).collect(),
        KernelMap::Lost => keys::<u64, [u64; 2]>(data).map(upper_half).collect(),
    }
}

/// A map of the kernel half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelMap {
    /// Processes whose exit is reported.
    Known,
    /// Calls that threads are executing.
    InFlight,
    /// Losses by process.
    Lost,
}

impl KernelMap {
    /// All maps.
    pub const ALL: [Self; 3] = [Self::Known, Self::InFlight, Self::Lost];

    const fn name(self) -> &'static str {
        match self {
            Self::Known => "KNOWN",
            Self::InFlight => "IN_FLIGHT",
            Self::Lost => "LOST",
        }
    }
}

/// Returns the id of the map with this name among the maps that a process has open.
fn id_of(tgid: u32, name: &str) -> u32 {
    let open = fs::read_dir(format!("/proc/{tgid}/fdinfo")).expect("memwatch runs").flatten();
    let texts = open.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let mut ids =
        texts.filter_map(|text| text.lines().find_map(|line| line.strip_prefix("map_id:")?.trim().parse().ok()));
    let named = |id: &u32| MapInfo::from_id(*id).is_ok_and(|info| info.name_as_str() == Some(name));
    ids.find(named).unwrap_or_else(|| panic!("process {tgid} has no map {name}"))
}

fn keys<K: aya::Pod, V: aya::Pod>(data: MapData) -> impl Iterator<Item = K> {
    let map: HashMap<MapData, K, V> =
        HashMap::try_from(Map::HashMap(data)).expect("keys and values are as wide as declared");
    map.keys().flatten().collect::<Vec<_>>().into_iter()
}

/// Returns the process id of a key, which has the form `tgid << 32 | …`.
fn upper_half(key: u64) -> u32 {
    u32::try_from(key >> 32).expect("half a word")
}
