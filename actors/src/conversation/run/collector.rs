//! Collects the answer of a model call from the events of its stream, within the bounds of an answer.

use tokio::time::Instant;

use crate::{
    chat::{ContentBlock, TextBlock},
    limits::PARTIAL_ANSWER_BYTES_MAX,
    ports::{AnswerSize, ModelEvent, ProviderError},
};

/// Unused bytes that a long text keeps: it grew by doubling, and waits in memory for its tools.
const SLACK_BYTES_MAX: usize = 64 * 1024;

/// Collects an answer.
#[derive(Default)]
pub(super) struct Collector {
    blocks: Vec<ContentBlock>,
    /// The text so far of an open block, as much as a history may get of an unfinished answer.
    text: String,
    /// The end of `text`, which is not published yet.
    unpublished_text: String,
    /// Thinking that is not published yet.
    unpublished_thinking: String,
    /// When text or thinking was last published.
    pub(super) flushed: Option<Instant>,
    /// The size of `blocks`.
    size: AnswerSize,
    /// Bytes of the pieces whose block has not arrived.
    open_bytes: usize,
    /// Bytes of arguments of calls whose block has not arrived.
    open_arguments: usize,
    /// Bytes of all pieces, and of the blocks that came without pieces.
    written: usize,
}

impl Collector {
    pub(super) fn unpublished_bytes(&self) -> usize {
        self.unpublished_text.len() + self.unpublished_thinking.len()
    }

    /// Adds a piece of the text of an open block.
    pub(super) fn add_text(&mut self, piece: String) {
        let left = PARTIAL_ANSWER_BYTES_MAX.saturating_sub(self.text.len());
        let end = piece.floor_char_boundary(left);
        self.text.push_str(piece.get(..end).unwrap_or_default());
        add(&mut self.unpublished_text, piece);
    }

    /// Adds a piece of thinking.
    pub(super) fn add_thinking(&mut self, piece: String) {
        add(&mut self.unpublished_thinking, piece);
    }

    /// Adds a whole block. Of a block of text, the pieces are dropped.
    pub(super) fn add_block(&mut self, mut block: ContentBlock) {
        if let ContentBlock::Text(text) = &mut block {
            self.text = String::new();
            if text.text.capacity() - text.text.len() > SLACK_BYTES_MAX {
                text.text.shrink_to_fit();
            }
        }
        self.blocks.push(block);
    }

    /// Takes the text that is not published; `None` if there is none.
    pub(super) fn unpublished_text(&mut self) -> Option<String> {
        let text = std::mem::take(&mut self.unpublished_text);
        (!text.is_empty()).then_some(text)
    }

    /// Takes the thinking that is not published; `None` if there is none.
    pub(super) fn unpublished_thinking(&mut self) -> Option<String> {
        let text = std::mem::take(&mut self.unpublished_thinking);
        (!text.is_empty()).then_some(text)
    }

    /// The blocks of a complete answer.
    pub(super) fn into_blocks(self) -> Vec<ContentBlock> {
        self.blocks
    }

    /// Counts an event against the bounds of an answer.
    pub(super) fn count(&mut self, event: &ModelEvent) -> Result<(), ProviderError> {
        match event {
            ModelEvent::Text(piece) | ModelEvent::Thinking(piece) => {
                self.open_bytes += piece.len();
                self.written += piece.len();
            }
            ModelEvent::Block(block) => {
                let bytes = block.content_bytes();
                self.size.add_block(block.kept_bytes());
                if let ContentBlock::ToolUse(_) = block {
                    self.size.calls += 1;
                    self.open_arguments = 0;
                    self.written += bytes;
                } else {
                    self.written += bytes.saturating_sub(self.open_bytes);
                }
                self.open_bytes = 0;
            }
            ModelEvent::Arguments(bytes) => self.open_arguments = *bytes,
            ModelEvent::Usage(_) | ModelEvent::Completed(_) | ModelEvent::Limits(_) => {}
        }
        self.size.check(self.open_bytes)
    }

    /// Bytes that the model has written.
    pub(super) fn written(&self) -> usize {
        self.written + self.open_arguments
    }

    /// The unfinished answer, shortened to what may enter a history.
    pub(super) fn partial(mut self) -> Vec<ContentBlock> {
        if !self.text.is_empty() {
            self.blocks.push(ContentBlock::Text(TextBlock {
                text: self.text,
                cache_control: None,
                citations: None,
            }));
        }
        let mut left = PARTIAL_ANSWER_BYTES_MAX;
        self.blocks.retain_mut(|block| {
            if let ContentBlock::Text(text) = block {
                let end = text.text.floor_char_boundary(left);
                text.text.truncate(end);
                text.text.shrink_to_fit();
            }
            let fits = block.content_bytes() <= left;
            left = left.saturating_sub(block.content_bytes());
            fits
        });
        self.blocks
    }
}

/// Adds a piece to the end of a text. The first piece is not copied.
fn add(text: &mut String, piece: String) {
    match text.is_empty() {
        true => *text = piece,
        false => text.push_str(&piece),
    }
}
