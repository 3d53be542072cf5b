//! `callboard sessions request`: prints the body of the next model call.

use callboard_actors::{conversation::round::rules::Recovery, ports::ProviderError};
use clap::Args;

use super::{Found, OneArgs, ServedArgs, TenantFlag};
use crate::{
    app::{self, Purpose},
    cli::{
        failure::{Done, Failure},
        flags::{HostFlags, StoreFlag},
        session::unreadable,
        terminal::{Terminals, out_data, out_json},
    },
    config::Config,
};

/// Arguments of `sessions request`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RequestArgs {
    /// Id of the conversation
    #[arg(value_name = "ID")]
    id: callboard_actors::ids::ConversationId,
    #[command(flatten)]
    of: TenantFlag,
    #[command(flatten)]
    host: HostFlags,
}

pub(super) async fn run(config: &Config, args: &RequestArgs) -> Result<Done, Failure> {
    let served = ServedArgs {
        one: OneArgs {
            id: args.id.clone(),
            store: StoreFlag {
                db: args.host.db.clone(),
            },
        },
        of: args.of.clone(),
    };
    let found = Found::open(config, &served).await?;
    let overrides = args.host.overrides(config, Recovery::Close)?;
    let chosen = app::choose_provider(config, &overrides, Purpose::Bodies)?;
    let provider = chosen.provider.clone();
    let name = chosen.name.clone();
    let app = app::start_with(config, &overrides, &found.sessions, chosen).await?;
    let state = app
        .host
        .tenant(&found.scope.tenant)
        .conversation(found.id.clone())
        .state()
        .await;
    let state = state.map_err(|error| unreadable(&found.id, error))?;
    let request = app.setup().request(&state);
    let body = provider
        .request_body(&request)
        .map_err(|error| match error {
            ProviderError::Unsupported(_) => {
                Failure::usage(format!("provider `{name}` sends no request"))
                    .hint("add --provider anthropic or --provider openai")
            }
            other => Failure::work(other.to_string()),
        })?;
    let body = String::from_utf8_lossy(&body);
    if Terminals::detect().stdout {
        out_json(&body);
    } else {
        out_data(&body);
    }
    Ok(Done::Well)
}
