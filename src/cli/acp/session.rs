//! The sessions of one client: each is a conversation with a host over its own folder, as `chat` has
//! one. A session that is idle makes room for a new one; its next prompt opens it again.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use callboard_actors::{
    conversation::{Consent, round::rules::Recovery},
    host::{OutcomeError, Reply},
    ids::ConversationId,
    journal::{CallState, Durable},
    stream::{EventKind, StopReason},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    AcpArgs, content,
    rpc::{INTERNAL_ERROR, Outbox, RESOURCE_NOT_FOUND, RpcError},
    updates::{self, Shown, Streamed},
    wire::{Block, NewSession},
};
use crate::{
    app::{Opening, Overrides, Sessions},
    cli::{
        failure::Failure,
        run::SHUTDOWN,
        session::{self, Session, fresh_id},
        terminal::{err_line, sanitize},
    },
    config::{Approve, Config, process_environment},
    mcp::{McpServerConfig, read_servers},
    sandbox::NamedFiles,
};

/// Hosts that are open at once: each has threads and, with MCP servers, processes.
const OPEN_MAX: usize = 16;

/// Sessions that a client may name; those that are not open cost some hundred bytes.
const NAMED_MAX: usize = 1000;

/// What a session does with calls that change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode(pub(super) Approve);

impl Mode {
    const ALL: [(Approve, &'static str, &'static str, &'static str); 3] = [
        (
            Approve::Ask,
            "ask",
            "Ask",
            "Asks before a tool changes something",
        ),
        (
            Approve::Auto,
            "auto",
            "Run without asking",
            "Runs every tool that the configuration permits",
        ),
        (
            Approve::Deny,
            "deny",
            "Change nothing",
            "Refuses what changes something",
        ),
    ];

    fn id(self) -> &'static str {
        match self.0 {
            Approve::Ask => "ask",
            Approve::Auto => "auto",
            Approve::Deny => "deny",
        }
    }

    /// The mode of this id, if a session that was opened with `self` may have it. A client cannot
    /// widen `deny`: the configuration or a flag of the user has chosen it.
    fn switched(self, id: &str) -> Option<Self> {
        self.offered()
            .map(|(approve, ..)| Self(approve))
            .find(|mode| mode.id() == id)
    }

    fn offered(self) -> impl Iterator<Item = (Approve, &'static str, &'static str, &'static str)> {
        Self::ALL
            .into_iter()
            .filter(move |(approve, ..)| self.0 != Approve::Deny || *approve == Approve::Deny)
    }
}

/// A session that the client has named.
pub(super) struct Slot {
    id: ConversationId,
    folder: PathBuf,
    servers: Vec<McpServerConfig>,
    /// The mode of the flags and the configuration, and the one that the client chose.
    opened_with: Mode,
    mode: Mutex<Mode>,
    /// `None` while it is not open. Held while it is opened and closed.
    session: tokio::sync::Mutex<Option<Opened>>,
    /// A token for each prompt that has no answer yet.
    turns: Mutex<HashMap<u64, CancellationToken>>,
    /// When it was used last, as a count of uses of all sessions.
    used: AtomicU64,
}

/// A prompt that has no answer yet. Dropping it ends that.
pub(super) struct Turn {
    slot: Arc<Slot>,
    number: u64,
    cancelled: CancellationToken,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.slot.turns.lock().remove(&self.number);
    }
}

/// All sessions of a client.
pub(super) struct AcpSessions {
    args: AcpArgs,
    /// The file of `--config`.
    file: Option<PathBuf>,
    out: Arc<Outbox>,
    slots: Mutex<HashMap<ConversationId, Arc<Slot>>>,
    uses: AtomicU64,
    places: Arc<Semaphore>,
    /// What a session names, such as the program of an MCP server, is protected in all others.
    named: NamedFiles,
}

impl AcpSessions {
    pub(super) fn new(args: AcpArgs, file: Option<PathBuf>, out: Arc<Outbox>) -> Self {
        Self {
            args,
            file,
            out,
            slots: Mutex::new(HashMap::new()),
            uses: AtomicU64::new(0),
            places: Arc::new(Semaphore::new(OPEN_MAX)),
            named: NamedFiles::default(),
        }
    }

