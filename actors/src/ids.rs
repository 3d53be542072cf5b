//! Ids as validated newtypes, so that no function takes a bare string for one. This module creates
//! no random id (see [`crate::ports::Entropy`]).
//!
//! Pure.

use std::{fmt, num::ParseIntError, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Longest accepted [`TenantId`] or [`ConversationId`], in bytes.
pub(crate) const ID_BYTES_MAX: usize = 128;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} must be 1-128 characters of A-Z a-z 0-9 . _ : - without a leading dot, not {given:?}"
)]
pub struct InvalidId {
    what: &'static str,
    given: String,
}

fn validate(what: &'static str, text: &str) -> Result<Arc<str>, InvalidId> {
    let fits = !text.is_empty()
        && text.len() <= ID_BYTES_MAX
        && !text.starts_with('.')
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-'));
    if fits {
        Ok(Arc::from(text))
    } else {
        let given = text.chars().take(40).collect();
        Err(InvalidId { what, given })
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Validates `text`.
            ///
            /// # Errors
            /// [`InvalidId`] names the rule and quotes the start of the text.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidId> {
                validate($what, text.as_ref()).map(Self)
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = InvalidId;
            fn try_from(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl TryFrom<&$name> for $name {
            type Error = InvalidId;
            fn try_from(id: &$name) -> Result<Self, InvalidId> {
                Ok(id.clone())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Self::new(&*text).map_err(serde::de::Error::custom)
            }
        }
    };
}

text_id!(
    /// A tenant of a host.
    TenantId,
    "a tenant id"
);
text_id!(
    /// A conversation, unique within its tenant.
    ConversationId,
    "a conversation id"
);

/// Prefix of the ids of subagents' conversations. Callers cannot create a conversation with such an
/// id.
pub const SUBAGENT_PREFIX: &str = "subagent:";

/// Prefix of the names of fan-outs. A fan-out is the parent of its subagents but not a
/// conversation. Callers cannot create a conversation with such an id.
pub const FAN_OUT_PREFIX: &str = "fanout:";

/// Hex digits of the parent's hash in a subagent's id.
const PARENT_DIGITS: usize = 24;

/// Hex digits of the tool call's hash in a subagent's id.
const CALL_DIGITS: usize = 40;

impl ConversationId {
    /// Whether this is the conversation of a subagent.
    pub fn is_subagent(&self) -> bool {
        self.0.starts_with(SUBAGENT_PREFIX)
    }

    /// Whether the id is reserved, so that callers cannot create a conversation with it.
    pub fn is_reserved(&self) -> bool {
        self.is_subagent() || self.0.starts_with(FAN_OUT_PREFIX)
    }

    /// Returns the common prefix of the ids of this conversation's subagents. The prefix is a valid
    /// id and sorts before all of them.
    #[must_use]
    pub fn children(&self) -> Self {
        let parent = sha256_hex(&[b"subagents of", self.0.as_bytes()]);
        Self(format!("{SUBAGENT_PREFIX}{}:", digits(&parent, PARENT_DIGITS)).into())
    }

    /// Returns the id prefix of the family's subagents: of this conversation's children, or for a
    /// subagent of itself and its siblings.
    #[must_use]
    pub fn family(&self) -> Self {
        self.siblings()
            .map_or_else(|| self.children(), |family| Self(family.into()))
    }

    /// Returns the id prefix that a subagent shares with its siblings. `None` for other
    /// conversations.
    pub(crate) fn siblings(&self) -> Option<&str> {
        let end = SUBAGENT_PREFIX.len() + PARENT_DIGITS + 1;
        self.0.get(..end).filter(|_| self.is_subagent())
    }

    /// Returns the id of the subagent that a tool call of this conversation starts. The id depends
    /// only on `seq` and `index` of the call's [`CallKey`], so a call that is repeated after a
    /// crash finds the subagent of its first start.
    #[must_use]
    pub fn child(&self, seq: Seq, index: u32) -> Self {
        self.child_in(&self.children(), seq, index)
    }

    /// Like [`ConversationId::child`], for a caller that already has the result of
    /// [`ConversationId::children`].
    pub(crate) fn child_in(&self, children: &Self, seq: Seq, index: u32) -> Self {
        let call = sha256_hex(&[
            b"subagent",
            self.0.as_bytes(),
            &seq.0.to_be_bytes(),
            &index.to_be_bytes(),
        ]);
        Self(
            [children.as_str(), digits(&call, CALL_DIGITS)]
                .concat()
                .into(),
        )
    }

    /// Returns the id of a subagent that is never looked up by a tool call: the prefix of
    /// [`ConversationId::children`] and a number.
    pub(crate) fn numbered(&self, index: u32) -> Self {
        Self(format!("{self}{index}").into())
    }
}

fn digits(hex: &str, count: usize) -> &str {
    hex.get(..count).unwrap_or(hex)
}

impl CallKey {
    /// Returns the conversation of the subagent that this call starts; see
    /// [`ConversationId::child`].
    #[must_use]
    pub fn child(&self) -> Scope {
        Scope::new(
            self.scope.tenant.clone(),
            self.scope.conversation.child(self.seq, self.index),
        )
    }
}

/// A tenant id and a conversation id together: the key of every store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Scope {
    /// The tenant that owns the conversation.
    pub tenant: TenantId,
    /// The conversation within the tenant.
    pub conversation: ConversationId,
}

