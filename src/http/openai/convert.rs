//! Converts OpenAI's messages into Callboard's, and finds what a request adds to a stored
//! conversation. Pure.

use callboard_actors::chat::{ContentBlock, Message, Role};
use serde_json::json;

use super::wire::{ChatRequest, MessageContent, Part, RequestMessage};
use crate::http::error::Problem;

/// Introduces the client's system messages, which become part of the first user message: the system
/// prompt belongs to the host.
const INSTRUCTIONS: &str = "Instructions of the application:\n";

/// One message of the client's list, after its role and parts were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) is_user: bool,
    pub(super) blocks: Vec<ContentBlock>,
}

impl Turn {
    pub(super) fn text(&self) -> String {
        self.blocks
            .iter()
            .filter_map(ContentBlock::as_text)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// The messages of a request, with the instructions separated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Transcript {
    /// The client's system and developer messages, joined; `None` if there are none.
    pub(super) instructions: Option<String>,
    /// User and assistant messages in order; the last one is the user's.
    pub(super) messages: Vec<Turn>,
}

impl Transcript {
    /// Checks and converts a request's messages.
    pub(super) fn from_request(request: &ChatRequest) -> Result<Self, Problem> {
        refuse(request)?;
        let mut instructions: Vec<String> = Vec::new();
        let mut turns: Vec<Turn> = Vec::new();
        for (index, message) in request.messages.iter().enumerate() {
            let blocks = blocks(index, message)?;
            match message.role.as_str() {
                "system" | "developer" => instructions.extend(
                    blocks
                        .iter()
                        .filter_map(ContentBlock::as_text)
                        .map(str::to_owned),
                ),
                "user" | "assistant" => {
                    turns.push(Turn {
                        is_user: message.role == "user",
                        blocks,
                    });
                }
                _ => {
                    return Err(unsupported(
                        format!("/messages/{index}/role"),
                        "the role must be system, developer, user or assistant",
                    ));
                }
            }
        }
        if !turns.last().is_some_and(|last| last.is_user) {
            return Err(unsupported(
                "/messages",
                "the last message must be of role user",
            ));
        }
        let instructions = (!instructions.is_empty()).then(|| instructions.join("\n\n"));
        Ok(Self {
            instructions,
            messages: turns,
        })
    }

    /// Puts the instructions as a block before the first user message.
    fn introduced(instructions: Option<String>, blocks: Vec<ContentBlock>) -> Vec<ContentBlock> {
        let introduction =
            instructions.map(|text| ContentBlock::text(format!("{INSTRUCTIONS}{text}")));
        introduction.into_iter().chain(blocks).collect()
    }

