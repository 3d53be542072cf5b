//! `callboard sessions list`: lists the stored conversations.

use callboard_actors::{
    ports::{ListQuery, SessionSummary},
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
    if args.json {
        let listed: Vec<_> = rows.iter().map(as_json).collect();
        out_json(&serde_json::to_string_pretty(&listed).unwrap_or_default());
        return Ok(Done::Well);
    }
    if rows.is_empty() {
        err_line("no sessions are stored");
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.updated_at));
    let width = rows
        .iter()
        .map(|row| row.conversation.as_str().len())
        .max()
        .unwrap_or_default();
    let mut table = String::new();
    for row in &rows {
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
                "{:<width$}  {when}  {:>5} entries  {state}",
                sanitize(row.conversation.as_str()),
                row.head.seq
            )
            .trim_end(),
        );
        table.push('\n');
    }
    out(&table);
    Ok(Done::Well)
}

fn as_json(row: &SessionSummary) -> serde_json::Value {
    serde_json::json!({
        "conversation_id": row.conversation,
        "created_at": row.created_at.to_string(),
        "updated_at": row.updated_at.to_string(),
        "entries": row.head.seq,
        "epoch": row.head.epoch,
        "open": row.open,
        "failed": row.failed,
    })
}
