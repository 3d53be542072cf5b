//! `callboard mcp serve --server URL`: passes messages between a client at standard input and output
//! and `/mcp` of a running host, for clients that only start programs. Nothing is kept here: the host
//! has the conversations, and each message carries the tenant's key.

use std::time::Duration;

use rmcp::{
    model::{ErrorCode, ErrorData, JsonRpcMessage, RequestId},
    service::{RoleClient, RoleServer, RxJsonRpcMessage},
    transport::{
        StreamableHttpClientTransport, Transport, async_rw::AsyncRwTransport,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use tokio::task::{JoinError, JoinSet};

use crate::{
    cli::{
        failure::{Done, Failure},
        remote::{base_url, client},
        signals::Signals,
    },
    config::{Secret, process_environment},
    observe::Redactor,
    visible::visible_line,
};

/// Bytes of one message of either side.
const MESSAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Messages of the client that are on their way at once; beyond it, its input is not read.
const SENDING_MAX: usize = 64;

/// Characters of an error that the client is shown.
const ERROR_CHARS_MAX: usize = 300;

/// Longest wait for the answers to messages that are on their way when the host has gone away.
const GOODBYE_MAX: Duration = Duration::from_secs(2);

/// A message of the host.
type FromHost = RxJsonRpcMessage<RoleClient>;

/// The id of a request that the host did not take, and why; `None` for a message that it took.
type Refused = Option<(Option<RequestId>, String)>;

/// Passes messages until the client goes away.
pub(super) async fn run(
    server: &str,
    key_env: &str,
    redactor: &Redactor,
    signals: &mut Signals,
) -> Result<Done, Failure> {
    let base = base_url(server).map_err(|problem| Failure::usage(format!("--server {problem}")))?;
    let key = process_environment().find_map(|(name, text)| (name == key_env).then_some(text));
    let key = key.ok_or_else(|| {
        Failure::usage("a server needs a tenant's key").hint(format!(
            "set {key_env}, or name another variable with --key-env"
        ))
    })?;
    let key = Secret::new(&key)
        .map_err(|problem| Failure::usage(format!("the key of {key_env} {problem}")))?;
    let config = StreamableHttpClientTransportConfig::with_uri(format!("{base}/mcp"))
        .auth_header(key.expose())
        .max_sse_event_size(MESSAGE_BYTES_MAX);
    let host = StreamableHttpClientTransport::with_client(client()?, config);
    let pipes = AsyncRwTransport::<RoleServer, _, _>::new(tokio::io::stdin(), tokio::io::stdout())
        .with_max_line_length(MESSAGE_BYTES_MAX);
    redactor.learn([key.expose()]);
    tokio::select! {
        biased;
        () = signals.next() => Ok(Done::Well),
        passed = pass(pipes, host, redactor) => passed,
    }
}

/// Passes each message on. A request that the host does not take gets an error as its answer.
async fn pass(
    mut pipes: impl Transport<RoleServer>,
    mut host: impl Transport<RoleClient>,
    redactor: &Redactor,
) -> Result<Done, Failure> {
    let mut sending: JoinSet<Refused> = JoinSet::new();
    // At most one. Requests overtake each other, but what follows a notification may rely on it: the
    // host refuses a call that comes before `notifications/initialized`.
    let mut notifying: JoinSet<Refused> = JoinSet::new();
    let mut last_error = None;
    loop {
        tokio::select! {
            message = pipes.receive(), if sending.len() < SENDING_MAX && notifying.is_empty() => {
                let Some(message) = message else {
                    return Ok(Done::Well); // The client has gone away.
                };
                let id = match &message {
                    JsonRpcMessage::Request(request) => Some(request.id.clone()),
                    _ => None,
                };
                let tasks = match &message {
                    JsonRpcMessage::Notification(_) => &mut notifying,
                    _ => &mut sending,
                };
                let sent = host.send(message);
                tasks.spawn(async move {
                    let refused = sent.await.err()?;
                    Some((id, refused.to_string()))
                });
            }
            message = host.receive() => {
                let Some(message) = message else {
                    // What is on its way gets an answer before this ends.
                    let answers = async {
                        while let Some(sent) = sending.join_next().await {
                            last_error = answered(&mut pipes, sent, redactor).await.or(last_error.take());
                        }
                    };
                    let _ = tokio::time::timeout(GOODBYE_MAX, answers).await;
                    let why = last_error.unwrap_or_else(|| "it closed the connection".to_owned());
                    return Err(Failure::work(format!("the host does not answer: {why}"))
                        .hint("check --server, that the host serves /mcp, and the key"));
                };
                let message = masked(message, redactor);
                let _ = pipes.send(message).await; // A client that has gone away ends its input too.
            }
            Some(sent) = notifying.join_next() => {
                last_error = answered(&mut pipes, sent, redactor).await.or(last_error);
            }
            Some(sent) = sending.join_next() => {
                last_error = answered(&mut pipes, sent, redactor).await.or(last_error);
            }
        }
    }
}

/// The message without the key, which a server may repeat and a model must not read.
fn masked(message: FromHost, redactor: &Redactor) -> FromHost {
    let text = serde_json::to_string(&message).unwrap_or_default();
    let masked = redactor.mask_exact(&text);
    match serde_json::from_str(&masked) {
        Ok(masked_message) if masked != text => masked_message,
        _ => message,
    }
}

/// Answers a request that the host did not take; returns why.
async fn answered(
    pipes: &mut impl Transport<RoleServer>,
    sent: Result<Refused, JoinError>,
    redactor: &Redactor,
) -> Option<String> {
    let (id, why) = sent.ok()??;
    let why = visible_line(&redactor.mask(&why), ERROR_CHARS_MAX);
    if let Some(id) = id {
        let error = ErrorData::new(
            ErrorCode::INTERNAL_ERROR,
            format!("the host did not take the message: {why}"),
            None,
        );
        let _ = pipes.send(JsonRpcMessage::error(error, Some(id))).await;
    }
    Some(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_the_host_repeats_is_not_passed_on() {
        let redactor = Redactor::new(["cb_not-a-key-of-anyone"]);
        let passed = |text: &str| {
            let message = format!(
                r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32603,"message":"{text}"}}}}"#
            );
            let message = masked(serde_json::from_str(&message).unwrap(), &redactor);
            serde_json::to_string(&message).unwrap()
        };

        assert!(passed("it is late").contains("it is late"));
        let masked = passed("cb_not-a-key-of-anyone is wrong");
        assert!(
            masked.contains("is wrong") && !masked.contains("cb_not"),
            "{masked}"
        );
    }
}
