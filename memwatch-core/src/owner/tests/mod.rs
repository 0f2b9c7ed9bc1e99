mod environment;
mod properties;
mod recorded;

use super::{Environment, Owner};

/// Container ids: `{a}`, `{b}`, `{c}`.
const A: &str = "17db96a24ae1e9dd57143e62b1cb0d2d35e693c65c774c7470e87b0572e07c1a";
const B: &str = "a1c70e2750b78e0747c477c569e36c53d2d0bc1e26b34175dd9e1ea42a69bd71";
/// Pod uids: `{u}` with dashes, `{_}` with underscores, `{s}` of a static pod.
const U: &str = "8712f785-1a3e-41ec-a00b-e2dcc77431cb";
const S: &str = "3e61c214bc3ed9ff81e21474dd6cba17";

fn written(text: &str) -> String {
    let text = text.replace("{a}", A).replace("{b}", B).replace("{u}", U).replace("{s}", S);
    text.replace("{_}", &U.replace('-', "_"))
}

/// Formats an owner in one line.
fn stated(owner: &Owner) -> String {
    let mut words = Vec::new();
    if let Some(container) = &owner.container {
        let whose = container.of_user.map_or_else(String::new, |uid| format!(" of user {uid}"));
        words.push(format!("{} {}{whose}", container.runtime.as_deref().unwrap_or("some"), container.id));
    }
    if let Some(pod) = &owner.pod {
        words.push(format!("pod {} {}", pod.uid, pod.qos.as_deref().unwrap_or("of some class")));
    }
    if let Some(job) = &owner.slurm {
        let number = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name} {value}"));
        let parts = [("job", &job.job_id), ("sluid", &job.sluid), ("step", &job.step), ("task", &job.task)];
        words.extend(parts.into_iter().filter_map(|(name, value)| number(name, value)));
    }
    words.extend(owner.unit.iter().chain(&owner.session).cloned());
    words.join(", ")
}

fn check(table: &[(&str, &str)]) {
    for (path, expected) in table {
        let path = written(path);
        let owner = Owner::decide(&format!("0::{path}\n"), &Environment::new());
        assert_eq!(stated(&owner), written(expected), "{path}");
        assert_eq!(owner.cgroup, Some(path));
    }
}

#[test]
fn kubernetes_pods_and_their_containers_are_reported() {
    check(&[
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_}.slice/cri-containerd-{a}.scope",
            "containerd {a}, pod {u} burstable",
        ),
        ("/kubepods.slice/kubepods-pod{_}.slice/cri-containerd-{a}.scope", "containerd {a}, pod {u} guaranteed"),
        ("/kubepods/burstable/pod{u}/{a}", "some {a}, pod {u} burstable"),
        ("/kubepods/besteffort/pod{u}/{a}", "some {a}, pod {u} besteffort"),
        ("/kubepods/pod{u}/{a}", "some {a}, pod {u} guaranteed"),
        (
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{_}.slice/cri-containerd-{a}.scope",
            "containerd {a}, pod {u} besteffort",
        ),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{s}.slice/cri-containerd-{a}",
            "containerd {a}, pod {s} burstable",
        ),
        (
            "/system.slice/containerd.service/kubepods-burstable-pod{_}.slice:cri-containerd:{a}",
            "containerd {a}, pod {u} burstable",
        ),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_}.slice/crio-{a}.scope/container",
            "cri-o {a}, pod {u} burstable",
        ),
        ("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{_}.slice/crio-conmon-{a}.scope", ""),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{_}.slice/docker-{a}.scope",
            "docker {a}, pod {u} besteffort",
        ),
        // Without a container: the remains of a pod's sandbox, or a group that the pod has created.
        ("/kubepods/besteffort/pod{u}", "pod {u} besteffort"),
        ("/kubepods.slice/kubepods-pod{_}.slice", "pod {u} guaranteed"),
        ("/pod{u}/{a}", "some {a}, pod {u} of some class"),
        // Static pods, parents with other names, and the groups of the classes themselves.
        ("/kubepods/burstable/pod{s}/{a}", "some {a}, pod {s} burstable"),
        ("/k3s/kubepods/besteffort/pod{u}/{a}", "some {a}, pod {u} besteffort"),
        ("/kubepods/burstable/pod{u}/crio-{a}", "cri-o {a}, pod {u} burstable"),
        ("/k8s.io/{a}", "containerd {a}"),
        ("/kubepods.slice/kubepods-burstable.slice", ""),
        ("/kubepods/burstable", ""),
        // Not a uid.
        ("/kubepods/burstable/pod8712f785-1a3e-41ec-a00b/{a}", "some {a}"),
        ("/kubepods/burstable/podman/{a}", "some {a}"),
        ("/kubepods/tripod{u}/{a}", "some {a}"),
        ("/kubepods/burstable/pod8712F785-1A3E-41EC-A00B-E2DCC77431CB", ""),
    ]);
}

