//! Reads from a journal the events that its watchers see: the durable events after a cursor, or a
//! snapshot when the cursor is no longer valid. Reads the store only, and activates no
//! conversation.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc, time::Duration};

use crate::{
    chat::Message,
    conversation::LoadFailure,
    ids::{Epoch, EventId, RoundId, Scope, Seq},
    journal::{ApplyError, Durable, Entry, EntryBody, Loaded, StoredEntry, project, restore},
    limits::{WATCHED_EVENTS_MAX, WATCHER_BYTES_MAX},
    ports::SessionBackend,
    reads::{ReadPermit, bytes_of, decoded},
    stream::{EventKind, Open, Snapshot, StreamEvent},
};

/// Entries per read. Few, since a watcher holds at most [`WATCHER_BYTES_MAX`] and one entry may be
/// large.
const PAGE: usize = 32;

/// A cursor within this many pages of the start is reached by reading from the start; a later one
/// by way of the last snapshot.
const PAGES_BEFORE_LOAD: u64 = 8;

/// Pause before an unavailable store is read again.
pub(super) const STORE_RETRY: Duration = Duration::from_secs(1);

/// The most bytes of messages in a snapshot event; the latest messages are kept.
const SNAPSHOT_BYTES_MAX: usize = 64 * 1024;

/// The result of reading a journal after a cursor.
#[derive(Debug)]
pub(super) enum ReadResult {
    /// All events up to the entry `upto`. A page may end before the journal does; `position` is
    /// where the next one begins.
    Events {
        events: VecDeque<Arc<StreamEvent>>,
        upto: Seq,
        position: Option<JournalPosition>,
    },
    /// The cursor is not valid: the state of the conversation, as one event.
    Snapshot { event: Arc<StreamEvent>, upto: Seq },
    /// The conversation does not exist.
    Gone,
}

/// A reader's position in a journal, with the state up to there. Reading on from a position
/// does not read the earlier entries again.
#[derive(Debug)]
pub(super) struct JournalPosition(Box<Durable>);

impl JournalPosition {
    /// Keeps a state that [`fold_for_events`] has folded, if it is small, since a watcher that
    /// stops reading holds it. Prompts that wait for their turn, and answers with open calls, are
    /// held too.
    fn keep(state: Durable) -> Option<Self> {
        let held = state.history.messages().wire_bytes() + state.waiting_bytes();
        (held <= WATCHER_BYTES_MAX).then(|| Self(Box::new(state)))
    }

    /// Whether the journal is still the one that was read. A conversation that was deleted and
    /// created again has later epochs.
    async fn is_current(
        &self,
        sessions: &dyn SessionBackend,
        scope: &Scope,
    ) -> Result<bool, LoadFailure> {
        let before = Seq(self.0.head.0.saturating_sub(1));
        let last = sessions
            .entries(scope, before, 1)
            .await
            .map_err(LoadFailure::from)?;
        Ok(last
            .first()
            .and_then(|last| Entry::decode(last).ok())
            .is_some_and(|last| (last.epoch, last.seq) == (self.0.epoch, self.0.head)))
    }
}

