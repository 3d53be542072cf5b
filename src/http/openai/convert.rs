//! From OpenAI's messages to ours. Pure.

use callboard_actors::chat::{ContentBlock, Message, Role};
use serde_json::json;

use super::wire::{ChatRequest, Part, Said, Spoken};
use crate::http::error::Problem;

/// What a client's own instructions are introduced with: the system prompt is the host's.
const INSTRUCTIONS: &str = "Instructions of the application:\n";

/// A message as a client knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) is_user: bool,
    pub(super) blocks: Vec<ContentBlock>,
}

impl Turn {
    pub(super) fn text(&self) -> String {
        self.blocks.iter().filter_map(ContentBlock::as_text).collect::<Vec<_>>().join("\n")
    }
}

/// What was said, and by what instructions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Talk {
    /// The client's system and developer messages.
    pub(super) instructions: Option<String>,
    /// Message by message; the last is the user's.
    pub(super) said: Vec<Turn>,
}

impl Talk {
    /// Reads a request's messages.
    pub(super) fn of(request: &ChatRequest) -> Result<Self, Problem> {
        refuse(request)?;
        let (mut instructions, mut turns): (Vec<String>, Vec<Turn>) = (Vec::new(), Vec::new());
        for (index, said) in request.messages.iter().enumerate() {
            let blocks = blocks(index, said)?;
            match said.role.as_str() {
                "system" | "developer" => instructions.extend(blocks.iter().filter_map(ContentBlock::as_text).map(str::to_owned)),
                "user" | "assistant" => {
                    turns.push(Turn { is_user: said.role == "user", blocks });
                }
                _ => return Err(unsupported(format!("/messages/{index}/role"), "a message is of system, developer, user or assistant")),
            }
        }
        if !turns.last().is_some_and(|last| last.is_user) {
            return Err(unsupported("/messages", "the last message must be the user's"));
        }
        let instructions = (!instructions.is_empty()).then(|| instructions.join("\n\n"));
        Ok(Self { instructions, said: turns })
    }

    /// The instructions as a block before what the user says first.
    fn introduced(instructions: Option<String>, blocks: Vec<ContentBlock>) -> Vec<ContentBlock> {
        let introduction = instructions.map(|text| ContentBlock::text(format!("{INSTRUCTIONS}{text}")));
        introduction.into_iter().chain(blocks).collect()
    }

    /// The history and the prompt of a conversation that begins with this.
    pub(super) fn begin(self) -> Result<(Vec<Message>, Vec<ContentBlock>), Problem> {
        let Self { mut instructions, said } = self;
        let mut turns: Vec<Turn> = Vec::with_capacity(said.len());
        for turn in said {
            // Never two of one side in a row.
            match turns.last_mut().filter(|last| last.is_user == turn.is_user) {
                Some(last) => last.blocks.extend(turn.blocks),
                None => turns.push(turn),
            }
        }
        let now = turns.pop().map(|last| last.blocks).unwrap_or_default();
        let mut history = Vec::with_capacity(turns.len());
        for turn in turns {
            let (role, blocks) = match turn.is_user {
                true => (Role::User, Self::introduced(instructions.take(), turn.blocks)),
                false => (Role::Assistant, turn.blocks),
            };
            let message = Message::new(role, &blocks).map_err(|error| unsupported("/messages", error.to_string()))?;
            history.push(message);
        }
        Ok((history, Self::introduced(instructions, now)))
    }
}

fn refuse(request: &ChatRequest) -> Result<(), Problem> {
    let is_given = |value: &Option<serde_json::Value>| value.as_ref().is_some_and(|value| !value.is_null() && value != &json!([]));
    if is_given(&request.tools) || is_given(&request.functions) {
        let pointer = if is_given(&request.tools) { "/tools" } else { "/functions" };
        return Err(unsupported(pointer, "the host has its own tools; configure them there"));
    }
    if request.n.is_some_and(|n| n != 1) {
        return Err(unsupported("/n", "only one answer"));
    }
    if request.logprobs == Some(true) {
        return Err(unsupported("/logprobs", "not told here"));
    }
    Ok(())
}

pub(super) fn unsupported(pointer: impl Into<String>, detail: impl Into<String>) -> Problem {
    Problem::invalid(pointer, detail)
}

