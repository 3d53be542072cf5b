//! Tools of MCP servers, built on the official SDK (`rmcp`).
//!
//! # Layout
//! | Module | Holds |
//! |---|---|
//! | [`config`], [`mod@file`] | configuration of servers; the `mcpServers` files of other clients |
//! | [`Server`], [`McpPool`] | one server of one tenant; all servers of a host |
//! | [`McpResources`] | what the servers of a host share |
//! | `connection`, `stdio`, `stderr`, `http`, `bounded`, `paced`, `guarded` | one connection; transports; the message filter |
//! | `definitions`, `name`, `tool` | a server's definitions and results; tool names; the [`Tool`] |
//! | [`pins`] | digests of approved tool definitions |
//!
//! Guarantees: a dead or hostile server fails only its own calls. Memory for its messages is
//! bounded. A tool whose definition changed does not run until it is approved again. Processes are
//! started by the sandbox's spawner and end with the pool.

pub mod config;
pub mod file;
pub mod pins;
mod name;
mod backoff;
mod definitions;
mod stdio;
mod stderr;
mod guarded;
mod http;
mod intake;
mod bounded;
mod paced;
mod resources;
mod handshake;
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

pub use config::{McpServerConfig, McpTransport, Trust, WORKSPACE_FOLDER};
pub use file::{McpFileError, read_file, read_servers};
pub use handshake::Era;
pub use http::{HttpClients, HttpTarget};
pub use name::tool_name;
pub use pins::{FilePins, MemoryPins, PinError, PinSet, Pins};
pub use pool::McpPool;
pub use resources::McpResources;
pub use server::Server;
pub use stdio::{FRAME_BYTES_MAX, FRAME_PARTS_MAX};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    stdio::fuzz(data);
}

/// Largest total of names, descriptions and schemas of one server's offered tools, in bytes: about
/// 64,000 tokens of each prompt.
pub const DEFINITIONS_BYTES_MAX: usize = 256 * 1024;

/// A tool's definition compared with its pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinStatus {
    /// First seen now; its definition is pinned.
    New,
    /// Equal to the pinned definition.
    Same,
    /// Different from the pinned definition: calls are refused until it is approved with
    /// [`accept`].
    Changed,
}

/// A tool that a server offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The tool's name for models: `{server}__{tool}`.
    pub name: String,
    /// The definition from the server.
    pub definition: McpToolDefinition,
    /// How the definition compares with its pin.
    pub status: PinStatus,
}

/// Tools and problems of one server.
#[derive(Debug, Clone)]
pub struct Survey {
    /// The server's configured name.
    pub server: String,
    /// The negotiated version of the protocol.
    pub protocol: String,
    /// The offered tools, in the server's order.
    pub offers: Vec<Offer>,
    /// Problems and omitted tools, one line each.
    pub notes: Vec<String>,
}

/// Reads a server's tools and pins those seen for the first time.
///
/// # Errors
/// [`McpError`] when the server cannot be reached; errors of the pins as [`McpError::Failed`].
///
/// # Cancel safety
/// Dropping the future is safe; pins that were already stored stay.
pub async fn survey(
    config: &McpServerConfig,
    pool: &McpPool,
    tenant: &TenantId,
    pins: &dyn Pins,
) -> Result<Survey, McpError> {
    let server = pool.server(tenant, config)?;
    let listed = server.listed().await?;
    let name = &config.name;
    let failed = |error: PinError| McpError::Failed {
        server: name.clone(),
        reason: error.to_string(),
    };
    let mut pinned = pins.get(tenant, name).await.map_err(failed)?;
    let mut notes: Vec<String> = listed
        .left_out
        .iter()
        .map(|line| format!("{name}: omitted: {line}"))
        .collect();

    let mut offers = Vec::<Offer>::new();
    let mut new = false;
    let wanted = |tool: &&McpToolDefinition| {
        config
            .tools
            .as_ref()
            .is_none_or(|wanted| wanted.contains(&tool.name))
    };
    let wanted: Vec<&McpToolDefinition> = listed.tools.iter().filter(wanted).collect();
    let fitting = fitting(&wanted, config.tools_max);
    match wanted.len() - fitting {
        0 => {}
        beyond => notes.push(format!(
            "{name}: omitted: {beyond} of {} tools, because at most {} tools and {} KiB of definitions are offered; list the needed ones in `tools`, \
             or raise `tools_max`",
            wanted.len(),
            config.tools_max,
            DEFINITIONS_BYTES_MAX >> 10
        )),
    }
    for definition in wanted.into_iter().take(fitting) {
        let called = tool_name(name, &definition.name);
        let status = match pinned.get(&definition.name) {
            None => PinStatus::New,
            Some(pin) if *pin == definition.digest => PinStatus::Same,
            Some(_) => PinStatus::Changed,
        };
        match status {
            PinStatus::New => {
                pinned.insert(definition.name.clone(), definition.digest.clone());
                new = true;
            }
            PinStatus::Same => {}
            PinStatus::Changed => {
                notes.push(format!("{called}: definition changed; approve again with `callboard mcp check --accept {called}`"));
            }
        }
        offers.push(Offer {
            name: called,
            definition: definition.clone(),
            status,
        });
    }
    if new {
        pins.put(tenant, name, pinned).await.map_err(failed)?;
    }
    for clash in clashes(&offers) {
        notes.push(format!(
            "{clash}: omitted: two tools of {name} would have this name"
        ));
        offers.retain(|offer| offer.name != clash);
    }
    for missing in config
        .tools
        .iter()
        .flatten()
        .filter(|wanted| !listed.tools.iter().any(|tool| tool.name == **wanted))
    {
        notes.push(format!(
            "{name}: it has no tool `{}`, which is listed in `tools`",
            tool::shown(missing)
        ));
    }
    let protocol = server.version().await.unwrap_or_default();
    Ok(Survey {
        server: name.clone(),
        protocol,
        offers,
        notes,
    })
}

