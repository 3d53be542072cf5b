//! `callboard sessions export`, and the form that `import` reads again.

use callboard_actors::{
    chat::{History, Message},
    ids::ConversationId,
    journal::{ConversationRound, SchemaVersion, UsageTotals},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Found, OneArgs,
    journal::{self, Readable},
};
use crate::{
    cli::{
        failure::{Done, Failure},
        terminal::{err_line, out_json},
    },
    config::Config,
};

/// The name of the form.
pub(super) const FORMAT: &str = "callboard.session";
/// Its version.
pub(super) const VERSION: u32 = 1;

/// A conversation in a file (INTERFACES §2).
#[derive(Debug, Serialize)]
pub(super) struct Export<'a> {
    format: &'static str,
    version: u32,
    /// Of the forms of messages and rounds (REQUIREMENTS F-16).
    schema_version: SchemaVersion,
    conversation_id: &'a ConversationId,
    /// Not part of a conversation: it belongs to whoever asks the model.
    system: Option<&'a str>,
    messages: Vec<&'a Message>,
    rounds: Vec<ConversationRound>,
    /// Of all its rounds.
    usage: UsageTotals,
    /// What was wrong with the journal, if it could not be read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<&'a str>,
    /// The raw journal, kept by `repair`.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<Vec<RawEntry<'a>>>,
}

/// One stored row as it was.
#[derive(Debug, Serialize)]
pub(super) struct RawEntry<'a> {
    seq: u64,
    /// The bytes, where they are JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<&'a RawValue>,
    /// The bytes as text, where they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The bytes in hexadecimal, where they are not even text.
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

/// What `import` reads of an export. Unknown fields are passed over.
#[derive(Debug, Deserialize)]
pub(super) struct Exported {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) conversation_id: Option<ConversationId>,
    pub(super) messages: Vec<Box<RawValue>>,
    #[serde(default)]
    pub(super) schema_version: Option<String>,
    #[serde(default)]
    pub(super) rounds: Vec<Box<RawValue>>,
}

impl<'a> Export<'a> {
    /// The readable part of a journal. `history` is what of it a model would be sent.
    pub(super) fn of(id: &'a ConversationId, readable: &'a Readable, history: &'a History) -> Self {
        let rounds = readable.rounds();
        let usage = UsageTotals::of_rounds(&rounds);
        Self {
            format: FORMAT,
            version: VERSION,
            schema_version: SchemaVersion::LATEST,
            conversation_id: id,
            system: None,
            messages: history.messages().iter().collect(),
            rounds,
            usage,
            damage: readable.fault.as_deref(),
            journal: None,
        }
    }

    /// With every stored row as it was.
    pub(super) fn with_journal(mut self, readable: &'a Readable) -> Self {
        self.journal = Some(
            readable
                .stored
                .iter()
                .map(|stored| {
                    let text = std::str::from_utf8(&stored.bytes).ok();
                    let entry = text.and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
                    let text = if entry.is_none() { text.map(str::to_owned) } else { None };
                    let hex = if entry.is_none() && text.is_none() {
                        Some(stored.bytes.iter().map(|byte| format!("{byte:02x}")).collect())
                    } else {
                        None
                    };
                    RawEntry { seq: stored.seq.0, entry, text, hex }
                })
                .collect(),
        );
        self
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

pub(super) async fn run(config: &Config, args: &OneArgs) -> Result<Done, Failure> {
    let found = Found::open(config, args).await?;
    let readable = journal::read(&*found.sessions.backend(), &found.scope).await?;
    let export = Export::of(&found.id, &readable, &readable.state.history);
    out_json(&export.to_json());
    match &readable.fault {
        None => Ok(Done::Well),
        Some(fault) => {
            let (read, id) = (readable.entries.len(), &found.id);
            err_line(&format!("only the first {read} entries of `{id}` are readable: {fault} (hint: `callboard sessions repair {id}`)"));
            Ok(Done::Badly)
        }
    }
}