/// Reads the durable events after `after`. Reading starts at `position`, unless it is
/// beyond the cursor or the journal has changed since.
///
/// # Errors
/// [`LoadFailure::Store`] for a failing store, [`LoadFailure::Unreadable`] for a damaged journal.
pub(super) async fn read_after(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    permit: &ReadPermit,
    after: EventId,
    position: Option<JournalPosition>,
) -> Result<ReadResult, LoadFailure> {
    // The usual cursor of a watcher that waits: after the last entry.
    let head = sessions.head(scope).await.map_err(LoadFailure::from)?;
    if head.seq == after.seq
        && head.seq > Seq(0)
        && position.is_none()
        && [head.epoch, head.epoch.next()].contains(&after.epoch)
    {
        return Ok(ReadResult::Events {
            events: VecDeque::new(),
            upto: head.seq,
            position: None,
        });
    }
    let start = match position.filter(|position| position.0.head <= after.seq) {
        Some(position) if position.is_current(sessions, scope).await? => *position.0,
        Some(_) | None => Durable::default(),
    };
    let of = scope.clone();
    let walk = Walk {
        state: start,
        fold: fold_for_events,
        found: (Page::default(), false),
        visit: move |(page, lost): &mut (Page, bool), before: &Durable, entry: &Entry| {
            *lost |= before.head == after.seq && !could_be(before, after);
            *lost |= entry.seq > after.seq && matches!(entry.body, EntryBody::Reset {});
            if *lost {
                return ControlFlow::Break(());
            }
            page.take(
                events_of(&of, before, entry)
                    .filter(|event| event.id > after)
                    .collect(),
            )
        },
    };
    let (end, (page, lost)) = walk.from(after.seq, sessions, scope, permit).await?;
    if lost
        || (end.head > Seq(0) && end.head < after.seq)
        || (end.head == after.seq && !could_be(&end, after))
    {
        return snapshot(sessions, scope, permit).await;
    }
    if end.head == Seq(0) {
        return Ok(ReadResult::Gone);
    }
    Ok(ReadResult::Events {
        events: page.events,
        upto: end.head,
        position: JournalPosition::keep(end),
    })
}

/// One page of events: those of whole entries, up to [`WATCHER_BYTES_MAX`] or those of a single
/// larger entry.
#[derive(Default)]
struct Page {
    events: VecDeque<Arc<StreamEvent>>,
    bytes: usize,
}

impl Page {
    /// Adds the events of the next entry, or breaks if they do not fit. That entry is left for the
    /// next page.
    fn take(&mut self, events: Vec<Arc<StreamEvent>>) -> ControlFlow<()> {
        let bytes: usize = events.iter().map(|event| event.kind.size()).sum();
        if bytes > 0 && self.bytes > 0 && self.bytes + bytes > WATCHER_BYTES_MAX {
            return ControlFlow::Break(());
        }
        self.bytes += bytes;
        self.events.extend(events);
        ControlFlow::Continue(())
    }
}

/// The events of one round after a cursor, as the journal holds them.
#[derive(Debug)]
pub(super) struct RoundEvents {
    /// The events of the round, up to the entry `upto`.
    pub events: VecDeque<Arc<StreamEvent>>,
    /// The last entry that was read.
    pub upto: Seq,
    /// The epoch of the activation that wrote that entry.
    pub epoch: Epoch,
    /// Whether the round is open, or its prompt is still queued.
    pub is_open: bool,
}

/// Reads the durable events of one round after `after`.
///
/// # Errors
/// As [`read_after`].
pub(super) async fn read_round(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    permit: &ReadPermit,
    round: RoundId,
    after: Option<EventId>,
) -> Result<RoundEvents, LoadFailure> {
    let from = after.map_or(Seq(0), |after| after.seq);
    let of = scope.clone();
    let walk = Walk {
        state: Durable::default(),
        fold: fold_for_events,
        found: Page::default(),
        visit: move |page: &mut Page, before: &Durable, entry: &Entry| {
            page.take(
                events_of(&of, before, entry)
                    .filter(|event| event.round_id == Some(round) && Some(event.id) > after)
                    .collect(),
            )
        },
    };
    let (end, page) = walk.from(from, sessions, scope, permit).await?;
    let waits = || end.inbox.iter().any(|prompt| prompt.round_id == round);
    let is_open = end.round.as_ref().is_some_and(|open| open.id == round) || waits();
    Ok(RoundEvents {
        events: page.events,
        upto: end.head,
        epoch: end.epoch,
        is_open,
    })
}

