//! The kept events of one stream, bounded by bytes. A plain data structure without clock and lock.
//!
//! Pure.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    ids::EventId,
    ports::{EventStoreError, TextKind},
    stream::{EventKind, StreamEvent},
};

/// Bytes of text that one event gathers before a reader has it. A reader that comes late gets pieces
/// of this size, and the limit of the ring drops no more than this at a time.
const GATHERED_BYTES_MAX: usize = 4096;

/// How many times the limit durable events may take before the oldest is dropped. Durable events
/// matter more than ephemeral ones, but a round with a thousand model calls must not take a
/// thousand times the memory.
const DURABLE_FACTOR: usize = 4;

/// Ephemeral events always keep this fraction of the limit (1/8), so that watchers of a long round
/// still see text as it is generated.
const EPHEMERAL_PART: usize = 8;

/// How many of the newest events are compared one by one before a binary search over the others.
const NEWEST: usize = 8;

/// Events sorted by id. Durable and ephemeral events are stored separately, so that the oldest of
/// each kind is dropped without a search.
///
/// Over the limit, the oldest ephemeral events are dropped first and silently, down to an eighth of
/// the limit. Durable events are dropped only when they alone exceed four times the limit. A reader
/// that has not seen a dropped durable event gets `Expired`.
#[derive(Debug)]
pub(super) struct Ring {
    durable: Kept,
    ephemeral: Kept,
    bytes_max: usize,
    /// The newest id that was appended.
    last: EventId,
    /// The newest id that a reader may have received. Events up to it never change.
    seen: EventId,
    /// Readers with an older cursor missed a durable event. Set by the first drop, or by a stream
    /// that starts in its middle.
    floor: Option<EventId>,
    /// The newest durable event that was dropped.
    dropped: Option<EventId>,
}

/// Bytes that an event takes beside its texts: the event, its two counters, and its place in a
/// queue that may be half empty.
const EVENT_BYTES: usize =
    size_of::<StreamEvent>() + 2 * size_of::<usize>() + 2 * size_of::<usize>();

/// Bytes of memory that an event takes. A gathered text is counted with its unused capacity.
/// Shared parts, such as a message that the history has too, are counted in full.
fn held_bytes(event: &StreamEvent) -> usize {
    let texts = match &event.kind {
        EventKind::TextDelta { text } | EventKind::ThinkingDelta { text } => text.capacity(),
        kind => kind.text_bytes(),
    };
    EVENT_BYTES.saturating_add(texts)
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Arc<StreamEvent>>,
    bytes: usize,
}

