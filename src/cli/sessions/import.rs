//! `callboard sessions import`: stores a conversation from a file and repairs it if needed.

use std::{io::Read, path::PathBuf};

use callboard_actors::{
    chat::{ContentBlock, History, Message, Repair, Role},
    ids::{ConversationId, Scope},
    journal::{ConversationRound, SchemaVersion, migrate_round, records_fit, settled},
};
use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    TenantFlag,
    export::{Exported, FORMAT, VERSION},
    quiet_host,
};
use crate::{
    app::{Opening, Sessions},
    cli::{
        failure::{Done, Failure},
        flags::StoreFlag,
        run::SHUTDOWN,
        session::fresh_id,
        terminal::{counted, out_json},
    },
    config::Config,
    named_file, os_error,
};

/// Maximum file size in bytes.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Arguments of `sessions import`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ImportArgs {
    /// An export or a JSON array of messages; `-` for standard input
    file: PathBuf,
    /// Store it under this id [default: the export's own, or a new one]
    #[arg(long, value_name = "ID")]
    session: Option<ConversationId>,
    /// Replace the messages of an existing session with that id; its journal keeps the old ones
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    store: StoreFlag,
    #[command(flatten)]
    of: TenantFlag,
}

/// The result, as printed.
#[derive(Debug, Serialize)]
struct Imported {
    conversation_id: ConversationId,
    messages: usize,
    repairs: Vec<Repair>,
}

pub(super) async fn run(config: &Config, args: &ImportArgs) -> Result<Done, Failure> {
    let text = read(&args.file)?;
    let Parsed {
        named,
        messages,
        rounds,
    } = parse(&text)?;
    let id = match args.session.clone().or(named) {
        Some(id) => id,
        None => fresh_id()?,
    };
    known_blocks(&messages)?;
    let (history, mut repairs) = History::mend(messages);
    let rounds = fitting(rounds, &history, &mut repairs);
    let sessions = args.store.open(config, Opening::OrCreate).await?;
    let scope = args.of.scope(&id);
    let _lock = sessions.lock(&scope)?;
    store(config, &sessions, args, &scope, &history, rounds).await?;
    let imported = Imported {
        conversation_id: id,
        messages: history.messages().len(),
        repairs,
    };
    out_json(&serde_json::to_string(&imported).unwrap_or_default());
    Ok(Done::Well)
}

/// Stores a history in a conversation through a host, which maintains epochs and metrics.
async fn store(
    config: &Config,
    sessions: &Sessions,
    args: &ImportArgs,
    Scope {
        tenant,
        conversation: id,
    }: &Scope,
    history: &History,
    rounds: Vec<ConversationRound>,
) -> Result<(), Failure> {
    let app = quiet_host(config, sessions).await?;
    let handle = app.host.tenant(tenant.clone()).conversation(id.clone());
    let there = handle
        .state()
        .await
        .map_err(|error| crate::cli::session::unreadable(id, error))?;
    let holds_something =
        !there.history.messages().is_empty() || there.round.is_some() || !there.inbox.is_empty();
    if holds_something && !args.replace {
        let failure = Failure::work(format!(
            "session `{id}` already exists, with {}",
            counted(there.history.messages().len(), "message")
        ));
        return Err(failure.hint("choose another id with --session, or replace it with --replace"));
    }
    if !there.inbox.is_empty() {
        return Err(Failure::work(format!(
            "session `{id}` has a prompt that is not answered yet"
        ))
        .hint(format!(
            "`callboard run --session {id} --resume` answers it"
        )));
    }
    let imported = handle
        .import_rounds(history.messages().iter().cloned().collect(), rounds)
        .await;
    app.host.shutdown(SHUTDOWN).await;
    Ok(imported?)
}

fn read(path: &std::path::Path) -> Result<String, Failure> {
    let shown = path.display();
    let failed = |error: std::io::Error| Failure::work(os_error::of_file(&shown, &error));
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        std::io::stdin()
            .lock()
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
    } else {
        named_file::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
            .map_err(failed)?;
    }
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Failure::work(format!(
            "{shown} is longer than {FILE_BYTES_MAX} bytes"
        )));
    }
    String::from_utf8(bytes).map_err(|_| Failure::work(format!("{shown} is not UTF-8 text")))
}

