//! `callboard sessions`: lists, prints, imports and changes stored conversations.

mod list;
mod show;
mod journal;
mod export;
mod import;
mod request;
mod rounds;
mod remove;
mod repair;
mod served;
mod shown;

use callboard_actors::{
    conversation::{ConversationError, round::rules::Recovery},
    ids::{ConversationId, Scope, TenantId},
    journal::{ConversationMetrics, Durable},
};
use clap::{Args, Subcommand};
pub(super) use served::messages;

use super::{
    failure::{Done, Failure},
    flags::StoreFlag,
    remote::Remote,
    session::{not_found_in, unreadable, unreadable_of},
};
use crate::{
    app::{self, App, Chosen, Opening, Overrides, Sessions, TENANT},
    config::Config,
};

pub(super) const EXAMPLE: &str =
    "Example:\n  callboard sessions export support-42 > support-42.json";

/// Subcommands of `sessions`.
#[derive(Debug, Subcommand)]
pub(super) enum SessionsCommand {
    /// List the stored conversations
    #[command(after_help = "Example:\n  callboard sessions list --json")]
    List(list::ListArgs),
    /// Show a conversation: its messages, what it waits for, its metrics
    #[command(after_help = "Example:\n  callboard sessions show support-42")]
    Show(show::ShowArgs),
    /// Print a conversation as JSON; of a damaged one, the readable part
    #[command(after_help = EXAMPLE)]
    Export(export::ExportArgs),
    /// Store a conversation from an export or a JSON array of messages; prints what it repaired
    #[command(
        after_help = "Example:\n  callboard sessions import support-42.json --session support-43"
    )]
    Import(import::ImportArgs),
    /// Print the exact body of the next model call, and nothing else
    #[command(
        after_help = "Example:\n  callboard sessions request support-42 --provider anthropic | jq .messages"
    )]
    Request(Box<request::RequestArgs>),
    /// Copy a conversation; the source may be in use meanwhile
    #[command(
        after_help = "Example:\n  callboard sessions fork support-42 --at 3 --session support-42b"
    )]
    Fork(rounds::ForkArgs),
    /// Undo a round and all later ones; the journal keeps their messages
    #[command(after_help = "Example:\n  callboard sessions rewind support-42 --to 4")]
    Rewind(rounds::RewindArgs),
    /// Empty a conversation; its journal keeps the messages
    #[command(after_help = "Example:\n  callboard sessions reset support-42")]
    Reset(ServedArgs),
    /// Erase a conversation and all its stored data
    #[command(after_help = "Example:\n  callboard sessions delete support-42")]
    Delete(ServedArgs),
    /// Repair a conversation whose journal cannot be read
    #[command(
        long_about = repair::ABOUT,
        after_help = "Example:\n  callboard sessions repair support-42"
    )]
    Repair(repair::RepairArgs),
}

/// A conversation and its store.
#[derive(Debug, Clone, Args)]
pub(super) struct OneArgs {
    /// Id of the conversation
    #[arg(value_name = "ID")]
    id: ConversationId,
    #[command(flatten)]
    store: StoreFlag,
}

/// Which tenant's conversations are meant.
#[derive(Debug, Clone, Args)]
pub(super) struct TenantFlag {
    /// A tenant of `serve` [default: the conversations of the command line]
    #[arg(long, value_name = "NAME", default_value = TENANT, hide_default_value = true)]
    tenant: TenantId,
}

impl TenantFlag {
    /// The tenant.
    pub(super) fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// Whether the command line's conversations are meant.
    pub(super) fn is_default(&self) -> bool {
        self.tenant.as_str() == TENANT
    }

    /// A conversation of the tenant.
    pub(super) fn scope(&self, id: &ConversationId) -> Scope {
        Scope::new(self.tenant.clone(), id.clone())
    }

    /// The flag for a command line in a hint; empty where it is not needed.
    fn repeated(&self) -> String {
        match self.tenant.as_str() {
            TENANT => String::new(),
            tenant => format!(" --tenant {tenant}"),
        }
    }
}

