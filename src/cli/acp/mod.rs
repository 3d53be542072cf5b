//! `callboard acp`: an agent for editors, by the Agent Client Protocol over standard input and
//! output. Standard output belongs to the protocol; notes go to standard error.
//!
//! # Layout
//! `rpc` (messages over lines) · `wire` (parameters of methods) · `content` (prompts) · `updates`
//! (events as an editor shows them) · `session` (the open conversations, and their turns).
//!
//! A session is a conversation of `chat` in its folder: the same configuration, store, sandbox and
//! rules of trust. The client answers approvals. A client that goes away ends the program; a round
//! that is open then has some seconds to end, and is stored as interrupted.

mod content;
mod rpc;
mod session;
mod updates;
mod wire;

use std::{path::PathBuf, sync::Arc, time::Duration};

use callboard_actors::ids::ConversationId;
use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use super::{
    failure::{Done, Failure},
    flags::HostFlags,
    signals::Signals,
    trust::{Notes, ProjectUse},
};
use rpc::{Incoming, METHOD_NOT_FOUND, Outbox, RpcError};
use session::{AcpSessions, Slot};
use wire::{ListSessions, NewSession, OfSession, OldSession, PromptOf, SetMode, VERSION};

/// Requests that may be open at once; each of a turn holds little more than its prompt.
const REQUESTS_MAX: usize = 64;

/// How long the last messages may take to reach a client that no longer sends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serve an editor over standard input and output (Agent Client Protocol)
#[derive(Debug, Args)]
#[command(after_help = "\
Example, in Zed's settings.json:
  \"agent_servers\": {\"Callboard\": {\"type\": \"custom\", \"command\": \"callboard\", \"args\": [\"acp\"]}}

An editor starts it; each session works in the folder that the editor names. Other editors: docs/editors.md.")]
pub(super) struct AcpArgs {
    #[command(flatten)]
    host: HostFlags,
    /// Write no notes to standard error
    #[arg(long, short = 'q')]
    quiet: bool,
}

impl AcpArgs {
    pub(super) fn project_use(&self) -> ProjectUse<'_> {
        ProjectUse::quiet(Notes::Own)
    }
}

pub(super) async fn run(file: Option<PathBuf>, args: AcpArgs) -> Result<Done, Failure> {
    let mut signals = Signals::listen();
    let (out, lines) = Outbox::new();
    let out = Arc::new(out);
    let mut writer = tokio::spawn(rpc::write(tokio::io::stdout(), lines));
    let (sender, mut messages) = mpsc::channel(1);
    let reader = tokio::spawn(rpc::read(
        tokio::io::BufReader::new(tokio::io::stdin()),
        sender,
    ));
    let agent = Arc::new(Agent {
        sessions: AcpSessions::new(args, file, out.clone()),
        out,
    });
    let places = Arc::new(Semaphore::new(REQUESTS_MAX));
    let mut open = JoinSet::new();
    loop {
        let message = tokio::select! {
            biased;
            () = signals.next() => break,
            _ = &mut writer => break, // The client reads no more.
            Some(_) = open.join_next(), if !open.is_empty() => continue,
            message = messages.recv() => match message {
                Some(message) => message,
                None => break,
            },
        };
        match message {
            Incoming::Answer { id, result } => agent.out.answered(id, result),
            Incoming::Notification { method, params } => agent.notified(&method, params),
            Incoming::Wrong { id, error } => agent.out.answer(id, Err(error)).await,
            Incoming::Request { id, method, params } => {
                let Ok(place) = places.clone().try_acquire_owned() else {
                    let error = format!("{REQUESTS_MAX} requests are open; wait for one");
                    let error = RpcError::new(rpc::INTERNAL_ERROR, error);
                    agent.out.answer(id, Err(error)).await;
                    continue;
                };
                // A turn begins here, so that the cancel in the next line finds it.
                let turn = (method == "session/prompt").then(|| agent.begin(params.clone()));
                let agent = agent.clone();
                open.spawn(async move {
                    let result = match turn {
                        Some(Ok((turn, blocks))) => {
                            Box::pin(turn.run(&agent.sessions, blocks)).await
                        }
                        Some(Err(error)) => Err(error),
                        None => Box::pin(agent.answer(&method, params)).await,
                    };
                    agent.out.answer(id, result).await;
                    drop(place);
                });
            }
        }
    }
    reader.abort();
    open.abort_all();
    while open.join_next().await.is_some() {}
    agent.sessions.close_all().await;
    drop(agent);
    let _ = tokio::time::timeout(LAST_WORDS, writer).await;
    Ok(Done::Well)
}

