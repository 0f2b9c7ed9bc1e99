use proptest::prelude::*;

use super::*;
use crate::owner::VARIABLES;

/// Returns parts of paths, some of them with a meaning.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(A.to_owned()),
        Just(B.to_owned()),
        Just(format!("pod{U}")),
        Just(format!("kubepods-burstable-pod{S}.slice")),
        proptest::sample::select(vec![
            "docker",
            "docker-",
            "crio-conmon-",
            ".scope",
            "kubepods",
            "burstable",
            "lxc",
            "lxc.payload.",
            "machine.slice",
            "systemd-nspawn@",
            ".service",
            "session-",
            "slurmstepd.scope",
            "slurm",
            "uid_0",
            "job_7",
            "step_0",
            "user",
            "task_1",
            "sEKNKTV3WPV500",
            "ecs",
            "buildkit",
            "..",
            "/",
            "/",
            "/",
            ":",
            "::",
            "0::",
            "1:name=systemd:",
            "\n",
            " (deleted)",
        ])
        .prop_map(str::to_owned),
        any::<String>(),
    ]
}

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(piece(), 0..60).prop_map(|pieces| pieces.concat())
}

fn values() -> impl Strategy<Value = Environment> {
    let name = proptest::sample::select(VARIABLES.to_vec());
    let value = prop_oneof![any::<String>(), "[0-9]{0,12}", Just("x".repeat(10_000))];
    proptest::collection::btree_map(name.prop_map(Into::into), value, 0..VARIABLES.len())
}

proptest! {
    #[test]
    fn any_text_gives_an_owner_no_longer_than_a_path_and_the_same_each_time(text in text(), values in values()) {
        let owner = Owner::decide(&text, &values);
        prop_assert_eq!(&owner, &Owner::decide(&text, &values));
        prop_assert!(stated(&owner).len() <= 4096 + 512, "{}", stated(&owner));
        if let Some(path) = &owner.cgroup {
            prop_assert!(path.len() <= 4096 && path.starts_with('/') && !path.contains('\n'));
        }
        if let Some(job) = &owner.slurm {
            let names = [&job.name, &job.account, &job.partition, &job.cluster];
            prop_assert!(names.into_iter().flatten().all(|name| name.len() <= 256));
        }
    }

    #[test]
    fn the_order_of_lines_does_not_matter(paths in proptest::collection::vec((0..5_u8, text()), 0..12), swap in any::<prop::sample::Index>()) {
        let mut lines: Vec<String> = paths.iter().map(|(number, path)| {
            let controllers = ["", "name=systemd", "memory", "cpu", "pids"][usize::from(*number)];
            format!("{number}:{controllers}:/{}", path.replace('\n', ""))
        }).collect();
        let owner = Owner::decide(&lines.join("\n"), &Environment::new());
        if !lines.is_empty() {
            let at = swap.index(lines.len());
            lines.rotate_left(at);
        }
        prop_assert_eq!(owner, Owner::decide(&lines.join("\n"), &Environment::new()));
    }
}
