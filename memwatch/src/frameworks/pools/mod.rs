//! Completes the probe points of pools in a file, with the offsets of the pools' counters.
//!
//! Pools that a build does not show as expected are left out and logged; the rest is traced.

use std::fs::File;

use memwatch_common::tensor::{BlockPlan, PoolPlan, PoolShape, TensorMeaning, tensor_probe};

use crate::frameworks::getter::{code_of, returned};
use crate::frameworks::points::TensorPoint;
use crate::frameworks::symbols::{SymbolName, symbols};
use crate::sources::kernel::resolve::{ResolveError, SymbolLayout};
use crate::stranger_file::ElfReader;

/// A kind of pool.
pub(crate) struct PoolFamily {
    /// Displayed name, which the symbols of its functions contain.
    pub(crate) name: &'static str,
    /// Ids of the probes without which its events would be misread.
    pub(crate) rows: &'static [u16],
    /// The pool's counter; `None` if the pool has none.
    pub(crate) counter: Option<PoolCounterGetter>,
    /// Events that read the counter.
    pub(crate) shapes: &'static [PoolShape],
}

/// A counter of a pool, and the getter from which its offset is decoded.
pub(crate) struct PoolCounterGetter {
    /// Beginning of the getter's symbol.
    pub(crate) symbol: &'static str,
    /// Description of the counter.
    pub(crate) fact: &'static str,
    /// Beginning of the symbol of the getter of the next word, if that must be a counter too.
    pub(crate) next: Option<&'static str>,
}

const WORD_BYTES: u32 = 8;

impl PoolFamily {
    /// Adds the counter's offset to the pool's points. Removes all of them if one is missing.
    pub(crate) fn complete(&self, file: &File, points: &mut Vec<TensorPoint>) {
        let has = |row: &u16| points.iter().any(|point| point.row.id == *row);
        if !self.rows.iter().all(has) {
            let missing = self.rows.iter().filter(|row| !has(row)).filter_map(|row| symbol_of(*row));
            log::info!("{} is not followed: no {}", self.name, missing.collect::<Vec<_>>().join(", "));
            points.retain(|point| !self.owns(point));
            return;
        }
        let Some(counter) = &self.counter else { return };
        let Some(counter_bytes) = counter.offset_in(file) else {
            log::info!("{}: this build does not show {}", self.name, counter.fact);
            return;
        };
        for point in points {
            if let BlockPlan::Pool(PoolPlan { shape, .. }) = point.plan.block
                && self.shapes.contains(&shape)
            {
                point.plan.block = BlockPlan::Pool(PoolPlan { shape, counter_bytes });
            }
        }
    }

    fn owns(&self, point: &TensorPoint) -> bool {
        let is_begin = point.row.meaning == TensorMeaning::PoolBegins && point.row.symbol.contains(self.name);
        is_begin || self.rows.contains(&point.row.id)
    }

    /// Whether the table of probes has all of the family's rows.
    #[cfg(test)]
    pub(crate) fn is_in_table(&self) -> bool {
        self.rows.iter().all(|row| symbol_of(*row).is_some())
    }
}

impl PoolCounterGetter {
    /// Returns the offset of the counter.
    fn offset_in(&self, file: &File) -> Option<u16> {
        let offset = |name| returned(&function(file, name)?, true);
        let counter = offset(self.symbol)?;
        let is_as_expected = self.next.is_none_or(|next| offset(next) == Some(counter + WORD_BYTES));
        u16::try_from(counter).ok().filter(|counter| *counter > 0 && is_as_expected)
    }
}

fn symbol_of(row: u16) -> Option<&'static str> {
    tensor_probe(row).map(|probe| probe.symbol)
}

/// Reads the first bytes of the function whose name begins with `beginning`; `None` if there is
/// none.
pub(crate) fn function(file: &File, beginning: &'static str) -> Option<Vec<u8>> {
    let of = || -> Result<Option<Vec<u8>>, ResolveError> {
        let clone = file.try_clone().map_err(|_unreadable| ResolveError::Damaged { what: "file" })?;
        let cache = ElfReader::new(clone);
        let layout = SymbolLayout::parse(&cache)?;
        let found = symbols(file, &layout, &[SymbolName { key: 0, beginning, ending: "" }])?;
        Ok(found.functions.get(&0).and_then(|location| code_of(file, location)))
    };
    of().inspect_err(|error| log::info!("{error}")).ok().flatten()
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::{own_file, points_of, rows_of};