/// Merges the durable events of the journal up to the entry `upto` with the events that the ring
/// still holds, so that deltas are missing only where the ring dropped them. `kept` must have been
/// read after the journal, and holds at most [`WATCHED_EVENTS_MAX`] events. The flag is true when
/// nothing was left out.
pub(super) fn joined(
    journal: VecDeque<Arc<StreamEvent>>,
    upto: Seq,
    kept: Vec<Arc<StreamEvent>>,
) -> (VecDeque<Arc<StreamEvent>>, bool) {
    // If the ring returned a full page it may hold more. Journal events after that page are then
    // left for the next read, so that they do not overtake deltas.
    let page_end = kept
        .last()
        .filter(|_| kept.len() >= WATCHED_EVENTS_MAX)
        .map(|event| event.id);
    let mut events: Vec<_> = journal
        .into_iter()
        .chain(kept.into_iter().filter(|event| event.id.seq <= upto))
        .collect();
    events.sort_by_key(|event| event.id);
    events.dedup_by_key(|event| event.id);
    let all = events.len();
    events.retain(|event| page_end.is_none_or(|end| event.id <= end));
    let events = bounded(events);
    let is_all = events.len() == all && page_end.is_none_or(|end| end.seq > upto);
    (events, is_all)
}

/// The epoch and number of the entry that began a round; `None` if the journal has no such entry.
///
/// # Errors
/// As [`read_after`].
pub(super) async fn start_of(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    permit: &ReadPermit,
    round: RoundId,
) -> Result<Option<(Epoch, Seq)>, LoadFailure> {
    let walk = Walk {
        state: Durable::default(),
        fold: fold_for_events,
        found: None,
        visit: move |start: &mut Option<(Epoch, Seq)>, _: &Durable, entry: &Entry| match &entry.body
        {
            EntryBody::RoundStarted { round_id, .. } if *round_id == round => {
                *start = Some((entry.epoch, entry.seq));
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        },
    };
    let (_, start) = walk.from(Seq(0), sessions, scope, permit).await?;
    Ok(start)
}

/// The cursor after everything that precedes an entry.
pub(super) fn before(epoch: Epoch, seq: Seq) -> EventId {
    EventId {
        epoch,
        seq: Seq(seq.0.saturating_sub(1)),
        n: u32::MAX,
    }
}

/// Truncates events to what a watcher may hold: the first one, and those that follow within
/// [`WATCHER_BYTES_MAX`].
pub(super) fn bounded(events: Vec<Arc<StreamEvent>>) -> VecDeque<Arc<StreamEvent>> {
    let mut events = events.into();
    bound(&mut events);
    events
}

/// As [`bounded`], in place.
pub(super) fn bound(events: &mut VecDeque<Arc<StreamEvent>>) {
    let mut bytes = 0;
    let fit = events.iter().take_while(|event| {
        let before = bytes;
        bytes += event.kind.size();
        before == 0 || bytes <= WATCHER_BYTES_MAX
    });
    let fit = fit.count();
    events.truncate(fit);
}

/// Whether an event with this id can have been published when the journal was in this state: by the
/// activation that wrote last, or by the next one before its first entry. Any id is possible for an
/// empty journal.
fn could_be(state: &Durable, id: EventId) -> bool {
    state.head == Seq(0) || id.epoch == state.epoch || id.epoch == state.epoch.next()
}

fn events_of(
    scope: &Scope,
    before: &Durable,
    entry: &Entry,
) -> impl Iterator<Item = Arc<StreamEvent>> {
    let (round_id, kinds) = project(&scope.conversation, before, entry);
    let ids = (0..).map({
        let epoch = entry.epoch;
        let seq = entry.seq;
        move |n| EventId { epoch, seq, n }
    });
    let conversation_id = scope.conversation.clone();
    let durable = ids.zip(kinds).filter(move |_| round_id.is_some());
    durable.map(move |(id, kind)| {
        Arc::new(StreamEvent {
            id,
            conversation_id: conversation_id.clone(),
            round_id,
            kind,
        })
    })
}

/// The state of the conversation, as the one event that replaces all events that cannot be
/// returned.
async fn snapshot(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    permit: &ReadPermit,
) -> Result<ReadResult, LoadFailure> {
    let of = scope.clone();
    let walk = Walk {
        state: Durable::default(),
        fold: Durable::apply,
        found: 0,
        visit: move |events_of_last: &mut usize, before: &Durable, entry: &Entry| {
            *events_of_last = events_of(&of, before, entry).count();
            ControlFlow::Continue(())
        },
    };
    let (state, events_of_last) = walk.from(Seq(0), sessions, scope, permit).await?;
    if state.head == Seq(0) {
        return Ok(ReadResult::Gone);
    }
    // The id of the last event of the last entry, so that the next event has a higher id.
    let n = u32::try_from(events_of_last)
        .unwrap_or(u32::MAX)
        .saturating_sub(1);
    let conversation_id = scope.conversation.clone();
    let round_id = state.round.as_ref().map(|round| round.id);
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
    let snapshot = Snapshot {
        open,
        rounds: state.metrics.rounds,
        messages,
        messages_before,
    };
    let kind = EventKind::Snapshot {
        snapshot: Box::new(snapshot),
    };
    let id = EventId {
        epoch: state.epoch,
        seq: state.head,
        n,
    };
    Ok(ReadResult::Snapshot {
        event: Arc::new(StreamEvent {
            id,
            conversation_id,
            round_id,
            kind,
        }),
        upto: state.head,
    })
}

/// Applies an entry as far as [`project`] needs it: the inbox and the open round are kept, earlier
/// messages are dropped. The reader of a long journal holds at most one round.
fn fold_for_events(state: &mut Durable, entry: &Entry) -> Result<(), ApplyError> {
    match &entry.body {
        // These entries only change what the model sees, not what watchers see.
        EntryBody::Compacted { .. }
        | EntryBody::Pinned { .. }
        | EntryBody::SkillsOffered { .. }
        | EntryBody::SkillActivated { .. }
        | EntryBody::SkillDeactivated { .. }
        | EntryBody::Imported { .. }
        | EntryBody::Rewound { .. }
        | EntryBody::Forked { .. } => state.head = entry.seq,
        EntryBody::LifeStarted { .. }
        | EntryBody::PromptAccepted { .. }
        | EntryBody::PromptWithdrawn { .. }
        | EntryBody::RoundStarted { .. }
        | EntryBody::ModelCallStarted { .. }
        | EntryBody::Assistant { .. }
        | EntryBody::BudgetSettled { .. }
        | EntryBody::OutputRefused { .. }
        | EntryBody::RequestRefused { .. }
        | EntryBody::FellBack { .. }
        | EntryBody::SummaryBilled { .. }
        | EntryBody::ToolStarted { .. }
        | EntryBody::ClientToolCalled { .. }
        | EntryBody::ToolFinished { .. }
        | EntryBody::ApprovalAsked { .. }
        | EntryBody::ApprovalAnswered { .. }
        | EntryBody::Injected { .. }
        | EntryBody::RoundFinished { .. }
        | EntryBody::Reset {}
        | EntryBody::Emptied {} => state.apply(entry)?,
    }
    if state.round.is_none() {
        let Durable {
            epoch,
            head,
            inbox,
            spent,
            ..
        } = std::mem::take(state);
        *state = Durable {
            epoch,
            head,
            inbox,
            spent,
            ..Durable::default()
        };
    }
    Ok(())
}

/// Passes the entries of a journal to `visit` in order, each with the state before it: all entries
/// after `from`, and possibly some earlier ones. `visit` runs before the entry is folded, so a break
/// leaves its entry unread; the returned state is the one before it.
///
/// It owns all that it works with, since many bytes of entries are visited on the blocking pool.
struct Walk<T, V> {
    /// The state after some entry, or the default for the beginning.
    state: Durable,
    fold: fn(&mut Durable, &Entry) -> Result<(), ApplyError>,
    /// What `visit` has found so far.
    found: T,
    visit: V,
}

impl<T, V> Walk<T, V>
where
    T: Send + 'static,
    V: FnMut(&mut T, &Durable, &Entry) -> ControlFlow<()> + Send + 'static,
{
    async fn from(
        mut self,
        from: Seq,
        sessions: &dyn SessionBackend,
        scope: &Scope,
        permit: &ReadPermit,
    ) -> Result<(Durable, T), LoadFailure> {
        let mut flow = ControlFlow::Continue(());
        // A load transfers the snapshot and all entries after it. Reading a few pages is cheaper.
        if self.state.head == Seq(0) && from > Seq(PAGES_BEFORE_LOAD * PAGE as u64) {
            let loaded = sessions.load(scope).await.map_err(LoadFailure::from)?;
            (self, flow) = self.start(loaded, from, permit).await?;
        }
        while flow.is_continue() {
            let page = sessions
                .entries(scope, self.state.head, PAGE)
                .await
                .map_err(LoadFailure::from)?;
            if page.is_empty() {
                break;
            }
            (self, flow) = self.show(page, permit).await?;
        }
        Ok((self.state, self.found))
    }

    /// Starts with a snapshot that is not beyond `from`, or with all entries if there is none.
    async fn start(
        mut self,
        loaded: Loaded,
        from: Seq,
        permit: &ReadPermit,
    ) -> Result<(Self, ControlFlow<()>), LoadFailure> {
        let Loaded {
            head,
            snapshot,
            entries,
        } = loaded;
        match &snapshot {
            Some((upto, bytes)) if *upto <= from => {
                let base = decoded(bytes.len(), permit, move || {
                    restore(&Loaded {
                        head,
                        snapshot,
                        entries: Vec::new(),
                    })
                });
                let Some(Ok(base)) = base.await? else {
                    return Ok((self, ControlFlow::Continue(())));
                };
                self.state = base;
                self.show(entries, permit).await
            }
            Some(_) => Ok((self, ControlFlow::Continue(()))),
            None => self.show(entries, permit).await,
        }
    }

    async fn show(
        mut self,
        entries: Vec<StoredEntry>,
        permit: &ReadPermit,
    ) -> Result<(Self, ControlFlow<()>), LoadFailure> {
        decoded(bytes_of(&entries), permit, move || {
            for stored in &entries {
                let entry = Entry::decode(stored)?;
                if (self.visit)(&mut self.found, &self.state, &entry).is_break() {
                    return Ok((self, ControlFlow::Break(())));
                }
                (self.fold)(&mut self.state, &entry)?;
            }
            Ok((self, ControlFlow::Continue(())))
        })
        .await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::ConversationId, stream::StreamEvent};

    fn events(ids: impl IntoIterator<Item = (u64, u32)>) -> Vec<Arc<StreamEvent>> {
        let event = |(seq, n)| {
            let id = EventId {
                epoch: Epoch(1),
                seq: Seq(seq),
                n,
            };
            let kind = EventKind::TextDelta {
                text: String::new(),
            };
            Arc::new(StreamEvent {
                id,
                conversation_id: ConversationId::new("c").unwrap(),
                round_id: None,
                kind,
            })
        };
        ids.into_iter().map(event).collect()
    }

    #[test]
    fn journal_events_wait_for_the_deltas_before_them() {
        let full = WATCHED_EVENTS_MAX as u32;
        let journal = || VecDeque::from(events([(1, 0), (2, 0), (3, 0)]));

        let (some, is_all) = joined(journal(), Seq(3), events((1..=full).map(|n| (1, n))));
        assert_eq!(
            (some.len(), some.back().map(|event| event.id.seq), is_all),
            (1 + full as usize, Some(Seq(1)), false)
        );

        let (all, is_all) = joined(journal(), Seq(3), events([(1, 1), (3, 0), (4, 1)]));
        assert_eq!(
            Vec::from(all),
            events([(1, 0), (1, 1), (2, 0), (3, 0)]),
            "each once, and nothing beyond the entry that was read"
        );
        assert!(is_all);
    }
}
