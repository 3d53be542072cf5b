//! The host with the system's time and chance: what applications build. Everything else of it is the kernel's.

use std::ops::Deref;

use callboard_actors::{HostBuilder, host};

use crate::clock::{SystemClock, SystemEntropy};

/// A host: many tenants' conversations in one process. Cloning shares it; see [`callboard_actors::Host`] for its verbs.
///
#[cfg_attr(feature = "offline", doc = "```")]
#[cfg_attr(not(feature = "offline"), doc = "```ignore")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard::{Host, providers::offline::Offline};
///
/// let host = Host::builder().provider(Offline).build().await?;
/// let mut reply = host.tenant("acme").conversation("support-42").send("Hello").await?;
/// let end = reply.outcome().await?;
/// assert_eq!(end.stop_reason.code(), "end_turn");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Host(host::Host);

impl Host {
    /// A builder on the system's clock and source of chance. A provider is all it needs; sessions are in memory without more. With
    /// the feature `schema`, the arguments of every call are checked against the schema of its tool.
    pub fn builder() -> HostBuilder<Self> {
        let builder = HostBuilder::new(SystemClock, SystemEntropy, Self);
        #[cfg(feature = "schema")]
        let builder = builder.schemas(std::sync::Arc::new(crate::schema::JsonSchemas));
        builder
    }
}

impl Deref for Host {
    type Target = host::Host;

    fn deref(&self) -> &host::Host {
        &self.0
    }
}

/// A workspace that cannot be opened fails the build with the reason, not the first call.
#[cfg(feature = "tools")]
impl host::ToolSource for crate::tools::Toolbox {
    fn tools(self) -> Result<host::ToolsInFolder, String> {
        match self.error() {
            Some(error) => Err(error.to_owned()),
            None => Ok((self.tools, self.workspace)),
        }
    }
}
