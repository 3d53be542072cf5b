//! A prompt: text, content blocks and attachments. It is converted into a message, or refused,
//! before anything is journaled.

use bytes::Bytes;

use super::SendError;
use crate::{
    chat::{
        Attachment, ContentBlock, Message, Role,
        attachment::{MediaKind, check_prompt_block, document_text, media_of},
    },
    ids::TenantId,
    limits::PROMPT_BYTES_MAX,
    ports::{DocumentText, DocumentTextError},
};

/// A prompt: text or content blocks, with images and PDFs beside them.
///
/// ```
/// use callboard_actors::{chat::Attachment, host::Prompt};
///
/// let picture = b"GIF89a\x01\x00\x01\x00\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x01D\x00;";
/// let prompt = Prompt::text("What is this?").attach(Attachment::sniffed(picture)?);
/// # let _ = prompt;
/// # Ok::<(), callboard_actors::chat::AttachmentError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Validated when they were created.
    attachments: Vec<Attachment>,
    /// Validated when the prompt is sent.
    blocks: Vec<ContentBlock>,
}

impl<T: Into<String>> From<T> for Prompt {
    fn from(text: T) -> Self {
        Self::text(text)
    }
}

/// How documents reach the model.
pub(super) enum Documents<'a> {
    /// The model takes documents as they are.
    Taken,
    /// The model takes no documents: the extractor adds their text. `None`: the host has no
    /// extractor, so documents are refused.
    Read(Option<&'a dyn DocumentText>),
}

impl Prompt {
    /// A prompt of plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::blocks(vec![ContentBlock::text(text)])
    }

    /// A prompt of content blocks. Images and documents among them are validated when it is sent.
    pub fn blocks(blocks: Vec<ContentBlock>) -> Self {
        Self {
            attachments: Vec::new(),
            blocks,
        }
    }

    /// Adds an image or a PDF. Attachments come before the text, in this order: models answer
    /// better when the question follows its material.
    #[must_use]
    pub fn attach(mut self, attachment: Attachment) -> Self {
        self.attachments.push(attachment);
        self
    }

    /// Appends a block of the host, such as the instruction for structured output. An empty prompt
    /// stays empty, so that it is still refused.
    pub(super) fn with_instruction(mut self, block: ContentBlock) -> Self {
        if !self.is_blank() {
            self.blocks.push(block);
        }
        self
    }

    fn is_blank(&self) -> bool {
        let has_content =
            |block: &ContentBlock| block.as_text().is_none_or(|text| !text.trim().is_empty());
        self.attachments.is_empty() && !self.blocks.iter().any(has_content)
    }

    /// Converts the prompt into a user message. If the model takes no documents, the text of each
    /// document follows the document. The document itself stays in the message, for a later model
    /// of the conversation that does take documents.
    pub(super) async fn into_message(
        self,
        tenant: &TenantId,
        documents: Documents<'_>,
    ) -> Result<Message, SendError> {
        self.blocks.iter().try_for_each(check_prompt_block)?;
        if self.is_blank() {
            return Err(SendError::BadPrompt(0));
        }
        let blocks: Vec<ContentBlock> = self
            .attachments
            .iter()
            .map(Attachment::block)
            .chain(self.blocks)
            .collect();
        let message = bounded(&blocks)?;
        let Documents::Read(reader) = documents else {
            return Ok(message);
        };
        let is_document = |block: &ContentBlock| {
            media_of(block).is_some_and(|media| media.kind == MediaKind::Document)
        };
        if !blocks.iter().any(is_document) {
            return Ok(message);
        }
        let reader = reader.ok_or(DocumentTextError::Absent)?;
        let mut with_texts = Vec::with_capacity(blocks.len() + 1);
        for block in blocks {
            let text = text_of(&block, tenant, reader).await?;
            with_texts.push(block);
            with_texts.extend(text);
        }
        bounded(&with_texts)
    }
}

async fn text_of(
    block: &ContentBlock,
    tenant: &TenantId,
    reader: &dyn DocumentText,
) -> Result<Option<ContentBlock>, SendError> {
    let Some(media) = media_of(block).filter(|media| media.kind == MediaKind::Document) else {
        return Ok(None);
    };
    let extracted = reader.extract(tenant, Bytes::from(media.bytes()?)).await?;
    Ok(Some(document_text(
        media.title.as_deref(),
        extracted.pages,
        &extracted.text,
    )))
}

fn bounded(blocks: &[ContentBlock]) -> Result<Message, SendError> {
    let message = Message::new(Role::User, blocks).map_err(|_| SendError::BadPrompt(0))?;
    match message.wire().len() {
        bytes if bytes > PROMPT_BYTES_MAX => Err(SendError::BadPrompt(bytes)),
        _ => Ok(message),
    }
}