impl Kept {
    fn insert(&mut self, event: Arc<StreamEvent>) {
        let bytes = held_bytes(&event);
        // Almost always the end. Concurrent writers may append out of order, and no event may be
        // lost.
        let place = match self.events.back() {
            Some(last) if last.id >= event.id => {
                self.events.partition_point(|held| held.id < event.id)
            }
            Some(_) | None => self.events.len(),
        };
        if self
            .events
            .get(place)
            .is_some_and(|held| held.id == event.id)
        {
            return;
        }
        self.events.insert(place, event);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn drop_oldest(&mut self) -> Option<EventId> {
        let event = self.events.pop_front()?;
        self.bytes = self.bytes.saturating_sub(held_bytes(&event));
        Some(event.id)
    }

    fn last(&self) -> Option<EventId> {
        self.events.back().map(|event| event.id)
    }

    fn after(&self, after: Option<EventId>) -> impl Iterator<Item = &Arc<StreamEvent>> {
        let from = after.map_or(0, |after| {
            // Almost always near the end, so a reader that keeps up does not touch old memory.
            let newer = self
                .events
                .iter()
                .rev()
                .take(NEWEST)
                .take_while(|event| event.id > after)
                .count();
            if newer < NEWEST {
                self.events.len() - newer
            } else {
                self.events.partition_point(|event| event.id <= after)
            }
        });
        self.events.range(from..)
    }
}

impl Ring {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            durable: Kept::default(),
            ephemeral: Kept::default(),
            bytes_max,
            last: EventId::default(),
            seen: EventId::default(),
            floor: None,
            dropped: None,
        }
    }

    /// Adds text to the newest event if it has text of this kind and no reader can have received
    /// it. The event then has the id `id`. Returns whether it did.
    pub(super) fn extend(&mut self, id: EventId, kind: TextKind, text: &str) -> bool {
        if self.last <= self.seen || (self.last.epoch, self.last.seq) != (id.epoch, id.seq) {
            return false;
        }
        let Some(event) = self.ephemeral.events.back_mut() else {
            return false;
        };
        if event.id != self.last || event.id >= id {
            return false; // A durable event is newer, or the text comes late.
        }
        let Some(event) = Arc::get_mut(event) else {
            return false;
        };
        let held = match (&mut event.kind, kind) {
            (EventKind::TextDelta { text: held }, TextKind::Text)
            | (EventKind::ThinkingDelta { text: held }, TextKind::Thinking) => held,
            _ => return false,
        };
        if held.len() + text.len() > GATHERED_BYTES_MAX {
            return false;
        }
        let capacity = held.capacity();
        held.push_str(text);
        let grown = held.capacity() - capacity;
        event.id = id;
        self.last = id;
        self.ephemeral.bytes = self.ephemeral.bytes.saturating_add(grown);
        true
    }

    /// Notes that a reader may have received every event so far, or waits for the next one.
    pub(super) fn mark_seen(&mut self) {
        self.seen = self.last;
    }

    /// Frees unused memory of a stream that has ended.
    pub(super) fn shrink(&mut self) {
        self.durable.events.shrink_to_fit();
        self.ephemeral.events.shrink_to_fit();
    }

    /// Sets the limit, from the next append on.
    pub(super) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Adds events and drops what exceeds the limit.
    pub(super) fn append(&mut self, events: impl IntoIterator<Item = Arc<StreamEvent>>) {
        for event in events {
            if self.last == EventId::default()
                && matches!(event.kind, EventKind::TurnRestarted { .. })
            {
                self.floor = Some(event.id);
            }
            self.last = self.last.max(event.id);
            if event.kind.is_durable() {
                self.durable.insert(event);
            } else {
                self.ephemeral.insert(event);
            }
        }
        let ephemeral_min = self.bytes_max / EPHEMERAL_PART;
        while self.bytes() > self.bytes_max
            && self.ephemeral.bytes > ephemeral_min
            && self.ephemeral.drop_oldest().is_some()
        {}
        // The newest event stays whatever its size: a watcher must see how the round ended.
        while self.durable.bytes > self.bytes_max.saturating_mul(DURABLE_FACTOR)
            && self.durable.events.len() > 1
        {
            self.dropped = self.dropped.max(self.durable.drop_oldest());
            self.floor = self.floor.max(self.dropped);
        }
    }

    /// Adds at most `count` events strictly after `after` to `into`.
    pub(super) fn read(
        &mut self,
        after: Option<EventId>,
        count: usize,
        into: &mut impl Extend<Arc<StreamEvent>>,
    ) -> Result<(), EventStoreError> {
        // `None` orders before every cursor.
        if self.floor.is_some_and(|floor| after < Some(floor)) {
            return Err(EventStoreError::Expired);
        }
        self.mark_seen();
        if let Some(newest) = after
            .and_then(|after| self.only_after(after))
            .filter(|_| count > 0)
        {
            into.extend([newest.clone()]);
        } else if self.has_after(after) {
            into.extend(self.kept_after(after, count).cloned());
        }
        Ok(())
    }

    /// Returns the newest event if it is the only one after `after`: what a reader finds who keeps
    /// up with a model.
    fn only_after(&self, after: EventId) -> Option<&Arc<StreamEvent>> {
        let mut newest = self.ephemeral.events.iter().rev();
        let event = newest.next().filter(|event| event.id > after)?;
        let is_only = newest.next().is_none_or(|event| event.id <= after)
            && self.durable.last() <= Some(after);
        is_only.then_some(event)
    }

    /// Whether an event after `after` is kept. Dropped events do not count, or a watcher would
    /// return for them forever.
    pub(super) fn has_after(&self, after: Option<EventId>) -> bool {
        self.durable
            .last()
            .max(self.ephemeral.last())
            .is_some_and(|last| Some(last) > after)
    }

    /// Returns the newest id that was appended.
    pub(super) fn last(&self) -> EventId {
        self.last
    }

    /// Returns the newest durable event that was dropped. Readers with an older cursor missed it.
    pub(super) fn dropped(&self) -> Option<EventId> {
        self.dropped
    }

    /// Returns at most `count` kept events strictly after `after`, without an error for dropped
    /// ones.
    pub(super) fn kept_after(
        &self,
        after: Option<EventId>,
        count: usize,
    ) -> impl Iterator<Item = &Arc<StreamEvent>> {
        let mut durable = self.durable.after(after).peekable();
        let mut ephemeral = self.ephemeral.after(after).peekable();
        let next = move || match (durable.peek(), ephemeral.peek()) {
            (Some(a), Some(b)) if a.id <= b.id => durable.next(),
            (Some(_), None) => durable.next(),
            (_, Some(_)) => ephemeral.next(),
            (None, None) => None,
        };
        std::iter::from_fn(next).take(count)
    }

    /// Returns the bytes of all kept events.
    pub(super) fn bytes(&self) -> usize {
        self.durable.bytes.saturating_add(self.ephemeral.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{ConversationId, Epoch, Seq},
        time::Timestamp,
    };

    fn event(id: &str, kind: EventKind) -> Arc<StreamEvent> {
        Arc::new(StreamEvent {
            id: id.parse().unwrap(),
            conversation_id: ConversationId::new("c").unwrap(),
            round_id: None,
            kind,
        })
    }

    fn delta(id: &str, bytes: usize) -> Arc<StreamEvent> {
        event(
            id,
            EventKind::TextDelta {
                text: "x".repeat(bytes),
            },
        )
    }

    fn durable(id: &str, bytes: usize) -> Arc<StreamEvent> {
        let input = crate::chat::RawJson::from_text(format!("\"{}\"", "x".repeat(bytes))).unwrap();
        let tool_call_id = String::new();
        let name = String::new();
        let reason = String::new();
        event(
            id,
            EventKind::ApprovalRequired {
                tool_call_id,
                name,
                input,
                reason,
                expires_at: Timestamp(0),
            },
        )
    }

    fn ids(ring: &mut Ring, after: Option<&str>) -> Result<Vec<String>, EventStoreError> {
        let after = after.map(|id| id.parse().unwrap());
        let mut events = Vec::new();
        ring.read(after, usize::MAX, &mut events)?;
        Ok(events.iter().map(|event| event.id.to_string()).collect())
    }

    #[test]
    fn both_kinds_are_read_in_one_order() {
        let mut ring = Ring::new(10_000);

        ring.append(vec![
            durable("1.1.0", 0),
            delta("1.1.1", 1),
            delta("1.1.2", 1),
            durable("1.2.0", 0),
            delta("1.2.1", 1),
        ]);

        assert_eq!(
            ids(&mut ring, None).unwrap(),
            ["1.1.0", "1.1.1", "1.1.2", "1.2.0", "1.2.1"]
        );
        assert_eq!(
            ids(&mut ring, Some("1.1.1")).unwrap(),
            ["1.1.2", "1.2.0", "1.2.1"]
        );
        let mut two = Vec::new();
        ring.read(None, 2, &mut two).unwrap();
        assert_eq!(two.len(), 2);
    }

    #[test]
    fn text_that_no_reader_received_gathers_in_one_event() {
        let extend = |ring: &mut Ring, id: &str, kind, text: &str| {
            ring.extend(id.parse().unwrap(), kind, text)
        };
        let mut ring = Ring::new(100_000);
        ring.append([delta("1.1.1", 1)]);

        assert!(extend(&mut ring, "1.1.2", TextKind::Text, "yy"));
        assert!(
            !extend(&mut ring, "1.1.3", TextKind::Thinking, "z"),
            "another kind"
        );
        assert!(
            !extend(&mut ring, "1.2.0", TextKind::Text, "z"),
            "an entry lies between"
        );
        assert!((EVENT_BYTES + 3..=EVENT_BYTES + 16).contains(&ring.bytes()));
        assert_eq!(ids(&mut ring, None).unwrap(), ["1.1.2"]);
        assert!(
            !extend(&mut ring, "1.1.3", TextKind::Text, "z"),
            "a reader has it"
        );

        ring.append([delta("1.1.3", GATHERED_BYTES_MAX)]);
        assert!(!extend(&mut ring, "1.1.4", TextKind::Text, "z"), "full");
        ring.append([delta("1.1.4", 1), durable("1.2.0", 0)]);
        assert!(
            !extend(&mut ring, "1.2.1", TextKind::Text, "z"),
            "a durable event is newer"
        );
    }

    #[test]
    fn a_cursor_finds_what_is_behind_it_wherever_it_stands() {
        let mut ring = Ring::new(10_000);
        let all: Vec<String> = (1..=3 * NEWEST).map(|n| format!("1.1.{n}")).collect();
        ring.append(all.iter().map(|id| delta(id, 1)));

        for at in 0..=all.len() {
            assert_eq!(
                ids(&mut ring, Some(&format!("1.1.{at}"))).unwrap(),
                all[at..],
                "behind {at}"
            );
        }
    }

    #[test]
    fn events_that_come_late_or_twice_stand_in_order_once() {
        let mut ring = Ring::new(10_000);

        ring.append(vec![
            delta("1.1.3", 1),
            delta("1.1.1", 1),
            delta("1.1.2", 1),
            delta("1.1.2", 1),
        ]);

        assert_eq!(ids(&mut ring, None).unwrap(), ["1.1.1", "1.1.2", "1.1.3"]);
        assert_eq!(ring.bytes(), 3 * (EVENT_BYTES + 1));
    }

    #[test]
    fn the_oldest_ephemeral_events_go_first_and_silently() {
        let bytes_max = 3 * EVENT_BYTES + 700;
        let mut ring = Ring::new(bytes_max);

        ring.append(vec![
            durable("1.1.0", 100),
            delta("1.1.1", 400),
            delta("1.1.2", 400),
            durable("1.2.0", 100),
        ]);

        assert_eq!(ids(&mut ring, None).unwrap(), ["1.1.0", "1.1.2", "1.2.0"]);
        assert!(ring.bytes() <= bytes_max);
    }

    #[test]
    fn durable_events_go_only_beyond_four_times_the_bound_and_then_older_cursors_are_expired() {
        let mut ring = Ring::new(1000);
        let each = 1000 - EVENT_BYTES - 2; // 1000 bytes with the event and quotes

        ring.append((1..=4).map(|n| durable(&format!("1.{n}.0"), each)));

        assert_eq!(
            ids(&mut ring, None).unwrap(),
            ["1.1.0", "1.2.0", "1.3.0", "1.4.0"]
        );

        ring.append(vec![durable("1.5.0", each)]);

        assert_eq!(ids(&mut ring, None), Err(EventStoreError::Expired));
        assert_eq!(ids(&mut ring, Some("1.0.9")), Err(EventStoreError::Expired));
        assert_eq!(
            ids(&mut ring, Some("1.1.0")).unwrap(),
            ["1.2.0", "1.3.0", "1.4.0", "1.5.0"]
        );
    }

    #[test]
    fn durable_events_leave_an_eighth_to_the_ephemeral_ones() {
        let mut ring = Ring::new(EPHEMERAL_PART * (EVENT_BYTES + 45));

        ring.append(vec![
            delta("1.1.0", 10),
            durable("1.2.0", 8 * EVENT_BYTES + 2000),
            delta("1.3.1", 10),
            delta("1.3.2", 40),
        ]);

        assert_eq!(ids(&mut ring, None).unwrap(), ["1.2.0", "1.3.2"]);
    }

    #[test]
    fn one_huge_durable_event_stays() {
        let mut ring = Ring::new(10);

        ring.append(vec![durable("1.1.0", 1000)]);

        assert_eq!(ids(&mut ring, None).unwrap(), ["1.1.0"]);
    }

    #[test]
    fn a_stream_that_goes_on_after_a_restart_does_not_pretend_to_have_its_start() {
        let mut ring = Ring::new(10_000);

        ring.append(vec![
            event("2.7.0", EventKind::TurnRestarted { epoch: Epoch(2) }),
            delta("2.7.1", 1),
        ]);

        assert_eq!(ids(&mut ring, None), Err(EventStoreError::Expired));
        assert_eq!(ids(&mut ring, Some("1.4.2")), Err(EventStoreError::Expired));
        assert_eq!(ids(&mut ring, Some("2.7.0")).unwrap(), ["2.7.1"]);
        assert!(ring.has_after(Some(EventId {
            epoch: Epoch(1),
            seq: Seq(9),
            n: 0
        })));
    }
}
