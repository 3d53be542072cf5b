//! The list of a conversation's messages, in segments that copies share.
//!
//! Pure.

use std::{ops::Range, sync::Arc};

use super::{Message, message::chain_digest};
use crate::limits::MESSAGE_KEPT_BYTES;

/// Messages in shared segments: cloning a list of ten thousand messages copies two pointers.
#[derive(Debug, Clone, Default)]
pub struct MessageList {
    sealed: Arc<Vec<Arc<[Link]>>>,
    /// The newest messages. Shared too: a push copies them first while a clone of the list exists.
    tail: Arc<Vec<Link>>,
    len: usize,
}

/// A message with running figures over all messages up to it.
#[derive(Debug, Clone)]
struct Link {
    message: Message,
    /// Hash over all messages so far.
    chain: u64,
    /// Bytes of all messages so far, in the wire form.
    bytes: u64,
    /// Sum of [`Message::estimate_bytes`] over all messages so far.
    estimate_bytes: u64,
}

/// Messages in a sealed segment; the tail holds fewer than twice as many.
const SEGMENT_MESSAGES: usize = 32;

impl MessageList {
    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the messages in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.sealed
            .iter()
            .flat_map(|segment| segment.iter())
            .chain(&*self.tail)
            .map(|link| &link.message)
    }

    /// Returns the message at an index.
    pub fn get(&self, index: usize) -> Option<&Message> {
        self.link(index).map(|link| &link.message)
    }

    /// Returns the last message.
    pub fn last(&self) -> Option<&Message> {
        self.last_link().map(|link| &link.message)
    }

    /// Returns a hash of the first `len` messages; `None` if the list is shorter. A lookup, not a
    /// computation. Equal messages give equal hashes in every process. The hash distinguishes
    /// prefixes; it does not protect against forgery.
    pub(crate) fn chain(&self, len: usize) -> Option<u64> {
        match len.checked_sub(1) {
            None => Some(0),
            Some(index) => self.link(index).map(|link| link.chain),
        }
    }

    /// Whether the list starts with these messages.
    pub(crate) fn starts_with(&self, prefix: &Self) -> bool {
        self.chain(prefix.len) == prefix.chain(prefix.len)
            && self
                .iter()
                .zip(prefix.iter())
                .all(|(mine, theirs)| mine == theirs)
    }

    fn link(&self, index: usize) -> Option<&Link> {
        match self.sealed.get(index / SEGMENT_MESSAGES) {
            Some(segment) => segment.get(index % SEGMENT_MESSAGES),
            None => self.tail.get(index - self.sealed.len() * SEGMENT_MESSAGES),
        }
    }

    fn last_link(&self) -> Option<&Link> {
        self.tail
            .last()
            .or_else(|| self.sealed.last().and_then(|segment| segment.last()))
    }

    /// Returns the messages of a range, each in constant time. The part of the range beyond the end
    /// is empty.
    pub(crate) fn range(&self, range: Range<usize>) -> impl DoubleEndedIterator<Item = &Message> {
        (range.start..range.end.min(self.len)).filter_map(|index| self.get(index))
    }

    /// Appends a message.
    pub(crate) fn push(&mut self, message: Message) {
        let (chain, bytes, estimate_bytes) = self.last_link().map_or((0, 0, 0), |last| {
            (last.chain, last.bytes, last.estimate_bytes)
        });
        let chain = chain_digest(chain, message.digest());
        let bytes = bytes + message.wire().len() as u64;
        let estimate_bytes = estimate_bytes + message.estimate_bytes() as u64;
        let tail = Arc::make_mut(&mut self.tail);
        tail.push(Link {
            message,
            chain,
            bytes,
            estimate_bytes,
        });
        self.len += 1;
        if tail.len() >= SEGMENT_MESSAGES * 2 {
            let rest = tail.split_off(SEGMENT_MESSAGES);
            let full = std::mem::replace(tail, rest);
            Arc::make_mut(&mut self.sealed).push(full.into());
        }
    }

    pub(super) fn pop(&mut self) -> Option<Message> {
        let tail = Arc::make_mut(&mut self.tail);
        if tail.is_empty() {
            *tail = Arc::make_mut(&mut self.sealed).pop()?.to_vec();
        }
        let link = tail.pop();
        self.len -= usize::from(link.is_some());
        link.map(|link| link.message)
    }

    /// Returns the bytes of all messages in the wire form, from a running sum.
    pub fn wire_bytes(&self) -> usize {
        self.last_link()
            .map_or(0, |last| usize::try_from(last.bytes).unwrap_or(usize::MAX))
    }

    /// Returns the bytes that the messages take in memory: those of the wire form, and what each
    /// message costs beside it.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.wire_bytes()
            .saturating_add(self.len.saturating_mul(MESSAGE_KEPT_BYTES))
    }

    /// Returns the bytes of all messages from which tokens are estimated, from a running sum
    /// ([`Message::estimate_bytes`]).
    pub(crate) fn estimate_bytes(&self) -> u64 {
        self.last_link().map_or(0, |last| last.estimate_bytes)
    }
}

impl FromIterator<Message> for MessageList {
    fn from_iter<I: IntoIterator<Item = Message>>(messages: I) -> Self {
        let mut list = Self::default();
        messages.into_iter().for_each(|message| list.push(message));
        list
    }
}

impl PartialEq for MessageList {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for MessageList {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_known_by_its_hash() {
        let list = |texts: &[String]| texts.iter().map(Message::user).collect::<MessageList>();
        let texts: Vec<String> = (0..150).map(|n| n.to_string()).collect();
        let whole = list(&texts);

        for len in [0, 1, 31, 32, 63, 64, 65, 149, 150] {
            let part = list(&texts[..len]);
            assert!(whole.starts_with(&part), "{len}");
            assert_eq!(whole.chain(len), part.chain(len));
            assert_eq!(
                (part.get(len), part.last()),
                (None, len.checked_sub(1).and_then(|last| whole.get(last)))
            );
            assert_eq!(
                part.wire_bytes(),
                part.iter()
                    .map(|message| message.wire().len())
                    .sum::<usize>()
            );
        }
        let mut other = texts.clone();
        other[3] = "x".into();
        assert!(!whole.starts_with(&list(&other)) && !list(&texts[..9]).starts_with(&whole));
        assert_ne!(whole.chain(150), list(&other).chain(150));
    }

    #[test]
    fn a_list_grows_and_shrinks_across_segments() {
        let mut list = MessageList::default();
        for index in 0..200 {
            list.push(Message::user(index.to_string()));
        }

        assert!((0..200).all(|index| list.get(index).unwrap().text() == index.to_string()));
        assert_eq!(list.get(200), None);
        assert!(
            list.range(30..70)
                .map(Message::text)
                .eq((30..70).map(|index| index.to_string()))
        );
        assert_eq!(list.range(190..900).count(), 10);
        assert_eq!(
            list.wire_bytes(),
            list.iter()
                .map(|message| message.wire().len())
                .sum::<usize>()
        );

        let before = list.clone();
        let mut backwards = Vec::new();
        while let Some(message) = list.pop() {
            backwards.push(message);
        }

        assert!(before.iter().rev().eq(backwards.iter()));
        assert_eq!((before.len(), list.len(), list.wire_bytes()), (200, 0, 0));
    }
}
