//! Something that runs beside a host and ends with it: the servers behind tools.

use super::BoxFuture;

/// Ends with its host.
pub trait Resource: Send + Sync + 'static {
    /// Ends it. Called once, when nobody uses it any longer; the host does not wait for ever.
    ///
    /// # Cancel safety
    /// May be dropped when the time for it is over.
    fn close(&self) -> BoxFuture<'_, ()>;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::Resource) {}
        let _ = takes;
    }
}
