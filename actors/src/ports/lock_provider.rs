//! Locks of files, for tools that run at most one call at a time on a file
//! ([`Concurrency::PerFile`](super::Concurrency::PerFile)). A host keeps such locks in its process,
//! one set for each tenant; a provider of these is for hosts that work in the same folders.

use std::{any::Any, path::Path};

use super::BoxFuture;
use crate::{ids::TenantId, tool::ToolError};

/// Gives out the exclusive right to a file.
pub trait LockProvider: Send + Sync + 'static {
    /// Waits until no other call of the tenant works on a file, and takes it. `path` is relative to
    /// the workspace, in one spelling for each file as far as its text shows. Dropping the returned
    /// guard releases the file; so must the end of a process that holds one.
    ///
    /// The wait counts against the time limit of the call and not against its run.
    ///
    /// # Errors
    /// Why no lock can be had: the call is not started and ends with this error.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    fn take<'a>(
        &'a self,
        tenant: &'a TenantId,
        workspace: Option<&'a Path>,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Any + Send>, ToolError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_dyn_compatible() {
        fn _takes(_: &dyn LockProvider) {}
    }
}
