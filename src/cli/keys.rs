//! `callboard keys`: creates a tenant's key and its hash. The configuration holds only the hash;
//! the key is displayed once.

use callboard_actors::ids::TenantId;
use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    failure::{Done, Failure},
    terminal::{out, out_json},
};
use crate::http::{KeyHash, new_key};

pub(super) const EXAMPLE: &str = "Example:\n  callboard keys new --tenant acme";

/// Subcommands of `keys`.
#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    New(NewArgs),
}

/// Create a key: prints the key once, and the lines for callboard.toml with its hash
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard keys new --tenant acme
  callboard keys new --json

Give the key to the tenant and keep its hash: the key cannot be recovered from the hash.")]
pub(super) struct NewArgs {
    /// The tenant that gets the key
    #[arg(long, value_name = "ID")]
    tenant: Option<TenantId>,
    /// Print one JSON object with the key, its hash and the lines
    #[arg(long)]
    json: bool,
}

pub(super) fn run(command: &KeysCommand) -> Result<Done, Failure> {
    let KeysCommand::New(args) = command;
    let key = new_key();
    let hash = KeyHash::from_key(&key).to_string();
    let lines = match &args.tenant {
        Some(tenant) => format!("[[tenant]]\nid = \"{tenant}\"\nkey_sha256 = \"{hash}\"\n"),
        None => format!("key_sha256 = \"{hash}\"\n"),
    };
    if args.json {
        let shown = json!({"key": key, "key_sha256": hash, "tenant": args.tenant, "toml": lines});
        out_json(&shown.to_string());
        return Ok(Done::Well);
    }
    out(&format!(
        "key:        {key}\nkey_sha256: {hash}\n\nThe key is shown only once. Add this to callboard.toml, which `callboard --config callboard.toml serve` reads:\n\n{lines}"
    ));
    Ok(Done::Well)
}