/// A conversation, its store and its tenant.
#[derive(Debug, Clone, Args)]
pub(super) struct ServedArgs {
    #[command(flatten)]
    one: OneArgs,
    #[command(flatten)]
    of: TenantFlag,
}

impl ServedArgs {
    /// The error for a journal that cannot be read.
    fn unreadable(&self, reason: &str) -> Failure {
        unreadable_of(&self.one.id, reason, &self.of.repeated())
    }
}

/// Whether flags name a store, so that the variable of a server does not count.
pub(super) fn names_store(store: &StoreFlag, of: &TenantFlag) -> bool {
    store.db.is_some() || !of.is_default()
}

/// The figures of a conversation of a running host.
pub(super) async fn served_report(
    remote: &Remote,
    id: &ConversationId,
) -> Result<served::ServedReport, Failure> {
    served::report(remote, id).await
}

/// The figures of all conversations of a running host; the ids of those that cannot be read.
pub(super) async fn served_figures(
    remote: &Remote,
) -> Result<(Vec<ConversationMetrics>, Vec<ConversationId>), Failure> {
    let (mut figures, mut unread) = (Vec::new(), Vec::new());
    for row in served::rows(remote, false, false).await? {
        match row.failed {
            Some(_) => unread.push(row.conversation_id),
            None => figures.push(served::report(remote, &row.conversation_id).await?.metrics),
        }
    }
    Ok((figures, unread))
}

/// An existing conversation.
struct Found {
    sessions: Sessions,
    id: ConversationId,
    scope: Scope,
}

impl Found {
    async fn open(config: &Config, args: &ServedArgs) -> Result<Self, Failure> {
        let scope = args.of.scope(&args.one.id);
        let sessions = args.one.store.open(config, Opening::Existing).await?;
        if sessions.backend().head(&scope).await?.seq.0 == 0 {
            return Err(not_found_in(&sessions, &scope).await);
        }
        Ok(Self {
            sessions,
            id: args.one.id.clone(),
            scope,
        })
    }
}

/// Reads and folds the journal of a conversation.
pub(super) async fn stored(sessions: &Sessions, scope: &Scope) -> Result<Durable, Failure> {
    if sessions.backend().head(scope).await?.seq.0 == 0 {
        return Err(not_found_in(sessions, scope).await);
    }
    let readable = journal::read(&*sessions.backend(), scope).await?;
    match readable.fault {
        Some(reason) => Err(unreadable(
            &scope.conversation,
            ConversationError::Failed { reason }.into(),
        )),
        None => Ok(readable.state),
    }
}

/// A host that can change stored conversations without calling a model: it closes their open rounds
/// instead of resuming them.
async fn quiet_host(config: &Config, sessions: &Sessions) -> Result<App, Failure> {
    let overrides = Overrides {
        workspace: ".".into(),
        tools: Some(Vec::new()),
        recovery: Recovery::Close,
        ..Overrides::default()
    };
    let chosen = Chosen::offline();
    Ok(app::start_with(config, &overrides, sessions, chosen).await?)
}

pub(super) async fn run(config: &Config, command: SessionsCommand) -> Result<Done, Failure> {
    match command {
        SessionsCommand::List(args) => list::run(config, &args).await,
        SessionsCommand::Show(args) => show::run(config, &args).await,
        SessionsCommand::Export(args) => export::run(config, &args).await,
        SessionsCommand::Import(args) => import::run(config, &args).await,
        SessionsCommand::Request(args) => request::run(config, &args).await,
        SessionsCommand::Fork(args) => rounds::fork(config, &args).await,
        SessionsCommand::Rewind(args) => rounds::rewind(config, &args).await,
        SessionsCommand::Reset(args) => remove::reset(config, &args).await,
        SessionsCommand::Delete(args) => remove::delete(config, &args).await,
        SessionsCommand::Repair(args) => repair::run(config, &args).await,
    }
}
