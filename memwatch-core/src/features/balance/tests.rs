use super::*;
use crate::features::holdings::sum_by_name;
use crate::input::holdings::Holding;
use crate::kernel_driver::labels::Sure;
use crate::kernel_driver::trust::LedgerTrust;
use crate::snapshot::{ColumnsView, PartView};
use crate::words::Ordinal;

const MIB: u64 = 1 << 20;

fn block(class: HoldingClass, name: &str, mib: u64) -> Holding {
    let dtype = Some("bfloat16".to_owned());
    Holding { class, name: Some(name.to_owned()), dtype, ..Holding::unknown(Ordinal(0), 0, mib * MIB) }
}

fn sheet(blocks: &[Holding], allocator: Option<[u64; 2]>, used_mib: Option<u64>) -> Vec<(Role, i64)> {
    let groups = sum_by_name(&blocks.iter().collect::<Vec<_>>(), usize::MAX);
    let sum = |[allocated, reserved]: [u64; 2]| AllocatorSum {
        allocated_bytes: allocated * MIB,
        reserved_bytes: reserved * MIB,
    };
    let used_bytes = used_mib.map(|mib| mib * MIB);
    let allocator = allocator.map(sum);
    let input = BalanceInput {
        tgid: Tgid(7),
        uuid: None,
        used_bytes,
        allocator,
        is_one_moment: true,
        called_bytes: None,
        groups: &groups,
        explained: None,
    };
    let view = balance(&input);
    let all: i128 = view.roles.iter().map(|row| i128::from(row.bytes)).sum();
    if let Some(used) = view.used_bytes {
        assert_eq!(all, i128::from(used), "{view:#?}");
    }
    view.roles.iter().map(|row| (row.role, row.bytes >> 20)).collect()
}

fn serving() -> Vec<Holding> {
    vec![
        block(HoldingClass::Tensor, "core.py:run: engine.static_forward_context['layers.0'].kv_cache[0]", 40),
        block(HoldingClass::Tensor, "scheduler.py:loop: pool.k_buffer[3]", 8),
        block(HoldingClass::Parameter, "layers.0.weight", 20),
        block(HoldingClass::Parameter, "layers.1.weight", 20),
        block(HoldingClass::Tensor, "runner.input_ids", 2),
    ]
}

