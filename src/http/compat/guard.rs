//! Conversations of single calls: their names, who erases them, and what happens when a client
//! leaves.

use callboard_actors::{
    conversation::ConversationError,
    host::{ConversationHandle, Reply, SendError, SendPrompt},
    ids::{ConversationId, RoundId, Scope, TenantId},
    ports::{Entropy as _, ListQuery, StoreError},
};

use tokio::task::JoinHandle;

use crate::{Host, clock::SystemEntropy};

/// Prefix of temporary conversations' ids; random hex digits follow.
const STATELESS: &str = "openai-";

/// Number of hex digits after [`STATELESS`].
const STATELESS_DIGITS: usize = 32;

/// A new name of a temporary conversation.
pub(super) fn stateless_id() -> String {
    SystemEntropy
        .bytes()
        .iter()
        .fold(STATELESS.to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

/// Whether an id is that of a temporary conversation, which no client can ask for again.
pub(crate) fn is_stateless(id: &ConversationId) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    id.as_str()
        .strip_prefix(STATELESS)
        .is_some_and(|digits| digits.len() == STATELESS_DIGITS && digits.bytes().all(is_digit))
}

/// Lists temporary conversations that a stopped host did not erase. Call it before serving:
/// afterwards those of open requests look the same.
///
/// # Errors
/// The store's error.
pub async fn left_behind(host: &Host, tenant: &TenantId) -> Result<Vec<Scope>, StoreError> {
    let mut left = Vec::new();
    let mut after = ConversationId::new(STATELESS).ok();
    loop {
        let page = host
            .ports()
            .sessions
            .list(
                tenant,
                ListQuery {
                    after: after.clone(),
                    ..ListQuery::default()
                },
            )
            .await?;
        let Some(last) = page.last() else {
            return Ok(left);
        };
        let is_last = !last.conversation.as_str().starts_with(STATELESS);
        after = Some(last.conversation.clone());
        let ours = page
            .into_iter()
            .map(|row| row.conversation)
            .filter(is_stateless);
        left.extend(ours.map(|id| Scope::new(tenant.clone(), id)));
        if is_last {
            return Ok(left);
        }
    }
}

/// Cleans up when the client disconnects, or when a request without a conversation id is over.
/// Dropping it means that the client left: the round is interrupted, or the temporary conversation
/// erased.
pub(super) struct DisconnectGuard {
    conversation: Option<ConversationHandle>,
    is_stateless: bool,
    round: Option<RoundId>,
    /// The prompt that is being sent.
    sending: Option<Sending>,
}

/// A prompt that is sent whether its client stays or not.
type Sending = JoinHandle<Result<Reply, SendError>>;

impl DisconnectGuard {
    pub(super) fn new(conversation: ConversationHandle, is_stateless: bool) -> Self {
        Self {
            conversation: Some(conversation),
            is_stateless,
            round: None,
            sending: None,
        }
    }

    /// Does nothing when it is dropped: the round does not need its client.
    pub(super) fn none() -> Self {
        Self {
            conversation: None,
            is_stateless: false,
            round: None,
            sending: None,
        }
    }

    pub(super) fn round(&mut self, reply: &Reply) {
        self.round = Some(reply.round_id());
    }

    /// Sends a prompt. The round of a client that leaves meanwhile is known all the same.
    ///
    /// # Errors
    /// Those of the prompt.
    pub(super) async fn send(&mut self, prompt: SendPrompt) -> Result<Reply, SendError> {
        let sending = self.sending.insert(tokio::spawn(prompt.into_future()));
        let sent = sending.await;
        self.sending = None;
        let reply = sent.unwrap_or(Err(ConversationError::Gone.into()))?;
        self.round(&reply);
        Ok(reply)
    }

    /// The client may leave from now on.
    pub(super) fn disarm(mut self) {
        self.conversation = None;
    }

    /// The round's result was delivered: nothing is cancelled, and a temporary conversation is
    /// erased.
    pub(super) async fn stays(mut self) {
        if let Some(conversation) = self.conversation.take().filter(|_| self.is_stateless) {
            erase(&conversation).await;
        }
    }
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        let Some(conversation) = self.conversation.take() else {
            return;
        };
        if self.is_stateless {
            drop(conversation.delete()); // It has begun.
            return;
        }
        let (round, sending) = (self.round, self.sending.take());
        // `drop` cannot wait, so a task does the work; without a runtime the host is ending anyway.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let sent = match sending {
                Some(sending) => sending.await.ok().and_then(Result::ok),
                None => None,
            };
            let round = round.or(sent.as_ref().map(Reply::round_id));
            if let Some(Ok(reply)) = round.map(|round| conversation.watch(round)) {
                // Interrupt only while this client's round is open: another client's round must not
                // end.
                let is_open = conversation
                    .state()
                    .await
                    .is_ok_and(|state| state.round.is_some_and(|open| open.id == reply.round_id()));
                if is_open {
                    reply.interrupt();
                }
            }
        });
    }
}

async fn erase(conversation: &ConversationHandle) {
    if let Err(error) = conversation.delete().await {
        tracing::warn!(%error, "a temporary conversation could not be erased");
    }
}
