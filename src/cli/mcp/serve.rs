//! `callboard mcp serve`: an MCP server over standard input and output. Standard output belongs to
//! the protocol; notes go to standard error.

use std::{collections::HashMap, sync::Arc};

use callboard_actors::{
    conversation::round::rules::Recovery,
    ids::{ConversationId, Scope, TenantId},
};
use clap::Args;
use parking_lot::Mutex;

use crate::{
    Host,
    app::{self, Opening, Sessions, TENANT},
    cli::{
        failure::{Done, Failure},
        flags::HostFlags,
        run::SHUTDOWN,
        session::{announce, check},
        signals::Signals,
    },
    config::{Approve, Config},
    http::{mcp::Admit, pipes::Pipes},
    observe::Redactor,
    storage::SessionLock,
};

/// Locks that are kept of conversations that are asleep.
const LOCKS_MAX: usize = 256;

/// Serve an MCP client over standard input and output
#[derive(Debug, Args)]
#[command(after_help = "\
Example, in the configuration of an MCP client:
  {\"mcpServers\": {\"callboard\": {\"command\": \"callboard\", \"args\": [\"mcp\", \"serve\", \"--workspace\", \"/path/of/the/project\"]}}}

The client starts it and gives it tasks with tools such as send_prompt. A running `callboard serve` has the same at /mcp;
for a client that only starts programs: callboard mcp serve --server URL. See docs/mcp.md.")]
pub(in crate::cli) struct ServeArgs {
    #[command(flatten)]
    pub(super) host: HostFlags,
    /// Pass the client's messages to a running `callboard serve` at this URL, with the key of one of
    /// its tenants; flags of models and tools have no effect then
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Environment variable with the tenant's key at the server
    #[arg(
        long,
        value_name = "NAME",
        default_value = "CALLBOARD_KEY",
        requires = "server"
    )]
    key_env: String,
    /// Write no notes to standard error
    #[arg(long, short = 'q')]
    quiet: bool,
}

pub(super) async fn run(
    config: &Config,
    args: ServeArgs,
    redactor: &Redactor,
) -> Result<Done, Failure> {
    let mut signals = Signals::listen();
    if let Some(server) = &args.server {
        return super::proxy::run(server, &args.key_env, redactor, &mut signals).await;
    }
    let mut overrides = args.host.overrides(config, Recovery::Resume)?;
    // The client's user answers, or what the client's model is allowed to.
    overrides.at_terminal = true;
    let approve = overrides.approve.or(config.approve);
    overrides.approve = Some(approve.unwrap_or(Approve::Ask));
    check(config, &overrides)?;
    let sessions = Sessions::open(config, overrides.db.as_deref(), Opening::OrCreate).await?;
    let app = app::start(config, &overrides, &sessions).await?;
    if !args.quiet {
        announce(config, &app);
    }
    let tenant = TenantId::new(TENANT)?;
    let pipes = Pipes {
        host: app.host.clone(),
        admit: locking(sessions, app.host.clone(), tenant.clone()),
        tenant,
        redactor: Redactor::new(config.masked_texts()),
    };
    let serving = pipes.serve(tokio::io::stdin(), tokio::io::stdout());
    let served = tokio::select! {
        biased;
        () = signals.next() => Ok(()),
        served = serving => served,
    };
    app.host.shutdown(SHUTDOWN).await;
    served.map_err(|error| Failure::work(error.to_string()))?;
    Ok(Done::Well)
}

/// Locks each conversation that is changed, so that `chat` and other clients' processes see that it
/// is in use, and leaves alone those that they use.
fn locking(sessions: Sessions, host: Host, tenant: TenantId) -> Admit {
    let locks: Mutex<HashMap<ConversationId, Option<SessionLock>>> = Mutex::new(HashMap::new());
    Arc::new(move |id| {
        let Ok(id) = ConversationId::new(id) else {
            return Ok(()); // The host refuses it.
        };
        let mut locks = locks.lock();
        if locks.contains_key(&id) {
            return Ok(());
        }
        if locks.len() >= LOCKS_MAX {
            let scope = |id: &ConversationId| Scope::new(tenant.clone(), id.clone());
            locks.retain(|id, _| host.is_awake(&scope(id)));
        }
        let scope = Scope::new(tenant.clone(), id.clone());
        let lock = sessions.lock(&scope).map_err(|error| error.to_string())?;
        locks.insert(id, lock);
        Ok(())
    })
}
