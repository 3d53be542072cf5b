//! The handshake with a server: which generation of the protocol it speaks, and why it failed.

use rmcp::{
    model::{ClientCapabilities, ClientConfig, ErrorCode, Implementation, ProtocolVersion},
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, RoleClient,
        RunningService,
    },
    transport::Transport,
};
use tokio::time::timeout;

use super::config::McpServerConfig;
use crate::visible::visible_line;

/// Generation of the protocol that a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// Versions up to 2025-11-25: handshake by `initialize`, with sessions.
    Legacy,
    /// Versions from 2026-07-28: handshake by `server/discover`, stateless.
    Modern,
}

/// Versions offered in `server/discover`.
fn modern() -> Vec<ProtocolVersion> {
    vec![ProtocolVersion::V_2026_07_28]
}

/// The client's identity in the handshake. It declares no capabilities: no sampling, no roots, no
/// elicitation.
fn ourselves() -> ClientConfig {
    let us = Implementation::new("callboard", env!("CARGO_PKG_VERSION"));
    ClientConfig::new(ClientCapabilities::default(), us)
        .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
}

/// Performs the handshake within the start timeout, directly in the known protocol if `era` is set.
pub(super) async fn shake_hands<T: Transport<RoleClient> + 'static>(
    transport: T,
    config: &McpServerConfig,
    era: Option<Era>,
) -> Result<RunningService<RoleClient, ClientConfig>, Refusal> {
    let mode = match era {
        None => ClientLifecycleMode::Auto {
            preferred_versions: modern(),
            legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
        },
        Some(Era::Modern) => ClientLifecycleMode::Discover {
            preferred_versions: modern(),
        },
        Some(Era::Legacy) => ClientLifecycleMode::Initialize,
    };
    match timeout(
        config.start_timeout,
        Box::pin(ourselves().serve_with_lifecycle(transport, mode)),
    )
    .await
    {
        Ok(Ok(service)) => Ok(service),
        Ok(Err(error)) => Err(Refusal {
            reason: reason(&error),
            is_closed: matches!(
                error,
                ClientInitializeError::ConnectionClosed(_)
                    | ClientInitializeError::TransportError { .. }
            ),
            is_modern: refused_the_old(&error),
        }),
        Err(_) => Err(Refusal::new(format!(
            "it did not answer within {} s",
            config.start_timeout.as_secs_f32()
        ))),
    }
}

/// Why the handshake failed.
pub(super) struct Refusal {
    pub(super) reason: String,
    /// The transport was closed by the server.
    pub(super) is_closed: bool,
    /// The server requires the newer protocol, but the handshake used the older one.
    pub(super) is_modern: bool,
}

impl Refusal {
    pub(super) fn new(reason: String) -> Self {
        Self {
            reason,
            is_closed: false,
            is_modern: false,
        }
    }
}

/// Whether a server of the newer protocol refused `initialize`.
fn refused_the_old(error: &ClientInitializeError) -> bool {
    match error {
        ClientInitializeError::JsonRpcError(error) => {
            error.code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
        }
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => refused_the_old(fallback),
        _ => false,
    }
}

/// Describes a failed handshake without addresses, headers or paths.
fn reason(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection".to_owned(),
        ClientInitializeError::JsonRpcError(error) => {
            format!(
                "it refused the handshake: {} ({})",
                visible_line(&error.message, 200),
                error.code.0
            )
        }
        ClientInitializeError::NoCompatibleProtocolVersion {
            server_supported, ..
        } => {
            let versions: Vec<&str> = server_supported
                .iter()
                .map(ProtocolVersion::as_str)
                .take(8)
                .collect();
            format!(
                "it supports no protocol version of this client, only {}",
                visible_line(&versions.join(", "), 100)
            )
        }
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => reason(fallback),
        _ if error.is_authorization_required() => {
            "it requires authorization; set it in `headers`".to_owned()
        }
        ClientInitializeError::TransportError { .. } => "the connection failed".to_owned(),
        _ => "its answer is not valid MCP".to_owned(),
    }
}
