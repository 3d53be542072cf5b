//! `callboard sessions list`: lists the stored conversations.

use callboard_actors::{
    ids::{ConversationId, Epoch, Seq},
    journal::{TITLE_ENTRIES, title},
    ports::{ListQuery, SessionSummary},
    stream::Open,
    time::Timestamp,
};
use clap::Args;
use serde::{Serialize, Serializer};

use super::{TenantFlag, names_store, served};
use crate::{
    app::Opening,
    cli::{
        failure::{Done, Failure},
        flags::StoreFlag,
        remote::{Remote, ServerFlags},
        terminal::{err_line, out, out_json, sanitize},
    },
    config::Config,
};

/// Arguments of `sessions list`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    #[command(flatten)]
    store: StoreFlag,
    #[command(flatten)]
    of: TenantFlag,
    #[command(flatten)]
    server: ServerFlags,
    /// Include the conversations of subagents
    #[arg(long)]
    subagents: bool,
    /// Do not read the conversations: no titles, and quick with very many of them
    #[arg(long)]
    no_titles: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A line of the list.
#[derive(Serialize)]
struct Row {
    conversation_id: ConversationId,
    title: Option<String>,
    #[serde(serialize_with = "as_text")]
    created_at: Timestamp,
    #[serde(serialize_with = "as_text")]
    updated_at: Timestamp,
    entries: Seq,
    epoch: Epoch,
    open: Open,
    failed: Option<String>,
}

fn as_text<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}

pub(super) async fn run(config: &Config, args: &ListArgs) -> Result<Done, Failure> {
    let remote = args.server.remote(names_store(&args.store, &args.of))?;
    let mut rows = match &remote {
        Some(remote) => of_server(remote, args).await?,
        None => of_store(config, args).await?,
    };
    if args.json {
        // For programs in the order of the ids, for people the newest first.
        out_json(&serde_json::to_string_pretty(&rows).unwrap_or_default());
        return Ok(Done::Well);
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.updated_at));
    if rows.is_empty() {
        err_line("no sessions are stored");
    }
    let running = match remote {
        Some(_) => "running",
        None => "interrupted",
    };
    out(&table(&rows, running));
    Ok(Done::Well)
}

async fn of_server(remote: &Remote, args: &ListArgs) -> Result<Vec<Row>, Failure> {
    let rows = served::rows(remote, !args.no_titles, args.subagents).await?;
    let rows = rows.into_iter().map(|row| Row {
        conversation_id: row.conversation_id,
        title: row.title,
        created_at: row.created_at,
        updated_at: row.updated_at,
        entries: row.entries,
        epoch: row.epoch,
        open: row.open,
        failed: row.failed,
    });
    Ok(rows.collect())
}

async fn of_store(config: &Config, args: &ListArgs) -> Result<Vec<Row>, Failure> {
    let sessions = args.store.open(config, Opening::Existing).await?;
    let backend = sessions.backend();
    let mut found = Vec::<SessionSummary>::new();
    loop {
        let after = found.last().map(|row| row.conversation.clone());
        let query = ListQuery {
            after,
            subagents: args.subagents,
            ..ListQuery::default()
        };
        let page = backend.list(&args.of.tenant, query).await?;
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    let mut rows = Vec::with_capacity(found.len());
    for row in found {
        let title = match args.no_titles {
            true => None,
            false => {
                let scope = args.of.scope(&row.conversation);
                let first = backend.entries(&scope, Seq::default(), TITLE_ENTRIES).await;
                first.ok().and_then(|first| title(&first))
            }
        };
        rows.push(Row {
            conversation_id: row.conversation,
            title,
            created_at: row.created_at,
            updated_at: row.updated_at,
            entries: row.head.seq,
            epoch: row.head.epoch,
            open: row.open,
            failed: row.failed,
        });
    }
    Ok(rows)
}

/// The rows for people. `running` is the word for an open round.
fn table(rows: &[Row], running: &str) -> String {
    let width = rows
        .iter()
        .map(|row| row.conversation_id.as_str().len())
        .max()
        .unwrap_or_default();
    let mut table = String::new();
    for row in rows {
        let when = row.updated_at.to_string().replace('T', " ");
        let when = when.split('.').next().unwrap_or_default().to_owned();
        let state = match (&row.failed, row.open) {
            (Some(_), _) => "unreadable",
            (None, Open::None) => "",
            (None, Open::Running) => running,
            (None, Open::Parked) => "waiting for approval",
        };
        let title = row
            .title
            .as_ref()
            .map(|title| format!("{}  ", sanitize(title)));
        table.push_str(
            format!(
                "{:<width$}  {when}  {:>5} entries  {}{state}",
                sanitize(row.conversation_id.as_str()),
                row.entries,
                title.unwrap_or_default(),
            )
            .trim_end(),
        );
        table.push('\n');
    }
    table
}