    /// Splits the messages of a new conversation into history and prompt.
    pub(super) fn begin(self) -> Result<(Vec<Message>, Vec<ContentBlock>), Problem> {
        let Self {
            mut instructions,
            messages,
        } = self;
        let mut turns: Vec<Turn> = Vec::with_capacity(messages.len());
        for turn in messages {
            // Adjacent messages of one role are merged: providers require alternating roles.
            match turns.last_mut().filter(|last| last.is_user == turn.is_user) {
                Some(last) => last.blocks.extend(turn.blocks),
                None => turns.push(turn),
            }
        }
        let now = turns.pop().map(|last| last.blocks).unwrap_or_default();
        let mut history = Vec::with_capacity(turns.len());
        for turn in turns {
            let (role, blocks) = match turn.is_user {
                true => (
                    Role::User,
                    Self::introduced(instructions.take(), turn.blocks),
                ),
                false => (Role::Assistant, turn.blocks),
            };
            let message = Message::new(role, &blocks)
                .map_err(|error| unsupported("/messages", error.to_string()))?;
            history.push(message);
        }
        Ok((history, Self::introduced(instructions, now)))
    }
}

fn refuse(request: &ChatRequest) -> Result<(), Problem> {
    let is_given = |value: &Option<serde_json::Value>| {
        value
            .as_ref()
            .is_some_and(|value| !value.is_null() && value != &json!([]))
    };
    if is_given(&request.tools) || is_given(&request.functions) {
        let pointer = if is_given(&request.tools) {
            "/tools"
        } else {
            "/functions"
        };
        return Err(unsupported(
            pointer,
            "the host has its own tools; configure them there",
        ));
    }
    if request.n.is_some_and(|n| n != 1) {
        return Err(unsupported("/n", "only one choice is supported"));
    }
    if request.logprobs == Some(true) {
        return Err(unsupported("/logprobs", "logprobs are not supported"));
    }
    Ok(())
}

pub(super) fn unsupported(pointer: impl Into<String>, detail: impl Into<String>) -> Problem {
    Problem::invalid(pointer, detail)
}

fn blocks(index: usize, message: &RequestMessage) -> Result<Vec<ContentBlock>, Problem> {
    let at = |field: &str| format!("/messages/{index}/{field}");
    if message
        .tool_calls
        .as_ref()
        .is_some_and(|calls| !calls.is_null() && calls != &json!([]))
    {
        return Err(unsupported(at("tool_calls"), "the host has its own tools"));
    }
    let blocks = match &message.content {
        Some(MessageContent::Text(text)) => vec![ContentBlock::text(text.as_str())],
        Some(MessageContent::Parts(parts)) => {
            let blocks = parts.iter().enumerate().map(|(part, value)| {
                block(value).ok_or_else(|| unsupported(at(&format!("content/{part}")), PARTS))
            });
            blocks.collect::<Result<Vec<_>, _>>()?
        }
        None => return Err(unsupported(at("content"), "is required")),
    };
    if blocks.is_empty() {
        Err(unsupported(at("content"), "must not be empty"))
    } else {
        Ok(blocks)
    }
}

const PARTS: &str = "a part is a `text`, or an `image_url` with a data: or https: URL";

fn block(part: &Part) -> Option<ContentBlock> {
    match part.kind.as_str() {
        "text" => part.text.as_deref().map(ContentBlock::text),
        "image_url" => {
            let url = &part.image_url.as_ref()?.url;
            let source = match url.strip_prefix("data:") {
                Some(data) => {
                    let (media_type, data) = data.split_once(";base64,")?;
                    json!({ "type": "base64", "media_type": media_type, "data": data })
                }
                None => json!({ "type": "url", "url": url }),
            };
            serde_json::from_value(json!({ "type": "image", "source": source })).ok()
        }
        _ => None,
    }
}

/// Text without white space. Clients trim messages and streams may split them at white space, so
/// comparisons ignore it.
fn bare(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// The messages that follow the known rounds (`(prompt, answer)` each), as the next prompt; `None`
/// when the request's history differs from the conversation's.
///
/// A client that streamed an answer holds all text of the round, the conversation only its last
/// message: the known answer must be a suffix of the client's. For a round without an answer
/// (`None`) the client may send no assistant message at all, so its next prompt may directly follow
/// that round's prompt.
pub(super) fn after(
    rounds: &[(String, Option<String>)],
    transcript: Transcript,
) -> Option<Vec<ContentBlock>> {
    let mut messages = transcript.messages.as_slice();
    for (prompt, answer) in rounds {
        let asked = messages.iter().take_while(|turn| turn.is_user).count();
        let (users, rest) = messages.split_at_checked(asked)?;
        let answered = rest.iter().take_while(|turn| !turn.is_user).count();
        match answer {
            Some(answer) => {
                let (answers, rest) = rest.split_at_checked(answered)?;
                if users.is_empty()
                    || answers.is_empty()
                    || !is_end(prompt, users)
                    || !bare(&text(answers)).ends_with(&bare(answer))
                {
                    return None;
                }
                messages = rest;
            }
            None => {
                // Several user messages can form one prompt. Match as many as fit, but leave at
                // least one message: the new prompt.
                let most = if rest.is_empty() {
                    asked.checked_sub(1)?
                } else {
                    asked
                };
                let whole = (1..=most).rev().find(|count| {
                    users
                        .get(..*count)
                        .is_some_and(|users| is_end(prompt, users))
                })?;
                let skipped = if whole == asked { answered } else { 0 };
                messages = messages.get(whole + skipped..)?;
            }
        }
    }
    let is_next = !messages.is_empty() && messages.iter().all(|turn| turn.is_user);
    is_next.then(|| {
        messages
            .iter()
            .flat_map(|turn| turn.blocks.iter().cloned())
            .collect()
    })
}

/// Whether a prompt ends with these messages; the client's instructions may stand before them.
fn is_end(prompt: &str, users: &[Turn]) -> bool {
    bare(prompt).ends_with(&bare(&text(users)))
}

fn text(turns: &[Turn]) -> String {
    turns.iter().map(Turn::text).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(messages: serde_json::Value) -> Result<Transcript, (u16, Option<String>)> {
        let request: ChatRequest =
            serde_json::from_value(json!({ "model": "m", "messages": messages })).unwrap();
        Transcript::from_request(&request).map_err(|problem| (problem.status, problem.pointer))
    }

    #[test]
    fn instructions_stand_before_the_first_user_message() {
        let transcript = converted(json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": "ho" },
            { "role": "user", "content": [{ "type": "text", "text": "and?" }] },
        ]));

        let (history, now) = transcript.unwrap().begin().unwrap();

        assert_eq!(
            history[0].blocks(),
            [
                ContentBlock::text(format!("{INSTRUCTIONS}Be brief.")),
                ContentBlock::text("hi")
            ]
        );
        assert_eq!(
            (history[1].text(), now),
            ("ho".into(), vec![ContentBlock::text("and?")])
        );
    }

