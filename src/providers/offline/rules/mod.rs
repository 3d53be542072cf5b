//! The `offline` model: answers questions about the files of a folder by rules. It searches, reads
//! and quotes with the tools that the request offers, and says that it is rule-based.
//!
//! **Invariant:** a pure function of the request. Each call rereads the round from the history, so
//! an interrupted round continues in another process, and the same request gives the same bytes. No
//! network, no clock, no randomness.
//!
//! question → plan (what to search) → the tools' answers as lines → sites (definitions) → rank →
//! answer.

mod diff;
mod question;
mod words;
mod round;
mod known;
mod plan;
mod lines;
mod definition;
mod sites;
mod rank;
mod attribute;
mod answer;
mod survey;

use callboard_actors::{
    chat::{ModelRequest, ProviderStop, RawJson},
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError},
    scripted::Reply,
};
use tokio_util::sync::CancellationToken;

use self::{
    answer::WHO,
    plan::Call,
    question::{Intent, Question},
    round::{Offered, Round},
    survey::Step,
};

/// Bytes after which a delta ends at the next word.
const DELTA_BYTES: usize = 24;

/// The rule-based model. Needs no key and no network, and is deterministic.
///
/// It uses the tools `grep_search`, `file_list` and `file_read`. If a request does not offer them,
/// the answer says so.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offline;

impl LlmProvider for Offline {
    fn name(&self) -> &str {
        "offline"
    }

    fn capabilities(&self, _model: &str) -> Capabilities {
        Capabilities {
            context_window: 1_000_000,
            output_max: 32_000,
            tools: true,
            output_schema: false,
            counts_tokens: true,
            images: false,
            documents: false,
            request_bytes_max: None,
            thinking: false,
        }
    }

    fn stream(
        &self,
        request: ModelRequest,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        reply(&request).play(&request, cancel)
    }

    fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
        Box::pin(std::future::ready(Ok(
            callboard_actors::scripted::estimate_tokens(&request),
        )))
    }
}

/// Returns the model's reply to a request.
fn reply(request: &ModelRequest) -> Reply {
    match step(request) {
        Ok(text) => text_reply(text, request.max_tokens),
        Err(calls) => {
            let messages = request.messages.len();
            calls
                .into_iter()
                .enumerate()
                .fold(Reply::empty(), |reply, (at, call)| {
                    let input =
                        RawJson::of(&call.input).unwrap_or_else(|_| RawJson::empty_object());
                    reply.and_tool_with_id(format!("off_{messages}_{at}"), call.tool, input)
                })
        }
    }
}

/// Returns a text as a reply, cut at the caller's `max_tokens` (four bytes per token).
fn text_reply(mut text: String, max_tokens: u32) -> Reply {
    let most = (max_tokens as usize).saturating_mul(4);
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        return Reply::text(text)
            .chunk_words(DELTA_BYTES)
            .stop(ProviderStop::MaxTokens);
    }
    Reply::text(text).chunk_words(DELTA_BYTES)
}

fn step(request: &ModelRequest) -> Step {
    let round = Round::read(&request.messages);
    // The answer also names the images and documents that rules cannot read.
    answered(&round, request).map(|text| [&[text][..], &round.unseen].concat().join("\n\n"))
}

fn answered(round: &Round, request: &ModelRequest) -> Step {
    let offered = Offered::from_request(request);
    let question = Question::read(&round.question);
    match &question.intent {
        Intent::Talk => Ok(talk(offered)),
        _ if !(offered.grep || offered.list || offered.read) && round.batches.is_empty() => {
            Ok(without_tools())
        }
        Intent::ListFiles { glob, count } => survey::files(glob.as_deref(), *count, round, offered),
        Intent::ListDefinitions { of, count } => {
            survey::definitions(of, *count, &question, round, offered)
        }
        Intent::AboutFile { path } => survey::about(path, &question, round, offered),
        Intent::Find => {
            let calls: Vec<Call> = plan::next(&question, round, offered);
            if calls.is_empty() {
                Ok(answer::found(&question, round))
            } else {
                Err(calls)
            }
        }
    }
}

fn talk(offered: Offered) -> String {
    if !(offered.grep || offered.list || offered.read) {
        return without_tools();
    }
    format!(
        "{WHO}\n\nHello. Ask about the files of this folder, for example: Where is the retry delay computed?"
    )
}

fn without_tools() -> String {
    format!(
        "{WHO}\n\nThis model can only search and read files, and this conversation offers it no tool for that (grep_search, file_list, file_read)."
    )
}

#[cfg(test)]
mod tests;
