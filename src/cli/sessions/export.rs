//! `callboard sessions export`, and the JSON format that `import` reads.

use callboard_actors::{
    chat::{History, Message},
    ids::ConversationId,
    journal::{ConversationRound, SchemaVersion, UsageTotals},
};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Found, ServedArgs,
    journal::{self, Readable},
    names_store, served,
    shown::Shown,
};
use crate::{
    cli::{
        failure::{Done, Failure},
        remote::ServerFlags,
        terminal::{counted, err_line, out_json},
    },
    config::Config,
};

/// Name of the format.
pub(super) const FORMAT: &str = "callboard.session";
/// Version of the format.
pub(super) const VERSION: u32 = 1;

/// A conversation as a JSON file.
#[derive(Debug, Serialize)]
pub(super) struct Export<'a> {
    format: &'static str,
    version: u32,
    /// Version of the schemas of messages and rounds.
    schema_version: SchemaVersion,
    conversation_id: &'a ConversationId,
    /// Always `None`: the system prompt is not part of a conversation but of its configuration.
    system: Option<&'a str>,
    messages: Vec<&'a Message>,
    rounds: Vec<ConversationRound>,
    /// Usage of all rounds.
    usage: UsageTotals,
    /// What is damaged in the journal, if not all of it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<&'a str>,
    /// The raw journal; `repair` adds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<Vec<RawEntry<'a>>>,
}

/// One stored row, unchanged.
#[derive(Debug, Serialize)]
pub(super) struct RawEntry<'a> {
    seq: u64,
    /// The bytes, if they are JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<&'a RawValue>,
    /// The bytes as text, if they are not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The bytes in hexadecimal, if they are not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

/// The fields of an export that `import` reads. Unknown fields are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct Exported {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) conversation_id: Option<ConversationId>,
    pub(super) messages: Vec<Box<RawValue>>,
    #[serde(default)]
    pub(super) schema_version: Option<String>,
    #[serde(default)]
    pub(super) rounds: Vec<serde_json::Value>,
}

impl<'a> Export<'a> {
    /// The readable part of a journal. `history` holds the messages to export.
    pub(super) fn new(
        id: &'a ConversationId,
        readable: &'a Readable,
        history: &'a History,
    ) -> Self {
        let rounds = readable.rounds();
        let usage = UsageTotals::from_rounds(&rounds);
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

    /// A conversation of a running host.
    fn served(shown: &'a Shown) -> Self {
        Self {
            format: FORMAT,
            version: VERSION,
            schema_version: SchemaVersion::LATEST,
            conversation_id: &shown.id,
            system: None,
            messages: shown.messages.iter().collect(),
            usage: UsageTotals::from_rounds(&shown.rounds),
            rounds: shown.rounds.clone(),
            damage: None,
            journal: None,
        }
    }

    /// Adds every stored row, unchanged.
    pub(super) fn with_journal(mut self, readable: &'a Readable) -> Self {
        self.journal = Some(
            readable
                .stored
                .iter()
                .map(|stored| {
                    let text = std::str::from_utf8(&stored.bytes).ok();
                    let entry = text.and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
                    let text = if entry.is_none() {
                        text.map(str::to_owned)
                    } else {
                        None
                    };
                    let hex = if entry.is_none() && text.is_none() {
                        Some(
                            stored
                                .bytes
                                .iter()
                                .map(|byte| format!("{byte:02x}"))
                                .collect(),
                        )
                    } else {
                        None
                    };
                    RawEntry {
                        seq: stored.seq.0,
                        entry,
                        text,
                        hex,
                    }
                })
                .collect(),
        );
        self
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Arguments of `sessions export`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ExportArgs {
    #[command(flatten)]
    served: ServedArgs,
    #[command(flatten)]
    server: ServerFlags,
}

pub(super) async fn run(config: &Config, args: &ExportArgs) -> Result<Done, Failure> {
    let ExportArgs {
        served: args,
        server,
    } = args;
    if let Some(remote) = server.remote(names_store(&args.one.store, &args.of))? {
        let shown = served::read(&remote, &args.one.id).await?;
        out_json(&Export::served(&shown).to_json());
        return Ok(Done::Well);
    }
    let found = Found::open(config, args).await?;
    let readable = journal::read(&*found.sessions.backend(), &found.scope).await?;
    let export = Export::new(&found.id, &readable, &readable.state.history);
    out_json(&export.to_json());
    match &readable.fault {
        None => Ok(Done::Well),
        Some(fault) => {
            let read = readable.entries.len();
            let lost = readable.stored.len().saturating_sub(read);
            let (id, flags) = (&found.id, args.of.repeated());
            err_line(&format!(
                "only the first {read} entries of `{id}` are readable: {fault}; not exported: {} (hint: `callboard sessions repair {id}{flags}`)",
                counted(lost, "stored row"),
            ));
            Ok(Done::Badly)
        }
    }
}
