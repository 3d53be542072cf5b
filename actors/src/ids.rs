//! The names of things: validated newtypes, never bare strings. Plain data; makes up no id itself (see [`crate::ports::Entropy`]).
//!
//! Pure.

use std::{fmt, num::ParseIntError, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Longest accepted [`TenantId`] or [`ConversationId`], in bytes (INTERFACES §2, ConversationId).
pub const ID_BYTES_MAX: usize = 128;

/// Says why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be 1-128 characters of A-Z a-z 0-9 . _ : - without a leading dot, not {given:?}")]
pub struct InvalidId {
    what: &'static str,
    given: String,
}

fn validate(what: &'static str, text: &str) -> Result<Arc<str>, InvalidId> {
    let fits = !text.is_empty()
        && text.len() <= ID_BYTES_MAX
        && !text.starts_with('.')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-'));
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
    /// One tenant of a host.
    TenantId,
    "a tenant id"
);
text_id!(
    /// One conversation of a tenant; unique within it.
    ConversationId,
    "a conversation id"
);

/// What the ids of subagents' conversations begin with. Callers cannot begin a conversation with such an id.
pub const SUBAGENT_PREFIX: &str = "subagent:";

/// What the names of fan-outs begin with: the parent of their subagents, which is no conversation. Callers cannot begin one with such an
/// id.
pub const FAN_OUT_PREFIX: &str = "fanout:";

/// Hex digits of the parent's hash in the id of a subagent's conversation.
const PARENT_DIGITS: usize = 24;

/// Hex digits of the call's hash in it.
const CALL_DIGITS: usize = 40;

impl ConversationId {
    /// Whether it is a subagent's conversation (DESIGN §4.7).
    pub fn is_subagent(&self) -> bool {
        self.0.starts_with(SUBAGENT_PREFIX)
    }

    /// Whether callers cannot begin a conversation of this id.
    pub fn is_reserved(&self) -> bool {
        self.is_subagent() || self.0.starts_with(FAN_OUT_PREFIX)
    }

    /// What the ids of all conversations that this one began start with; itself an id that stands before them all.
    #[must_use]
    pub fn children(&self) -> Self {
        let parent = sha256_hex(&[b"subagents of", self.0.as_bytes()]);
        Self(format!("{SUBAGENT_PREFIX}{}:", digits(&parent, PARENT_DIGITS)).into())
    }

    /// What the ids of its family's subagents start with: its own children, or a subagent and its siblings.
    pub(crate) fn family(&self) -> Self {
        self.siblings().map_or_else(|| self.children(), |family| Self(family.into()))
    }

    /// What the ids of a subagent and its siblings start with; `None` for who is no subagent.
    pub(crate) fn siblings(&self) -> Option<&str> {
        let end = SUBAGENT_PREFIX.len() + PARENT_DIGITS + 1;
        self.0.get(..end).filter(|_| self.is_subagent())
    }

    /// The conversation of the subagent that a call of this one begins: the same one for every start of the call, so that a call that is
    /// made again after a crash finds what it began (DESIGN §4.7). `seq` and `index` are those of its [`CallKey`].
    #[must_use]
    pub fn child(&self, seq: Seq, index: u32) -> Self {
        self.child_in(&self.children(), seq, index)
    }

    /// The same for who knows what [`ConversationId::children`] says already.
    pub(crate) fn child_in(&self, children: &Self, seq: Seq, index: u32) -> Self {
        let call = sha256_hex(&[b"subagent", self.0.as_bytes(), &seq.0.to_be_bytes(), &index.to_be_bytes()]);
        Self([children.as_str(), digits(&call, CALL_DIGITS)].concat().into())
    }

    /// The conversation of a subagent that nothing is to be found of later: its number behind what [`ConversationId::children`] says.
    pub(crate) fn numbered(&self, index: u32) -> Self {
        Self(format!("{self}{index}").into())
    }
}

fn digits(hex: &str, count: usize) -> &str {
    hex.get(..count).unwrap_or(hex)
}

impl CallKey {
    /// The conversation of the subagent that this call begins; see [`ConversationId::child`].
    #[must_use]
    pub fn child(&self) -> Scope {
        Scope::new(self.scope.tenant.clone(), self.scope.conversation.child(self.seq, self.index))
    }
}

/// A conversation with its tenant: the key of everything that is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Scope {
    /// Whose it is.
    pub tenant: TenantId,
    /// Which one.
    pub conversation: ConversationId,
}

impl Scope {
    /// Joins the two ids.
    pub fn new(tenant: TenantId, conversation: ConversationId) -> Self {
        Self { tenant, conversation }
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
            /// Makes an id (UUID version 4) of 16 random bytes.
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
    /// One round: a prompt and all that follows until its answer (REQUIREMENTS V-01). It is also the id of the round's event stream.
    RoundId
);
uuid_id!(
    /// One accepted prompt.
    PromptId
);
uuid_id!(
    /// One activation of a skill (REQUIREMENTS S-08).
    ActivationId
);

impl ActivationId {
    /// The activation that a tool call asks for: the same for every start of that call, so that one that runs again after a crash is
    /// known.
    pub fn of_call(key: &CallKey) -> Self {
        let hash = Sha256::digest(format!("skill activation\n{key}"));
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(hash).for_each(|(to, from)| *to = from);
        Self::from_random(bytes)
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Returns the value that follows this one.
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
    /// A life's right to write a conversation, and nothing else (DESIGN §4.3). A journal's first life takes the clock in milliseconds, each
    /// later one the next number.
    Epoch
);
counter!(
    /// Position of an entry in a conversation's journal. The first entry has seq 1; 0 stands before it.
    Seq
);

/// Names one piece of work that a conversation ordered: (epoch, seq of the entry that ordered it, index within it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkId {
    /// The life that ordered it.
    pub epoch: Epoch,
    /// The entry that ordered it.
    pub seq: Seq,
    /// Which of that entry's pieces.
    pub index: u32,
}

/// Names one tool call for ever: the place of its `tool_use` block in the journal. The idempotency key of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallKey {
    /// The conversation.
    pub scope: Scope,
    /// The assistant entry that holds the call.
    pub seq: Seq,
    /// Which of its calls, from 0.
    pub index: u32,
}

impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.scope, self.seq, self.index)
    }
}

/// Says why a text is not a [`CallKey`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a call's key is tenant/conversation/seq/index")]
pub struct InvalidCallKey;

impl FromStr for CallKey {
    type Err = InvalidCallKey;

    fn from_str(text: &str) -> Result<Self, InvalidCallKey> {
        let mut parts = text.splitn(4, '/');
        let mut part = || parts.next().ok_or(InvalidCallKey);
        let (tenant, conversation, seq, index) = (part()?, part()?, part()?, part()?);
        let tenant = TenantId::new(tenant).map_err(|_| InvalidCallKey)?;
        let conversation = ConversationId::new(conversation).map_err(|_| InvalidCallKey)?;
        let (seq, index) = (seq.parse().map_err(|_| InvalidCallKey)?, index.parse().map_err(|_| InvalidCallKey)?);
        Ok(Self { scope: Scope::new(tenant, conversation), seq: Seq(seq), index })
    }
}

/// A caller inside a conversation actor; the shell holds the reply port that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// Id of a stream event: `epoch.seq.n`, compared as three numbers (INTERFACES §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct EventId {
    /// The life that published it.
    pub epoch: Epoch,
    /// The entry it tells of, or the last one published before it.
    pub seq: Seq,
    /// Counts the events after that entry.
    pub n: u32,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.epoch, self.seq, self.n)
    }
}

/// Says why a text is not an [`EventId`].
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
        let mut part = || parts.next().filter(|p| p.bytes().all(|b| b.is_ascii_digit())).ok_or(InvalidEventId);
        let (epoch, seq, n) = (part()?.parse()?, part()?.parse()?, part()?.parse()?);
        Ok(Self { epoch: Epoch(epoch), seq: Seq(seq), n })
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

/// The SHA-256 of several parts, as 64 hex digits. Each part is preceded by its length, so that different parts never make the same
/// bytes by being joined (REQUIREMENTS T-15).
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

/// Names an artifact: `artifact_` and the first 16 hex digits of the content's SHA-256 (REQUIREMENTS A-05).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ArtifactId(Arc<str>);

/// The text is no artifact id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an artifact id is artifact_ and 16 hex digits")]
pub struct NotAnArtifactId;

impl ArtifactId {
    /// The name of a content.
    pub fn of(content: &[u8]) -> Self {
        Self::from_digest(&Sha256::digest(content))
    }

    /// The name of a content that was hashed while it was written.
    pub fn from_digest(digest: &[u8]) -> Self {
        let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self(format!("artifact_{hex}").into())
    }

    /// Reads an id.
    ///
    /// # Errors
    /// [`NotAnArtifactId`] for anything that is not exactly of this form: no separator or traversal can be in one.
    pub fn parse(text: &str) -> Result<Self, NotAnArtifactId> {
        let hash = text.strip_prefix("artifact_").ok_or(NotAnArtifactId)?;
        let fits = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if fits { Ok(Self(text.into())) } else { Err(NotAnArtifactId) }
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hash alone (REQUIREMENTS A-12, `data_hash`).
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
        for bad in ["", ".hidden", "../up", "a/b", "a b", "é", "a\0", &"x".repeat(129)] {
            assert!(ConversationId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_subagents_id_follows_from_its_call_and_stands_behind_its_parents_prefix() {
        let call = |conversation: &str, seq, index| {
            let scope = Scope::new("acme".parse().unwrap(), conversation.parse().unwrap());
            CallKey { scope, seq: Seq(seq), index }
        };
        let longest = "x".repeat(ID_BYTES_MAX);
        let keys = [call("c-1", 4, 0), call("c-1", 4, 1), call("c-1", 5, 0), call("c-2", 4, 0), call(&longest, 4, 0)];
        let children: Vec<Scope> = keys.iter().map(CallKey::child).collect();

        for (key, child) in keys.iter().zip(&children) {
            let (parent, id) = (&key.scope.conversation, &child.conversation);
            assert_eq!((key.child(), id.is_subagent(), parent.is_subagent()), (child.clone(), true, false));
            assert!(id.as_str().starts_with(parent.children().as_str()) && *id > parent.children());
            assert!(ConversationId::new(id.as_str()).is_ok(), "{id}");
            assert_eq!((id.family(), parent.family()), (parent.children(), parent.children()));
            assert_eq!(key.to_string().parse().as_ref(), Ok(key));
        }
        assert_eq!(children.iter().collect::<std::collections::BTreeSet<_>>().len(), 5);
        for bad in ["", "acme/c-1/4", "acme/c 1/4/0", "acme/c-1/x/0", "acme/c-1/4/0/1"] {
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
        let id = ArtifactId::of(b"abc");

        assert_eq!(id.as_str(), "artifact_ba7816bf8f01cfea");
        assert_eq!(ArtifactId::parse(id.as_str()), Ok(id));
        for bad in
            ["", "artifact_", "artifact_BA7816BF8F01CFEA", "artifact_../../etc/pass", "artifact_ba7816bf8f01cfea0", "ba7816bf8f01cfea"]
        {
            assert_eq!(ArtifactId::parse(bad), Err(NotAnArtifactId), "{bad}");
        }
    }
}