    /// Opens a session: a new one for `None`.
    pub(super) async fn open(
        &self,
        id: Option<&str>,
        wanted: NewSession,
    ) -> Result<Arc<Slot>, RpcError> {
        let folder = folder(&wanted.cwd)?;
        let config = self.config(&folder)?;
        let known = id.map(ConversationId::new).transpose();
        let known = known.map_err(|error| RpcError::params(error.to_string()))?;
        if let Some(id) = &known {
            self.known(&config, id).await?;
        }
        let id = match known {
            Some(id) => id,
            None => fresh_id()?,
        };
        self.close(&id).await; // A session that is loaded again may have another folder.
        let opened_with = Mode(
            self.args
                .host
                .approve
                .map(Into::into)
                .or(config.approve)
                .unwrap_or(Approve::Ask),
        );
        let slot = Arc::new(Slot {
            id: id.clone(),
            folder,
            servers: servers(wanted.mcp_servers),
            opened_with,
            mode: Mutex::new(opened_with),
            session: tokio::sync::Mutex::new(None),
            turns: Mutex::new(HashMap::new()),
            used: AtomicU64::new(0),
        });
        self.session(&slot).await?;
        let mut slots = self.slots.lock();
        if slots.len() >= NAMED_MAX {
            return Err(RpcError::new(
                INTERNAL_ERROR,
                "this process has had 1,000 sessions; start another one",
            ));
        }
        slots.insert(id, slot.clone());
        Ok(slot)
    }

    /// The session of this id, which must have been opened.
    pub(super) fn named(&self, id: &str) -> Result<Arc<Slot>, RpcError> {
        let found = ConversationId::new(id)
            .ok()
            .and_then(|id| self.slots.lock().get(&id).cloned());
        found.ok_or_else(|| {
            RpcError::new(
                RESOURCE_NOT_FOUND,
                format!("there is no open session `{}`", sanitize(id)),
            )
        })
    }

    /// Begins a turn, so that a `session/cancel` that comes right after the prompt finds it.
    pub(super) fn begin(&self, id: &str) -> Result<Turn, RpcError> {
        let slot = self.named(id)?;
        let number = self.uses.fetch_add(1, Ordering::Relaxed);
        let cancelled = CancellationToken::new();
        slot.turns.lock().insert(number, cancelled.clone());
        Ok(Turn {
            slot,
            number,
            cancelled,
        })
    }

    /// Closes a session and forgets it. Its journal stays.
    pub(super) async fn close(&self, id: &ConversationId) {
        let slot = self.slots.lock().remove(id);
        if let Some(slot) = slot {
            slot.cancel();
            slot.shut().await;
        }
    }

    /// Closes all sessions. A round that is open has some seconds to end, and is then stored as
    /// interrupted.
    pub(super) async fn close_all(&self) {
        let all: Vec<_> = self.slots.lock().drain().map(|(_, slot)| slot).collect();
        let mut closing = JoinSet::new();
        for slot in all {
            closing.spawn(async move { slot.shut().await });
        }
        while closing.join_next().await.is_some() {}
    }

    /// The stored sessions, the newest first.
    pub(super) async fn list(
        &self,
        cwd: Option<&Path>,
        cursor: Option<&str>,
    ) -> Result<Value, RpcError> {
        /// Sessions of one answer.
        const PAGE: usize = 50;
        let here = match cwd {
            Some(cwd) => cwd.to_owned(),
            None => std::env::current_dir()
                .map_err(|_| RpcError::new(INTERNAL_ERROR, "there is no current folder"))?,
        };
        let store = self.store(&self.config(&folder(&here)?)?).await?;
        let mut rows = session::newest_first(&store).await?;
        let start = match cursor {
            None => 0,
            Some(cursor) => cursor
                .parse()
                .map_err(|_| RpcError::params("`cursor` is none of this agent's"))?,
        };
        let next = start + PAGE;
        let next = (rows.len() > next).then(|| next.to_string());
        let page = rows.drain(start.min(rows.len())..).take(PAGE);
        let page: Vec<Value> = page
            .map(|row| {
                json!({
                    "sessionId": row.conversation.as_str(),
                    "cwd": here,
                    "title": row.conversation.as_str(),
                    "updatedAt": row.updated_at.to_string(),
                })
            })
            .collect();
        let mut list = json!({"sessions": page});
        if let (Some(list), Some(next)) = (list.as_object_mut(), next) {
            list.insert("nextCursor".into(), json!(next));
        }
        Ok(list)
    }

