//! A resource beside a host that ends with it, such as the servers behind tools.

use super::BoxFuture;

/// A resource that the host closes on shutdown.
pub trait Resource: Send + Sync + 'static {
    /// Closes the resource. Called once, after its last use; the host waits for a limited time.
    ///
    /// # Cancel safety
    /// The future may be dropped at the end of that time.
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
