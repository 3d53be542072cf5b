//! Reads the rounds of a conversation, and forks of it, from the store without activating the
//! conversation.

use crate::{
    conversation::{ConversationError, LoadFailure, command::Copied, round::Refusal},
    ids::{RoundId, Scope, Seq},
    journal::{ApplyError, Entry, ForkReader, RoundsReader, TranscriptReader},
    ports::{SessionBackend, StoreError},
    reads::{ReadPermit, bytes_of, decoded},
};

/// Entries per read. Few, since the entries of a page are decoded without a pause.
const PAGE: usize = 128;

/// Reads a fork of a conversation up to round `at`, or up to the last finished round. Does not
/// activate the conversation.
pub(crate) async fn read_fork(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    permit: &ReadPermit,
    at: Option<RoundId>,
) -> Result<Copied, ConversationError> {
    let head = sessions.head(scope).await?;
    if head.seq.0 == 0 {
        return Err(StoreError::NotFound.into());
    }
    let reader = ForkReader::new(scope.conversation.clone(), at);
    let read = Read::all(sessions, scope, permit, reader, ForkReader::take).await?;
    let last = read.last;
    if last < head.seq {
        return Err(ConversationError::Failed {
            reason: format!("the journal ends at {last}, its head says {}", head.seq),
        });
    }
    let fork = read
        .end(permit, ForkReader::finish)
        .await?
        .ok_or(Refusal::NoSuch("finished round in this conversation"))?;
    Ok(Copied {
        from: scope.conversation.clone(),
        fork,
    })
}

/// Reads the rounds of a conversation, and returns what `view` makes of them. Does not activate the
/// conversation.
pub(crate) async fn read_rounds<T: Send + 'static>(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    permit: &ReadPermit,
    view: impl FnOnce(RoundsReader) -> T + Send + 'static,
) -> Result<T, ConversationError> {
    let reader = RoundsReader::new(scope.conversation.clone());
    let read = Read::all(sessions, scope, permit, reader, RoundsReader::take).await?;
    read.end(permit, view).await
}

/// Reads all messages of a conversation from its journal, also those that a compaction dropped, and
/// returns what `view` makes of them.
pub(crate) async fn read_transcript<T: Send + 'static>(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    permit: &ReadPermit,
    view: impl FnOnce(TranscriptReader) -> T + Send + 'static,
) -> Result<T, ConversationError> {
    let reader = TranscriptReader::default();
    let read = Read::all(sessions, scope, permit, reader, TranscriptReader::take).await?;
    read.end(permit, view).await
}

/// Reads at most `count` entries of a journal after `after`.
pub(crate) async fn read_entries(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    permit: &ReadPermit,
    after: Seq,
    count: usize,
) -> Result<Vec<Entry>, ConversationError> {
    let page = sessions.entries(scope, after, count).await?;
    let entries = decoded(bytes_of(&page), permit, move || {
        page.iter().map(Entry::decode).collect::<Result<_, _>>()
    });
    Ok(entries.await?.map_err(LoadFailure::from)?)
}

/// A journal that was read whole.
struct Read<R> {
    reader: R,
    /// The last entry.
    last: Seq,
    bytes: usize,
}

impl<R: Send + 'static> Read<R> {
    /// Calls `take` of the reader for each entry of a journal, in order.
    async fn all(
        sessions: &dyn SessionBackend,
        scope: &Scope,
        permit: &ReadPermit,
        mut reader: R,
        take: fn(&mut R, &Entry) -> Result<(), ApplyError>,
    ) -> Result<Self, ConversationError> {
        let (mut last, mut bytes) = (Seq(0), 0);
        loop {
            let page = sessions.entries(scope, last, PAGE).await?;
            let (end, size) = (page.last().map(|stored| stored.seq), bytes_of(&page));
            bytes += size;
            let taken = decoded(size, permit, move || {
                for stored in &page {
                    take(&mut reader, &Entry::decode(stored)?)?;
                }
                Ok::<_, LoadFailure>(reader)
            });
            reader = taken.await??;
            match end {
                Some(seq) if seq > last => last = seq,
                _ => {
                    return Ok(Self {
                        reader,
                        last,
                        bytes,
                    });
                }
            }
        }
    }

    /// Returns what `view` makes of the reader.
    async fn end<T: Send + 'static>(
        self,
        permit: &ReadPermit,
        view: impl FnOnce(R) -> T + Send + 'static,
    ) -> Result<T, ConversationError> {
        let Self { reader, bytes, .. } = self;
        Ok(decoded(bytes, permit, move || view(reader)).await?)
    }
}
