//! `callboard sessions show`: prints the messages, open questions and metrics of a conversation.

use callboard_actors::journal::{MultiRoundConversation, SchemaVersion, debug_form};
use clap::Args;

use super::{Found, ServedArgs, journal, names_store, served, shown::Shown};
use crate::{
    cli::{
        failure::{Done, Failure},
        remote::ServerFlags,
        terminal::out_json,
    },
    config::Config,
};

/// Arguments of `sessions show`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    #[command(flatten)]
    served: ServedArgs,
    #[command(flatten)]
    server: ServerFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print all messages in their debug form as JSON, one per line: flat blocks with time and ids,
    /// also those that a compaction dropped
    #[arg(long, conflicts_with_all = ["json", "rounds"])]
    debug: bool,
    /// Print the rounds as JSON, with active skills and how full the window is
    #[arg(long, conflicts_with = "json")]
    rounds: bool,
}

pub(super) async fn run(config: &Config, args: &ShowArgs) -> Result<Done, Failure> {
    let id = &args.served.one.id;
    let remote = args
        .server
        .remote(names_store(&args.served.one.store, &args.served.of))?;
    let shown = match remote {
        Some(remote) if args.debug => {
            for message in served::debug(&remote, id).await? {
                out_json(&message.to_string());
            }
            return Ok(Done::Well);
        }
        Some(remote) if args.rounds => {
            let shown = served::multi_round(&remote, id).await?;
            out_json(&serde_json::to_string_pretty(&shown).unwrap_or_default());
            return Ok(Done::Well);
        }
        Some(remote) => served::read(&remote, id).await?,
        None => match stored(config, args).await? {
            Some(shown) => shown,
            None => return Ok(Done::Well),
        },
    };
    if args.json {
        out_json(&serde_json::to_string_pretty(&shown.to_json()).unwrap_or_default());
    } else {
        shown.print();
    }
    Ok(Done::Well)
}

/// Reads a conversation of the store; `None` if a flag asked for a form that is printed here.
async fn stored(config: &Config, args: &ShowArgs) -> Result<Option<Shown>, Failure> {
    let found = Found::open(config, &args.served).await?;
    let readable = journal::read(&*found.sessions.backend(), &found.scope).await?;
    if let Some(fault) = &readable.fault {
        return Err(args.served.unreadable(fault));
    }
    if args.debug {
        let version = SchemaVersion::LATEST.to_string();
        for message in debug_form(&found.scope, &readable.entries) {
            out_json(&message.to_debug_dict(&version).to_string());
        }
        return Ok(None);
    }
    if args.rounds {
        let trigger = config.compaction.trigger;
        let window = (MultiRoundConversation::WINDOW, trigger);
        let rounds = readable.rounds();
        let shown = MultiRoundConversation::new(&found.scope, rounds, &readable.state, window);
        out_json(&serde_json::to_string_pretty(&shown).unwrap_or_default());
        return Ok(None);
    }
    Ok(Some(Shown::stored(readable)))
}
