//! Runs the conversations of subagents: sends the task as a prompt, follows the round, and
//! interrupts it when the parent cancels.
//!
//! The only state is a weak reference to the directory. A strong one would be a cycle: setups hold
//! this, and the directory holds the setups.

use std::sync::{Arc, OnceLock, Weak};

use tokio::{sync::oneshot, time::Instant};

use super::{OutcomeError, SendError, directory::Directory, round_watch::RoundWatch};
use crate::{
    chat::Message,
    conversation::{
        ConversationError, ConversationMsg, PromptMail,
        round::{OnBusy, Receipt},
    },
    host::store_admission::{PendingTask, admit_conversation, admit_round},
    ids::Scope,
    journal::{CHILD_KEY, ClientKey, digest},
    limits::SUBAGENT_PROGRESS_INTERVAL,
    ports::{BoxFuture, Progress},
    stream::{ChildProgress, EventKind, RoundEnd},
    subagent::{Children, SUBAGENT_FAILED, Task},
    tenant::Seat,
    tool::{ToolError, ToolErrorType},
};

/// Starts subagents for the tools of one host.
#[derive(Default)]
pub(super) struct Subagents {
    directory: OnceLock<Weak<Directory>>,
}

impl Subagents {
    /// Sets the directory. Called once, when the host is built.
    pub(super) fn set_directory(&self, directory: &Arc<Directory>) {
        let _ = self.directory.set(Arc::downgrade(directory));
    }

    fn directory(&self) -> Option<Arc<Directory>> {
        self.directory.get().and_then(Weak::upgrade)
    }

    async fn run_here(&self, task: Task) -> Result<RoundEnd, ToolError> {
        let directory = self.directory().ok_or_else(stopped)?;
        let child = task.key.child();
        let cancel = task.cancel.clone();
        let ended = run_to_end(&directory, &child, task);
        tokio::pin!(ended);
        let ended = tokio::select! {
            biased;
            ended = &mut ended => ended,
            () = cancel.cancelled() => {
                self.interrupt(&child);
                ended.await // The partial answer is kept; the executor bounds the wait.
            }
        };
        directory.put_to_sleep(&child);
        ended
    }
}

impl Children for Subagents {
    fn run(&self, task: Task) -> BoxFuture<'_, Result<RoundEnd, ToolError>> {
        Box::pin(self.run_here(task))
    }

    fn interrupt(&self, child: &Scope) {
        if let Some(directory) = self.directory() {
            directory.send(child, ConversationMsg::Cancel { failure: None });
            directory.put_to_sleep(child);
        }
    }

    fn wake(&self, child: &Scope) {
        if let Some(directory) = self.directory() {
            directory.send(child, ConversationMsg::Resume);
        }
    }
}

/// A subagent's answer to its task: a receipt, or why it was refused.
pub(super) type TaskReceipt = Result<Receipt, ConversationError>;

/// Sends the task as a prompt keyed by `name`, the tool call or fan-out position that started it. A
/// subagent that accepted the task already answers with `replayed` instead of running it twice.
pub(super) fn send_task(
    directory: &Directory,
    child: &Scope,
    name: String,
    message: Message,
    seat: Seat,
) -> oneshot::Receiver<TaskReceipt> {
    let entropy = &directory.ports().entropy;
    let (reply, answer) = oneshot::channel();
    let mail = PromptMail {
        id: entropy.prompt_id(),
        round_id: entropy.round_id(),
        client_key: Some(ClientKey {
            key: name,
            digest: digest(message.wire()),
        }),
        message: Some(message),
        output_schema: None,
        parameters: None,
        client_tools: None,
        on_busy: OnBusy::Queue,
        deadline: None,
        wait_until: None,
        seat,
        reply,
    };
    directory.send(child, ConversationMsg::Prompt(Box::new(mail)));
    answer
}

/// Sends the task, or finds it already accepted, and follows its round to the end.
async fn run_to_end(
    directory: &Arc<Directory>,
    child: &Scope,
    task: Task,
) -> Result<RoundEnd, ToolError> {
    let ports = directory.ports().clone();
    let tenant = directory.tenants().get(&child.tenant);
    let refused = |error: SendError| not_begun(&error);
    let mut seat = tenant.admit_child().map_err(|why| refused(why.into()))?;
    let message = Message::user(task.text);
    seat.weigh(message.wire().len(), || ports.events.bytes(&child.tenant))
        .map_err(|why| refused(why.into()))?;
    let bytes = message.wire().len();
    let pending = PendingTask {
        bytes: admit_round(&ports, &tenant, &mut seat, bytes)
            .await
            .map_err(refused)?,
        conversation: admit_conversation(&ports, &tenant, &child.conversation)
            .await
            .map_err(refused)?,
    };
    if task.cancel.is_cancelled() {
        return Err(ToolError::failed("it was cancelled before it began").not_started());
    }
    let answer = send_task(
        directory,
        child,
        format!("{CHILD_KEY}{}", task.key),
        message,
        seat,
    );
    let receipt = answer
        .await
        .unwrap_or(Err(ConversationError::Gone))
        .map_err(|error| refused(error.into()))?;
    pending.keep();
    let mut watch = RoundWatch::new(
        ports,
        directory.stopped(),
        tenant.reads().clone(),
        child.clone(),
        receipt.round_id,
    );
    let mut reporter = ProgressReporter {
        progress: task.progress,
        last: Instant::now(),
        progressed: ChildProgress::default(),
    };
    while let Some(event) = watch.next().await {
        reporter.note(&event.kind);
    }
    match watch.outcome().await {
        Ok(end) => Ok(end),
        Err(OutcomeError::Failed { end }) => Ok(*end),
        Err(
            error @ (OutcomeError::Ended { .. } | OutcomeError::Stopped | OutcomeError::Expired),
        ) => Err(
            ToolError::failed(format!("the subagent did not come to an end: {error}"))
                .code(SUBAGENT_FAILED),
        ),
    }
}

/// Reports the progress of a subagent to the watchers of its parent, at most once per
/// [`SUBAGENT_PROGRESS_INTERVAL`].
struct ProgressReporter {
    progress: Progress,
    last: Instant,
    progressed: ChildProgress,
}

impl ProgressReporter {
    fn note(&mut self, event: &EventKind) {
        let EventKind::Usage { usage, .. } = event else {
            return;
        };
        let progressed = &mut self.progressed;
        progressed.steps += 1;
        progressed.tokens = progressed
            .tokens
            .saturating_add(usage.input())
            .saturating_add(usage.output);
        if self.last.elapsed() >= SUBAGENT_PROGRESS_INTERVAL {
            self.last = Instant::now();
            self.progress.report_subagent(self.progressed);
        }
    }
}

fn stopped() -> ToolError {
    ToolError::failed("the host is stopping")
        .code(SUBAGENT_FAILED)
        .not_started()
}

fn not_begun(error: &SendError) -> ToolError {
    let kind = if error.is_retryable() {
        ToolErrorType::ResourceError
    } else {
        ToolErrorType::ExecutionError
    };
    ToolError::new(kind, format!("no subagent was begun: {error}")).code(SUBAGENT_FAILED)
}
