//! `callboard sessions list`: lists the stored conversations.

use callboard_actors::{
    ids::{Scope, Seq},
    journal::{Entry, EntryBody},
    ports::{ListQuery, SessionBackend, SessionSummary},
    stream::Open,
};
use clap::Args;

use super::TenantFlag;
use crate::{
    app::Opening,
    cli::{
        failure::{Done, Failure},
        flags::StoreFlag,
        terminal::{err_line, out, out_json, sanitize},
    },
    config::Config,
};

/// Characters of a title.
const TITLE_CHARS: usize = 60;

/// Entries that are searched for the first prompt.
const TITLE_ENTRIES: usize = 4;

/// Arguments of `sessions list`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    #[command(flatten)]
    store: StoreFlag,
    #[command(flatten)]
    of: TenantFlag,
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

pub(super) async fn run(config: &Config, args: &ListArgs) -> Result<Done, Failure> {
    let sessions = args.store.open(config, Opening::Existing).await?;
    let tenant = &args.of.tenant;
    let backend = sessions.backend();
    let mut rows = Vec::<SessionSummary>::new();
    loop {
        let after = rows.last().map(|row| row.conversation.clone());
        let page = backend
            .list(
                tenant,
                ListQuery {
                    after,
                    subagents: args.subagents,
                    ..ListQuery::default()
                },
            )
            .await?;
        if page.is_empty() {
            break;
        }
        rows.extend(page);
    }
    if !args.json {
        // For people the newest first; for programs in the order of the ids, as before.
        rows.sort_by_key(|row| std::cmp::Reverse(row.updated_at));
    }
    let mut titles = Vec::with_capacity(rows.len());
    for row in &rows {
        titles.push(match args.no_titles {
            true => None,
            false => title(&*backend, &args.of.scope(&row.conversation)).await,
        });
    }
    if args.json {
        let listed: Vec<_> = rows
            .iter()
            .zip(&titles)
            .map(|(row, title)| as_json(row, title.as_deref()))
            .collect();
        out_json(&serde_json::to_string_pretty(&listed).unwrap_or_default());
        return Ok(Done::Well);
    }
    if rows.is_empty() {
        err_line("no sessions are stored");
    }
    let width = rows
        .iter()
        .map(|row| row.conversation.as_str().len())
        .max()
        .unwrap_or_default();
    let mut table = String::new();
    for (row, title) in rows.iter().zip(&titles) {
        let when = row.updated_at.to_string().replace('T', " ");
        let when = when.split('.').next().unwrap_or_default().to_owned();
        let state = match (&row.failed, row.open) {
            (Some(_), _) => "unreadable",
            (None, Open::None) => "",
            (None, Open::Running) => "interrupted",
            (None, Open::Parked) => "waiting for approval",
        };
        table.push_str(
            format!(
                "{:<width$}  {when}  {:>5} entries  {}{state}",
                sanitize(row.conversation.as_str()),
                row.head.seq,
                title
                    .as_ref()
                    .map(|title| format!("{}  ", sanitize(title)))
                    .unwrap_or_default(),
            )
            .trim_end(),
        );
        table.push('\n');
    }
    out(&table);
    Ok(Done::Well)
}

/// The first words of the first prompt; `None` without one in the first entries.
async fn title(backend: &dyn SessionBackend, scope: &Scope) -> Option<String> {
    let entries = backend
        .entries(scope, Seq::default(), TITLE_ENTRIES)
        .await
        .ok()?;
    entries.iter().find_map(|stored| {
        let text = match Entry::decode(stored).ok()?.body {
            EntryBody::PromptAccepted { message, .. } => message.text(),
            EntryBody::Imported { messages, .. } => messages.first()?.text(),
            _ => return None,
        };
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(clipped(&words)).filter(|title| !title.is_empty())
    })
}

fn clipped(words: &str) -> String {
    match words.char_indices().nth(TITLE_CHARS) {
        Some((end, _)) => format!("{}…", words.get(..end).unwrap_or_default()),
        None => words.to_owned(),
    }
}

fn as_json(row: &SessionSummary, title: Option<&str>) -> serde_json::Value {
    serde_json::json!({
        "conversation_id": row.conversation,
        "title": title,
        "created_at": row.created_at.to_string(),
        "updated_at": row.updated_at.to_string(),
        "entries": row.head.seq,
        "epoch": row.head.epoch,
        "open": row.open,
        "failed": row.failed,
    })
}
