//! The keys that choose between a few words: durability, approval, and how commands are isolated.

/// When an acknowledged write is durable (`[host] durability`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CommitMode {
    /// Immediately: the write survives a power cut.
    #[default]
    Sync,
    /// Within a moment: the write survives a crash of the process, not a power cut.
    Batched,
}

impl CommitMode {
    /// The word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Batched => "batched",
        }
    }
}

/// What happens when a tool wants to change something (`[tools] approve`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approve {
    /// A person decides each time.
    Ask,
    /// The call is refused.
    Deny,
    /// The call runs.
    Auto,
}

impl Approve {
    pub(super) fn of(word: &str) -> Option<Self> {
        [Self::Ask, Self::Deny, Self::Auto]
            .into_iter()
            .find(|mode| mode.as_str() == word)
    }

    /// The word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Deny => "deny",
            Self::Auto => "auto",
        }
    }
}

/// How commands are isolated (`[sandbox] mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SandboxMode {
    /// In a kernel sandbox if this machine supports one; otherwise the tools that run commands are
    /// not offered.
    #[default]
    Auto,
    /// In a kernel sandbox; starting fails on a machine without support.
    Linux,
    /// On this machine without a sandbox.
    Local,
    /// Commands never run.
    None,
}

impl SandboxMode {
    pub(super) fn of(word: &str) -> Self {
        [Self::Linux, Self::Local, Self::None]
            .into_iter()
            .find(|mode| mode.as_str() == word)
            .unwrap_or_default()
    }

    /// The word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Linux => "linux",
            Self::Local => "local",
            Self::None => "none",
        }
    }
}
