//! A conversation opened for a person: its store, its lock, the host, and the first lines of
//! output.

use callboard_actors::{
    chat::Role,
    host::ConversationHandle,
    ids::{ConversationId, Scope, TenantId},
    journal::{CallState, Durable},
    ports::{Entropy, ListQuery, SessionSummary},
    tool::EffectClass,
};

use super::{
    ask::Question,
    failure::Failure,
    flags::HostFlags,
    terminal::{Paint, counted, err_line, sanitize},
    trust,
    wrap::for_stderr,
};
use crate::{
    app::{self, App, Opening, Overrides, Purpose, Sessions, TENANT, nearest},
    clock::{SystemClock, SystemEntropy},
    config::{Config, ProjectFile, ProjectKind},
    storage::SessionLock,
};

/// An open conversation.
pub(super) struct Session {
    pub(super) app: App,
    pub(super) id: ConversationId,
    pub(super) handle: ConversationHandle,
    /// The state when it was opened.
    pub(super) state: Durable,
    _lock: Option<SessionLock>,
}

/// The scope of a conversation of the command line.
pub(super) fn scope(id: &ConversationId) -> Result<Scope, Failure> {
    let tenant = TenantId::new(TENANT).map_err(|error| Failure::work(error.to_string()))?;
    Ok(Scope::new(tenant, id.clone()))
}

/// A new session id: the time, and random digits.
pub(super) fn fresh_id() -> Result<ConversationId, Failure> {
    use callboard_actors::ports::Clock as _;
    let now = SystemClock.now().to_string();
    let digits: String = now.chars().take(19).filter(char::is_ascii_digit).collect();
    let (date, time) = digits.split_at_checked(8).unwrap_or((digits.as_str(), ""));
    let [a, b, ..] = SystemEntropy.bytes();
    ConversationId::new(format!("{date}-{time}-{a:02x}{b:02x}"))
        .map_err(|error| Failure::work(error.to_string()))
}

/// Prints provider, model and workspace, and which configuration of the current folder takes
/// effect, if any; then notes.
pub(super) fn announce(config: &Config, app: &App) {
    let paint = Paint::stderr();
    let provider = sanitize(&app.provider);
    let model = sanitize(&app.model);
    let workspace = sanitize(&app.workspace.display().to_string());
    let counts = |file: &&ProjectFile| {
        file.kind == ProjectKind::Configuration && (file.is_trusted() || !file.counts.is_empty())
    };
    let with = match config.project_files().iter().find(counts) {
        Some(file) if file.is_trusted() => format!(
            ", configuration {} (trusted)",
            sanitize(&file.path.display().to_string())
        ),
        Some(file) => format!(
            ", configuration {} (only what narrows)",
            sanitize(&file.path.display().to_string())
        ),
        None => String::new(),
    };
    // The name is painted last: sequences have no columns.
    let line = for_stderr(&format!(
        "callboard provider {provider}, model {model}, workspace {workspace}{with}"
    ));
    let rest = line.strip_prefix("callboard").unwrap_or_default();
    err_line(&format!("{}{rest}", paint.bold("callboard")));
    trust::note(config);
    for note in &app.notes {
        let note = for_stderr(&format!("note: {}", sanitize(note)));
        err_line(&paint.dim(&note));
    }
}

/// Reports wrong flags before anything is created.
pub(super) fn check(config: &Config, overrides: &Overrides) -> Result<(), Failure> {
    app::choose_provider(config, overrides, Purpose::Calls)?;
    Ok(app::check_places(config, overrides)?)
}

impl Session {
    /// Opens a conversation. Unless `quiet`, prints provider, model and workspace, then notes, then
    /// the session.
    pub(super) async fn open(
        config: &Config,
        flags: &HostFlags,
        id: Option<ConversationId>,
        resume: bool,
        quiet: bool,
    ) -> Result<Self, Failure> {
        use callboard_actors::conversation::round::rules::Recovery;
        let overrides: Overrides = flags.overrides(
            config,
            if resume {
                Recovery::Resume
            } else {
                Recovery::Close
            },
        )?;
        check(config, &overrides)?;
        let sessions = Sessions::open(config, overrides.db.as_deref(), Opening::OrCreate).await?;
        Self::open_in(config, &overrides, &sessions, id, resume, quiet).await
    }

