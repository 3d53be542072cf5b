//! Signals of the process: SIGINT and SIGTERM end it, SIGHUP reloads the configuration.

/// SIGINT (Ctrl-C) and SIGTERM.
pub(super) struct Signals {
    #[cfg(unix)]
    interrupt: Option<tokio::signal::unix::Signal>,
    #[cfg(unix)]
    terminate: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    /// Starts listening. From then on, these signals no longer end the process by default.
    #[cfg(unix)]
    pub(super) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        Self {
            interrupt: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
        }
    }

    /// Starts listening. From then on, these signals no longer end the process by default.
    #[cfg(not(unix))]
    pub(super) fn listen() -> Self {
        Self {}
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    /// Cancel safe: a signal that arrives while no future waits is returned by the next call.
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

    /// Discards SIGINTs that have arrived. A SIGTERM is kept.
    #[cfg(unix)]
    pub(super) fn forget_interrupts(&mut self) {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        if let Some(interrupt) = &mut self.interrupt {
            while let std::task::Poll::Ready(Some(())) = interrupt.poll_recv(&mut context) {}
        }
    }

    /// Does nothing: this platform keeps no signals.
    #[cfg(not(unix))]
    pub(super) fn forget_interrupts(&mut self) {}

    /// Waits for the next signal.
    #[cfg(not(unix))]
    pub(super) async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

/// SIGHUP, which requests a reload of the configuration.
pub(super) struct Hangups {
    #[cfg(unix)]
    hangup: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    /// Starts listening. From then on, the signal no longer ends the process by default.
    #[cfg(unix)]
    pub(super) fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        Self {
            hangup: signal(SignalKind::hangup()).ok(),
        }
    }

    /// Does nothing: this platform has no SIGHUP.
    #[cfg(not(unix))]
    pub(super) fn listen() -> Self {
        Self {}
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    /// Cancel safe: a signal that arrives while no future waits is returned by the next call.
    #[cfg(unix)]
    pub(super) async fn next(&mut self) {
        match &mut self.hangup {
            Some(hangup) => drop(hangup.recv().await),
            None => std::future::pending().await,
        }
    }

    /// Never returns: this platform has no SIGHUP.
    #[cfg(not(unix))]
    pub(super) async fn next(&mut self) {
        std::future::pending().await
    }
}
