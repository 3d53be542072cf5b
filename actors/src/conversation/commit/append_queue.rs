//! The queue of entries on their way to the store, and of effects that wait until those entries are
//! durable. The shell sends batches, reads the head of the store and performs released effects; a
//! thread of the store may call `AppendQueue::stored`.
//!
//! Bound: the shell refuses prompts while `AppendQueue::backlog_bytes` is above its limit.
//!
//! Pure.

use std::collections::VecDeque;

use crate::{
    ids::{Epoch, Seq},
    journal::{Head, StoredEntry},
    ports::OutboxMessage,
    stream::Open,
    time::Timestamp,
};

/// Entries of one append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AppendBatch {
    /// The head that the journal must have before this append.
    pub expected: Head,
    /// The epoch of the activation that writes.
    pub epoch: Epoch,
    /// The entries; never empty.
    pub entries: Vec<StoredEntry>,
    /// The status of the conversation that the store's head row gets.
    pub open: Open,
    /// When the first open approval expires; `None` without one. The host wakes the conversation
    /// then.
    pub wake_at: Option<Timestamp>,
    /// Messages for receivers outside that follow from the entries.
    pub messages: Vec<OutboxMessage>,
    /// Whether an effect waits for this append.
    pub awaited: bool,
}

impl AppendBatch {
    fn end(&self) -> Seq {
        self.entries
            .last()
            .map_or(self.expected.seq, |entry| entry.seq)
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.bytes.len()).sum()
    }
}

/// How a pause continues after the head of the store was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PauseOutcome<R> {
    /// No entry of another activation is in the way: continue.
    Continue {
        /// Effects whose entries turned out to be stored.
        released: Vec<R>,
        /// The first missing batch, to append again; `None` if everything is stored.
        trial: Option<AppendBatch>,
    },
    /// Another activation writes the journal, or the head is unknown: this activation ends.
    End {
        /// Effects whose entries were stored before. Nothing is to be started any more.
        stored: Vec<R>,
        /// Whether more entries may have been stored.
        is_rest_unknown: bool,
    },
}

/// What follows when entries are known to be durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Committed<R> {
    /// The effects that waited for those entries.
    pub released: Vec<R>,
    /// Batches held until the activation had its epoch, to append now, in order.
    pub send: Vec<AppendBatch>,
}

/// The append queue of one activation. `R` is a waiting effect: a reply, the start of a tool call.
///
/// Two activations that start from the same journal claim the same epoch, and a store distinguishes
/// writers by epoch and seq only. So the queue sends no second append until the first one is known
/// to be durable: the second could otherwise follow the entries of another activation.
#[derive(Debug)]
pub(crate) struct AppendQueue<R> {
    stored: Head,
    tail: Head,
    batches: VecDeque<AppendBatch>,
    after_commit: VecDeque<(Seq, R)>,
    backlog_bytes: usize,
    paused: bool,
    closed: bool,
}

impl<R> AppendQueue<R> {
    /// An empty queue behind a journal that ends at `head`.
    pub(crate) fn new(head: Head) -> Self {
        Self {
            stored: head,
            tail: head,
            batches: VecDeque::new(),
            after_commit: VecDeque::new(),
            backlog_bytes: 0,
            paused: false,
            closed: false,
        }
    }

    /// The last head known to be durable.
    pub(crate) fn stored_head(&self) -> Head {
        self.stored
    }

