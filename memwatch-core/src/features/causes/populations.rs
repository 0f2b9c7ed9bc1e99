//! Groups of equal objects: copies of the parameters, and instances of one class.

use std::collections::{BTreeMap, BTreeSet};

use super::paths::container;
use crate::input::holdings::{Holding, HoldingClass};

/// Minimum number of different parameter shapes in a copy: a single tensor of equal shape proves
/// nothing.
const FEWEST_SHAPES: usize = 2;

/// A group of equal objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Population {
    /// Name of their container, or their class.
    pub(super) name: String,
    /// Number of objects.
    pub(super) count: u64,
    /// Bytes of all objects.
    pub(super) bytes: u64,
}

type TensorShape = (Vec<u64>, Option<String>);

fn shape(row: &Holding) -> Option<TensorShape> {
    Some((row.shape.clone()?, row.dtype.clone()))
}

/// Returns the containers that have a tensor for each parameter of a model, once or several times.
pub(super) fn copies_of_parameters(rows: &[Holding]) -> Vec<Population> {
    let mut wanted = BTreeMap::<TensorShape, u64>::new();
    for shape in rows.iter().filter(|row| row.class == HoldingClass::Parameter).filter_map(shape) {
        *wanted.entry(shape).or_default() += 1;
    }
    let of_several = wanted.values().sum::<u64>() > 2 && wanted.len() >= FEWEST_SHAPES;
    let mut containers = BTreeMap::<&str, Vec<&Holding>>::new();
    for row in rows.iter().filter(|row| row.class == HoldingClass::Tensor && of_several) {
        if let Some(name) = row.name.as_deref().filter(|name| name.contains('[')) {
            containers.entry(container(name)).or_default().push(row);
        }
    }
    let copies = |(name, rows): (&str, Vec<&Holding>)| {
        let mut has = BTreeMap::<TensorShape, u64>::new();
        for shape in rows.iter().filter_map(|row| shape(row)) {
            *has.entry(shape).or_default() += 1;
        }
        let times = wanted.iter().map(|(shape, count)| has.get(shape).copied().unwrap_or(0) / count).min().unwrap_or(0);
        let of_parameters = rows.iter().filter(|row| shape(row).is_some_and(|shape| wanted.contains_key(&shape)));
        let bytes = of_parameters.map(|row| row.block_bytes).fold(0, u64::saturating_add);
        (times > 0).then(|| Population { name: name.to_owned(), count: times, bytes })
    };
    containers.into_iter().filter_map(copies).collect()
}

/// Returns the outermost modules by class.
pub(super) fn instances_by_class(rows: &[Holding]) -> Vec<Population> {
    let mut classes = BTreeMap::<&str, (BTreeSet<u64>, u64)>::new();
    for row in rows {
        let Some(owner) = &row.owner else { continue };
        let (roots, bytes) = classes.entry(&owner.root_class).or_default();
        roots.insert(owner.root_address);
        *bytes = bytes.saturating_add(row.block_bytes);
    }
    let population = |(name, (roots, bytes)): (&str, (BTreeSet<u64>, u64))| Population {
        name: name.to_owned(),
        count: roots.len() as u64,
        bytes,
    };
    classes.into_iter().map(population).collect()
}
