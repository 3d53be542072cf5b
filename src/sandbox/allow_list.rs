//! The hosts that an operator lets commands reach. Plain data.

use std::fmt;
#[cfg(feature = "web")]
use std::sync::Arc;

use callboard_actors::ports::HostPattern;

/// Hosts that commands can reach. Empty by default.
#[derive(Clone, Default)]
pub struct AllowList {
    /// Host names and addresses, with their ports.
    pub hosts: Vec<HostPattern>,
    /// Resolves the hosts' addresses; `None` uses the operating system's resolver.
    #[cfg(feature = "web")]
    pub resolver: Option<Arc<dyn crate::web::Resolver>>,
}

impl fmt::Debug for AllowList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllowList")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

impl From<Vec<HostPattern>> for AllowList {
    #[allow(clippy::needless_update, reason = "not in every build")]
    fn from(hosts: Vec<HostPattern>) -> Self {
        Self {
            hosts,
            ..Self::default()
        }
    }
}