impl Scope {
    /// Combines the two ids.
    pub fn new(tenant: TenantId, conversation: ConversationId) -> Self {
        Self {
            tenant,
            conversation,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.conversation)
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Creates an id (UUID version 4) from 16 random bytes.
            pub fn from_random(bytes: [u8; 16]) -> Self {
                Self(uuid::Builder::from_random_bytes(bytes).into_uuid())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                text.parse().map(Self)
            }
        }
    };
}

uuid_id!(
    /// A round: a prompt and everything until its answer. The id also names the round's event
    /// stream.
    RoundId
);
uuid_id!(
    /// An accepted prompt.
    PromptId
);
uuid_id!(
    /// One activation of a skill.
    ActivationId
);

impl ActivationId {
    /// Returns the id of the activation that a tool call requests. Every start of the same call
    /// gives the same id, so a repeated call after a crash does not activate the skill twice.
    pub(crate) fn from_call(key: &CallKey) -> Self {
        let hash = Sha256::digest(format!("skill activation\n{key}"));
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(hash).for_each(|(to, from)| *to = from);
        Self::from_random(bytes)
    }
}

impl RoundId {
    /// Returns the bytes of the id.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    /// Creates an id from the bytes of another one.
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Returns the next value.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter!(
    /// The number of an activation, which guards the journal against writes of older activations.
    /// The first epoch of a journal is the clock in milliseconds; each later epoch is the next
    /// number.
    Epoch
);
counter!(
    /// Position of an entry in a conversation's journal. The first entry has seq 1; 0 stands before
    /// it.
    Seq
);

/// Names one piece of work that a conversation started, such as a model call. The reply to the work
/// carries the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkId {
    /// Epoch of the activation that started the work.
    pub epoch: Epoch,
    /// The entry that started the work.
    pub seq: Seq,
    /// Index among the pieces of work of that entry, from 0.
    pub index: u32,
}

/// Names a tool call permanently: the place of its `tool_use` block in the journal. Serves as the
/// idempotency key of the call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct CallKey {
    pub scope: Scope,
    /// The assistant entry that holds the call.
    pub seq: Seq,
    /// Index among the calls of that entry, from 0.
    pub index: u32,
}

impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.scope, self.seq, self.index)
    }
}

/// The text is not a [`CallKey`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a call's key is tenant/conversation/seq/index")]
pub struct InvalidCallKey;

impl FromStr for CallKey {
    type Err = InvalidCallKey;

    fn from_str(text: &str) -> Result<Self, InvalidCallKey> {
        let mut parts = text.splitn(4, '/');
        let mut part = || parts.next().ok_or(InvalidCallKey);
        let tenant = part()?;
        let conversation = part()?;
        let seq = part()?;
        let index = part()?;
        let tenant = TenantId::new(tenant).map_err(|_| InvalidCallKey)?;
        let conversation = ConversationId::new(conversation).map_err(|_| InvalidCallKey)?;
        let seq = seq.parse().map_err(|_| InvalidCallKey)?;
        let index = index.parse().map_err(|_| InvalidCallKey)?;
        Ok(Self {
            scope: Scope::new(tenant, conversation),
            seq: Seq(seq),
            index,
        })
    }
}

/// Names a caller that waits for a conversation actor. The actor's shell maps the id to the reply
/// port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// Id of a stream event, `epoch.seq.n`. Ids compare as three numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct EventId {
    /// Epoch of the activation that published the event.
    pub epoch: Epoch,
    /// The entry that the event follows from; for an ephemeral event, the last entry published
    /// before it.
    pub seq: Seq,
    /// Index among the events after that entry.
    pub n: u32,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.epoch, self.seq, self.n)
    }
}

/// The text is not an [`EventId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an event id is three decimal numbers joined by dots")]
pub struct InvalidEventId;

impl From<ParseIntError> for InvalidEventId {
    fn from(_: ParseIntError) -> Self {
        Self
    }
}

impl FromStr for EventId {
    type Err = InvalidEventId;

