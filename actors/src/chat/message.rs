//! One message: its wire form stored once, an index of tool ids and block positions, and blocks
//! that are decoded on demand.
//!
//! Pure.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    ContentBlock, RawJson, ToolResultBlock,
    attachment::{Attached, attached, is_remote},
    raw_json::check_depth,
    reminder::is_reminder,
};
use crate::limits::MESSAGE_KEPT_BYTES;

/// The author of a message. `System` is not used in a history: the system prompt is a separate
/// field of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A person, or the results of tools.
    User,
    /// The model.
    Assistant,
    /// Instructions; only in debug forms.
    System,
}

impl Role {
    /// Returns the value as it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::System => "system",
        }
    }
}

/// Why input is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Message validation failed: {0}")]
pub struct MessageError(String);

impl MessageError {
    /// Wraps a cause.
    pub(crate) fn new(cause: impl fmt::Display) -> Self {
        Self(cause.to_string())
    }
}

/// One message of a conversation. Clones share the stored bytes.
#[derive(Clone)]
pub struct Message(Arc<Stored>);

struct Stored {
    /// Compact JSON with the role first.
    wire: Bytes,
    /// Byte offset in `wire` of each block.
    begins: Box<[u32]>,
    role: Role,
    tool_uses: Box<[Box<str>]>,
    tool_results: Box<[Box<str>]>,
    /// The blocks that hold the bytes of a file.
    attached: Box<[Attached]>,
    /// Hash of the wire form.
    digest: u64,
    /// The last token count: 0 if not counted, else the counting method in the upper eight bits and
    /// the tokens in the others.
    tokens: AtomicU32,
    /// The message in a provider's own form, cached by an adapter; `None` if it is the wire form.
    rendered: OnceLock<Option<Box<Bytes>>>,
}

/// Bytes of the wire form around the blocks, at most.
const WIRE_START_MAX: usize = 40;

/// Bits of `tokens` that hold the count.
const TOKEN_BITS: u32 = 24;

/// The largest count that can be stored.
const TOKENS_MAX: u32 = (1 << TOKEN_BITS) - 1;

#[derive(Deserialize)]
struct WireIn {
    role: Role,
    content: Content,
}

enum Content {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawJson::deserialize(deserializer)?;
        let content = match raw.as_str().as_bytes().first() {
            Some(b'"') => raw.parse().map(Self::Text),
            Some(b'[') => raw.parse().map(Self::Blocks),
            _ => Err(serde::de::Error::custom(
                "content must be a string or a list of blocks",
            )),
        };
        content.map_err(serde::de::Error::custom)
    }
}

