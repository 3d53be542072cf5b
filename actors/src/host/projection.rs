//! Tells from a journal what its watchers would have been told (DESIGN §4.6): the durable events behind a cursor, or a snapshot where
//! a cursor is of no use. Reads the store and wakes nothing.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc, time::Duration};

use crate::{
    chat::Message,
    conversation::LoadFailure,
    ids::{Epoch, EventId, RoundId, Scope, Seq},
    journal::{Durable, Entry, EntryBody, project, restore},
    limits::{WATCHED_EVENTS_MAX, WATCHER_BYTES_MAX},
    ports::{Loaded, Open, SessionBackend, StoredEntry},
    stream::{EventKind, Snapshot, StreamEvent},
};

/// Entries read at once.
const PAGE: usize = 256;

/// Pause before a store that was away is read again.
pub(super) const STORE_RETRY: Duration = Duration::from_secs(1);

/// Bytes of messages in a snapshot.
const SNAPSHOT_BYTES_MAX: usize = 64 * 1024;

/// What a journal tells behind a cursor.
#[derive(Debug)]
pub(super) enum Told {
    /// These events, which are all up to the entry `upto`; a watcher that holds enough is told the rest later.
    Events { events: VecDeque<Arc<StreamEvent>>, upto: Seq },
    /// The cursor is of no use: how the conversation stands.
    Snapshot { event: Arc<StreamEvent>, upto: Seq },
    /// There is no such conversation.
    Gone,
}