    fn from_str(text: &str) -> Result<Self, InvalidEventId> {
        let mut parts = text.splitn(3, '.');
        let mut part = || {
            parts
                .next()
                .filter(|p| p.bytes().all(|b| b.is_ascii_digit()))
                .ok_or(InvalidEventId)
        };
        let epoch = part()?.parse()?;
        let seq = part()?.parse()?;
        let n = part()?.parse()?;
        Ok(Self {
            epoch: Epoch(epoch),
            seq: Seq(seq),
            n,
        })
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Returns the SHA-256 of several parts as 64 hex digits. Each part is hashed after its length, so
/// that `["ab", "c"]` and `["a", "bc"]` differ.
pub fn sha256_hex(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        text.push(hex(byte >> 4));
        text.push(hex(byte & 15));
    }
    text
}

fn hex(digit: u8) -> char {
    char::from_digit(digit.into(), 16).unwrap_or('0')
}

/// Id of an artifact: `artifact_` and the first 16 hex digits of the content's SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ArtifactId(Arc<str>);

/// The text is not an artifact id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an artifact id is artifact_ and 16 hex digits")]
pub struct NotAnArtifactId;

impl ArtifactId {
    /// Returns the id of a content.
    pub fn from_content(content: &[u8]) -> Self {
        Self::from_digest(&Sha256::digest(content))
    }

    /// Returns the id of a content that was hashed while it was written. `digest` is the SHA-256.
    pub fn from_digest(digest: &[u8]) -> Self {
        let hex: String = digest
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self(format!("artifact_{hex}").into())
    }

    /// Parses an id.
    ///
    /// # Errors
    /// [`NotAnArtifactId`] for any other form. An id cannot contain a path separator or `..`.
    pub fn parse(text: &str) -> Result<Self, NotAnArtifactId> {
        let hash = text.strip_prefix("artifact_").ok_or(NotAnArtifactId)?;
        let fits = hash.len() == 16
            && hash
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if fits {
            Ok(Self(text.into()))
        } else {
            Err(NotAnArtifactId)
        }
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the hex digits without the prefix.
    pub fn hash(&self) -> &str {
        self.0.strip_prefix("artifact_").unwrap_or_default()
    }
}

impl fmt::Display for ArtifactId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ArtifactId {
    type Error = NotAnArtifactId;

    fn try_from(text: String) -> Result<Self, NotAnArtifactId> {
        Self::parse(&text)
    }
}

impl From<ArtifactId> for String {
    fn from(id: ArtifactId) -> Self {
        id.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_accept_what_the_contract_names_and_nothing_else() {
        for good in ["a", "support-42", "A.b_c:d-e", &"x".repeat(128)] {
            assert!(ConversationId::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            ".hidden",
            "../up",
            "a/b",
            "a b",
            "é",
            "a\0",
            &"x".repeat(129),
        ] {
            assert!(ConversationId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_subagents_id_follows_from_its_call_and_stands_behind_its_parents_prefix() {
        let call = |conversation: &str, seq, index| {
            let scope = Scope::new("acme".parse().unwrap(), conversation.parse().unwrap());
            CallKey {
                scope,
                seq: Seq(seq),
                index,
            }
        };
        let longest = "x".repeat(ID_BYTES_MAX);
        let keys = [
            call("c-1", 4, 0),
            call("c-1", 4, 1),
            call("c-1", 5, 0),
            call("c-2", 4, 0),
            call(&longest, 4, 0),
        ];
        let children: Vec<Scope> = keys.iter().map(CallKey::child).collect();

        for (key, child) in keys.iter().zip(&children) {
            let parent = &key.scope.conversation;
            let id = &child.conversation;
            assert_eq!(
                (key.child(), id.is_subagent(), parent.is_subagent()),
                (child.clone(), true, false)
            );
            assert!(id.as_str().starts_with(parent.children().as_str()) && *id > parent.children());
            assert!(ConversationId::new(id.as_str()).is_ok(), "{id}");
            assert_eq!(
                (id.family(), parent.family()),
                (parent.children(), parent.children())
            );
            assert_eq!(key.to_string().parse().as_ref(), Ok(key));
        }
        assert_eq!(
            children
                .iter()
                .collect::<std::collections::BTreeSet<_>>()
                .len(),
            5
        );
        for bad in [
            "",
            "acme/c-1/4",
            "acme/c 1/4/0",
            "acme/c-1/x/0",
            "acme/c-1/4/0/1",
        ] {
            assert!(bad.parse::<CallKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn event_ids_compare_as_numbers() {
        let id = |text: &str| text.parse::<EventId>().unwrap();

        assert!(id("1.9.0") < id("1.10.0"));
        assert!(id("2.0.0") > id("1.99.99"));
        assert_eq!(id("3.4.5").to_string(), "3.4.5");
        for bad in ["", "1.2", "1.2.x", "1.2.3.4", "+1.2.3", "-1.0.0"] {
            assert!(bad.parse::<EventId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_id_is_the_contents_hash_and_nothing_else_is_an_id() {
        let id = ArtifactId::from_content(b"abc");

        assert_eq!(id.as_str(), "artifact_ba7816bf8f01cfea");
        assert_eq!(ArtifactId::parse(id.as_str()), Ok(id));
        for bad in [
            "",
            "artifact_",
            "artifact_BA7816BF8F01CFEA",
            "artifact_../../etc/pass",
            "artifact_ba7816bf8f01cfea0",
            "ba7816bf8f01cfea",
        ] {
            assert_eq!(ArtifactId::parse(bad), Err(NotAnArtifactId), "{bad}");
        }
    }
}
