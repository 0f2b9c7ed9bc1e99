//! One requirement, whether this machine meets it, and what to do if it does not.

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

/// What stands between memwatch and watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Barrier {
    /// Somebody may grant it.
    Permission,
    /// This kernel or driver cannot do it.
    Machine,
}

/// How a requirement is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Fully.
    Ok,
    /// Watching works, with a limit that the fact names.
    Degraded,
    /// Not at all: no watching until it is.
    Missing(Barrier),
    /// Not known: something else has to work first, or it does not matter here.
    NotChecked,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing(_) => "missing",
            Self::NotChecked => "not_checked",
        }
    }

    /// What stands in the way, for a requirement that is not met.
    pub(crate) const fn barrier(self) -> Option<Barrier> {
        match self {
            Self::Missing(barrier) => Some(barrier),
            Self::Ok | Self::Degraded | Self::NotChecked => None,
        }
    }
}

/// Its name, and what stands in the way.
impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut state = serializer.serialize_struct("State", 2)?;
        state.serialize_field("state", self.name())?;
        state.serialize_field("barrier", &self.barrier())?;
        state.end()
    }
}

/// What a check is about; the order is that of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Topic {
    /// What the kernel is built and booted with.
    Kernel,
    /// What this process may do.
    Permission,
    /// What happened when memwatch was tried.
    Trial,
    /// The CUDA driver's libraries and kernel module.
    Driver,
    /// NVIDIA's management library.
    Nvml,
    /// Names of owners, and the agent.
    Owners,
}

impl Topic {
    /// All topics, in the order of the report.
    pub(crate) const ALL: [Self; 6] =
        [Self::Kernel, Self::Permission, Self::Trial, Self::Driver, Self::Nvml, Self::Owners];

    /// The heading on screen.
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

/// One requirement and the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// Stable name in JSON, and the label on screen.
    pub(crate) id: &'static str,
    /// What it is about.
    pub(crate) topic: Topic,
    /// How it is met.
    #[serde(flatten)]
    pub(crate) state: State,
    /// One sentence: what was found.
    pub(crate) fact: String,
    /// What to do: each is a command line, or a sentence where there is no command. Alternatives, best first.
    pub(crate) fixes: Vec<String>,
    /// More lines for the screen; in JSON the same stands in fields of its own.
    #[serde(skip)]
    pub(crate) details: Vec<String>,
}

impl Check {
    /// A check with nothing to fix.
    pub(crate) fn new(topic: Topic, id: &'static str, state: State, fact: impl Into<String>) -> Self {
        Self { id, topic, state, fact: fact.into(), fixes: Vec::new(), details: Vec::new() }
    }

    /// The same with one more way out.
    #[must_use]
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fixes.push(fix.into());
        self
    }

    /// The same with these ways out.
    #[must_use]
    pub(crate) fn fixes(mut self, fixes: Vec<String>) -> Self {
        self.fixes = fixes;
        self
    }
}

/// `1 file`, `2 files`, `3 processes`.
pub(crate) fn count(number: usize, what: &str) -> String {
    let ending = match (number, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{number} {what}{ending}")
}
