//! Selects processes by name, container, pod, job, user or control group.

use clap::ValueEnum;
use memwatch_core::snapshot::groups::OwnerGrouping;

/// What the processes belong to: values of one kind are alternatives, kinds narrow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Choice {
    /// Processes of this container, by name or id (or its beginning); of a pod, by the container's name in it
    #[arg(long = "container", value_name = "NAME", value_delimiter = ',', help_heading = "Which processes")]
    pub(crate) containers: Vec<String>,
    /// Processes of this pod: NAME, NAMESPACE/NAME, or its uid
    #[arg(long = "pod", value_name = "POD", value_delimiter = ',', help_heading = "Which processes")]
    pub(crate) pods: Vec<String>,
    /// Processes of this Slurm job, or of a step of it: 4242, 4242.0
    #[arg(long = "slurm-job", value_name = "JOB", value_delimiter = ',', help_heading = "Which processes")]
    pub(crate) slurm_jobs: Vec<String>,
    /// Processes of this user, by name or number
    #[arg(short, long = "user", value_name = "USER", value_delimiter = ',', help_heading = "Which processes")]
    pub(crate) users: Vec<String>,
    /// Processes in this control group or below it
    #[arg(long = "cgroup", value_name = "PATH", hide = true, help_heading = super::ADVANCED)]
    pub(crate) cgroups: Vec<String>,
    /// Processes of this name, program or script, such as train.py; same as a bare NAME
    #[arg(long = "name", value_name = "NAME", value_delimiter = ',', help_heading = "Which processes")]
    pub(crate) names: Vec<String>,
    /// Leave out the children of processes named by PID or NAME
    #[arg(long, hide = true, help_heading = super::ADVANCED)]
    pub(crate) no_children: bool,
}

impl Choice {
    /// Returns each kind of selection with its displayed name and its values.
    pub(crate) fn kinds(&self) -> [(&'static str, &[String]); 6] {
        [
            ("container", &self.containers),
            ("pod", &self.pods),
            ("Slurm job", &self.slurm_jobs),
            ("user", &self.users),
            ("control group", &self.cgroups),
            ("name", &self.names),
        ]
    }

    /// Returns whether the selection is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.kinds().iter().all(|(_, words)| words.is_empty())
    }
}

/// What a row of `ps` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RowKind {
    /// A process on a GPU
    #[default]
    Process,
    /// A container, of a pod or not
    Container,
    /// A Kubernetes pod
    Pod,
    /// A Slurm job
    Job,
    /// A user
    User,
    /// A GPU
    Gpu,
}

impl RowKind {
    /// Returns the grouping of the sums; `None` for processes, which are not summed.
    pub(crate) const fn by(self) -> Option<OwnerGrouping> {
        match self {
            Self::Process => None,
            Self::Container => Some(OwnerGrouping::Container),
            Self::Pod => Some(OwnerGrouping::Pod),
            Self::Job => Some(OwnerGrouping::Job),
            Self::User => Some(OwnerGrouping::User),
            Self::Gpu => Some(OwnerGrouping::Gpu),
        }
    }
}