    /// Whether no append is under way or held, and no effect waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.after_commit.is_empty()
    }

    /// Whether appends are paused because the store is unavailable.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Bytes of all entries not known to be durable.
    pub(crate) fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Adds entries and the effects that wait for them. Returns the batch to send now, and the
    /// effects to perform now because every entry is durable already. There is no batch to send
    /// during a pause, and none while the first append of the activation is under way.
    pub(crate) fn push(
        &mut self,
        epoch: Epoch,
        entries: Vec<StoredEntry>,
        open: Open,
        wake_at: Option<Timestamp>,
        messages: Vec<OutboxMessage>,
        waits: Vec<R>,
    ) -> (Option<AppendBatch>, Vec<R>) {
        if self.closed {
            return (None, Vec::new()); // A closed queue stores nothing and releases nothing.
        }
        let awaited = !waits.is_empty();
        if entries.is_empty() {
            if self.stored.seq >= self.tail.seq {
                return (None, waits);
            }
            self.after_commit
                .extend(waits.into_iter().map(|wait| (self.tail.seq, wait)));
            return (None, Vec::new());
        }
        let batch = AppendBatch {
            expected: self.tail,
            epoch,
            entries,
            open,
            wake_at,
            messages,
            awaited,
        };
        self.tail = Head {
            epoch,
            seq: batch.end(),
        };
        self.backlog_bytes += batch.bytes();
        self.after_commit
            .extend(waits.into_iter().map(|wait| (self.tail.seq, wait)));
        self.batches.push_back(batch.clone());
        // The first batch goes out alone. Later ones follow at once when an append of this epoch is
        // durable; until then they are held.
        let goes = !self.paused && (self.batches.len() == 1 || self.stored.epoch == epoch);
        (Some(batch).filter(|_| goes), Vec::new())
    }

    /// Notes that the journal is durable up to `upto`.
    pub(crate) fn stored(&mut self, upto: Seq) -> Committed<R> {
        let before = self.stored.epoch;
        let released = self.release(upto);
        // The first durable append claims the epoch. Everything held behind it goes out now, in
        // order.
        let claimed = self.stored.epoch != before && !self.paused && !self.closed;
        let send = if claimed {
            self.batches.iter().cloned().collect()
        } else {
            Vec::new()
        };
        Committed { released, send }
    }

    /// All batches that are not known to be durable, in order.
    pub(crate) fn outstanding(&self) -> Vec<AppendBatch> {
        self.batches.iter().cloned().collect()
    }

    fn release(&mut self, upto: Seq) -> Vec<R> {
        while let Some(batch) = self.batches.front().filter(|batch| batch.end() <= upto) {
            self.stored = Head {
                epoch: batch.epoch,
                seq: batch.end(),
            };
            self.backlog_bytes = self.backlog_bytes.saturating_sub(batch.bytes());
            self.batches.pop_front();
        }
        if self.closed {
            return Vec::new();
        }
        let ready = self
            .after_commit
            .iter()
            .take_while(|(seq, _)| *seq <= self.stored.seq)
            .count();
        let released = self
            .after_commit
            .drain(..ready)
            .map(|(_, wait)| wait)
            .collect();
        if self.is_empty() {
            // An idle conversation keeps no empty buffers.
            self.after_commit.shrink_to_fit();
            self.batches.shrink_to_fit();
        }
        released
    }

    /// Notes that an append failed or has an unknown outcome. Returns whether this started a pause.
    pub(crate) fn lost(&mut self) -> bool {
        !std::mem::replace(&mut self.paused, true)
    }

    /// Ends the pause. Returns the batches to append now, in order: all of them, or only the first
    /// one while the epoch is not claimed.
    pub(crate) fn resume(&mut self) -> Vec<AppendBatch> {
        self.paused = false;
        let claimed = self
            .batches
            .front()
            .is_none_or(|batch| batch.epoch == self.stored.epoch);
        let count = if claimed { self.batches.len() } else { 1 };
        self.batches.iter().take(count).cloned().collect()
    }

    /// Decides how a pause continues after `head` was read from the store. The pause lasts: the
    /// first missing batch is appended as a trial, and [`AppendQueue::resume`] follows its success.
    ///
    /// `next` is the entry after [`AppendQueue::stored_head`], read after `head`. It matters until
    /// our first entry is known to be durable: another activation from the same journal claims the
    /// same epoch, so both can have the same head. The nonce in the entry `LifeStarted`
    /// distinguishes them.
    pub(crate) fn head_read(&mut self, head: Head, next: Option<&StoredEntry>) -> PauseOutcome<R> {
        // A journal only grows, so a head before our durable head is an outdated read. It proves no
        // conflict: continue.
        let old = head.seq < self.stored.seq;
        let end = self.batches.iter().find(|batch| {
            head == Head {
                epoch: batch.epoch,
                seq: batch.end(),
            }
        });
        // A batch that ends at `head` is ours if our epoch is claimed. Before that, only the entry
        // itself proves it.
        let ours = end.is_some_and(|batch| {
            batch.epoch == self.stored.epoch || next.is_some_and(|next| self.wrote(next))
        });
        let known = old || head == self.stored || ours;
        if !known || self.closed {
            // An append whose outcome was not known may have been stored before the other activation
            // began; the entry shows it of the first one.
            let is_stored = !self.closed && next.is_some_and(|next| self.wrote(next));
            let first = self.batches.front().filter(|_| is_stored);
            let stored = match first.map(AppendBatch::end) {
                Some(end) => self.release(end),
                None => Vec::new(),
            };
            self.closed = true;
            return PauseOutcome::End {
                stored,
                is_rest_unknown: is_stored && !self.batches.is_empty(),
            };
        }
        PauseOutcome::Continue {
            released: self.release(head.seq),
            trial: self.batches.front().cloned(),
        }
    }

    /// Whether this journal entry equals one of ours that is not known to be durable.
    fn wrote(&self, entry: &StoredEntry) -> bool {
        self.batches
            .iter()
            .any(|batch| batch.entries.contains(entry))
    }

    /// Closes the queue. Returns the waiting effects; the shell answers their callers.
    pub(crate) fn close(&mut self) -> Vec<R> {
        self.closed = true;
        self.batches.clear();
        self.backlog_bytes = 0;
        self.after_commit.drain(..).map(|(_, wait)| wait).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use crate::conversation::commit::append_queue::*;

    fn entry(seq: u64) -> StoredEntry {
        StoredEntry {
            seq: Seq(seq),
            bytes: Bytes::from_static(b"xx"),
        }
    }

    const NOT_OURS: PauseOutcome<&str> = PauseOutcome::End {
        stored: Vec::new(),
        is_rest_unknown: false,
    };

    fn head(epoch: u64, seq: u64) -> Head {
        Head {
            epoch: Epoch(epoch),
            seq: Seq(seq),
        }
    }

    #[test]
    fn what_waits_is_released_only_by_its_entries() {
        let mut append_queue = AppendQueue::new(head(1, 4));
        let (first, now) = append_queue.push(
            Epoch(2),
            vec![entry(5), entry(6)],
            Open::Running,
            None,
            vec![],
            vec!["a"],
        );
        assert_eq!((first.map(|p| p.expected), now), (Some(head(1, 4)), vec![]));
        append_queue.push(
            Epoch(2),
            vec![entry(7)],
            Open::Running,
            None,
            vec![],
            vec![],
        );
        assert_eq!(
            append_queue.push(Epoch(2), vec![], Open::Running, None, vec![], vec!["b"]),
            (None, vec![])
        );

        assert_eq!(append_queue.stored(Seq(6)).released, ["a"]);
        assert_eq!(
            (append_queue.stored_head(), append_queue.backlog_bytes()),
            (head(2, 6), 2)
        );
        assert_eq!(append_queue.stored(Seq(7)).released, ["b"]);
        assert!(append_queue.is_empty());
        assert_eq!(
            append_queue.push(Epoch(2), vec![], Open::None, None, vec![], vec!["c"]),
            (None, vec!["c"])
        );
    }

    #[test]
    fn nothing_goes_out_behind_a_first_append_that_may_be_refused() {
        let mut append_queue = AppendQueue::new(head(1, 4));
        let (first, _) = append_queue.push(
            Epoch(2),
            vec![entry(5)],
            Open::Running,
            None,
            vec![],
            vec!["a"],
        );
        let (second, _) = append_queue.push(
            Epoch(2),
            vec![entry(6)],
            Open::Running,
            None,
            vec![],
            vec!["b"],
        );
        assert_eq!((first.is_some(), second), (true, None));

        let committed = append_queue.stored(Seq(5));

        assert_eq!(
            (
                committed.released,
                committed
                    .send
                    .iter()
                    .map(AppendBatch::end)
                    .collect::<Vec<_>>()
            ),
            (vec!["a"], vec![Seq(6)])
        );
        assert!(
            append_queue
                .push(
                    Epoch(2),
                    vec![entry(7)],
                    Open::Running,
                    None,
                    vec![],
                    vec![]
                )
                .0
                .is_some()
        );
    }

    #[test]
    fn after_a_pause_only_what_is_missing_is_sent_again() {
        let mut append_queue = AppendQueue::new(head(2, 0));
        append_queue.push(
            Epoch(2),
            vec![entry(1)],
            Open::Running,
            None,
            vec![],
            vec!["a"],
        );
        append_queue.push(
            Epoch(2),
            vec![entry(2)],
            Open::Running,
            None,
            vec![],
            vec!["b"],
        );
        assert!(append_queue.lost() && !append_queue.lost());
        assert_eq!(
            append_queue
                .push(
                    Epoch(2),
                    vec![entry(3)],
                    Open::None,
                    None,
                    vec![],
                    vec!["c"]
                )
                .0,
            None
        );

        let PauseOutcome::Continue { released, trial } = append_queue.head_read(head(2, 1), None)
        else {
            panic!("ended")
        };

        assert_eq!(released, ["a"]);
        assert_eq!(trial.map(|batch| batch.end()), Some(Seq(2)));
        assert!(append_queue.is_paused(), "a read ends no pause");
        assert_eq!(append_queue.stored(Seq(2)).released, ["b"]);
        let rest: Vec<_> = append_queue.resume().iter().map(AppendBatch::end).collect();
        assert_eq!(rest, [Seq(3)]);
    }

    #[test]
    fn another_activation_of_the_same_epoch_is_recognized_by_its_first_entry() {
        let append_queue = || {
            let mut append_queue = AppendQueue::new(head(1, 4));
            append_queue.push(
                Epoch(2),
                vec![entry(5)],
                Open::Running,
                None,
                vec![],
                vec!["a"],
            );
            append_queue.lost();
            append_queue
        };
        let theirs = StoredEntry {
            seq: Seq(5),
            bytes: Bytes::from_static(b"yy"),
        };

        assert_eq!(
            append_queue().head_read(head(2, 5), Some(&theirs)),
            NOT_OURS
        );
        assert_eq!(append_queue().head_read(head(2, 5), None), NOT_OURS);
        assert_eq!(
            append_queue().head_read(head(2, 5), Some(&entry(5))),
            PauseOutcome::Continue {
                released: vec!["a"],
                trial: None
            }
        );
        assert_eq!(
            append_queue().head_read(head(1, 4), None),
            PauseOutcome::Continue {
                released: vec![],
                trial: append_queue().batches.pop_front()
            }
        );
    }

    #[test]
    fn a_head_that_was_read_too_early_ends_nothing() {
        let mut append_queue = AppendQueue::new(head(2, 0));
        append_queue.push(
            Epoch(2),
            vec![entry(1)],
            Open::Running,
            None,
            vec![],
            vec!["a"],
        );
        append_queue.push(
            Epoch(2),
            vec![entry(2)],
            Open::Running,
            None,
            vec![],
            vec!["b"],
        );
        append_queue.lost();
        assert_eq!(
            append_queue.stored(Seq(1)),
            Committed {
                released: vec!["a"],
                send: vec![]
            }
        );

        let PauseOutcome::Continue { released, trial } = append_queue.head_read(head(2, 0), None)
        else {
            panic!("ended")
        };

        assert_eq!(
            (released.len(), trial.map(|batch| batch.end())),
            (0, Some(Seq(2)))
        );
    }

    #[test]
    fn what_was_stored_before_another_epoch_began_is_released_by_its_entry() {
        let append_queue = |batches: u64| {
            let mut append_queue = AppendQueue::new(head(2, 4));
            for (seq, wait) in (5..5 + batches).zip(["a", "b"]) {
                append_queue.push(
                    Epoch(2),
                    vec![entry(seq)],
                    Open::Running,
                    None,
                    vec![],
                    vec![wait],
                );
            }
            append_queue.lost();
            append_queue
        };
        let end = |stored, is_rest_unknown| PauseOutcome::End {
            stored,
            is_rest_unknown,
        };

        let one = append_queue(1).head_read(head(3, 9), Some(&entry(5)));
        assert_eq!(one, end(vec!["a"], false));
        // The entry says nothing of the ones that were sent after it.
        let mut two = append_queue(2);
        let read = two.head_read(head(3, 9), Some(&entry(5)));
        assert_eq!((read, two.close()), (end(vec!["a"], true), vec!["b"]));
        let theirs = StoredEntry {
            seq: Seq(5),
            bytes: Bytes::from_static(b"yy"),
        };
        let none = append_queue(2).head_read(head(3, 9), Some(&theirs));
        assert_eq!(none, NOT_OURS);
    }

    #[test]
    fn another_epoch_ends_the_activation_and_releases_nothing() {
        let mut append_queue = AppendQueue::new(head(2, 1));
        append_queue.push(
            Epoch(2),
            vec![entry(2)],
            Open::Running,
            None,
            vec![],
            vec!["a"],
        );
        append_queue.lost();

        assert_eq!(append_queue.head_read(head(3, 2), None), NOT_OURS);
        assert_eq!(
            append_queue.stored(Seq(2)),
            Committed {
                released: vec![],
                send: vec![]
            }
        );
        assert_eq!(append_queue.close(), ["a"]);
    }
}
