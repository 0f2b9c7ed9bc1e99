//! A hostile user attacks the agent or its reports on other users. The agent stays small and keeps
//! answering, and the numbers of other users stay correct.
//!
//! In normal runs the attacks are small and all use one agent, one after the other. `cargo xtask
//! hostile` makes them as large as a user can.

mod siege;

use std::time::Duration;

use memwatch_tests::test;
use memwatch_tests::{MIB, TIMEOUT};

use siege::{AttackCourse, Demands, Means, Siege};

/// A kind of attack.
struct Attack {
    name: &'static str,
    means: Means,
    /// Number of participating user ids: the user's own, then subordinate ones. First for normal
    /// runs, then for the largest attack.
    ids: (u32, u32),
    /// The attacker's arguments in normal runs. `None` if the attack is too large for them.
    quick: Option<&'static [&'static str]>,
    large: &'static [&'static str],
    /// Its course in the largest size.
    course: AttackCourse,
}

/// An attack of a script, which calls no driver.
const QUIET: AttackCourse = AttackCourse { calls: false, ..CALLS };
/// An attack for which the agent starts workers.
const WORKERS: AttackCourse = AttackCourse { lasts: SOME_TIME, has_workers: true, ..CALLS };
/// An attack of processes that call their driver.
const CALLS: AttackCourse = AttackCourse { calls: true, lasts: Duration::ZERO, has_workers: false };

const fn process(name: &'static str, quick: &'static [&'static str], large: &'static [&'static str]) -> Attack {
    Attack { name, means: Means::Process, ids: (1, 1), quick: Some(quick), large, course: CALLS }
}

const fn script(name: &'static str, quick: &'static [&'static str], large: &'static [&'static str]) -> Attack {
    Attack { means: Means::Script, course: QUIET, ..process(name, quick, large) }
}

/// An attack that calls one function without end; only in the largest size.
const fn endless(name: &'static str, large: &'static [&'static str]) -> Attack {
    Attack { name, means: Means::Process, ids: (1, 1), quick: None, large, course: CALLS }
}

/// Time in which each worker of the agent begins and ends several times.
const SOME_TIME: Duration = Duration::from_secs(20);
/// Time in which the flight recorder reads a process several times.
const LONG: Duration = Duration::from_secs(60);

const ATTACKS: &[Attack] = &[
    process("calls of every kind", &["calls", "all", "10000"], &["calls", "all", "300000"]),
    process("allocations without end", &["calls", "cuMemAlloc_v2", "400000"], &["calls", "cuMemAlloc_v2", "3000000"]),
    endless("managed memory without end", &["calls", "cuMemAllocManaged", "3000000"]),
    endless("physical memory without end", &["calls", "cuMemCreate", "3000000"]),
    endless("reservations without end", &["calls", "cuMemAddressReserve", "3000000"]),
    endless("registered memory without end", &["calls", "cuMemHostRegister_v2", "3000000"]),
    endless("mappings of memory without end", &["calls", "cuMemMap", "3000000"]),
    endless("arrays without end", &["calls", "cuMipmappedArrayCreate", "3000000"]),
    endless("streams without end", &["calls", "cuStreamCreate", "3000000"]),
    endless("contexts without end", &["calls", "cuCtxCreate_v2", "1000000"]),
    endless("pools without end", &["calls", "cuMemPoolCreate", "1000000"]),
    endless("modules without end", &["calls", "cuModuleLoadData", "3000000"]),
    endless("graphs without end", &["calls", "cuGraphInstantiate", "3000000"]),
    endless("imports without end", &["calls", "cuImportExternalMemory", "3000000"]),
    Attack { ids: (4, 9), ..process("threads inside a call", &["inside", "1000"], &["inside", "1900"]) },
    process("allocations and frees without end", &["churn", "1"], &["churn", "2"]),
    process("many processes", &["herd", "500"], &["herd", "3000"]),
    process("processes without end", &["forks"], &["forks"]),
    process(
        "a process of 65,000 mappings",
        &["mappings", "65000", "FOLDER", "file"],
        &["mappings", "65000", "FOLDER", "libtorch_cuda.so"],
    ),
    Attack {
        course: CALLS,
        ..script("libraries with endless tables", &["sparse", "FOLDER", "LIBRARY"], &["sparse", "FOLDER", "LIBRARY"])
    },
    Attack {
        ids: (9, 9),
        ..script(
            "more libraries than are probed",
            &["libraries", "FOLDER", "LIBRARY", "40"],
            &["libraries", "FOLDER", "LIBRARY", "200"],
        )
    },
    script("leases", &["leases", "FOLDER", "LIBRARY", "8"], &["leases", "FOLDER", "LIBRARY", "500"]),
    Attack { ids: (2, 9), ..script("clients of the socket", &["socket", "SOCKET"], &["socket", "SOCKET"]) },
    Attack { ids: (1, 3), ..script("clients by HTTP", &["http", "HOST", "PORT"], &["http", "HOST", "PORT"]) },
    Attack {
        ids: (2, 9),
        course: WORKERS,
        ..script("watches", &["watches", "SOCKET", "FOLDER", "PROGRAM"], &["watches", "SOCKET", "FOLDER", "PROGRAM"])
    },
    Attack {
        course: WORKERS,
        ..script(
            "parts of the history",
            &["past", "SOCKET", "LIBRARY", "1000"],
            &["past", "SOCKET", "LIBRARY", "300000"],
        )
    },
    Attack {
        means: Means::Script,
        ids: (1, 9),
        course: WORKERS,
        ..endless("failures and their followers", &["events", "SOCKET", "PROGRAM", "250"])
    },
    Attack {
        means: Means::Torch,
        ids: (1, 2),
        course: AttackCourse { lasts: LONG, ..WORKERS },
        ..endless("objects and names without end", &["3000000"])
    },
];

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

#[test(alone)]
fn hostile_workloads_in_turn_do_not_affect_other_users() {
    let is_large = setting::<String>("MEMWATCH_HOSTILE").is_some_and(|value| value == "large");
    let limit_bytes = setting("MEMWATCH_HOSTILE_LIMIT_MIB").unwrap_or(256) * MIB;
    let demands = if is_large {
        let (answer, recovery) = (Some(Duration::from_secs(1)), Duration::from_mins(5));
        Demands { questions: 100, answer, recovery, limit_bytes }
    } else {
        Demands { questions: 5, answer: None, recovery: TIMEOUT, limit_bytes }
    };
    let only = setting::<String>("MEMWATCH_HOSTILE_ATTACK").unwrap_or_default();
    let rounds = setting("MEMWATCH_HOSTILE_ROUNDS").unwrap_or(1);
    let mut siege = Siege::lay(demands);
    for attack in (0..rounds).flat_map(|_| ATTACKS).filter(|attack| attack.name.contains(&only)) {
        let Attack { name, means, mut course, .. } = *attack;
        let (ids, words) = if is_large { (attack.ids.1, Some(attack.large)) } else { (attack.ids.0, attack.quick) };
        if !is_large {
            course.lasts = Duration::ZERO;
        }
        if let Some(words) = words {
            siege.stand(name, (means, course), ids, words);
        }
    }
}