#[test]
fn balance_of_a_late_server_adds_up_to_the_charge() {
    let rows = sheet(&serving(), Some([90, 100]), Some(160));
    let expected = [
        (Role::KvCache, 48),
        (Role::Weights, 40),
        (Role::OtherTensors, 2),
        (Role::Cached, 10),
        (Role::ContextAndLibraries, 60),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn balance_shows_what_changed_between_its_readings() {
    let rows = sheet(&serving(), Some([95, 100]), Some(160));
    assert!(rows.contains(&(Role::Changed, 5)), "{rows:?}");
    let rows = sheet(&serving(), Some([90, 170]), Some(160));
    assert_eq!(rows.last(), Some(&(Role::Changed, -10)), "{rows:?}");
}

#[test]
fn balance_without_names_or_allocator_says_so() {
    assert_eq!(
        sheet(&[], Some([90, 100]), Some(160)),
        [(Role::NotRead, 90), (Role::Cached, 10), (Role::ContextAndLibraries, 60)]
    );
    assert_eq!(sheet(&[], None, Some(160)), [(Role::NotAttributed, 160)]);
    assert_eq!(sheet(&[], Some([90, 100]), None), [(Role::NotRead, 90), (Role::Cached, 10)]);
    assert_eq!(sheet(&[], None, None), []);
}

#[test]
fn trusted_ledger_takes_the_place_of_the_remainder() {
    let part = |label, owner: Option<&str>, mib| PartView {
        label,
        owner: owner.map(str::to_owned),
        function: None,
        bytes: mib * MIB,
        objects: 1,
        sure: Sure::High,
        bytes_per_thread: None,
        left_by: None,
    };
    let parts = vec![
        part(MemoryPurpose::Requested, Some("PyTorch"), 100),
        part(MemoryPurpose::Context, None, 45),
        part(MemoryPurpose::Requested, Some("NCCL"), 15),
    ];
    let explained = ExplainedUse {
        uuid: None,
        trust: LedgerTrust::Trusted,
        used_bytes: Some(160 * MIB),
        live_bytes: 160 * MIB,
        older_bytes: Some(0),
        difference_bytes: Some(0),
        parts,
        columns: ColumnsView::default(),
        pieces: Vec::new(),
    };
    let blocks = serving();
    let groups = sum_by_name(&blocks.iter().collect::<Vec<_>>(), usize::MAX);
    let allocator = Some(AllocatorSum { allocated_bytes: 90 * MIB, reserved_bytes: 100 * MIB });
    let input = BalanceInput {
        tgid: Tgid(7),
        uuid: None,
        used_bytes: None,
        allocator,
        is_one_moment: true,
        called_bytes: None,
        groups: &groups,
        explained: Some(&explained),
    };
    let view = balance(&input);
    let rows: Vec<_> = view.roles.iter().map(|row| (row.role, row.owner.as_deref(), row.bytes >> 20)).collect();
    let expected = [
        (Role::KvCache, None, 48),
        (Role::Weights, None, 40),
        (Role::OtherTensors, None, 2),
        (Role::Cached, None, 10),
        (Role::Part, None, 45),
        (Role::Part, Some("NCCL"), 15),
    ];
    assert_eq!(rows, expected);
    // Without the allocator's counters its part of the ledger is a row of its own.
    let whole = balance(&BalanceInput { allocator: None, groups: &[], ..input });
    assert_eq!(whole.roles.len(), 3, "{whole:#?}");
    assert_eq!(whole.roles.iter().map(|row| row.bytes).sum::<i64>(), 160 << 20);
    let weights = view.roles.iter().find(|row| row.role == Role::Weights).expect("it has weights");
    assert_eq!((weights.count, weights.largest.as_deref()), (Some(2), Some("layers.*.weight")));
    assert_eq!(weights.dtype.as_deref(), Some("bfloat16"));
}

#[test]
fn calls_seen_from_the_start_divide_the_remainder() {
    let sheet = |called_mib: u64| {
        let allocator = Some(AllocatorSum { allocated_bytes: 90 * MIB, reserved_bytes: 100 * MIB });
        let view = balance(&BalanceInput {
            tgid: Tgid(7),
            uuid: None,
            used_bytes: Some(160 * MIB),
            allocator,
            is_one_moment: true,
            called_bytes: Some(called_mib * MIB),
            groups: &[],
            explained: None,
        });
        view.roles.iter().map(|row| (row.role, row.bytes >> 20)).skip(2).collect::<Vec<_>>()
    };
    assert_eq!(sheet(115), [(Role::DriverCalls, 15), (Role::ContextAndCode, 45)]);
    assert_eq!(sheet(99), [(Role::ContextAndLibraries, 60)], "the counters are of another moment");
    assert_eq!(sheet(161), [(Role::ContextAndLibraries, 60)]);
}

#[test]
fn counters_older_than_the_charge_leave_a_remainder_without_a_purpose() {
    let older = BalanceInput {
        tgid: Tgid(7),
        uuid: None,
        used_bytes: Some(160 * MIB),
        allocator: Some(AllocatorSum { allocated_bytes: 90 * MIB, reserved_bytes: 100 * MIB }),
        is_one_moment: false,
        called_bytes: None,
        groups: &[],
        explained: None,
    };
    let rest = |input: &BalanceInput<'_>| balance(input).roles.last().map(|row| (row.role, row.bytes >> 20));
    assert_eq!(rest(&older), Some((Role::NotAttributed, 60)));
    assert_eq!(rest(&BalanceInput { is_one_moment: true, ..older }), Some((Role::ContextAndLibraries, 60)));
}