fn blocks(index: usize, said: &Said) -> Result<Vec<ContentBlock>, Problem> {
    let at = |field: &str| format!("/messages/{index}/{field}");
    if said.tool_calls.as_ref().is_some_and(|calls| !calls.is_null() && calls != &json!([])) {
        return Err(unsupported(at("tool_calls"), "the host has its own tools"));
    }
    let blocks = match &said.content {
        Some(Spoken::Text(text)) => vec![ContentBlock::text(text.as_str())],
        Some(Spoken::Parts(parts)) => {
            let blocks = parts
                .iter()
                .enumerate()
                .map(|(part, value)| block(value).ok_or_else(|| unsupported(at(&format!("content/{part}")), PARTS)));
            blocks.collect::<Result<Vec<_>, _>>()?
        }
        None => return Err(unsupported(at("content"), "must be there")),
    };
    if blocks.is_empty() { Err(unsupported(at("content"), "must say something")) } else { Ok(blocks) }
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

/// What is compared of two texts: all but white space, which clients trim and streams cut.
fn bare(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// What follows the rounds that a conversation has, `(prompt, answer)` each; `None` when the client tells of another past.
///
/// A streamed answer has all that the model said in a round, a stored one its last message; of a round that gave no answer the client need
/// not know one: what it says next may follow that round's prompt at once.
pub(super) fn after(rounds: &[(String, Option<String>)], talk: Talk) -> Option<Vec<ContentBlock>> {
    let mut said = talk.said.as_slice();
    for (prompt, answer) in rounds {
        let asked = said.iter().take_while(|turn| turn.is_user).count();
        let (users, rest) = said.split_at_checked(asked)?;
        let told = rest.iter().take_while(|turn| !turn.is_user).count();
        match answer {
            Some(answer) => {
                let (told, rest) = rest.split_at_checked(told)?;
                if users.is_empty() || told.is_empty() || !is_end(prompt, users) || !bare(&text(told)).ends_with(&bare(answer)) {
                    return None;
                }
                said = rest;
            }
            None => {
                // The most that the prompt can be made of; one message at least is left for what is said now.
                let most = if rest.is_empty() { asked.checked_sub(1)? } else { asked };
                let whole = (1..=most).rev().find(|count| users.get(..*count).is_some_and(|users| is_end(prompt, users)))?;
                let heard = if whole == asked { told } else { 0 };
                said = said.get(whole + heard..)?;
            }
        }
    }
    let is_next = !said.is_empty() && said.iter().all(|turn| turn.is_user);
    is_next.then(|| said.iter().flat_map(|turn| turn.blocks.iter().cloned()).collect())
}

/// Whether a prompt ends with these messages; the application's instructions may stand before them.
fn is_end(prompt: &str, users: &[Turn]) -> bool {
    bare(prompt).ends_with(&bare(&text(users)))
}

fn text(turns: &[Turn]) -> String {
    turns.iter().map(Turn::text).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(messages: serde_json::Value) -> Result<Talk, (u16, Option<String>)> {
        let request: ChatRequest = serde_json::from_value(json!({ "model": "m", "messages": messages })).unwrap();
        Talk::of(&request).map_err(|problem| (problem.status, problem.pointer))
    }

    #[test]
    fn instructions_stand_before_what_the_user_says_first() {
        let talk = talk(json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": "ho" },
            { "role": "user", "content": [{ "type": "text", "text": "and?" }] },
        ]));

        let (history, now) = talk.unwrap().begin().unwrap();

        assert_eq!(history[0].blocks(), [ContentBlock::text(format!("{INSTRUCTIONS}Be brief.")), ContentBlock::text("hi")]);
        assert_eq!((history[1].text(), now), ("ho".into(), vec![ContentBlock::text("and?")]));
    }

    #[test]
    fn what_is_not_spoken_here_is_named_by_its_place() {
        let wrong = |pointer: &str| (422, Some(pointer.to_owned()));

        assert_eq!(talk(json!([])), Err(wrong("/messages")));
        assert_eq!(talk(json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }])), Err(wrong("/messages")));
        assert_eq!(talk(json!([{ "role": "tool", "content": "a" }])), Err(wrong("/messages/0/role")));
        assert_eq!(talk(json!([{ "role": "user", "content": [{ "type": "input_audio" }] }])), Err(wrong("/messages/0/content/0")));
    }

    #[test]
    fn only_what_follows_the_known_rounds_is_taken() {
        let said = |messages: serde_json::Value| talk(messages).unwrap();
        let known = [("Instructions of the application:\nx\nhi".to_owned(), Some("ho".to_owned()))];
        let user = |text: &str| json!({ "role": "user", "content": text });
        let assistant = |text: &str| json!({ "role": "assistant", "content": text });

        let next = after(&known, said(json!([user("hi"), assistant("Let me see.\n\nho"), user("and?")])));
        assert_eq!(next, Some(vec![ContentBlock::text("and?")]));
        for other in [
            json!([user("and?")]),
            json!([user("he"), assistant("ho"), user("and?")]),
            json!([user("hi"), assistant("no"), user("and?")]),
            json!([user("hi"), assistant("ho"), user("more"), assistant("than"), user("known")]),
        ] {
            assert_eq!(after(&known, said(other.clone())), None, "{other}");
        }
        assert_eq!(
            after(&[("hi".into(), None)], said(json!([user("hi"), assistant("part"), user("go")]))),
            Some(vec![ContentBlock::text("go")])
        );
    }

    #[test]
    fn after_a_round_without_an_answer_the_user_may_speak_again_at_once() {
        let said =
            |messages: &[&str]| talk(json!(messages.iter().map(|text| json!({ "role": "user", "content": text })).collect::<Vec<_>>()));
        let next = |rounds: &[(&str, Option<&str>)], messages: &[&str]| {
            let rounds: Vec<_> = rounds.iter().map(|(prompt, answer)| ((*prompt).to_owned(), answer.map(str::to_owned))).collect();
            let blocks = after(&rounds, said(messages).unwrap())?;
            Some(blocks.iter().filter_map(ContentBlock::as_text).collect::<Vec<_>>().join("|"))
        };

        assert_eq!(next(&[("hi", None)], &["hi", "go"]).as_deref(), Some("go"));
        assert_eq!(next(&[("hi", None)], &["hi", "hi"]).as_deref(), Some("hi"), "the same again is said again");
        assert_eq!(next(&[("hi", None), ("hi", None)], &["hi", "hi", "go", "on"]).as_deref(), Some("go|on"));
        assert_eq!(next(&[("hi\nthere", None)], &["hi", "there", "go"]).as_deref(), Some("go"), "one prompt of two messages");
        assert_eq!(next(&[("hi", None)], &["ho", "go"]), None);
        assert_eq!(next(&[("hi", None)], &["hi"]), None, "nothing new");
        assert_eq!(next(&[("hi", Some("ho"))], &["hi", "go"]), None, "there was an answer");
    }
}