    /// The configuration of a folder: files of a project count there only if they are trusted.
    fn config(&self, folder: &Path) -> Result<Config, RpcError> {
        let config = Config::load_in(folder, self.file.as_deref(), process_environment());
        Ok(config.map_err(Failure::from)?)
    }

    /// Opens the store of a session. Each opens its own, because a host closes its store when it
    /// ends.
    async fn store(&self, config: &Config) -> Result<Sessions, RpcError> {
        let db = self.args.host.db.as_deref();
        let sessions = Sessions::open(config, db, Opening::OrCreate).await;
        Ok(sessions.map_err(Failure::from)?)
    }

    /// Fails for a session that is not stored.
    async fn known(&self, config: &Config, id: &ConversationId) -> Result<(), RpcError> {
        let store = self.store(config).await?;
        let head = store.backend().head(&session::scope(id)?).await;
        if head.map_err(Failure::from)?.seq.0 > 0 {
            return Ok(());
        }
        let failure = session::not_found(&store, id).await;
        Err(RpcError::new(RESOURCE_NOT_FOUND, failure.plain()))
    }

    /// The open session of a slot; opens it if it is not.
    pub(super) async fn session(&self, slot: &Arc<Slot>) -> Result<Arc<Session>, RpcError> {
        let use_of = self.uses.fetch_add(1, Ordering::Relaxed);
        slot.used.store(use_of, Ordering::Relaxed);
        let mut open = slot.session.lock().await;
        if let Some(open) = &*open {
            return Ok(open.session.clone());
        }
        let place = self.place().await?;
        let config = self.config(&slot.folder)?;
        let mut overrides: Overrides = self.args.host.overrides(&config, Recovery::Close)?;
        overrides.workspace = slot.folder.clone();
        overrides.named = self.named.clone();
        // The client's person answers. `deny` is decided by the host, the other modes by the answers.
        overrides.at_terminal = true;
        overrides.approve = Some(match slot.opened_with.0 {
            Approve::Deny => Approve::Deny,
            Approve::Ask | Approve::Auto => Approve::Ask,
        });
        let own =
            |server: &McpServerConfig| !slot.servers.iter().any(|new| new.name == server.name);
        overrides.mcp.retain(own);
        overrides.mcp.extend(slot.servers.iter().cloned());
        session::check(&config, &overrides)?;
        let store = self.store(&config).await?;
        let quiet = self.args.quiet;
        let id = Some(slot.id.clone());
        let opened = Session::open_in(&config, &overrides, &store, id, false, quiet).await?;
        let session = Arc::new(opened);
        *open = Some(Opened {
            session: session.clone(),
            _place: place,
        });
        Ok(session)
    }

    /// A place for an open session. If all are taken, the session that was unused longest is closed.
    async fn place(&self) -> Result<OwnedSemaphorePermit, RpcError> {
        let busy = || {
            let error = format!("{OPEN_MAX} sessions are at work; wait for one, or cancel one");
            RpcError::new(INTERNAL_ERROR, error)
        };
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Ok(place);
        }
        let mut slots: Vec<_> = self.slots.lock().values().cloned().collect();
        slots.sort_by_key(|slot| slot.used.load(Ordering::Relaxed));
        for slot in &slots {
            // A session whose lock is taken is being opened or closed.
            if let Ok(mut session) = slot.session.try_lock()
                && slot.turns.lock().is_empty()
                && let Some(closed) = session.take()
            {
                closed.session.app.host.shutdown(SHUTDOWN).await;
                drop(closed);
                break;
            }
        }
        self.places.clone().try_acquire_owned().map_err(|_| busy())
    }
}