#[test]
fn containers_of_all_runtimes_are_reported() {
    check(&[
        ("/docker/{a}", "docker {a}"),
        ("/system.slice/docker-{a}.scope", "docker {a}"),
        ("/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{a}.scope", "docker {a} of user 1000"),
        ("/machine.slice/libpod-{a}.scope/container", "podman {a}"),
        (
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{a}.scope/container",
            "podman {a} of user 1000",
        ),
        ("/machine.slice/libpod-conmon-{a}.scope", ""),
        ("/system.slice/train.service/libpod-payload-{a}", "podman {a}"),
        ("/libpod_parent/libpod-{a}", "podman {a}"),
        ("/system.slice/nerdctl-{a}.scope", "nerdctl {a}"),
        ("/lxc.payload.web01/system.slice/ssh.service", "lxc web01, ssh.service"),
        ("/lxc/mysql", "lxc mysql"),
        // Docker without the marks of systemd's driver, with a parent chosen by the caller, and in
        // systemd's notation.
        ("/batch/team-x/{a}", "some {a}"),
        ("/system.slice:docker:{a}", "docker {a}"),
        ("/docker-{a}.scope", "docker {a}"),
        ("/docker/{a}/init.scope", "docker {a}"),
        ("/docker/buildkit/hx4vpl3u0hjj1dyzfnzmcb3i6", "buildkit hx4vpl3u0hjj1dyzfnzmcb3i6"),
        ("/docker/buildkit", ""),
        // Amazon ECS.
        ("/ecs/{s}/{s}-2358210", "ecs {s}-2358210"),
        ("/ecs/prod/{s}/{a}", "ecs {a}"),
        ("/ecstasks.slice/ecstasks-{s}.slice/docker-{a}.scope", "docker {a}"),
        // Podman's pods, and LXC's and nspawn's own processes.
        ("/machine.slice/machine-libpod_pod_{b}.slice/libpod-{a}.scope/container", "podman {a}"),
        ("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-conmon-{a}.scope", "user@1000.service"),
        ("/lxc.payload/101/ns", "lxc 101"),
        ("/lxc.monitor.web01", ""),
        ("/lxc.monitor/101", ""),
        (
            "/machine.slice/systemd-nspawn@box-1.service/payload/system.slice/nginx.service",
            "nspawn box-1, nginx.service",
        ),
        ("/machine.slice/systemd-nspawn@box.service", "nspawn box"),
        ("/machine.slice/machine-my\\x2dbox.scope/payload/init.scope", "nspawn my-box"),
        ("/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt/emulator", ""),
        // Similar paths that are not containers.
        ("/docker/17db96a24ae1", ""),
        ("/system.slice/docker.service", "docker.service"),
        ("/system.slice/docker-{a}0.scope", ""),
        ("/docker/{a}.scopes", ""),
        ("/docker/17DB96A24AE1E9DD57143E62B1CB0D2D35E693C65C774C7470E87B0572E07C1A", ""),
    ]);
}

#[test]
fn of_nested_containers_the_innermost_is_reported() {
    check(&[
        (
            "/docker/{a}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{_}.slice/cri-containerd-{b}.scope",
            "containerd {b}, pod {u} burstable",
        ),
        ("/docker/{a}/docker/{b}", "docker {b}"),
        ("/docker/{a}/system.slice/docker-{b}.scope", "docker {b}"),
        ("/kubepods/burstable/pod{u}/{a}/docker/{b}", "docker {b}, pod {u} burstable"),
        ("/docker/{a}/system.slice/kubelet.service", "docker {a}, kubelet.service"),
        ("/docker/{a}/kubelet/kubepods/besteffort/pod{u}/{b}", "some {b}, pod {u} besteffort"),
        ("/lxc.payload.node/machine.slice/libpod-{a}.scope", "podman {a}"),
        ("/docker/{a}/kubepods.slice/kubepods-pod{_}.slice/crio-conmon-{b}.scope", "docker {a}"),
        ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/libpod-{a}", "podman {a}, job 7, step 0, task 0"),
        ("/docker/{a}/system.slice/slurmstepd.scope/job_7/step_0", "docker {a}, job 7, step 0"),
    ]);
}

