//! Serialises entries of memwatch's tables by name, because names stay valid when a table grows.

use std::collections::BTreeMap;

use memwatch_common::loss::Loss;
use memwatch_common::probes::PROBES;
use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serializer};

use super::Tgid;

type LossCounts = BTreeMap<Loss, u64>;

fn loss<E: serde::de::Error>(name: &str) -> Result<Loss, E> {
    let found = Loss::ALL.into_iter().find(|loss| loss.name() == name);
    found.ok_or_else(|| E::custom(format_args!("unknown kind of loss {name:?}")))
}

fn counts<E: serde::de::Error>(named: BTreeMap<String, u64>) -> Result<LossCounts, E> {
    named.into_iter().map(|(name, count)| Ok((loss(&name)?, count))).collect()
}

fn named(counts: &LossCounts) -> BTreeMap<&'static str, u64> {
    counts.iter().map(|(loss, count)| (loss.name(), *count)).collect()
}

/// Serialises one loss.
pub(crate) mod one_loss {
    use super::*;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it writes by reference")]
    pub(crate) fn serialize<S: Serializer>(loss: &Loss, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(loss.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Loss, D::Error> {
        loss(&String::deserialize(deserializer)?)
    }
}

/// Serialises the counts of losses.
pub(crate) mod losses {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(counts: &LossCounts, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(named(counts))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LossCounts, D::Error> {
        counts(BTreeMap::deserialize(deserializer)?)
    }
}

/// Serialises the counts of losses by process.
pub(crate) mod losses_by_process {
    use super::*;

    type ByProcess = BTreeMap<Tgid, LossCounts>;

    pub(crate) fn serialize<S: Serializer>(all: &ByProcess, serializer: S) -> Result<S::Ok, S::Error> {
        let all: BTreeMap<_, _> = all.iter().map(|(tgid, counts)| (tgid, named(counts))).collect();
        serializer.collect_map(all)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByProcess, D::Error> {
        let all: BTreeMap<Tgid, BTreeMap<String, u64>> = BTreeMap::deserialize(deserializer)?;
        all.into_iter().map(|(tgid, named)| Ok((tgid, counts(named)?))).collect()
    }
}

/// Serialises a driver function.
pub(crate) mod symbol {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(symbol: &str, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(symbol)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = PROBES.iter().find(|probe| probe.symbol == name).map(|probe| probe.symbol);
        found.ok_or_else(|| D::Error::custom(format_args!("unknown driver function {name:?}")))
    }
}