    #[test]
    fn an_unsupported_field_is_reported_with_its_pointer() {
        let wrong = |pointer: &str| (422, Some(pointer.to_owned()));

        assert_eq!(converted(json!([])), Err(wrong("/messages")));
        assert_eq!(
            converted(
                json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }])
            ),
            Err(wrong("/messages"))
        );
        assert_eq!(
            converted(json!([{ "role": "tool", "content": "a" }])),
            Err(wrong("/messages/0/role"))
        );
        assert_eq!(
            converted(json!([{ "role": "user", "content": [{ "type": "input_audio" }] }])),
            Err(wrong("/messages/0/content/0"))
        );
    }

    #[test]
    fn only_messages_after_the_known_rounds_become_the_prompt() {
        let transcript = |messages: serde_json::Value| converted(messages).unwrap();
        let known = [(
            "Instructions of the application:\nx\nhi".to_owned(),
            Some("ho".to_owned()),
        )];
        let user = |text: &str| json!({ "role": "user", "content": text });
        let assistant = |text: &str| json!({ "role": "assistant", "content": text });

        let next = after(
            &known,
            transcript(json!([
                user("hi"),
                assistant("Let me see.\n\nho"),
                user("and?")
            ])),
        );
        assert_eq!(next, Some(vec![ContentBlock::text("and?")]));
        for other in [
            json!([user("and?")]),
            json!([user("he"), assistant("ho"), user("and?")]),
            json!([user("hi"), assistant("no"), user("and?")]),
            json!([
                user("hi"),
                assistant("ho"),
                user("more"),
                assistant("than"),
                user("known")
            ]),
        ] {
            assert_eq!(after(&known, transcript(other.clone())), None, "{other}");
        }
        assert_eq!(
            after(
                &[("hi".into(), None)],
                transcript(json!([user("hi"), assistant("part"), user("go")]))
            ),
            Some(vec![ContentBlock::text("go")])
        );
    }

    #[test]
    fn after_a_round_without_an_answer_another_user_message_may_follow() {
        let transcript = |messages: &[&str]| {
            converted(json!(
                messages
                    .iter()
                    .map(|text| json!({ "role": "user", "content": text }))
                    .collect::<Vec<_>>()
            ))
        };
        let next = |rounds: &[(&str, Option<&str>)], messages: &[&str]| {
            let rounds: Vec<_> = rounds
                .iter()
                .map(|(prompt, answer)| ((*prompt).to_owned(), answer.map(str::to_owned)))
                .collect();
            let blocks = after(&rounds, transcript(messages).unwrap())?;
            Some(
                blocks
                    .iter()
                    .filter_map(ContentBlock::as_text)
                    .collect::<Vec<_>>()
                    .join("|"),
            )
        };

        assert_eq!(next(&[("hi", None)], &["hi", "go"]).as_deref(), Some("go"));
        assert_eq!(
            next(&[("hi", None)], &["hi", "hi"]).as_deref(),
            Some("hi"),
            "the same text again is a new prompt"
        );
        assert_eq!(
            next(&[("hi", None), ("hi", None)], &["hi", "hi", "go", "on"]).as_deref(),
            Some("go|on")
        );
        assert_eq!(
            next(&[("hi\nthere", None)], &["hi", "there", "go"]).as_deref(),
            Some("go"),
            "one prompt of two messages"
        );
        assert_eq!(next(&[("hi", None)], &["ho", "go"]), None);
        assert_eq!(next(&[("hi", None)], &["hi"]), None, "nothing new");
        assert_eq!(
            next(&[("hi", Some("ho"))], &["hi", "go"]),
            None,
            "there was an answer"
        );
    }
}