#[test]
fn slurm_jobs_steps_and_tasks_are_reported() {
    check(&[
        ("/system.slice/slurmstepd.scope/job_4242/step_0/user/task_3", "job 4242, step 0, task 3"),
        ("/system.slice/slurmstepd.scope/job_4242/step_batch/user/task_0", "job 4242, step batch, task 0"),
        (
            "/system.slice/slurmstepd.scope/job_4242/step_extern/user/task_special",
            "job 4242, step extern, task special",
        ),
        ("/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0", "sluid sEKNKTV3WPV500, step 0, task 0"),
        ("/system.slice/gpu01_slurmstepd.scope/job_7/step_interactive/user/task_0", "job 7, step interactive, task 0"),
        ("/slurm/uid_1001/job_4242/step_0/task_3", "job 4242, step 0, task 3"),
        ("/slurm_gpu01/uid_1001/job_4242/step_batch", "job 4242, step batch"),
        // slurmstepd itself, other slices, and heterogeneous jobs.
        ("/system.slice/slurmstepd.scope/job_4242/step_0/slurm", "job 4242, step 0"),
        ("/hpc.slice/slurmstepd.scope/job_4242", "job 4242"),
        ("/system.slice/slurmstepd.scope/job_4242/step_0+1/user/task_12", "job 4242, step 0+1, task 12"),
        ("/slurm/uid_0/sEKNKTV3WPV500/step_batch/task_0", "sluid sEKNKTV3WPV500, step batch, task 0"),
        ("/system.slice/my_node_slurmstepd.scope/job_1/step_0", "job 1, step 0"),
        // Groups that are not jobs.
        ("/system.slice/slurmstepd.scope/system", ""),
        ("/system.slice/slurmstepd.scope", ""),
        ("/system.slice/slurmd.service", "slurmd.service"),
        ("/slurm/uid_1001", ""),
        ("/slurm/uid_x/job_1", ""),
        ("/system.slice/slurmstepd.scope/job_", ""),
        ("/system.slice/slurmstepd.scope/job_x7", ""),
        ("/system.slice/slurmstepd.scope/sEKNKTV3WPV50O/step_0", ""),
        ("/notslurm/uid_0/job_1", ""),
        // A job whose step has a name that Slurm does not use.
        ("/slurm/uid_0/job_9/step_a b/task_0", "job 9"),
    ]);
}

#[test]
fn groups_that_a_user_has_made_are_that_users_and_no_pod_or_job() {
    const USER: &str = "/user.slice/user-1001.slice/user@1001.service/app.slice";
    let made = |path: &str, expected: &str| check(&[(&format!("{USER}/{path}"), expected)]);
    made("jupyterhub.service", "user-1001/jupyterhub.service");
    made("session-3.scope", "user@1001.service, user-1001/session-3.scope");
    made("docker-{a}.scope", "docker {a} of user 1001");
    made("kubepods-pod{_}.slice/cri-containerd-{a}.scope", "containerd {a} of user 1001");
    made("kubepods/burstable/pod{u}", "user@1001.service");
    made("slurm/uid_0/job_42/step_0/task_0", "user@1001.service");
    // The manager's own group is created by root, and so is a group that only has a similar name.
    check(&[
        ("/user.slice/user-1001.slice/user@1002.service/docker-{a}.scope", "docker {a}"),
        ("/system.slice/user@1001.service/docker-{a}.scope", "docker {a}"),
    ]);
}

#[test]
fn services_and_sessions_are_reported_where_nothing_says_more() {
    check(&[
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
        ("/system.slice/jupyterhub.service", "jupyterhub.service"),
        ("/", ""),
        ("/../../kubepods-burstable.slice", ""),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/train.service", "user-1000/train.service"),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", "user@1000.service"),
        ("/user.slice/user-1000.slice/session-c2.scope", "session-c2.scope"),
        ("/system.slice/system-jupyter.slice/jupyter@alice.service", "jupyter@alice.service"),
        ("/system.slice/a:b.service", "a:b.service"),
        ("/init.scope", ""),
        ("/.service", ""),
        ("/system.slice", ""),
    ]);
}

#[test]
fn seen_from_another_cgroup_namespace_a_path_reports_what_it_still_holds() {
    check(&[
        ("/../{a}", "some {a}"),
        ("/../../..", ""),
        ("/../cri-containerd-{a}.scope", "containerd {a}"),
        ("/../../kubepods-burstable-pod{_}.slice/cri-containerd-{a}.scope", "containerd {a}, pod {u} burstable"),
        ("/../job_7/step_0", ""),
    ]);
}