impl Message {
    /// Creates a user message of one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::build(Role::User, &[ContentBlock::text(text)])
    }

    /// Creates an assistant message of one text.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::build(Role::Assistant, &[ContentBlock::text(text)])
    }

    /// Creates a message of blocks.
    ///
    /// # Errors
    /// [`MessageError`] without blocks, for the role `system`, or for a block of the other role.
    pub fn new(role: Role, blocks: &[ContentBlock]) -> Result<Self, MessageError> {
        if blocks.is_empty() {
            return Err(MessageError::new("a message needs at least one block"));
        }
        for block in blocks {
            let fits = match (block, role) {
                (_, Role::System) => {
                    return Err(MessageError::new(
                        "the system prompt is not a history message",
                    ));
                }
                (ContentBlock::ToolUse(_) | ContentBlock::Thinking(_), Role::User) => false,
                (ContentBlock::ToolResult(_), Role::Assistant) => false,
                (_, Role::User | Role::Assistant) => true,
            };
            if !fits {
                return Err(MessageError::new(format_args!(
                    "{} does not belong into a {role:?} message",
                    block.kind()
                )));
            }
        }
        Ok(Self::build(role, blocks))
    }

    /// Creates the user message with the results of a whole batch, in call order, and further
    /// blocks behind them.
    pub fn tool_results(
        results: impl IntoIterator<Item = ToolResultBlock>,
        after: impl IntoIterator<Item = ContentBlock>,
    ) -> Self {
        let blocks: Vec<_> = results
            .into_iter()
            .map(ContentBlock::ToolResult)
            .chain(after)
            .collect();
        Self::build(Role::User, &blocks)
    }

    fn build(role: Role, blocks: &[ContentBlock]) -> Self {
        let mut wire = Vec::with_capacity(
            WIRE_START_MAX + blocks.iter().map(|block| block.size() + 1).sum::<usize>(),
        );
        wire.extend_from_slice(br#"{"role":""#);
        wire.extend_from_slice(role.as_str().as_bytes());
        wire.extend_from_slice(br#"","content":["#);
        let mut begins = Vec::with_capacity(blocks.len());
        for (index, block) in blocks.iter().enumerate() {
            if index > 0 {
                wire.push(b',');
            }
            begins.push(u32::try_from(wire.len()).unwrap_or(u32::MAX));
            // Serializing our own plain types to memory cannot fail. If it did, the empty message
            // would be refused on reading.
            let _ = serde_json::to_writer(&mut wire, block);
        }
        wire.extend_from_slice(b"]}");
        let ids = |id: fn(&ContentBlock) -> Option<&str>| {
            blocks.iter().filter_map(id).map(Box::from).collect()
        };
        Self(Arc::new(Stored {
            digest: digest(&wire),
            // Boxed, because a vector would keep its capacity, up to twice the text, as long as the
            // message exists.
            wire: Bytes::from(wire.into_boxed_slice()),
            begins: begins.into_boxed_slice(),
            role,
            attached: attached(blocks),
            tool_uses: ids(|block| {
                if let ContentBlock::ToolUse(block) = block {
                    Some(&block.id)
                } else {
                    None
                }
            }),
            tool_results: ids(|block| {
                if let ContentBlock::ToolResult(block) = block {
                    Some(&block.tool_use_id)
                } else {
                    None
                }
            }),
            tokens: AtomicU32::new(0),
            rendered: OnceLock::new(),
        }))
    }

    /// Parses a message in the wire form.
    ///
    /// # Errors
    /// [`MessageError`] with the reason of the parser.
    pub fn from_wire(wire: &[u8]) -> Result<Self, MessageError> {
        let text = std::str::from_utf8(wire).map_err(MessageError::new)?;
        match one_text(text) {
            Some((role, begins)) => Ok(Self::of_one_text(role, begins, wire.into())),
            None => Self::decode(text),
        }
    }

    /// As [`Message::from_wire`]. A message of one text, as nearly all are, keeps these bytes.
    fn from_text(text: Box<str>) -> Result<Self, MessageError> {
        match one_text(&text) {
            Some((role, begins)) => {
                let wire = text.into_boxed_bytes();
                Ok(Self::of_one_text(role, begins, wire))
            }
            None => Self::decode(&text),
        }
    }

    fn decode(text: &str) -> Result<Self, MessageError> {
        check_depth(text).map_err(MessageError::new)?;
        let parsed: WireIn = serde_json::from_str(text).map_err(MessageError::new)?;
        let blocks = match parsed.content {
            Content::Text(text) => vec![ContentBlock::text(text)],
            Content::Blocks(blocks) => blocks,
        };
        Self::new(parsed.role, &blocks)
    }

    /// A message of one text, whose block begins here in its compact form.
    fn of_one_text(role: Role, begins: usize, wire: Box<[u8]>) -> Self {
        Self(Arc::new(Stored {
            digest: digest(&wire),
            wire: Bytes::from(wire),
            begins: Box::new([u32::try_from(begins).unwrap_or(u32::MAX)]),
            role,
            attached: Box::default(),
            tool_uses: Box::default(),
            tool_results: Box::default(),
            tokens: AtomicU32::new(0),
            rendered: OnceLock::new(),
        }))
    }

    /// Returns the compact JSON: `{"role":…,"content":[…]}`.
    pub fn wire(&self) -> &Bytes {
        &self.0.wire
    }

    /// Returns the bytes that the message takes in memory.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.0.wire.len() + MESSAGE_KEPT_BYTES
    }

    /// Returns the wire form as text.
    pub fn wire_str(&self) -> &str {
        std::str::from_utf8(&self.0.wire).unwrap_or_default()
    }

    /// Returns the blocks that hold the bytes of an image or document, in order.
    pub(crate) fn attached(&self) -> &[Attached] {
        &self.0.attached
    }

    /// Returns the bytes from which tokens are estimated: those of the wire form, with every image
    /// and document counted as text of as many tokens.
    pub(crate) fn estimate_bytes(&self) -> usize {
        self.0
            .attached
            .iter()
            .fold(self.0.wire.len(), |bytes, attached| {
                bytes
                    .saturating_sub(attached.bytes as usize)
                    .saturating_add(attached.estimate_bytes())
            })
    }

    /// Returns the role.
    pub fn role(&self) -> Role {
        self.0.role
    }

    /// Returns the ids of the tool calls in the message, in order.
    pub fn tool_use_ids(&self) -> &[Box<str>] {
        &self.0.tool_uses
    }

    /// Returns the ids of the calls that the message answers, in order.
    pub fn tool_result_ids(&self) -> &[Box<str>] {
        &self.0.tool_results
    }

    /// The first block that the provider would fetch a part of ([`is_remote`]). Most messages are
    /// not parsed for it.
    pub fn first_remote_block(&self) -> Option<usize> {
        let wire = std::str::from_utf8(self.wire()).unwrap_or_default();
        let may_be = ["\"source\"", "file", "\\u"]
            .iter()
            .any(|word| wire.contains(word));
        may_be
            .then(|| self.blocks().iter().position(is_remote))
            .flatten()
    }

    /// Decodes the blocks.
    pub fn blocks(&self) -> Vec<ContentBlock> {
        self.raw_blocks()
            .filter_map(ContentBlock::of_wire)
            .collect()
    }

    /// Returns the blocks in wire form, without decoding them.
    fn raw_blocks(&self) -> impl Iterator<Item = &str> {
        let wire = self.wire_str();
        let begins = &self.0.begins;
        let end = wire.len().saturating_sub(1); // Position of the list's `]`.
        let ends = begins
            .iter()
            .skip(1)
            .map(|begin| *begin as usize)
            .chain([end]);
        begins
            .iter()
            .zip(ends)
            .filter_map(|(begin, end)| wire.get(*begin as usize..end.saturating_sub(1)))
    }

    /// Decodes the tool calls.
    pub fn tool_uses(&self) -> Vec<super::ToolUseBlock> {
        if self.0.tool_uses.is_empty() {
            return Vec::new();
        }
        let calls = self
            .raw_blocks()
            .filter(|raw| ContentBlock::is_kind(raw, "tool_use"));
        calls
            .filter_map(|raw| serde_json::from_str(raw).ok())
            .collect()
    }

    /// Returns the text blocks, joined.
    pub fn text(&self) -> String {
        let mut texts = self
            .raw_blocks()
            .filter(|raw| ContentBlock::is_kind(raw, "text"))
            .filter_map(ContentBlock::text_of_wire);
        let first = texts.next().map(Cow::into_owned).unwrap_or_default();
        texts.fold(first, |all, text| all + &text)
    }

    /// Whether the message holds only reminders, and so nothing that a person wrote.
    pub(crate) fn is_reminders(&self) -> bool {
        let opens = |raw: &str| raw.starts_with(r#"{"type":"text","text":"<system-reminder>\n"#);
        self.raw_blocks().all(|raw| {
            opens(raw) && ContentBlock::text_of_wire(raw).is_some_and(|text| is_reminder(&text))
        })
    }

    /// Whether the message contains all blocks of another message, next to each other.
    pub(crate) fn holds_blocks_of(&self, other: &Self) -> bool {
        let blocks = |wire: &str| {
            Some(
                wire.split_once(r#""content":["#)?
                    .1
                    .strip_suffix("]}")?
                    .to_owned(),
            )
        };
        blocks(other.wire_str()).is_some_and(|blocks| self.wire_str().contains(&blocks))
    }

    /// Returns a hash of the wire form, the same in every process. Not for secrets.
    pub(super) fn digest(&self) -> u64 {
        self.0.digest
    }

    /// Returns the token count if the last count used this method.
    pub(crate) fn counted_tokens(&self, way: u8) -> Option<u32> {
        let kept = self.0.tokens.load(Ordering::Relaxed);
        (way != 0 && kept >> TOKEN_BITS == u32::from(way)).then_some(kept & TOKENS_MAX)
    }

    /// Stores a token count, so that each message is counted once per method. A conversation may
    /// change its model and with it the method. The registry of the host assigns the methods, 1 to
    /// 255 ([`crate::tokens::EncoderRegistry`]). Counts above 16 million are not stored.
    pub(crate) fn keep_tokens(&self, way: u8, tokens: u32) {
        if way != 0 && tokens <= TOKENS_MAX {
            self.0
                .tokens
                .store(u32::from(way) << TOKEN_BITS | tokens, Ordering::Relaxed);
        }
    }

    /// Returns the message in an adapter's own form, which `render` creates on the first call, or
    /// the wire form where it returns `None`. Only one form is cached, because a conversation has one
    /// provider; it is freed with the message.
    pub fn rendered_with(&self, render: impl FnOnce(&Self) -> Option<Bytes>) -> &Bytes {
        let rendered = self.0.rendered.get_or_init(|| render(self).map(Box::new));
        rendered.as_deref().unwrap_or(&self.0.wire)
    }
}

/// The role of a message that is in our compact form and has one block, a text without further
/// fields; and where the block begins.
fn one_text(wire: &str) -> Option<(Role, usize)> {
    const BLOCK: &str = r#"{"type":"text","text":""#;
    let (role, rest) = [Role::User, Role::Assistant].into_iter().find_map(|role| {
        let rest = wire.strip_prefix(r#"{"role":""#)?;
        Some((role, rest.strip_prefix(role.as_str())?))
    })?;
    let rest = rest.strip_prefix(r#"","content":["#)?;
    let text = rest.strip_prefix(BLOCK)?.strip_suffix(r#""}]}"#)?;
    is_as_written(text.as_bytes()).then_some((role, wire.len() - rest.len()))
}

/// Whether a text between quotes has the escapes that `serde_json` writes, and no others.
fn is_as_written(text: &[u8]) -> bool {
    if text.iter().any(|byte| *byte < b' ') {
        return false;
    }
    let mut rest = text;
    while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
        let read = match rest.get(at..).unwrap_or_default() {
            [b'\\', b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
            [
                b'\\',
                b'u',
                b'0',
                b'0',
                b'0',
                b'0'..=b'7' | b'b' | b'e' | b'f',
                ..,
            ]
            | [b'\\', b'u', b'0', b'0', b'1', b'0'..=b'9' | b'a'..=b'f', ..] => 6,
            _ => return false,
        };
        rest = rest.get(at + read..).unwrap_or_default();
    }
    true
}

/// Hashes bytes eight at a time.
fn digest(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<8>();
    let last = last
        .iter()
        .fold(1, |sum, byte| (sum << 8) | u64::from(*byte));
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    words
        .chain([last, bytes.len() as u64])
        .fold(0, chain_digest)
}

/// Adds a number to a running hash.
pub(super) fn chain_digest(hash: u64, next: u64) -> u64 {
    let product = u128::from(hash.rotate_left(29) ^ next ^ 0x9e37_79b9_7f4a_7c15)
        .wrapping_mul(0xa076_1d64_78bd_642f);
    hash ^ (product as u64) ^ (product >> 64) as u64 // both halves; truncation intended
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.wire == other.0.wire
    }
}

impl Eq for Message {}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wire_str())
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        super::raw_json::serialize(serializer, self.wire_str())
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawJson::deserialize(deserializer)?;
        Self::from_text(raw.into_text()).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_one_text_keeps_its_bytes_and_means_what_it_meant() {
        let all: String = (0..0x300u32).filter_map(char::from_u32).collect();
        for text in ["", "plain", "\"", "\\", "\n\u{1}\u{1f}\u{7f}", "💡", &all] {
            for message in [Message::user(text), Message::assistant(text)] {
                let wire = message.wire_str();
                assert!(one_text(wire).is_some(), "{wire}");
                let read = Message::from_wire(wire.as_bytes()).unwrap();
                assert_eq!(read.wire(), message.wire());
                assert_eq!(read.blocks(), message.blocks());
                assert_eq!(
                    (read.role(), read.text()),
                    (message.role(), text.to_owned())
                );
                assert_eq!(read.0.digest, message.0.digest);
                let other: Message = serde_json::from_str(wire).unwrap();
                assert_eq!(other.wire(), message.wire());
            }
        }
    }

    #[test]
    fn a_message_in_another_form_is_written_again_or_refused() {
        let around = |text: &str| {
            format!(r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#)
        };
        for (text, means) in [
            (r"\/", "/"),
            (r"\u000a", "\n"),
            (r"\u001F", "\u{1f}"),
            (r"\u0041", "A"),
            (r"\ud83d\udca1", "💡"),
        ] {
            assert!(one_text(&around(text)).is_none(), "{text}");
            let message = Message::from_wire(around(text).as_bytes()).unwrap();
            assert_eq!(message.wire(), Message::user(means).wire());
        }
        for text in ["\n", r"\", r"\x", r"\u12", r#"a","text":"b"#] {
            assert!(one_text(&around(text)).is_none(), "{text}");
            assert!(
                Message::from_wire(around(text).as_bytes()).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn a_message_of_reminders_alone_differs_from_a_persons() {
        let reminder = super::super::reminder("a \"b\"\nc");
        let is = |blocks: &[ContentBlock]| Message::new(Role::User, blocks).unwrap().is_reminders();

        assert!(is(std::slice::from_ref(&reminder)) && is(&[reminder.clone(), reminder.clone()]));
        assert!(
            !is(&[reminder.clone(), ContentBlock::text("x")])
                && !is(&[ContentBlock::text("<system-reminder>\nx")])
        );
        assert!(!is(&[ContentBlock::text("<system-reminder>")]) && !is(&[ContentBlock::text("")]));
    }

    #[test]
    fn a_message_survives_its_wire_form_block_for_block() {
        let wire = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"c2ln"},{"type":"text","text":"汉字 \" \\"},{"type":"tool_use","id":"t1","name":"f","input":{"b": 1.0, "a": 2}},{"type":"server_tool_use","id":"s","name":"web","input":{}}]}"#;

        let message = Message::from_wire(wire.as_bytes()).unwrap();

        assert_eq!(message.wire_str(), wire);
        assert_eq!(
            Message::new(message.role(), &message.blocks()).unwrap(),
            message
        );
        assert_eq!(message.tool_use_ids(), [Box::from("t1")]);
        assert_eq!(message.text(), "汉字 \" \\");
    }

    #[test]
    fn a_tool_result_is_text_or_blocks_and_no_error_unless_it_says_so() {
        let wire = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"a","is_error":true},{"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}]}"#;

        let message = Message::from_wire(wire.as_bytes()).unwrap();

        let results: Vec<_> = message
            .blocks()
            .iter()
            .map(|block| match block {
                ContentBlock::ToolResult(result) => (
                    result.tool_use_id.clone(),
                    result.content.text().into_owned(),
                    result.is_error,
                ),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            results,
            [
                ("t1".to_owned(), "a".to_owned(), true),
                ("t2".to_owned(), "b\nc".to_owned(), false)
            ]
        );
    }

    #[test]
    fn a_count_is_kept_for_the_way_it_was_counted() {
        let message = Message::user("Hello");

        assert_eq!(
            (message.counted_tokens(0), message.counted_tokens(1)),
            (None, None)
        );
        message.keep_tokens(1, 0);
        assert_eq!(
            (
                message.counted_tokens(0),
                message.counted_tokens(1),
                message.counted_tokens(2)
            ),
            (None, Some(0), None)
        );
        message.clone().keep_tokens(255, TOKENS_MAX);
        assert_eq!(
            (message.counted_tokens(1), message.counted_tokens(255)),
            (None, Some(TOKENS_MAX))
        );
        message.keep_tokens(2, TOKENS_MAX + 1);
        message.keep_tokens(0, 1);
        assert_eq!(
            (message.counted_tokens(2), message.counted_tokens(255)),
            (None, Some(TOKENS_MAX))
        );
    }

    #[test]
    fn text_and_calls_are_what_the_blocks_say() {
        let wire = r#"{"role":"assistant","content":[{"type":"text","text":"a\n"},{"type":"redacted_thinking","data":"x"},{"text":"b","type":"text"},{"type":"tool_use","id":"t1","name":"f","input":{}}]}"#;

        let message = Message::from_wire(wire.as_bytes()).unwrap();

        assert_eq!(message.text(), "a\nb");
        assert_eq!(message.tool_uses().len(), 1);
        assert_eq!(
            message
                .blocks()
                .iter()
                .map(ContentBlock::kind)
                .collect::<Vec<_>>(),
            ["text", "redacted_thinking", "text", "tool_use"]
        );
    }

    #[test]
    fn wrong_messages_are_refused_with_the_specified_prefix() {
        for wire in [
            r#"{"role":"user","content":[]}"#,
            r#"{"role":"system","content":"x"}"#,
            r#"{"role":"user","content":[{"type":"tool_use","id":"a","name":"b","input":{}}]}"#,
            r#"{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"a","content":"b"}]}"#,
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":3}]}"#,
            r#"{"role":"user","content":7}"#,
            r#"{"role":"user","content":[{"type":"image","type":"tool_use","id":"a","name":"b","input":{}}]}"#,
            "nonsense",
        ] {
            let error = Message::from_wire(wire.as_bytes()).unwrap_err();
            assert!(
                error.to_string().starts_with("Message validation failed: "),
                "{error}"
            );
        }
    }
}
