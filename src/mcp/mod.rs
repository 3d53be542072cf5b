//! Tools of MCP servers, on the official SDK (REQUIREMENTS Q-01..Q-06).
//!
//! # Layout
//! [`config`] what is configured, [`mod@file`] the usual JSON file of it · [`Server`] one server of one tenant, [`McpPool`] all of them ·
//! `connection` from handshake to end, over `stdio` or `http`, each behind `guarded` · `definitions` a server's words in our types,
//! without anything hidden in them ([`crate::tools::visible`]) · [`pins`] what was agreed to · `tool` a server's tool as one of ours.
//!
//! Promises: a dead or hostile server fails its own calls and nothing else · memory for its words is bounded · what it says of a tool
//! cannot change unseen · processes are started by the sandbox's spawner only and end with the pool.

pub mod config;
pub mod file;
pub mod pins;
mod name;
mod backoff;
mod definitions;
mod stdio;
mod guarded;
mod http;
mod connection;
mod server;
mod pool;
mod tool;

use std::{collections::BTreeSet, sync::Arc};

use callboard_actors::{
    ids::TenantId,
    ports::{McpError, McpToolDefinition, Tool},
};
use futures_util::future::join_all;

pub use config::{McpServerConfig, McpTransport, Trust};
pub use connection::Era;
pub use file::{McpFileError, read_file};
pub use http::{HttpClients, HttpTarget};
pub use name::tool_name;
pub use pins::{FilePins, MemoryPins, PinError, PinSet, Pins};
pub use pool::{McpPool, Means};
pub use server::Server;
pub use stdio::{FRAME_BYTES_MAX, FRAME_PARTS_MAX};

/// Bytes of the names, descriptions and schemas of one server's tools that are offered: some 64,000 tokens of each prompt.
pub const DEFINITIONS_BYTES_MAX: usize = 256 * 1024;

/// How a tool stands to what was agreed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Seen for the first time: pinned as it is.
    New,
    /// As it was.
    Same,
    /// Changed: it refuses calls until somebody agrees ([`accept`]).
    Changed,
}

/// A tool that a server offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// What it is called here.
    pub name: String,
    /// As the server defines it.
    pub definition: McpToolDefinition,
    /// How it stands.
    pub standing: Standing,
}

/// What a server offers, and what is wrong with it.
#[derive(Debug, Clone)]
pub struct Survey {
    /// The server.
    pub server: String,
    /// The version of the protocol that it speaks.
    pub protocol: String,
    /// Its tools in order.
    pub offers: Vec<Offer>,
    /// What is wrong or was left out, a line each.
    pub notes: Vec<String>,
}

/// Asks a server what it offers and pins what is new.
///
/// # Errors
/// [`McpError`] when it cannot be reached; the pins' errors as [`McpError::Failed`].
///
/// # Cancel safety
/// May be dropped; what was pinned stays.
pub async fn survey(config: &McpServerConfig, pool: &McpPool, tenant: &TenantId, pins: &dyn Pins) -> Result<Survey, McpError> {
    let server = pool.server(tenant, config)?;
    let listed = server.listed().await?;
    let name = &config.name;
    let failed = |error: PinError| McpError::Failed { server: name.clone(), reason: error.to_string() };
    let mut pinned = pins.get(tenant, name).await.map_err(failed)?;
    let mut notes: Vec<String> = listed.left_out.iter().map(|line| format!("{name}: left out: {line}")).collect();

    let (mut offers, mut new) = (Vec::<Offer>::new(), false);
    let wanted = |tool: &&McpToolDefinition| config.tools.as_ref().is_none_or(|wanted| wanted.contains(&tool.name));
    let wanted: Vec<&McpToolDefinition> = listed.tools.iter().filter(wanted).collect();
    let fitting = fitting(&wanted, config.tools_max);
    match wanted.len() - fitting {
        0 => {}
        beyond => notes.push(format!(
            "{name}: left out: {beyond} of {} tools, for only {} tools and {} KiB of definitions are offered: name those that are needed in `tools`, \
             or raise `tools_max`",
            wanted.len(),
            config.tools_max,
            DEFINITIONS_BYTES_MAX >> 10
        )),
    }
    for definition in wanted.into_iter().take(fitting) {
        let called = tool_name(name, &definition.name);
        let standing = match pinned.get(&definition.name) {
            None => Standing::New,
            Some(pin) if *pin == definition.digest => Standing::Same,
            Some(_) => Standing::Changed,
        };
        match standing {
            Standing::New => {
                pinned.insert(definition.name.clone(), definition.digest.clone());
                new = true;
            }
            Standing::Same => {}
            Standing::Changed => {
                notes.push(format!("{called}: definition changed; approve again with `callboard mcp check --accept {called}`"));
            }
        }
        offers.push(Offer { name: called, definition: definition.clone(), standing });
    }
    if new {
        pins.put(tenant, name, pinned).await.map_err(failed)?;
    }
    for clash in clashes(&offers) {
        notes.push(format!("{clash}: left out: two tools of {name} would be called so"));
        offers.retain(|offer| offer.name != clash);
    }
    for missing in config.tools.iter().flatten().filter(|wanted| !listed.tools.iter().any(|tool| tool.name == **wanted)) {
        notes.push(format!("{name}: it offers no tool `{}`, which `tools` names", tool::shown(missing)));
    }
    let protocol = server.version().await.unwrap_or_default();
    Ok(Survey { server: name.clone(), protocol, offers, notes })
}

