//! Tenants share a host and nothing else: each has its own quotas, and one that asks for too much
//! is refused alone. `cargo run --example tenants`

use callboard::{Host, SendError};
use callboard_actors::{
    host::TenantConfig,
    tenant::Quotas,
    testing::{Reply, ScriptedModel},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = Host::builder()
        .provider(ScriptedModel::always(Reply::text("Done.")))
        .build()
        .await?;

    // Two prompts a minute for one tenant. Quotas may change at any time and hold from the next prompt on.
    let quotas = Quotas {
        requests_per_minute: Some(2),
        ..Quotas::default()
    };
    host.configure_tenant(&"small".try_into()?, TenantConfig::new().quotas(quotas))
        .await?;

    for tenant in ["small", "large"] {
        for prompt in 1..=3 {
            match host
                .tenant(tenant)
                .conversation("jobs")
                .send("Do it.")
                .await
            {
                Ok(mut reply) => println!("{tenant} {prompt}: {}", reply.outcome().await?.text),
                // A refusal is immediate, typed, and says when to try again.
                Err(SendError::Conversation(error)) if error.is_retryable() => {
                    println!("{tenant} {prompt}: refused, {error}")
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