/// Refuses a block of the user whose type no provider knows, as the HTTP API does: a note in its
/// place would lose what the user sent.
fn known_blocks(messages: &[Message]) -> Result<(), Failure> {
    let of_user = |(_, message): &(usize, &Message)| message.role() == Role::User;
    for (index, message) in messages.iter().enumerate().filter(of_user) {
        for (place, block) in message.blocks().into_iter().enumerate() {
            let is_media = matches!(block.kind(), "image" | "document");
            if is_media || !matches!(block, ContentBlock::Other { .. }) {
                continue;
            }
            let alone = Message::new(Role::User, &[block]).map(|message| [message]);
            if let Some(fault) = alone.ok().and_then(|alone| History::accept(alone).err()) {
                let what = fault.what.split(": a note was").next().unwrap_or_default();
                return Err(Failure::work(format!(
                    "message {index}: /{index}/content/{place}: {what}"
                )));
            }
        }
    }
    Ok(())
}

/// What a file holds.
struct Parsed {
    named: Option<ConversationId>,
    messages: Vec<Message>,
    /// Records of the rounds; `None` if any of them cannot be read.
    rounds: Option<Vec<ConversationRound>>,
}

/// Returns the records of rounds that fit `history`, and adds what did not fit to `repairs`. An
/// empty result makes the host derive the rounds from the messages.
fn fitting(
    rounds: Option<Vec<ConversationRound>>,
    history: &History,
    repairs: &mut Vec<Repair>,
) -> Vec<ConversationRound> {
    let derived = || {
        Repair { index: 0, what: "the records of rounds did not fit the messages: rounds were derived from the messages again".into() }
    };
    if rounds.as_ref().is_some_and(Vec::is_empty) {
        return Vec::new();
    }
    let Some(rounds) = rounds
        .filter(|rounds| repairs.is_empty() && records_fit(rounds, history.messages()).is_ok())
    else {
        repairs.push(derived());
        return Vec::new();
    };
    let (rounds, closed) = settled(rounds);
    for round in rounds
        .iter()
        .filter(|round| closed.contains(&round.round_id))
    {
        let index = round.start.map_or(0, |start| start as usize);
        repairs.push(Repair {
            index,
            what: format!(
                "round {} was open: it is stored as interrupted",
                round.round_id
            ),
        });
    }
    rounds
}

fn parse(text: &str) -> Result<Parsed, Failure> {
    let wrong = |error: serde_json::Error| {
        Failure::work(format!(
            "this is neither an export nor a JSON array of messages: {error}"
        ))
        .hint("`callboard sessions export` writes one")
    };
    let mut version = SchemaVersion::LATEST;
    let (named, raw, rounds): (_, Vec<Box<RawValue>>, Vec<serde_json::Value>) = if text
        .trim_start()
        .starts_with('[')
    {
        (None, serde_json::from_str(text).map_err(wrong)?, Vec::new())
    } else {
        let export: Exported = serde_json::from_str(text).map_err(wrong)?;
        if export.format != FORMAT || export.version > VERSION {
            let found = format!("{} version {}", export.format, export.version);
            return Err(Failure::work(format!(
                "this is {found}; this program reads {FORMAT} up to version {VERSION}"
            )));
        }
        if let Some(word) = export.schema_version {
            let latest = SchemaVersion::LATEST;
            version = readable(&word).ok_or_else(|| {
                    Failure::work(format!(
                        "its messages have schema version {word}: Cannot migrate from {word} to {latest}"
                    ))
                })?;
        }
        (export.conversation_id, export.messages, export.rounds)
    };
    let messages = raw.iter().enumerate().map(|(index, raw)| {
        Message::from_wire(raw.get().as_bytes())
            .map_err(|error| Failure::work(format!("message {index}: {error}")))
    });
    let rounds = rounds
        .into_iter()
        .map(|mut round| {
            migrate_round(&mut round, version).ok()?;
            serde_json::from_value(round).ok()
        })
        .collect();
    Ok(Parsed {
        named,
        messages: messages.collect::<Result<_, _>>()?,
        rounds,
    })
}

/// The schema version, if this program reads messages of it.
fn readable(word: &str) -> Option<SchemaVersion> {
    SchemaVersion::parse(word).filter(|written| SchemaVersion::LATEST.is_compatible_with(*written))
}
