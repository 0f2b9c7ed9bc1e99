//! The table against the standard library's, with random operations.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{LANES, SlotTable};

#[derive(Clone, Copy, Debug)]
enum TableStep {
    Insert(u64, u32),
    Remove(u64),
    RemoveIfEven(u64),
    Change(u64),
    Prefetch(u64),
    /// Extracts all entries whose value has this remainder when divided by three.
    Extract(u32),
}

/// Returns keys that are few enough to repeat and many enough to make the table grow: small ones
/// including 0, evenly spaced addresses, and any number.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![0..40_u64, (0..400_u64).prop_map(|place| 0x7f00_0000_0000 + 512 * place), any::<u64>()]
}

fn step() -> impl Strategy<Value = TableStep> {
    prop_oneof![
        12 => (key(), any::<u32>()).prop_map(|(key, value)| TableStep::Insert(key, value)),
        6 => key().prop_map(TableStep::Remove),
        2 => key().prop_map(TableStep::RemoveIfEven),
        2 => key().prop_map(TableStep::Change),
        2 => key().prop_map(TableStep::Prefetch),
        1 => (0..6_u32).prop_map(TableStep::Extract),
    ]
}

fn play(table: &mut SlotTable<u32>, model: &mut HashMap<u64, u32>, step: TableStep) {
    let is_even = |value: &u32| value.is_multiple_of(2);
    match step {
        TableStep::Insert(key, value) => assert_eq!(table.insert(key, value), model.insert(key, value)),
        TableStep::Remove(key) => assert_eq!(table.remove(key), model.remove(&key)),
        TableStep::RemoveIfEven(key) => {
            let removed = model.get(&key).copied().filter(is_even);
            if removed.is_some() {
                model.remove(&key);
            }
            assert_eq!(table.remove_if(key, is_even), removed);
        }
        TableStep::Change(key) => {
            let change = |value: &mut u32| *value = value.wrapping_add(1);
            assert_eq!(table.get_mut(key).map(change), model.get_mut(&key).map(change));
        }
        TableStep::Prefetch(key) => table.prefetch_value(table.prefetch(key)),
        TableStep::Extract(remainder) => {
            let mut gone = table.extract(|_, value| value % 3 == remainder);
            let mut expected: Vec<(u64, u32)> = model.extract_if(|_, value| *value % 3 == remainder).collect();
            gone.sort_unstable();
            expected.sort_unstable();
            assert_eq!(gone, expected);
        }
    }
}

fn compare(table: &SlotTable<u32>, model: &HashMap<u64, u32>) {
    assert_eq!(table.len(), model.len());
    assert_eq!(table.iter().map(|(key, value)| (key, *value)).collect::<HashMap<_, _>>(), *model);
    for (key, value) in model {
        assert_eq!(table.get(*key), Some(value));
    }
    hold_the_order_of_lines(table);
}

/// Asserts the invariant of the search for a key: every line between a tag's home line and the line
/// of its entry is full.
fn hold_the_order_of_lines(table: &SlotTable<u32>) {
    for (number, line) in table.lines.iter().enumerate() {
        for tag in line.tags.into_iter().filter(|tag| *tag != 0) {
            let mut between = table.home(tag);
            while between != number {
                assert!(table.lines[between].is_full());
                between = table.after(between);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_table_holds_what_a_map_holds(steps in vec(step(), 0..1_500)) {
        let (mut table, mut model) = (SlotTable::default(), HashMap::new());
        for (index, step) in steps.into_iter().enumerate() {
            play(&mut table, &mut model, step);
            if index % 100 == 0 {
                compare(&table, &model);
            }
        }
        compare(&table, &model);
    }

    /// Entries whose tags are equal or nearly equal. No hostile program can produce them, but the
    /// order of lines must hold for them too.
    #[test]
    fn crowded_lines_keep_their_order(steps in vec((prop::bool::weighted(0.6), 0..30_u32, 0..60_usize), 1..400)) {
        let mut table = SlotTable { lines: vec![super::IndexLine::default(); 16], ..SlotTable::default() };
        let mut model = Vec::new();
        for (enters, tag, which) in steps {
            // Three lines of sixteen, including the last one: entries that find it full continue in
            // the first.
            let tag = (tag % 3 + 14) << 28 | tag << 8 | 1;
            let places = busy_places(&table);
            if enters && places.len() < 15 * LANES {
                table.enter(tag, 0);
                model.push(tag);
            } else if let Some(place) = places.get(which % places.len().max(1)) {
                let cleared = table.lines[place / LANES].tags[place % LANES];
                table.clear(*place);
                model.swap_remove(model.iter().position(|tag| *tag == cleared).expect("it was entered"));
            }
            hold_the_order_of_lines(&table);
            let mut tags: Vec<u32> = table.lines.iter().flat_map(|line| line.tags).filter(|tag| *tag != 0).collect();
            tags.sort_unstable();
            model.sort_unstable();
            assert_eq!(&tags, &model);
        }
    }
}

fn busy_places(table: &SlotTable<u32>) -> Vec<usize> {
    let busy = |place: &usize| table.lines[place / LANES].tags[place % LANES] != 0;
    (0..table.lines.len() * LANES).filter(busy).collect()
}

#[test]
fn an_empty_table_takes_no_memory_and_gives_it_back() {
    let mut table = SlotTable::default();
    assert_eq!(table.get(0), None);
    assert_eq!(table.remove(0), None);
    table.prefetch_value(table.prefetch(1));
    assert_eq!((table.lines.capacity(), table.slots.capacity()), (0, 0));
    for key in 0..1_000 {
        table.insert(key, 7);
    }
    assert_eq!(table.extract(|_, _| true).len(), 1_000);
    assert_eq!((table.lines.capacity(), table.slots.capacity()), (0, 0));
}

#[test]
fn a_place_that_was_left_is_used_again() {
    let mut table = SlotTable::default();
    for round in 0..10 {
        for key in 0..100 {
            assert_eq!(table.insert(key * (round + 1) * 512, 1), None);
        }
        for key in 0..100 {
            assert_eq!(table.remove(key * (round + 1) * 512), Some(1));
        }
    }
    assert_eq!(table.slots.len(), 100);
}
