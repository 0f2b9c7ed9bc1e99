//! A check: one requirement, whether this machine meets it, and what to do if it does not.

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

/// Why a missing requirement prevents tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Barrier {
    /// A permission that can be granted.
    Permission,
    /// A limit of this kernel or driver.
    Machine,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckState {
    /// The requirement is met.
    Ok,
    /// Tracing works, with a limit that the fact names.
    Degraded,
    /// The requirement is not met, and tracing does not work.
    Missing(Barrier),
    /// Unknown: another check has to succeed first, or the requirement does not matter here.
    NotChecked,
}

impl CheckState {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing(_) => "missing",
            Self::NotChecked => "not_checked",
        }
    }

    /// Returns the barrier of a requirement that is not met.
    pub(crate) const fn barrier(self) -> Option<Barrier> {
        match self {
            Self::Missing(barrier) => Some(barrier),
            Self::Ok | Self::Degraded | Self::NotChecked => None,
        }
    }
}

/// Serialises the state's name and its barrier.
impl Serialize for CheckState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut state = serializer.serialize_struct("State", 2)?;
        state.serialize_field("state", self.name())?;
        state.serialize_field("barrier", &self.barrier())?;
        state.end()
    }
}

/// Subject of a check, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Topic {
    /// Build and boot options of the kernel.
    Kernel,
    /// Permissions of this process.
    Permission,
    /// Result of the trial run.
    Trial,
    /// The CUDA driver's libraries and kernel module.
    Driver,
    /// NVIDIA's management library.
    Nvml,
    /// Owner names and the agent.
    Owners,
}

impl Topic {
    /// All topics, in the order of the report.
    pub(crate) const ALL: [Self; 6] =
        [Self::Kernel, Self::Permission, Self::Trial, Self::Driver, Self::Nvml, Self::Owners];

    /// Returns the heading on screen.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Kernel => "Kernel",
            Self::Permission => "Permission",
            Self::Trial => "Trial run",
            Self::Driver => "CUDA driver",
            Self::Nvml => "NVML",
            Self::Owners => "Owners and the agent",
        }
    }
}

/// A requirement and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// Stable name in JSON; also the label on screen.
    pub(crate) id: &'static str,
    /// Subject.
    pub(crate) topic: Topic,
    /// Result.
    #[serde(flatten)]
    pub(crate) state: CheckState,
    /// What was found, in one sentence.
    pub(crate) fact: String,
    /// What to do: command lines, or sentences if there is no command. These are alternatives, the
    /// best first.
    pub(crate) fixes: Vec<String>,
    /// More lines for the screen; JSON has the same in separate fields.
    #[serde(skip)]
    pub(crate) details: Vec<String>,
}

impl Check {
    /// Makes a check without a fix.
    pub(crate) fn new(topic: Topic, id: &'static str, state: CheckState, fact: impl Into<String>) -> Self {
        Self { id, topic, state, fact: fact.into(), fixes: Vec::new(), details: Vec::new() }
    }

    /// Adds a fix.
    #[must_use]
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fixes.push(fix.into());
        self
    }

    /// Sets the fixes.
    #[must_use]
    pub(crate) fn fixes(mut self, fixes: Vec<String>) -> Self {
        self.fixes = fixes;
        self
    }
}

/// Formats a count: `1 file`, `2 files`, `3 processes`.
pub(crate) fn count(number: usize, what: &str) -> String {
    let ending = match (number, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{number} {what}{ending}")
}
