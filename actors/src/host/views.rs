//! What callers read of a stored conversation besides its state: rounds, messages, the debug form.

use super::{ConversationHandle, SendError};
use crate::{
    chat::{Message, MessageList, StandardMessage},
    ids::Seq,
    journal::{ConversationRound, Entry, MultiRoundConversation, TITLE_ENTRIES, title},
};

impl ConversationHandle {
    /// Reads the first words of the first prompt from the store; `None` without one. Does not
    /// activate the conversation.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or a damaged journal.
    pub async fn title(&self) -> Result<Option<String>, SendError> {
        let scope = self.scope.clone()?;
        let _permit = self.host.read_permit(&scope).await;
        let sessions = &self.host.ports.sessions;
        let first = sessions
            .entries(&scope, Seq::default(), TITLE_ENTRIES)
            .await?;
        Ok(title(&first))
    }

    /// Reads at most `count` entries of the journal after `after` from the store, also those that a
    /// rewind took back; fewer if they have many bytes, none at the end of the journal. Does not
    /// activate the conversation.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable entry.
    pub async fn entries(&self, after: Seq, count: usize) -> Result<Vec<Entry>, SendError> {
        let scope = self.scope.clone()?;
        let _permit = self.host.read_permit(&scope).await;
        let sessions = &*self.host.ports.sessions;
        Ok(crate::conversation::read_entries(sessions, &scope, after, count).await?)
    }

    /// Reads the rounds from the store, oldest first, without activating the conversation.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn rounds(&self) -> Result<Vec<ConversationRound>, SendError> {
        let scope = self.scope.clone()?;
        let _permit = self.host.read_permit(&scope).await;
        Ok(
            crate::conversation::read_rounds(&*self.host.ports.sessions, &scope)
                .await?
                .rounds(),
        )
    }

    /// Reads the conversation as a list of rounds, with its active skills and the window of its
    /// model, from the store. Does not activate the conversation.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn multi_round(&self) -> Result<MultiRoundConversation, SendError> {
        let scope = self.scope.clone()?;
        let setup = self.setup()?;
        let _permit = self.host.read_permit(&scope).await;
        let read = crate::conversation::read_rounds(&*self.host.ports.sessions, &scope).await?;
        let window = (setup.window_tokens, setup.compactor.settings().trigger);
        Ok(MultiRoundConversation::new(
            &scope,
            read.rounds(),
            read.state(),
            window,
        ))
    }

    /// Reads all messages in their debug form, also those that a compaction dropped. Does not
    /// activate the conversation. Its time grows with the journal.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn debug_messages(&self) -> Result<Vec<StandardMessage>, SendError> {
        let scope = self.scope.clone()?;
        let _permit = self.host.read_permit(&scope).await;
        Ok(crate::conversation::read_debug(&*self.host.ports.sessions, &scope).await?)
    }

    /// Reads all messages from the journal, also those that a compaction dropped from the history.
    /// Does not activate the conversation. Its time grows with the journal.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn transcript(&self) -> Result<MessageList, SendError> {
        let scope = self.scope.clone()?;
        let _permit = self.host.read_permit(&scope).await;
        Ok(crate::conversation::read_transcript(&*self.host.ports.sessions, &scope).await?)
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
