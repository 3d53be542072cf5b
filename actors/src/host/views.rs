//! What callers read of a stored conversation besides its state: rounds, messages, the debug form.

use bytes::Bytes;

use super::{ConversationHandle, SendError};
use crate::{
    chat::{Message, MessageList, StandardMessage},
    ids::Seq,
    journal::{
        ConversationRound, Entry, EntryBody, MultiRoundConversation, RoundsReader, TITLE_ENTRIES,
        TranscriptReader, title,
    },
    ports::ProviderError,
    reads::{bytes_of, decoded},
};

/// Stands for the system prompt where it is left out.
const SYSTEM_LEFT_OUT: &str = "[the system prompt of this host]";

impl ConversationHandle {
    /// Reads the first words of the first prompt from the store; `None` without one. Does not
    /// activate the conversation.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or a damaged journal.
    pub async fn title(&self) -> Result<Option<String>, SendError> {
        let scope = self.scope.clone()?;
        let permit = self.host.read_permit(&scope).await;
        let sessions = &self.host.ports.sessions;
        let first = sessions
            .entries(&scope, Seq::default(), TITLE_ENTRIES)
            .await?;
        Ok(decoded(bytes_of(&first), &permit, move || title(&first)).await?)
    }

    /// Reads at most `count` entries of the journal after `after` from the store, also those that a
    /// rewind took back; fewer if they have many bytes, none at the end of the journal. Does not
    /// activate the conversation.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable entry.
    pub async fn entries(&self, after: Seq, count: usize) -> Result<Vec<Entry>, SendError> {
        let scope = self.scope.clone()?;
        let permit = self.host.read_permit(&scope).await;
        let sessions = &*self.host.ports.sessions;
        Ok(crate::conversation::read_entries(sessions, &scope, &permit, after, count).await?)
    }

    /// Builds the body of the model call that the entry `at` began, as its provider would be sent it
    /// now: the history is that of the journal at this entry; system prompt, tools, model and
    /// parameters are those configured now. Unless `with_system`, a line stands for the system
    /// prompt, which is the host's. `None` if no model call began there. Does not activate the
    /// conversation. Its time grows with the journal before the entry.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal; inside,
    /// [`ProviderError::Unsupported`] for a provider without a wire format.
    pub async fn request_body(
        &self,
        at: Seq,
        with_system: bool,
    ) -> Result<Option<Result<Bytes, ProviderError>>, SendError> {
        let scope = self.scope.clone()?;
        let setup = self.setup()?;
        let permit = self.host.read_permit(&scope).await;
        let sessions = &*self.host.ports.sessions;
        let before = Seq(at.0.saturating_sub(1));
        let began = crate::conversation::read_entries(sessions, &scope, &permit, before, 1).await?;
        let is_call = |entry: &Entry| {
            entry.seq == at && matches!(entry.body, EntryBody::ModelCallStarted { .. })
        };
        if !began.first().is_some_and(is_call) {
            return Ok(None);
        }
        let state = crate::conversation::until(sessions, &scope, &permit, at).await?;
        let bytes = state.message_bytes();
        let build = move || {
            let (mut request, gateway) = setup.call(&state);
            if !with_system {
                request.system = request.system.map(|_| SYSTEM_LEFT_OUT.into());
            }
            gateway.provider().request_body(&request)
        };
        Ok(Some(decoded(bytes, &permit, build).await?))
    }

    /// Reads the rounds from the store, oldest first, without activating the conversation.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn rounds(&self) -> Result<Vec<ConversationRound>, SendError> {
        let scope = self.scope.clone()?;
        let permit = self.host.read_permit(&scope).await;
        let sessions = &*self.host.ports.sessions;
        let view = |read: RoundsReader| read.into_rounds().0;
        Ok(crate::conversation::read_rounds(sessions, &scope, &permit, view).await?)
    }

    /// Reads the conversation as a list of rounds, with its active skills and the window of its
    /// model, and returns what `view` makes of it. Does not activate the conversation.
    ///
    /// All rounds and the whole history are in memory until `view` returns, so few views of a
    /// tenant run at a time. A view of a long journal runs on a blocking thread, and to its end
    /// also when the returned future is dropped.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn multi_round<T: Send + 'static>(
        &self,
        view: impl FnOnce(MultiRoundConversation) -> T + Send + 'static,
    ) -> Result<T, SendError> {
        let scope = self.scope.clone()?;
        let setup = self.setup()?;
        let permit = self.host.read_permit(&scope).await;
        let sessions = &*self.host.ports.sessions;
        let window = (setup.window_tokens, setup.compactor.settings().trigger);
        let of = scope.clone();
        let view = move |read: RoundsReader| {
            let (rounds, state) = read.into_rounds();
            view(MultiRoundConversation::new(&of, rounds, &state, window))
        };
        Ok(crate::conversation::read_rounds(sessions, &scope, &permit, view).await?)
    }

    /// Reads all messages in their debug form, also those that a compaction dropped. Does not
    /// activate the conversation. Its time grows with the journal.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn debug_messages(&self) -> Result<Vec<StandardMessage>, SendError> {
        let scope = self.scope.clone()?;
        let permit = self.host.read_permit(&scope).await;
        let sessions = &*self.host.ports.sessions;
        let of = scope.clone();
        let view = move |read: TranscriptReader| read.debug(&of);
        Ok(crate::conversation::read_transcript(sessions, &scope, &permit, view).await?)
    }

    /// Reads all messages from the journal, also those that a compaction dropped from the history.
    /// Does not activate the conversation. Its time grows with the journal.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn transcript(&self) -> Result<MessageList, SendError> {
        let scope = self.scope.clone()?;
        let permit = self.host.read_permit(&scope).await;
        let sessions = &*self.host.ports.sessions;
        let view = TranscriptReader::finish;
        Ok(crate::conversation::read_transcript(sessions, &scope, &permit, view).await?)
    }

    /// Reads the messages of the history from the store.
    ///
    /// # Errors
    /// As [`ConversationHandle::state`].
    pub async fn messages(&self) -> Result<Vec<Message>, SendError> {
        Ok(self
            .state()
            .await?
            .history
            .messages()
            .iter()
            .cloned()
            .collect())
    }
}
