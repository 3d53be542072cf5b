//! Ctrl-C, the polite end that a service manager asks for, and its wish that the configuration be read again.

/// Signals that ask the program to end.
pub(super) struct Signals {
    #[cfg(unix)]
    interrupt: Option<tokio::signal::unix::Signal>,
    #[cfg(unix)]
    terminate: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    /// From now on these signals end nothing by themselves.
    #[cfg(unix)]
    pub(super) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        Self { interrupt: signal(SignalKind::interrupt()).ok(), terminate: signal(SignalKind::terminate()).ok() }
    }

    /// From now on these signals end nothing by themselves.
    #[cfg(not(unix))]
    pub(super) fn listen() -> Self {
        Self {}
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    /// No signal is lost when the future is dropped.
    #[cfg(unix)]
    pub(super) async fn next(&mut self) {
        async fn one(signal: &mut Option<tokio::signal::unix::Signal>) {
            match signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            biased;
            () = one(&mut self.interrupt) => {}
            () = one(&mut self.terminate) => {}
        }
    }

    /// Waits for the next one.
    #[cfg(not(unix))]
    pub(super) async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

/// The signal that asks for the configuration to be read again.
pub(super) struct Hangups {
    #[cfg(unix)]
    hangup: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    /// From now on the signal ends nothing by itself.
    #[cfg(unix)]
    pub(super) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        Self { hangup: signal(SignalKind::hangup()).ok() }
    }

    /// There is no such signal here.
    #[cfg(not(unix))]
    pub(super) fn listen() -> Self {
        Self {}
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    /// No signal is lost when the future is dropped.
    #[cfg(unix)]
    pub(super) async fn next(&mut self) {
        match &mut self.hangup {
            Some(hangup) => drop(hangup.recv().await),
            None => std::future::pending().await,
        }
    }

    /// Never comes.
    #[cfg(not(unix))]
    pub(super) async fn next(&mut self) {
        std::future::pending().await
    }
}