/// An open session, and its place among those that may be open.
struct Opened {
    session: Arc<Session>,
    _place: OwnedSemaphorePermit,
}

impl Slot {
    pub(super) fn id(&self) -> &ConversationId {
        &self.id
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Requests the end of every open turn.
    pub(super) fn cancel(&self) {
        self.turns
            .lock()
            .values()
            .for_each(CancellationToken::cancel);
    }

    async fn shut(&self) {
        let opened = self.session.lock().await.take();
        if let Some(opened) = opened {
            opened.session.app.host.shutdown(SHUTDOWN).await;
        }
    }

    /// The modes, as `session/new` returns them.
    pub(super) fn modes(&self) -> Value {
        let available: Vec<Value> = self
            .opened_with
            .offered()
            .map(|(_, id, name, what)| json!({"id": id, "name": name, "description": what}))
            .collect();
        json!({"currentModeId": self.mode.lock().id(), "availableModes": available})
    }

    pub(super) fn set_mode(&self, id: &str) -> Result<(), RpcError> {
        let mode = self
            .opened_with
            .switched(id)
            .ok_or_else(|| RpcError::params(format!("there is no mode `{}` here", sanitize(id))))?;
        *self.mode.lock() = mode;
        Ok(())
    }

    /// The update that a session shows.
    pub(super) fn update(&self, update: Value) -> Value {
        json!({"sessionId": self.id.as_str(), "update": update})
    }
}

/// A call that was announced, until its result.
struct Running {
    name: String,
    input: callboard_actors::chat::RawJson,
}

impl Turn {
    /// Sends the prompt and follows its round to the end. Returns the result of `session/prompt`.
    pub(super) async fn run(
        self,
        sessions: &AcpSessions,
        blocks: Vec<Block>,
    ) -> Result<Value, RpcError> {
        let prompt = content::prompt(blocks)?;
        let session = sessions.session(&self.slot).await?;
        if self.cancelled.is_cancelled() {
            return Ok(json!({"stopReason": "cancelled"}));
        }
        let mut reply = session.handle.send(prompt).await?;
        let round_id = reply.round_id().to_string();
        let interrupted = self.follow(sessions, &session, &mut reply).await;
        let end = match reply.outcome().await {
            Ok(end) => end,
            Err(OutcomeError::Failed { end }) => *end,
            Err(_) if interrupted => return Ok(json!({"stopReason": "cancelled"})),
            Err(error) => return Err(failed(error, &round_id)),
        };
        if end.stop_reason == StopReason::Error && !interrupted {
            let end = Box::new(end);
            return Err(failed(OutcomeError::Failed { end }, &round_id));
        }
        Ok(updates::stopped(&end, &round_id, interrupted))
    }

    /// Sends the round's events. Returns whether the client cancelled it.
    async fn follow(&self, sessions: &AcpSessions, session: &Session, reply: &mut Reply) -> bool {
        let mut streamed = Streamed::default();
        let mut running: HashMap<String, Running> = HashMap::new();
        let mut asked: JoinSet<(String, Decision)> = JoinSet::new();
        let mut interrupted = false;
        loop {
            tokio::select! {
                biased;
                () = self.cancelled.cancelled(), if !interrupted => {
                    interrupted = true;
                    asked.abort_all();
                    reply.interrupt();
                }
                Some(answered) = asked.join_next(), if !asked.is_empty() => {
                    let Ok((call, decision)) = answered else { continue };
                    self.decide(sessions, session, call, decision).await;
                }
                event = reply.next() => {
                    let Some(event) = event else { break };
                    let mut updates = streamed.updates(&event.kind);
                    match &event.kind {
                        EventKind::ToolCall { tool_call_id, name, input, .. } => {
                            let call = Running { name: name.clone(), input: input.clone() };
                            updates.push(self.shown(tool_call_id, &call).announced("in_progress"));
                            running.insert(tool_call_id.clone(), call);
                        }
                        EventKind::ToolResult { tool_call_id, is_error, summary, .. } => {
                            if let Some(call) = running.remove(tool_call_id) {
                                let output = output(session, tool_call_id).await;
                                let output = output.as_deref().unwrap_or(summary);
                                updates.push(self.shown(tool_call_id, &call).finished(*is_error, output));
                            }
                        }
                        EventKind::ApprovalRequired { tool_call_id, name, input, reason, .. } if !interrupted => {
                            // The arguments of the question are those that will run.
                            let call = Running { name: name.clone(), input: input.clone() };
                            let mode = *self.slot.mode.lock();
                            match mode.0 {
                                Approve::Auto => self.decide(sessions, session, tool_call_id.clone(), Decision::Once).await,
                                Approve::Deny => self.decide(sessions, session, tool_call_id.clone(), Decision::No).await,
                                Approve::Ask => {
                                    let question = self.question(tool_call_id, &call, reason);
                                    let (out, id) = (sessions.out.clone(), tool_call_id.clone());
                                    asked.spawn(async move { (id, Decision::of(out.ask("session/request_permission", question).await)) });
                                }
                            }
                        }
                        _ => {}
                    }
                    for update in updates {
                        let sent = sessions.out.notify("session/update", self.slot.update(update)).await;
                        if sent.is_err() {
                            break; // The client is gone; the program ends with its input.
                        }
                    }
                }
            }
        }
        interrupted
    }

