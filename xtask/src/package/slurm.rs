//! Tests deploy/slurm/epilog with stand-ins for its commands: an agent's metrics, and Slurm's
//! database, which stores lower case.

use crate::repo::Repo;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

/// The agent's metrics of two jobs.
const METRICS: &str = r#"# TYPE memwatch_workload_memory_peak_bytes gauge
memwatch_workload_memory_peak_bytes{gpu="1",uuid="B",workload_kind="slurm",namespace="",pod="",container="",slurm_job="42",unit=""} 1610612736
memwatch_workload_memory_peak_bytes{gpu="0",uuid="A",workload_kind="slurm",namespace="",pod="",container="",slurm_job="42",unit=""} 81064793292
memwatch_workload_memory_peak_bytes{gpu="0",uuid="A",workload_kind="slurm",namespace="",pod="",container="",slurm_job="4",unit=""} 5368709120
memwatch_workload_oom_events_total{gpu="0",uuid="A",workload_kind="slurm",namespace="",pod="",container="",slurm_job="42",unit=""} 2
"#;

/// A node at the end of a job, in a temporary directory.
struct EpilogNode(PathBuf);

impl Drop for EpilogNode {
    fn drop(&mut self) {
        // Fails if the directory is already removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl EpilogNode {
    fn new(name: &str, curl: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("memwatch-epilog-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let node = Self(folder);
        fs::write(node.0.join("metrics"), METRICS).unwrap();
        node.program("curl", curl);
        node.program("logger", "echo \"$@\" >>\"$folder/log\"");
        node.program("sleep", "exit 0");
        node.program("sacct", "cat \"$folder/comment\"");
        // The database learns of the job a little after its epilog starts, so the first call has no
        // effect.
        let set = "[ -e \"$folder/known\" ] || { touch \"$folder/known\"; exit 0; }
            for word; do case $word in AdminComment=*) printf '%s\\n' \"${word#AdminComment=}\" | tr A-Z a-z >\"$folder/comment\";; esac; done";
        node.program("sacctmgr", set);
        node
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\nfolder={}\n{body}\n", self.0.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs the epilog of a job on this node; the epilog never fails.
    fn ends(&self, job: &str, node: &str) {
        let mut epilog = Command::new(Repo::locate().unwrap().path("deploy/slurm/epilog"));
        let epilog = epilog.env_clear().env("MEMWATCH_PATH", &self.0).env("SLURM_JOB_ID", job);
        let output = epilog.env("SLURMD_NODENAME", node).output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }
}

#[test]
fn the_epilog_adds_each_nodes_peaks_to_the_jobs_comment() {
    let node = EpilogNode::new("adds", "cat \"$folder/metrics\"");
    node.ends("42", "Node1");
    let first = "memwatch node1: gpu 1 at least 1.50 gib, gpu 0 at least 75.50 gib, 2 allocations out of memory\n";
    assert_eq!(node.read("comment"), first);
    node.ends("42", "node1");
    assert_eq!(node.read("comment"), first, "its own part is not added twice");
    node.ends("42", "node2");
    assert_eq!(node.read("comment"), format!("{}; {}", first.trim_end(), first.replace("node1", "node2")));
    assert_eq!(node.read("log"), "");
}

#[test]
fn slurm_epilog_writes_nothing_without_gpu_memory_and_logs_failures() {
    let node = EpilogNode::new("nothing", "cat \"$folder/metrics\"");
    node.ends("7", "node1");
    node.ends("", "node1");
    node.ends("x; true", "node1");
    assert_eq!((node.read("comment"), node.read("log")), (String::new(), String::new()));
    node.program("curl", "echo 'connection refused'; exit 7");
    node.ends("42", "node1");
    assert_eq!(node.read("comment"), "");
    assert!(node.read("log").contains("job 42: the agent does not answer"), "{}", node.read("log"));
    node.program("curl", "cat \"$folder/metrics\"");
    node.program("sacctmgr", "exit 1");
    node.ends("42", "node1");
    assert!(node.read("log").contains("sacctmgr cannot write: memwatch node1"), "{}", node.read("log"));
}

#[test]
fn the_epilog_reads_metrics_that_the_agent_has() {
    let documented = fs::read_to_string(Repo::locate().unwrap().path("docs/reference/metrics.md")).unwrap();
    for name in METRICS.lines().filter_map(|line| line.split_once('{')).map(|(name, _)| name) {
        assert!(documented.contains(&format!("`{name}`")), "{name}");
    }
}