/// Number of leading tools that fit the limits of count and size.
fn fitting(tools: &[&McpToolDefinition], tools_max: usize) -> usize {
    let bytes = tools.iter().scan(0_usize, |sum, tool| {
        *sum += tool.name.len() + tool.description.len() + tool.input_schema.as_str().len();
        Some(*sum)
    });
    bytes
        .take(tools_max)
        .take_while(|bytes| *bytes <= DEFINITIONS_BYTES_MAX)
        .count()
}

/// Names that occur more than once.
fn clashes(offers: &[Offer]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    offers
        .iter()
        .filter(|offer| !seen.insert(offer.name.as_str()))
        .map(|offer| offer.name.clone())
        .collect()
}

/// Approves current definitions: of all tools of a server by the server's name, or of one by its
/// name for models. Returns how many pins changed.
///
/// # Errors
/// Those of [`survey`].
pub async fn accept(
    config: &McpServerConfig,
    pool: &McpPool,
    tenant: &TenantId,
    pins: &dyn Pins,
    named: &str,
) -> Result<usize, McpError> {
    let name = &config.name;
    let failed = |error: PinError| McpError::Failed {
        server: name.clone(),
        reason: error.to_string(),
    };
    let listed = pool.server(tenant, config)?.listed().await?;
    let mut pinned = pins.get(tenant, name).await.map_err(failed)?;
    let mut changed = 0;
    for tool in listed
        .tools
        .iter()
        .filter(|tool| named == name || named == tool_name(name, &tool.name))
    {
        if pinned
            .insert(tool.name.clone(), tool.digest.clone())
            .as_deref()
            != Some(&tool.digest)
        {
            changed += 1;
        }
    }
    pins.put(tenant, name, pinned).await.map_err(failed)?;
    Ok(changed)
}

/// The tools of the configured servers, ready for a host, and notes, one line each. Servers are
/// asked concurrently; an unreachable one contributes a note and no tools. A tool whose definition
/// changed is offered, but refuses calls.
///
/// A server runs until it was idle for its `idle` time or [`McpPool::close_all`] is called; a call
/// starts it again.
pub async fn tools(
    configs: &[McpServerConfig],
    pool: &McpPool,
    tenant: &TenantId,
    pins: &Arc<dyn Pins>,
) -> (Vec<Arc<dyn Tool>>, Vec<String>) {
    let surveys = join_all(
        configs
            .iter()
            .map(|config| survey(config, pool, tenant, &**pins)),
    )
    .await;
    let mut tools = Vec::<Arc<dyn Tool>>::new();
    let mut notes = Vec::new();
    let mut taken = BTreeSet::new();
    for (config, survey) in configs.iter().zip(surveys) {
        let survey = match survey {
            Ok(survey) => survey,
            Err(error) => {
                notes.push(error.to_string());
                continue;
            }
        };
        notes.extend(survey.notes);
        let Ok(server) = pool.server(tenant, config) else {
            continue;
        };
        for offer in survey.offers {
            // Servers have distinct prefixes, but one server may be configured twice.
            if taken.insert(offer.name.clone()) {
                tools.push(Arc::new(tool::McpTool::new(
                    &offer.definition,
                    server.clone(),
                    tenant.clone(),
                    pins.clone(),
                )));
            } else {
                notes.push(format!(
                    "{}: omitted: another server has a tool of this name",
                    offer.name
                ));
            }
        }
    }
    (tools, notes)
}