    fn shown<'a>(&'a self, id: &'a str, call: &'a Running) -> Shown<'a> {
        Shown {
            id,
            name: &call.name,
            input: &call.input,
            folder: &self.slot.folder,
        }
    }

    fn question(&self, id: &str, call: &Running, reason: &str) -> Value {
        // What "always" agrees to, as the tools of these names compare calls.
        let always = match call.name.as_str() {
            "file_edit" => "Always allow edits of this file in the session",
            "web_fetch" => "Always allow this site in the session",
            _ => "Always allow this in the session",
        };
        json!({
            "sessionId": self.slot.id.as_str(),
            "toolCall": self.shown(id, call).asked(reason),
            "options": [
                {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
                {"optionId": "always", "name": always, "kind": "allow_always"},
                {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
            ],
        })
    }

    async fn decide(
        &self,
        sessions: &AcpSessions,
        session: &Session,
        call: String,
        decision: Decision,
    ) {
        // The host refuses an answer that arrives too late; the round continues without it.
        let _ = match decision {
            Decision::Once => session.handle.approve(call.clone(), true).await,
            Decision::Always => session.handle.approve(call.clone(), Consent::Always).await,
            Decision::No => session.handle.approve(call.clone(), false).await,
        };
        if decision != Decision::No {
            let update = self.slot.update(updates::running(&call));
            let _ = sessions.out.notify("session/update", update).await;
        }
    }
}

/// A person's answer. What is no clear yes is a no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    No,
    Once,
    Always,
}

impl Decision {
    fn of(result: Option<Value>) -> Self {
        let option = result.as_ref().and_then(|result| {
            let outcome = result.get("outcome")?;
            let selected = outcome.get("outcome")?.as_str()? == "selected";
            outcome.get("optionId")?.as_str().filter(|_| selected)
        });
        match option {
            Some("allow") => Self::Once,
            Some("always") => Self::Always,
            _ => Self::No,
        }
    }
}

/// What a call returned; `None` if it cannot be read, as after a reset.
async fn output(session: &Session, id: &str) -> Option<String> {
    output_in(&session.handle.state().await.ok()?, id)
}

fn output_in(state: &Durable, id: &str) -> Option<String> {
    let calls = state.batch().map(|batch| batch.calls.as_slice());
    let open = calls
        .unwrap_or_default()
        .iter()
        .find_map(|call| match &call.state {
            CallState::Finished(result) if call.tool_use.id == id => {
                Some(result.observation.clone())
            }
            _ => None,
        });
    open.or_else(|| {
        let messages = state.history.messages();
        let mut blocks = messages
            .iter()
            .rev()
            .take(4)
            .flat_map(|message| message.blocks());
        blocks.find_map(|block| match block {
            callboard_actors::chat::ContentBlock::ToolResult(result)
                if result.tool_use_id == id =>
            {
                Some(result.content.text().into_owned())
            }
            _ => None,
        })
    })
}

