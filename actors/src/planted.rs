//! Bugs that the simulation of the kernel plants to show that its checker finds them. Only the
//! kernel's own tests compile this file and the hooks that ask it.

use std::cell::Cell;

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The store acknowledges an append before it has stored it.
    AcknowledgesEarly,
    /// The gateway keeps the permit of a cancelled model call.
    KeepsCancelledPermit,
    /// A tool whose effect happens at most once is started again after a restart.
    RepeatsOnce,
    /// The event store loses the last event of a round.
    LosesLastEvent,
    /// The request to the model leaves out the result of a cancelled call.
    SkipsCancelledResult,
    /// A prompt that is sent again with its client key counts as another prompt.
    ForgetsClientKeys,
    /// A new host does not resume the rounds that its predecessor left open.
    LeavesRoundsOpen,
    /// The inbox of a conversation takes more prompts than its bound.
    OverfillsInbox,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug on this thread, or none.
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this bug is planted on this thread.
pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
