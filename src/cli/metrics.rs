//! `callboard metrics`: reports usage and timing of one stored conversation, or of all together.

use std::collections::BTreeMap;

use callboard_actors::{
    ids::ConversationId,
    journal::{ConversationMetrics, Durable, GlobalStats, ToolStats, thousands},
};
use clap::Args;

use super::{
    failure::{Done, Failure},
    flags::StoreFlag,
    remote::{Remote, ServerFlags},
    sessions::{TenantFlag, names_store, served_figures, served_report, stored},
    terminal::{err_line, out, out_json, sanitize},
};
use crate::{app::Opening, config::Config};

/// Usage and timing of a stored conversation; without ID of all together
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  callboard metrics support-42\n  callboard metrics --json")]
pub(super) struct MetricsArgs {
    /// Id of the conversation
    #[arg(value_name = "ID")]
    id: Option<ConversationId>,
    #[command(flatten)]
    store: StoreFlag,
    #[command(flatten)]
    of: TenantFlag,
    #[command(flatten)]
    server: ServerFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(config: &Config, args: MetricsArgs) -> Result<Done, Failure> {
    if let Some(remote) = args.server.remote(names_store(&args.store, &args.of))? {
        return of_server(&remote, &args).await;
    }
    let sessions = args.store.open(config, Opening::Existing).await?;
    let Some(id) = args.id else {
        let tenant = args.of.tenant();
        let mut figures = Vec::new();
        for id in sessions.ids(tenant).await? {
            match stored(&sessions, &args.of.scope(&id)).await {
                Ok(state) => figures.push(state.metrics),
                Err(_) => not_counted(&id),
            }
        }
        print_together(&figures, args.json);
        return Ok(Done::Well);
    };
    let state = stored(&sessions, &args.of.scope(&id)).await?;
    if args.json {
        let tools: BTreeMap<&str, ToolStats> = state.tool_stats().into_iter().collect();
        out_json(&pretty(&serde_json::json!({
            "conversation_id": id,
            "total_duration_ms": state.metrics.total_duration_ms(),
            "total_tokens": state.metrics.total_tokens(),
            "metrics": state.metrics,
            "tools": tools,
            "skills": state.skills.used,
        })));
    } else {
        report(&state, &id);
    }
    Ok(Done::Well)
}

/// The same of a running host.
async fn of_server(remote: &Remote, args: &MetricsArgs) -> Result<Done, Failure> {
    let Some(id) = &args.id else {
        let (figures, unread) = served_figures(remote).await?;
        unread.iter().for_each(not_counted);
        print_together(&figures, args.json);
        return Ok(Done::Well);
    };
    let report = served_report(remote, id).await?;
    if args.json {
        out_json(&pretty(&serde_json::json!({
            "conversation_id": id,
            "total_duration_ms": report.total_duration_ms,
            "total_tokens": report.total_tokens,
            "metrics": report.metrics,
            "tools": report.tools,
            "skills": report.skills,
        })));
    } else {
        out(&sanitize(&report.text));
    }
    Ok(Done::Well)
}

fn not_counted(id: &ConversationId) {
    err_line(&format!(
        "not counted: `{}` cannot be read",
        sanitize(id.as_str())
    ));
}

fn print_together(figures: &[ConversationMetrics], json: bool) {
    let stats = GlobalStats::from_conversations(figures);
    if json {
        out_json(&pretty(&stats));
    } else {
        out(&describe(&stats));
    }
}

/// Prints the report of a conversation.
pub(super) fn report(state: &Durable, id: &ConversationId) {
    out(&sanitize(&state.report(id)));
}

fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// The nearest whole number.
fn whole(number: f64) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float becomes the nearest number there is"
    )]
    let whole = number.round() as u64;
    whole
}

fn describe(stats: &GlobalStats) -> String {
    let GlobalStats {
        total_conversations,
        total_tool_calls,
        total_tokens,
        total_duration_seconds,
        avg_tokens_per_call,
    } = stats;
    format!(
        "Conversations: {}\nTool Calls: {}\nTokens: {}\nDuration: {total_duration_seconds:.1}s\nTokens per Call: {}\n",
        thousands(*total_conversations),
        thousands(*total_tool_calls),
        thousands(*total_tokens),
        thousands(whole(*avg_tokens_per_call)),
    )
}