/// The error of a round that failed.
fn failed(error: OutcomeError, round_id: &str) -> RpcError {
    let code = match &error {
        OutcomeError::Failed { end } => end.error.as_ref().map(|failure| failure.code.clone()),
        OutcomeError::Ended { failure } => Some(failure.code.clone()),
        _ => None,
    };
    let mut failed = RpcError::from(Failure::from(error));
    failed.data = Some(json!({"code": code, "roundId": round_id}));
    failed
}

/// The folder of a session. A relative one would depend on how this process was started.
fn folder(cwd: &Path) -> Result<PathBuf, RpcError> {
    if !cwd.is_absolute() {
        return Err(RpcError::params("`cwd` must be an absolute path"));
    }
    if !cwd.is_dir() {
        return Err(RpcError::params("`cwd` is not a folder"));
    }
    Ok(cwd.to_owned())
}

/// The MCP servers that a client passes. One that cannot be used is reported, and the others are kept.
fn servers(given: Vec<Value>) -> Vec<McpServerConfig> {
    /// Servers of one session.
    const SERVERS_MAX: usize = 32;
    let mut servers = Vec::new();
    for server in given.into_iter().take(SERVERS_MAX) {
        match server_of(&server) {
            Ok(read) => servers.extend(read),
            Err(problem) => err_line(&sanitize(&format!(
                "note: an MCP server of the client is not used: {problem}"
            ))),
        }
    }
    servers
}

fn server_of(given: &Value) -> Result<Vec<McpServerConfig>, String> {
    let name = given
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    // Editors let people choose any name; ours become parts of tools' names.
    let name: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(64)
        .collect();
    let pairs = |key: &str| -> serde_json::Map<String, Value> {
        let list = given.get(key).and_then(Value::as_array);
        let pair = |pair: &Value| {
            Some((
                pair.get("name")?.as_str()?.to_owned(),
                pair.get("value")?.clone(),
            ))
        };
        list.into_iter().flatten().filter_map(pair).collect()
    };
    let server = match (given.get("command"), given.get("url")) {
        (Some(command), _) => json!({
            "command": command,
            "args": given.get("args").cloned().unwrap_or_else(|| json!([])),
            "env": pairs("env"),
        }),
        (None, Some(url)) => json!({"url": url, "headers": pairs("headers")}),
        (None, None) => return Err(format!("`{name}` has neither `command` nor `url`")),
    };
    read_servers(&json!({"mcpServers": {name: server}}).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_selected_option_allows_a_call() {
        let of = |value: Value| Decision::of(Some(value));
        let selected = |id: &str| of(json!({"outcome": {"outcome": "selected", "optionId": id}}));

        assert_eq!(
            [
                selected("allow"),
                selected("always"),
                selected("reject"),
                selected("other")
            ],
            [Decision::Once, Decision::Always, Decision::No, Decision::No]
        );
        assert_eq!(
            of(json!({"outcome": {"outcome": "cancelled", "optionId": "allow"}})),
            Decision::No
        );
        assert_eq!(
            [of(json!({})), Decision::of(None)],
            [Decision::No, Decision::No]
        );
    }

    #[test]
    fn a_client_cannot_widen_a_session_that_denies() {
        let modes =
            |mode: Approve| -> Vec<&str> { Mode(mode).offered().map(|(_, id, ..)| id).collect() };

        assert_eq!(modes(Approve::Ask), ["ask", "auto", "deny"]);
        assert_eq!(modes(Approve::Deny), ["deny"]);
        assert_eq!(Mode(Approve::Deny).switched("auto"), None);
        assert_eq!(
            Mode(Approve::Auto).switched("ask"),
            Some(Mode(Approve::Ask))
        );
    }

    #[test]
    fn servers_of_an_editor_get_names_that_tools_can_have() {
        let read = server_of(&json!({
            "name": "My files!", "command": "/bin/server", "args": ["-x"], "env": [{"name": "A", "value": "b"}],
        }))
        .unwrap();

        assert_eq!(read[0].name, "My-files-");
        assert!(
            server_of(&json!({"name": "x"}))
                .unwrap_err()
                .contains("neither")
        );
    }
}
