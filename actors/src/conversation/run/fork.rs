//! Reads the rounds of a conversation, and forks of it, from the store without activating the
//! conversation.

use crate::{
    chat::{MessageList, StandardMessage},
    conversation::{ConversationError, LoadFailure, command::Copied, round::Refusal},
    ids::{RoundId, Scope, Seq},
    journal::{ApplyError, Entry, ForkReader, RoundsReader, TranscriptReader},
    ports::{SessionBackend, StoreError},
};

/// Entries per read. Few, since the entries of a page are decoded without a pause.
const PAGE: usize = 128;

/// Reads a fork of a conversation up to round `at`, or up to the last finished round. Does not
/// activate the conversation.
pub(crate) async fn read_fork(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    at: Option<RoundId>,
) -> Result<Copied, ConversationError> {
    let head = sessions.head(scope).await?;
    if head.seq.0 == 0 {
        return Err(StoreError::NotFound.into());
    }
    let mut reader = ForkReader::new(scope.conversation.clone(), at);
    let last = each_entry(sessions, scope, |entry| reader.take(entry)).await?;
    if last < head.seq {
        return Err(ConversationError::Failed {
            reason: format!("the journal ends at {last}, its head says {}", head.seq),
        });
    }
    let fork = reader
        .finish()
        .ok_or(Refusal::NoSuch("finished round in this conversation"))?;
    Ok(Copied {
        from: scope.conversation.clone(),
        fork,
    })
}

/// Reads the rounds of a conversation. Does not activate it.
pub(crate) async fn read_rounds(
    sessions: &dyn SessionBackend,
    scope: &Scope,
) -> Result<RoundsReader, ConversationError> {
    let mut reader = RoundsReader::new(scope.conversation.clone());
    each_entry(sessions, scope, |entry| reader.take(entry)).await?;
    Ok(reader)
}

/// Reads all messages of a conversation from its journal, also those that a compaction dropped.
pub(crate) async fn read_transcript(
    sessions: &dyn SessionBackend,
    scope: &Scope,
) -> Result<MessageList, ConversationError> {
    let mut reader = TranscriptReader::default();
    each_entry(sessions, scope, |entry| reader.take(entry)).await?;
    Ok(reader.finish())
}

/// Reads all messages of a conversation in their debug form, also those that a compaction dropped.
pub(crate) async fn read_debug(
    sessions: &dyn SessionBackend,
    scope: &Scope,
) -> Result<Vec<StandardMessage>, ConversationError> {
    let mut reader = TranscriptReader::default();
    each_entry(sessions, scope, |entry| reader.take(entry)).await?;
    Ok(reader.debug(scope))
}

/// Reads at most `count` entries of a journal after `after`.
pub(crate) async fn read_entries(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    after: Seq,
    count: usize,
) -> Result<Vec<Entry>, ConversationError> {
    let page = sessions.entries(scope, after, count).await?;
    let entries = page.iter().map(Entry::decode);
    Ok(entries
        .collect::<Result<_, _>>()
        .map_err(LoadFailure::from)?)
}

/// Calls `take` for each entry of a journal, in order. Returns the seq of the last entry.
async fn each_entry(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    mut take: impl FnMut(&Entry) -> Result<(), ApplyError>,
) -> Result<Seq, ConversationError> {
    let mut last = Seq(0);
    loop {
        let page = sessions.entries(scope, last, PAGE).await?;
        for stored in &page {
            let entry = Entry::decode(stored).map_err(LoadFailure::from)?;
            take(&entry).map_err(LoadFailure::from)?;
        }
        match page.last() {
            Some(stored) if stored.seq > last => last = stored.seq,
            _ => return Ok(last),
        }
    }
}