    /// Opens a conversation of sessions that are open. [`check`] must have accepted the overrides.
    pub(super) async fn open_in(
        config: &Config,
        overrides: &Overrides,
        sessions: &Sessions,
        id: Option<ConversationId>,
        resume: bool,
        quiet: bool,
    ) -> Result<Self, Failure> {
        let named = id.is_some();
        let id = match id {
            Some(id) => id,
            None => fresh_id()?,
        };
        let scope = scope(&id)?;
        let lock = sessions.lock(&scope)?;
        let is_new = sessions.backend().head(&scope).await?.seq.0 == 0;
        if is_new && resume {
            return Err(not_found(sessions, &id).await);
        }
        let app = app::start(config, overrides, sessions).await?;
        let handle = app.host.tenant(TENANT).conversation(id.clone());
        let state = handle
            .state()
            .await
            .map_err(|error| unreadable(&id, error))?;

        let paint = Paint::stderr();
        if !quiet {
            announce(config, &app);
            if is_new {
                err_line(&paint.dim(&format!("new session {id}")));
            } else if named {
                let messages = counted(state.history.messages().len(), "message");
                err_line(&paint.dim(&format!("session {id}, {messages}")));
            }
        }
        if !quiet && !resume && state.round.is_some() {
            err_line(&closing_line(&state));
        }
        Ok(Self {
            app,
            id,
            handle,
            state,
            _lock: lock,
        })
    }

    /// Calls of the open round that wait for approval.
    pub(super) fn questions(&self) -> Vec<Question> {
        let calls = self
            .state
            .batch()
            .map(|batch| batch.calls.as_slice())
            .unwrap_or_default();
        let asked = calls.iter().filter_map(|call| match &call.state {
            CallState::Asked { input, .. } => Some(Question {
                tool_call_id: call.tool_use.id.clone(),
                name: call.tool_use.name.clone(),
                input: input.as_str().to_owned(),
                reason: "it was asked before the round was interrupted.".into(),
            }),
            _ => None,
        });
        asked.collect()
    }

    /// The text of the last answer; `None` if there is none.
    pub(super) fn last_answer(&self) -> Option<String> {
        let last = self
            .state
            .history
            .messages()
            .iter()
            .rev()
            .find(|message| message.role() == Role::Assistant)?;
        Some(last.text()).filter(|text| !text.is_empty())
    }
}

/// The message about an open round that is closed because it was not resumed.
fn closing_line(state: &Durable) -> String {
    let calls = state
        .batch()
        .map(|batch| batch.calls.as_slice())
        .unwrap_or_default();
    let doubtful = calls
        .iter()
        .filter(|call| {
            matches!(
                call.state,
                CallState::Started {
                    effect: EffectClass::Once,
                    ..
                }
            )
        })
        .count();
    let doubt = match doubtful {
        0 => String::new(),
        1 => "; the outcome of one tool call is unknown".into(),
        n => format!("; the outcome of {n} tool calls is unknown"),
    };
    format!("the round that was interrupted is closed{doubt} (--resume would have resumed it)")
}

/// The id of the session that was used last.
pub(super) async fn last_session(
    config: &Config,
    flags: &HostFlags,
) -> Result<ConversationId, Failure> {
    let sessions = Sessions::open(config, flags.db.as_deref(), Opening::Existing).await?;
    let newest = newest_first(&sessions).await?.into_iter().next();
    newest
        .map(|row| row.conversation)
        .ok_or_else(|| Failure::work("no session is stored that could be continued"))
}

/// The stored sessions, those used last first.
pub(super) async fn newest_first(sessions: &Sessions) -> Result<Vec<SessionSummary>, Failure> {
    let tenant = TenantId::new(TENANT).map_err(|error| Failure::work(error.to_string()))?;
    let mut rows: Vec<SessionSummary> = Vec::new();
    loop {
        let query = ListQuery {
            after: rows.last().map(|row| row.conversation.clone()),
            ..ListQuery::default()
        };
        let page = sessions.backend().list(&tenant, query).await?;
        if page.is_empty() {
            break;
        }
        rows.extend(page);
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.updated_at));
    Ok(rows)
}

/// The error for an unknown session, with the nearest existing id.
pub(super) async fn not_found(sessions: &Sessions, id: &ConversationId) -> Failure {
    match scope(id) {
        Ok(scope) => not_found_in(sessions, &scope).await,
        Err(failure) => failure,
    }
}

/// The same for a conversation of any tenant.
pub(super) async fn not_found_in(sessions: &Sessions, scope: &Scope) -> Failure {
    let ids = sessions.ids(&scope.tenant).await.unwrap_or_default();
    let id = &scope.conversation;
    Failure::no_session(
        id.as_str(),
        nearest(id.as_str(), ids.iter().map(ConversationId::as_str)),
    )
}

/// The error for a conversation whose journal cannot be read.
pub(super) fn unreadable(id: &ConversationId, error: callboard_actors::host::SendError) -> Failure {
    use callboard_actors::{conversation::ConversationError, host::SendError};
    match error {
        SendError::Conversation(ConversationError::Failed { reason }) => {
            unreadable_of(id, &reason, "")
        }
        other => other.into(),
    }
}

/// The same for a reason; `flags` are those that the commands in the hint need.
pub(super) fn unreadable_of(id: &ConversationId, reason: &str, flags: &str) -> Failure {
    Failure::work(format!("session `{id}` cannot be read: {reason}")).hint(format!(
        "`callboard sessions export {id}{flags}` prints what is readable, `callboard sessions repair {id}{flags}` repairs it"
    ))
}