struct Agent {
    sessions: AcpSessions,
    out: Arc<Outbox>,
}

impl Agent {
    fn begin(&self, params: Value) -> Result<(session::Turn, Vec<wire::Block>), RpcError> {
        let PromptOf { session_id, prompt } = read(params)?;
        Ok((self.sessions.begin(&session_id)?, prompt))
    }

    fn notified(&self, method: &str, params: Value) {
        if method == "session/cancel"
            && let Ok(OfSession { session_id }) = read(params)
            && let Ok(slot) = self.sessions.named(&session_id)
        {
            slot.cancel();
        }
    }

    async fn answer(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        match method {
            "initialize" => Ok(initialized()),
            "authenticate" => Ok(json!({})),
            "session/new" => {
                let slot = self
                    .sessions
                    .open(None, read::<NewSession>(params)?)
                    .await?;
                Ok(json!({"sessionId": slot.id().as_str(), "modes": slot.modes()}))
            }
            "session/load" => {
                let slot = self.old(params).await?;
                self.replay(&slot).await?;
                Ok(json!({"modes": slot.modes()}))
            }
            "session/resume" => Ok(json!({"modes": self.old(params).await?.modes()})),
            "session/list" => {
                let wanted: ListSessions = match params {
                    Value::Null => ListSessions::default(),
                    params => read(params)?,
                };
                self.sessions
                    .list(wanted.cwd.as_deref(), wanted.cursor.as_deref())
                    .await
            }
            "session/close" => {
                let OfSession { session_id } = read(params)?;
                let id = self.sessions.named(&session_id)?.id().clone();
                self.sessions.close(&id).await;
                Ok(json!({}))
            }
            "session/set_mode" => {
                let SetMode {
                    session_id,
                    mode_id,
                } = read(params)?;
                self.sessions.named(&session_id)?.set_mode(&mode_id)?;
                Ok(json!({}))
            }
            _ => Err(RpcError::new(
                METHOD_NOT_FOUND,
                format!("there is no method `{}`", super::terminal::sanitize(method)),
            )),
        }
    }

    async fn old(&self, params: Value) -> Result<Arc<Slot>, RpcError> {
        let OldSession {
            session_id,
            session,
        } = read(params)?;
        let id = ConversationId::new(&session_id).ok();
        if id.is_some_and(|id| id.is_reserved()) {
            return Err(RpcError::params("this id belongs to a subagent"));
        }
        self.sessions.open(Some(&session_id), session).await
    }

    /// Sends the history of a session as updates.
    async fn replay(&self, slot: &Arc<Slot>) -> Result<(), RpcError> {
        let session = self.sessions.session(slot).await?;
        let messages = session.handle.messages().await?;
        for update in updates::replay(&messages, slot.folder()) {
            let sent = self.out.notify("session/update", slot.update(update)).await;
            if sent.is_err() {
                break; // The client is gone; the program ends with its input.
            }
        }
        Ok(())
    }
}

fn initialized() -> Value {
    json!({
        "protocolVersion": VERSION,
        "agentCapabilities": {
            "loadSession": true,
            "promptCapabilities": {"image": true, "audio": false, "embeddedContext": true},
            "mcpCapabilities": {"http": true, "sse": false},
            "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
        },
        "agentInfo": {
            "name": "callboard",
            "title": "Callboard",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "authMethods": [],
    })
}

fn read<T: DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params).map_err(|error| RpcError::params(error.to_string()))
}
