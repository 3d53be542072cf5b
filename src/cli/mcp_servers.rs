//! The MCP servers that a command uses.

use std::path::PathBuf;

use super::failure::Failure;
use crate::{
    config::Config,
    mcp::{self, McpServerConfig},
};

/// The servers of the configuration and of a file; a server of the file replaces one with the same
/// name.
pub(super) fn servers(
    config: &Config,
    file: Option<&PathBuf>,
) -> Result<Vec<McpServerConfig>, Failure> {
    let more = file
        .map_or(Ok(Vec::new()), |file| mcp::read_file(file))
        .map_err(|error| {
            Failure::usage(error.to_string()).hint(
                "the file's form is {\"mcpServers\": {\"name\": {\"command\": \"…\"}}}; see --mcp",
            )
        })?;
    let own = config
        .mcp
        .iter()
        .filter(|own| !more.iter().any(|other| other.name == own.name))
        .cloned();
    Ok(own.chain(more.clone()).collect())
}