/// Reads what a conversation's journal tells behind `after`.
///
/// # Errors
/// What the store said, or that the journal cannot be read.
pub(super) async fn read_after(sessions: &dyn SessionBackend, scope: &Scope, after: EventId) -> Result<Told, LoadFailure> {
    let (mut events, mut bytes, mut lost) = (VecDeque::new(), 0, false);
    let end = walk(sessions, scope, after.seq, |before, entry| {
        lost |= before.head == after.seq && !could_be(before, after);
        lost |= entry.seq > after.seq && matches!(entry.body, EntryBody::Reset {});
        if lost {
            return ControlFlow::Break(());
        }
        for event in events_of(scope, before, entry).filter(|event| event.id > after) {
            bytes += event.kind.size();
            events.push_back(event);
        }
        if bytes > WATCHER_BYTES_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .await?;
    if end.head == Seq(0) {
        return Ok(Told::Gone);
    }
    if lost || end.head < after.seq || (end.head == after.seq && !could_be(&end, after)) {
        return snapshot(sessions, scope).await;
    }
    Ok(Told::Events { events, upto: end.head })
}

/// What a journal tells of one round behind a cursor.
#[derive(Debug)]
pub(super) struct ToldOfRound {
    /// Its events up to the entry `upto`.
    pub events: VecDeque<Arc<StreamEvent>>,
    /// The entry.
    pub upto: Seq,
    /// The life that wrote it.
    pub epoch: Epoch,
    /// The round is open, or its prompt waits for one.
    pub goes_on: bool,
}

/// Reads what the journal tells of one round behind `after`.
///
/// # Errors
/// As [`read_after`].
pub(super) async fn read_round(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    round: RoundId,
    after: Option<EventId>,
) -> Result<ToldOfRound, LoadFailure> {
    let (mut events, mut bytes) = (VecDeque::new(), 0);
    let from = after.map_or(Seq(0), |after| after.seq);
    let end = walk(sessions, scope, from, |before, entry| {
        for event in events_of(scope, before, entry).filter(|event| event.round_id == Some(round) && Some(event.id) > after) {
            bytes += event.kind.size();
            events.push_back(event);
        }
        if bytes > WATCHER_BYTES_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .await?;
    let waits = || end.inbox.iter().any(|prompt| prompt.round_id == round);
    let goes_on = end.round.as_ref().is_some_and(|open| open.id == round) || waits();
    Ok(ToldOfRound { events, upto: end.head, epoch: end.epoch, goes_on })
}

/// Puts what a ring still keeps between the durable events that the journal tells up to the entry `upto`: deltas are missing only where
/// the ring dropped them. `kept` was read after the journal, at most [`WATCHED_EVENTS_MAX`]. Tells also whether all of it is there.
pub(super) fn joined(told: VecDeque<Arc<StreamEvent>>, upto: Seq, kept: Vec<Arc<StreamEvent>>) -> (VecDeque<Arc<StreamEvent>>, bool) {
    // Behind a full page more may be kept: what the journal tells from there on comes with it.
    let page_end = kept.last().filter(|_| kept.len() >= WATCHED_EVENTS_MAX).map(|event| event.id);
    let mut events: Vec<_> = told.into_iter().chain(kept.into_iter().filter(|event| event.id.seq <= upto)).collect();
    events.sort_by_key(|event| event.id);
    events.dedup_by_key(|event| event.id);
    let all = events.len();
    events.retain(|event| page_end.is_none_or(|end| event.id <= end));
    let events = bounded(events);
    let is_all = events.len() == all && page_end.is_none_or(|end| end.seq > upto);
    (events, is_all)
}

/// The entry that began a round, with its epoch.
///
/// # Errors
/// As [`read_after`].
pub(super) async fn start_of(sessions: &dyn SessionBackend, scope: &Scope, round: RoundId) -> Result<Option<(Epoch, Seq)>, LoadFailure> {
    let mut start = None;
    walk(sessions, scope, Seq(0), |_, entry| match &entry.body {
        EntryBody::RoundStarted { round_id, .. } if *round_id == round => {
            start = Some((entry.epoch, entry.seq));
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    })
    .await?;
    Ok(start)
}

/// The cursor behind everything that came before an entry.
pub(super) fn before(epoch: Epoch, seq: Seq) -> EventId {
    EventId { epoch, seq: Seq(seq.0.saturating_sub(1)), n: u32::MAX }
}

/// Takes of events what a watcher may hold: the first one, and more while they are small.
pub(super) fn bounded(mut events: Vec<Arc<StreamEvent>>) -> VecDeque<Arc<StreamEvent>> {
    let mut bytes = 0;
    let fit = events.iter().take_while(|event| {
        let before = bytes;
        bytes += event.kind.size();
        before == 0 || bytes <= WATCHER_BYTES_MAX
    });
    let fit = fit.count();
    events.truncate(fit);
    events.into()
}

/// Whether an event of this id can have been told when the journal stood so: by the life that wrote last, or by the next one before
/// its first entry. Before the first entry nothing was, and what it is behind is all that there is.
fn could_be(state: &Durable, id: EventId) -> bool {
    state.head == Seq(0) || id.epoch == state.epoch || id.epoch == state.epoch.next()
}

fn events_of(scope: &Scope, before: &Durable, entry: &Entry) -> impl Iterator<Item = Arc<StreamEvent>> {
    let (round_id, kinds) = project(&scope.conversation, before, entry);
    let ids = (0..).map({
        let (epoch, seq) = (entry.epoch, entry.seq);
        move |n| EventId { epoch, seq, n }
    });
    let conversation_id = scope.conversation.clone();
    let told = ids.zip(kinds).filter(move |_| round_id.is_some());
    told.map(move |(id, kind)| Arc::new(StreamEvent { id, conversation_id: conversation_id.clone(), round_id, kind }))
}

/// How the conversation stands, as the one event in place of all that cannot be told.
async fn snapshot(sessions: &dyn SessionBackend, scope: &Scope) -> Result<Told, LoadFailure> {
    let mut events_of_last = 0;
    let state = walk(sessions, scope, Seq(0), |before, entry| {
        events_of_last = events_of(scope, before, entry).count();
        ControlFlow::Continue(())
    })
    .await?;
    if state.head == Seq(0) {
        return Ok(Told::Gone);
    }
    // The last event of the last entry, or its place: what comes next has a higher id.
    let n = u32::try_from(events_of_last).unwrap_or(u32::MAX).saturating_sub(1);
    let (conversation_id, round_id) = (scope.conversation.clone(), state.round.as_ref().map(|round| round.id));
    let all = state.history.messages();
    let mut bytes = 0;
    let tail = all.iter().rev().take_while(|message| {
        bytes += message.wire().len();
        bytes <= SNAPSHOT_BYTES_MAX
    });
    let mut messages: Vec<Message> = tail.cloned().collect();
    messages.reverse();
    let open = match &state.round {
        Some(round) if round.is_parked() => Open::Parked,
        Some(_) => Open::Running,
        None => Open::None,
    };
    let messages_before = (all.len() - messages.len()) as u64;
    let snapshot = Snapshot { open, rounds: state.metrics.rounds, messages, messages_before };
    let kind = EventKind::Snapshot { snapshot: Box::new(snapshot) };
    let id = EventId { epoch: state.epoch, seq: state.head, n };
    Ok(Told::Snapshot { event: Arc::new(StreamEvent { id, conversation_id, round_id, kind }), upto: state.head })
}

/// Shows the entries of a journal in order, each with the state before it: all after `from`, and some before it. Ends with the state
/// after the last one shown.
async fn walk(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    from: Seq,
    mut visit: impl FnMut(&Durable, &Entry) -> ControlFlow<()>,
) -> Result<Durable, LoadFailure> {
    let mut state = Durable::default();
    if from > Seq(0) {
        let loaded = sessions.load(scope).await.map_err(LoadFailure::Store)?;
        match &loaded.snapshot {
            Some((upto, _)) if *upto <= from => {
                let Loaded { head, snapshot, entries } = loaded;
                if let Some(Ok(base)) = restore(&Loaded { head, snapshot, entries: Vec::new() }) {
                    state = base;
                    if show(&mut state, &entries, &mut visit)?.is_break() {
                        return Ok(state);
                    }
                }
            }
            Some(_) => {}
            None => {
                if show(&mut state, &loaded.entries, &mut visit)?.is_break() {
                    return Ok(state);
                }
            }
        }
    }
    loop {
        let page = sessions.entries(scope, state.head, PAGE).await.map_err(LoadFailure::Store)?;
        if page.is_empty() || show(&mut state, &page, &mut visit)?.is_break() {
            return Ok(state);
        }
    }
}

fn show(
    state: &mut Durable,
    entries: &[StoredEntry],
    visit: &mut impl FnMut(&Durable, &Entry) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, LoadFailure> {
    for stored in entries {
        let entry = Entry::decode(stored).map_err(|error| LoadFailure::Unreadable(error.to_string()))?;
        let flow = visit(state, &entry);
        state.apply(&entry).map_err(|error| LoadFailure::Unreadable(error.to_string()))?;
        if flow.is_break() {
            return Ok(flow);
        }
    }
    Ok(ControlFlow::Continue(()))
}
