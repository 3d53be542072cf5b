//! Decides which attachments are left out of a request that has too many bytes for its provider.
//!
//! The oldest attachments go first, each replaced by a note with a pointer for `recall`. Enough go
//! that many further calls fit, so the provider's prompt cache is missed rarely. Attachments of the
//! current round go only if the request does not fit without it. The decision depends on the
//! history, the bound and the last refusal alone, and the journal keeps its result.
//!
//! Pure.

use std::iter;

use crate::{
    chat::{
        ContentBlock, Edit, History, Message, MessageList,
        attachment::{ATTACHED_BYTES_MIN, Attached, MediaKind, omitted_note},
    },
    ports::Capabilities,
};

/// The part of a bound that is left for what a request holds beside its messages and the fixed
/// parts, such as the list of skills and the escapes of another wire format.
const SLACK_PART: u64 = 64;

/// Upper estimate of the bytes of a note, so that a note is never larger than what it replaces.
const NOTE_BYTES: u64 = ATTACHED_BYTES_MIN as u64;

/// The bytes that a provider accepts, and the attachments that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestBytes {
    /// Most bytes of the messages of a request; `None` if the provider has no known bound.
    pub max: Option<u64>,
    /// Whether images are sent. A note replaces them otherwise, so they do not count.
    pub images: bool,
    /// Whether documents are sent.
    pub documents: bool,
}

/// The bound that applies to the messages of the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BytesLimit {
    /// Most bytes (inclusive).
    pub bytes: u64,
    /// The size at which attachments of earlier rounds are no longer left out: three quarters of
    /// the bound, or half of it after a refusal.
    pub target: u64,
    /// The size at which attachments of the current round are no longer left out: the bound, or
    /// half of it after a refusal.
    pub current_target: u64,
}

impl RequestBytes {
    /// The rules for requests to a model. `fixed_bytes` are those of the system prompt and the
    /// tools.
    pub(crate) fn new(model: &Capabilities, fixed_bytes: u64) -> Self {
        // A quarter more, because JSON escapes the texts.
        let fixed = fixed_bytes.saturating_add(fixed_bytes / 4);
        let messages = |max: u64| max.saturating_sub((max / SLACK_PART).saturating_add(fixed));
        Self {
            max: model.request_bytes_max.map(messages),
            images: model.images,
            documents: model.documents,
        }
    }

    /// The bound of the next request; `None` if there is none. `refused` are the bytes of the last
    /// request that the provider refused as too large.
    pub(crate) fn limit(&self, refused: Option<u64>) -> Option<BytesLimit> {
        let below = refused.map(|refused| refused.saturating_sub(1));
        match (self.max, below) {
            (Some(max), Some(below)) if max < below => Some(Self::by_bound(max)),
            (_, Some(below)) => Some(BytesLimit {
                bytes: below,
                target: below / 2,
                current_target: below / 2,
            }),
            (Some(max), None) => Some(Self::by_bound(max)),
            (None, None) => None,
        }
    }

    fn by_bound(bytes: u64) -> BytesLimit {
        BytesLimit {
            bytes,
            target: bytes / 4 * 3,
            current_target: bytes,
        }
    }

    /// Bytes of the messages as a request holds them.
    pub(crate) fn sent(&self, messages: &MessageList) -> u64 {
        let all = messages.wire_bytes() as u64;
        if self.images && self.documents {
            return all;
        }
        let unsent = messages
            .iter()
            .flat_map(Message::attached)
            .filter(|attached| !self.sends(attached));
        unsent.fold(all, |all, attached| {
            all.saturating_sub(u64::from(attached.bytes))
        })
    }

    /// Whether the messages are too large for a request.
    pub(crate) fn exceeds(&self, messages: &MessageList, refused: Option<u64>) -> bool {
        // The sum of all bytes is a lookup, and only larger than what is sent.
        self.limit(refused).is_some_and(|limit| {
            messages.wire_bytes() as u64 > limit.bytes && self.sent(messages) > limit.bytes
        })
    }

    /// The edits that replace attachments by notes, oldest first; `None` if nothing is replaced.
    /// Afterwards the messages may still be too large, if they are without attachments.
    ///
    /// `round_start` is the index of the first message of the current round. `label` is the part
    /// before the colon in the spans that `recall` accepts.
    pub(crate) fn omit(
        &self,
        history: &History,
        refused: Option<u64>,
        round_start: usize,
        label: &str,
    ) -> Option<Vec<Edit>> {
        let messages = history.messages();
        let limit = self
            .limit(refused)
            .filter(|_| self.exceeds(messages, refused))?;
        let attachments = messages.iter().enumerate().flat_map(|(index, message)| {
            let sent = message
                .attached()
                .iter()
                .filter(|attached| self.sends(attached));
            sent.map(move |attached| (index, attached))
        });
        let mut left = self.sent(messages);
        let mut chosen: Vec<(usize, Vec<u32>)> = Vec::new();
        for (index, attached) in attachments {
            let target = if index < round_start {
                limit.target
            } else {
                limit.current_target
            };
            if left <= target {
                break;
            }
            left = left.saturating_sub(u64::from(attached.bytes).saturating_sub(NOTE_BYTES));
            match chosen.last_mut().filter(|(last, _)| *last == index) {
                Some((_, blocks)) => blocks.push(attached.block),
                None => chosen.push((index, vec![attached.block])),
            }
        }
        let mut edits = Vec::new();
        let mut at = 0;
        for (index, blocks) in chosen {
            let without = without(
                messages.get(index)?,
                &blocks,
                &format!("{label}:{index}-{}", index + 1),
            )?;
            let kept = u32::try_from(index - at).ok()?;
            edits.extend(iter::once(Edit::Keep(kept)).filter(|_| kept > 0));
            edits.push(Edit::Replace(without));
            at = index + 1;
        }
        (!edits.is_empty()).then_some(edits)
    }

    fn sends(&self, attached: &Attached) -> bool {
        match attached.kind {
            MediaKind::Image => self.images,
            MediaKind::Document => self.documents,
        }
    }
}

/// The message with notes in place of these blocks.
fn without(message: &Message, blocks: &[u32], span: &str) -> Option<Message> {
    let replaced: Vec<ContentBlock> = (0_u32..)
        .zip(message.blocks())
        .map(|(index, block)| match omitted_note(&block, span) {
            Some(note) if blocks.contains(&index) => ContentBlock::text(note),
            _ => block,
        })
        .collect();
    Message::new(message.role(), &replaced).ok()
}