/// How many tools of a server, from the first on, are few and small enough to stand in every request to a model.
fn fitting(tools: &[&McpToolDefinition], tools_max: usize) -> usize {
    let bytes = tools.iter().scan(0_usize, |sum, tool| {
        *sum += tool.name.len() + tool.description.len() + tool.input_schema.as_str().len();
        Some(*sum)
    });
    bytes.take(tools_max).take_while(|bytes| *bytes <= DEFINITIONS_BYTES_MAX).count()
}

/// Names that stand twice.
fn clashes(offers: &[Offer]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    offers.iter().filter(|offer| !seen.insert(offer.name.as_str())).map(|offer| offer.name.clone()).collect()
}

/// Agrees to tools as they are now: all of a server by the server's name, or one by the name it has here. Tells how many changed.
///
/// # Errors
/// As [`survey`].
pub async fn accept(config: &McpServerConfig, pool: &McpPool, tenant: &TenantId, pins: &dyn Pins, named: &str) -> Result<usize, McpError> {
    let name = &config.name;
    let failed = |error: PinError| McpError::Failed { server: name.clone(), reason: error.to_string() };
    let listed = pool.server(tenant, config)?.listed().await?;
    let mut pinned = pins.get(tenant, name).await.map_err(failed)?;
    let mut changed = 0;
    for tool in listed.tools.iter().filter(|tool| named == name || named == tool_name(name, &tool.name)) {
        if pinned.insert(tool.name.clone(), tool.digest.clone()).as_deref() != Some(&tool.digest) {
            changed += 1;
        }
    }
    pins.put(tenant, name, pinned).await.map_err(failed)?;
    Ok(changed)
}

/// The tools of the configured servers, ready to be given to a host, and what there is to say, a line each. Servers are asked at the
/// same time; one that cannot be reached is a line and has no tools. A tool whose definition changed is offered and refuses calls.
///
/// The servers run until nobody used them for their `idle` time or [`McpPool::close_all`] ends them; a call starts one again.
pub async fn tools(
    configs: &[McpServerConfig],
    pool: &McpPool,
    tenant: &TenantId,
    pins: &Arc<dyn Pins>,
) -> (Vec<Arc<dyn Tool>>, Vec<String>) {
    let surveys = join_all(configs.iter().map(|config| survey(config, pool, tenant, &**pins))).await;
    let (mut tools, mut notes, mut taken) = (Vec::<Arc<dyn Tool>>::new(), Vec::new(), BTreeSet::new());
    for (config, survey) in configs.iter().zip(surveys) {
        let survey = match survey {
            Ok(survey) => survey,
            Err(error) => {
                notes.push(error.to_string());
                continue;
            }
        };
        notes.extend(survey.notes);
        let Ok(server) = pool.server(tenant, config) else { continue };
        for offer in survey.offers {
            // A server `a-b` and one `a_b` stay apart, but the same server may be configured twice.
            if taken.insert(offer.name.clone()) {
                tools.push(Arc::new(tool::McpTool::new(&offer.definition, server.clone(), tenant.clone(), pins.clone())));
            } else {
                notes.push(format!("{}: left out: another server has a tool of this name", offer.name));
            }
        }
    }
    (tools, notes)
}
