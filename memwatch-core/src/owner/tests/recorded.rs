//! Complete files as read on real machines.

use super::*;

/// Linux 6.18 with v1 controllers and a cgroup2 tree without controllers. All hierarchies other
/// than `lines` are at `/`.
fn hybrid(lines: &[(&str, &str)]) -> String {
    let numbers = [
        (9, "name=systemd"),
        (8, "pids"),
        (7, "blkio"),
        (6, "freezer"),
        (5, "devices"),
        (4, "memory"),
        (3, "cpuset"),
        (2, "cpuacct"),
        (1, "cpu"),
        (0, ""),
    ];
    let path = |name| lines.iter().find(|(other, _)| *other == name).map_or("/", |(_, path)| path);
    numbers.map(|(number, name)| format!("{number}:{name}:{}\n", written(path(name)))).concat()
}

fn decided(lines: &[(&str, &str)]) -> (String, String) {
    let owner = Owner::decide(&hybrid(lines), &Environment::new());
    (stated(&owner), owner.cgroup.expect("there is a path"))
}

#[test]
fn docker_container_in_the_unified_tree_precedes_a_v1_path() {
    for parent in ["docker", "batch/team-x"] {
        let path = format!("/{parent}/{{a}}");
        let foreign = ("memory", "/process_api/dc1eee8a34a40b001a7bff54b806302e");
        let (stated, cgroup) = decided(&[foreign, ("", &path)]);
        let runtime = if parent == "docker" { "docker" } else { "some" };
        assert_eq!((stated, cgroup), (format!("{runtime} {A}"), written(&path)));
    }
}

#[test]
fn a_container_in_all_hierarchies_is_determined_by_the_unified_one() {
    let everywhere = hybrid(&[]).replace(":/\n", &format!(":/docker/{A}\n"));
    let owner = Owner::decide(&everywhere, &Environment::new());
    assert_eq!(stated(&owner), format!("docker {A}"));
}

#[test]
fn container_in_its_own_cgroup_namespace_is_at_the_root() {
    assert_eq!(decided(&[]), (String::new(), "/".into()));
    assert_eq!(decided(&[("", "/../{b}")]), (format!("some {B}"), format!("/../{B}")));
    assert_eq!(decided(&[("", "/../..")]), (String::new(), "/../..".into()));
}

#[test]
fn slurm_of_v1_is_determined_by_the_hierarchy_that_has_tasks() {
    let step = "/slurm_vm/uid_0/job_2/step_0";
    for task in ["0", "1"] {
        let path = format!("{step}/task_{task}");
        let lines = [("freezer", step), ("devices", &path), ("memory", &path), ("cpuset", step), ("cpuacct", &path)];
        assert_eq!(decided(&lines), (format!("job 2, step 0, task {task}"), path.clone()));
    }
    let job = "/slurm_vm/uid_0/job_2";
    let stepd = [("freezer", job), ("devices", step), ("memory", step), ("cpuset", step)];
    assert_eq!(decided(&stepd), ("job 2, step 0".into(), step.into()));
    let extern_step = "/slurm_vm/uid_0/job_2/step_extern";
    let lines =
        [("freezer", extern_step), ("memory", "/slurm_vm/uid_0/job_2/step_extern/task_0"), ("cpuset", extern_step)];
    assert_eq!(decided(&lines).0, "job 2, step extern, task 0");
    let batch =
        [("freezer", "/slurm_vm/uid_0/job_4/step_batch"), ("memory", "/slurm_vm/uid_0/job_4/step_batch/task_0")];
    assert_eq!(decided(&batch).0, "job 4, step batch, task 0");
}

#[test]
fn a_container_in_one_hierarchy_and_a_job_in_another_are_both_reported() {
    let lines = [
        ("", "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{a}.scope/container"),
        ("memory", "/slurm/uid_1000/job_7/step_0/task_2"),
    ];
    assert_eq!(decided(&lines).0, format!("podman {A} of user 1000, job 7, step 0, task 2"));
    let nested = [("", "/docker/{a}/docker/{b}"), ("memory", "/docker/{a}"), ("devices", "/docker/{a}")];
    assert_eq!(decided(&nested).0, format!("docker {B}"));
}
