//! The messages of a request in a form that all compatible APIs share, and what a request adds to a
//! stored conversation. Pure.

use callboard_actors::chat::{ClientToolResult, ContentBlock, Message, MessageList, Role};

use crate::http::{error::Problem, shared::App};

/// Introduces the client's system messages, which become part of the first user message: the system
/// prompt belongs to the host.
const INSTRUCTIONS: &str = "Instructions of the application:\n";

/// The client's instructions in a block that [`Transcript::introduced`] made of them.
pub(in crate::http) fn instructions_in(block: &ContentBlock) -> Option<&str> {
    block.as_text()?.strip_prefix(INSTRUCTIONS)
}

/// Who speaks in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Speaker {
    User,
    Model,
    /// Results of tools that the client ran.
    Tools,
}

/// One message of the client's list, after its role and parts were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) struct Turn {
    /// Its place in the client's list.
    pub(in crate::http) index: usize,
    pub(in crate::http) speaker: Speaker,
    pub(in crate::http) blocks: Vec<ContentBlock>,
}

impl Turn {
    fn text(&self) -> String {
        self.blocks
            .iter()
            .filter_map(ContentBlock::as_text)
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn is_user(&self) -> bool {
        self.speaker == Speaker::User
    }
}

/// The messages of a request, with the instructions separated.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct Transcript {
    /// The pointer of the client's list.
    pub(in crate::http) list: &'static str,
    /// The client's system and developer messages, joined; `None` if there are none.
    pub(in crate::http) instructions: Option<String>,
    /// The turns in order.
    pub(in crate::http) turns: Vec<Turn>,
}

/// What a new conversation is asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) history: Vec<Message>,
    /// The prompt; `None` to answer the history, which ends with results of tools.
    pub(super) prompt: Option<Vec<ContentBlock>>,
}

impl Transcript {
    /// Checks that there is something to answer.
    pub(in crate::http) fn checked(self) -> Result<Self, Problem> {
        match self.turns.last().map(|last| last.speaker) {
            Some(Speaker::User | Speaker::Tools) => Ok(self),
            Some(Speaker::Model) | None => Err(Problem::invalid(
                self.list,
                "the last message must be the user's, or the result of a tool",
            )),
        }
    }

    /// Refuses blocks that a provider would fetch, unless the operator lets tenants send them.
    pub(super) fn check_attachments(&self, app: &App) -> Result<(), Problem> {
        let list = self.list;
        self.turns.iter().try_for_each(|turn| {
            app.check_attachments(&turn.blocks, format_args!("{list}/{}/content", turn.index))
        })
    }

    /// The results at the end, if the request ends with them: it continues a round.
    pub(super) fn results(&self) -> Vec<ClientToolResult> {
        let at_end = self.turns.iter().rev();
        let at_end = at_end.take_while(|turn| turn.speaker == Speaker::Tools);
        let blocks = at_end.flat_map(|turn| turn.blocks.iter().rev());
        let mut results: Vec<ClientToolResult> = blocks
            .filter_map(|block| match block {
                ContentBlock::ToolResult(result) => Some(ClientToolResult {
                    tool_call_id: result.tool_use_id.clone(),
                    content: result.content.text().into_owned(),
                    is_error: result.is_error,
                }),
                _ => None,
            })
            .collect();
        results.reverse();
        results
    }

    /// Puts the instructions as a block before the first user message.
    fn introduced(instructions: Option<String>, blocks: Vec<ContentBlock>) -> Vec<ContentBlock> {
        let introduction =
            instructions.map(|text| ContentBlock::text(format!("{INSTRUCTIONS}{text}")));
        introduction.into_iter().chain(blocks).collect()
    }

    /// Splits the messages of a new conversation into history and prompt.
    pub(super) fn begin(self) -> Result<Begin, Problem> {
        let Self {
            list,
            mut instructions,
            turns,
        } = self;
        let mut merged: Vec<Turn> = Vec::with_capacity(turns.len());
        for turn in turns {
            // Adjacent messages of one role are merged: providers require alternating roles.
            let same = merged
                .last_mut()
                .filter(|last| last.speaker == turn.speaker);
            match same {
                Some(last) => last.blocks.extend(turn.blocks),
                None => merged.push(turn),
            }
        }
        let prompt = merged.pop_if(|last| last.is_user());
        let mut history = Vec::with_capacity(merged.len());
        for turn in merged {
            let (role, blocks) = match turn.speaker {
                Speaker::User => (
                    Role::User,
                    Self::introduced(instructions.take(), turn.blocks),
                ),
                Speaker::Tools => (Role::User, turn.blocks),
                Speaker::Model => (Role::Assistant, turn.blocks),
            };
            let message = Message::new(role, &blocks)
                .map_err(|error| Problem::invalid(list, error.to_string()))?;
            history.push(message);
        }
        let prompt = prompt.map(|turn| Self::introduced(instructions, turn.blocks));
        Ok(Begin { history, prompt })
    }
}

/// Whether a text ends with another. Clients trim messages and streams may split them at white
/// space, so white space does not count.
fn ends_with(whole: &str, end: &str) -> bool {
    let mut whole = bare_reversed(whole);
    bare_reversed(end).all(|c| whole.next() == Some(c))
}

fn bare_reversed(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().rev().filter(|c| !c.is_whitespace())
}

/// Whether two texts are the same without their white space.
fn is_same(one: &str, other: &str) -> bool {
    ends_with(one, other) && ends_with(other, one)
}

/// The next prompt, if the request's history is message by message what the model of the
/// conversation reads, and all of it is text. `None` says nothing about the request: [`after`]
/// decides then, which needs the journal.
pub(super) fn after_texts(
    known: &MessageList,
    transcript: &Transcript,
) -> Option<Vec<ContentBlock>> {
    let (past, next) = transcript.turns.split_at_checked(known.len())?;
    let is_known = |(message, turn): (&Message, &Turn)| {
        let blocks = message.blocks();
        let text: Option<String> = blocks.iter().map(ContentBlock::as_text).collect();
        let is_text = |block: &ContentBlock| block.as_text().is_some();
        let Some(text) = text.filter(|_| turn.blocks.iter().all(is_text)) else {
            return false;
        };
        match (message.role(), turn.speaker) {
            // The client's instructions may stand before its first message.
            (Role::User, Speaker::User) => ends_with(&text, &turn.text()),
            (Role::Assistant, Speaker::Model) => is_same(&text, &turn.text()),
            _ => false,
        }
    };
    (is_prompt(next) && known.iter().zip(past).all(is_known)).then(|| blocks_of(next))
}

/// Whether these turns can be a prompt.
fn is_prompt(turns: &[Turn]) -> bool {
    !turns.is_empty() && turns.iter().all(Turn::is_user)
}

fn blocks_of(turns: &[Turn]) -> Vec<ContentBlock> {
    let blocks = turns.iter().flat_map(|turn| &turn.blocks);
    blocks.cloned().collect()
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
    transcript: &Transcript,
) -> Option<Vec<ContentBlock>> {
    let mut messages = transcript.turns.as_slice();
    for (prompt, answer) in rounds {
        let asked = messages.iter().take_while(|turn| turn.is_user()).count();
        let (users, rest) = messages.split_at_checked(asked)?;
        let answered = rest.iter().take_while(|turn| !turn.is_user()).count();
        match answer {
            Some(answer) => {
                let (answers, rest) = rest.split_at_checked(answered)?;
                if users.is_empty()
                    || answers.is_empty()
                    || !is_end(prompt, users)
                    || !ends_with(&text(answers), answer)
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
    is_prompt(messages).then(|| blocks_of(messages))
}

/// Whether a prompt ends with these messages; the client's instructions may stand before them.
fn is_end(prompt: &str, users: &[Turn]) -> bool {
    ends_with(prompt, &text(users))
}

fn text(turns: &[Turn]) -> String {
    turns.iter().map(Turn::text).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A transcript of texts, by role.
    fn converted(messages: Value) -> Transcript {
        let turn = |message: &Value| Turn {
            index: 0,
            speaker: match message["role"].as_str().unwrap() {
                "user" => Speaker::User,
                "assistant" => Speaker::Model,
                _ => Speaker::Tools,
            },
            blocks: vec![match message["content"].as_str() {
                Some(text) => ContentBlock::text(text),
                None => serde_json::from_value(message["content"].clone()).unwrap(),
            }],
        };
        Transcript {
            list: "/messages",
            instructions: None,
            turns: messages.as_array().unwrap().iter().map(turn).collect(),
        }
    }

    #[test]
    fn instructions_stand_before_the_first_user_message() {
        let mut transcript = converted(json!([
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": "ho" },
            { "role": "user", "content": "and?" },
        ]));
        transcript.instructions = Some("Be brief.".to_owned());

        let begin = transcript.begin().unwrap();

        assert_eq!(
            begin.history[0].blocks(),
            [
                ContentBlock::text(format!("{INSTRUCTIONS}Be brief.")),
                ContentBlock::text("hi")
            ]
        );
        assert_eq!(begin.history[1].text(), "ho");
        assert_eq!(begin.prompt, Some(vec![ContentBlock::text("and?")]));
    }

    #[test]
    fn a_history_that_ends_with_results_has_no_prompt() {
        let call = json!({ "type": "tool_use", "id": "t1", "name": "f", "input": {} });
        let result = json!({ "type": "tool_result", "tool_use_id": "t1", "content": "yes" });
        let messages = json!([
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": call },
            { "role": "tool", "content": result },
        ]);

        let begin = converted(messages.clone()).begin().unwrap();

        assert_eq!((begin.history.len(), begin.prompt), (3, None));
        let ids: Vec<String> = converted(messages)
            .results()
            .into_iter()
            .map(|result| format!("{}: {}", result.tool_call_id, result.content))
            .collect();
        assert_eq!(ids, ["t1: yes"]);
    }

    #[test]
    fn only_messages_after_the_known_rounds_become_the_prompt() {
        let transcript = converted;
        let known = [(
            "Instructions of the application:\nx\nhi".to_owned(),
            Some("ho".to_owned()),
        )];
        let user = |text: &str| json!({ "role": "user", "content": text });
        let assistant = |text: &str| json!({ "role": "assistant", "content": text });

        let next = after(
            &known,
            &transcript(json!([
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
            assert_eq!(after(&known, &transcript(other.clone())), None, "{other}");
        }
        assert_eq!(
            after(
                &[("hi".into(), None)],
                &transcript(json!([user("hi"), assistant("part"), user("go")]))
            ),
            Some(vec![ContentBlock::text("go")])
        );
    }

    #[test]
    fn a_history_that_the_model_reads_word_for_word_needs_no_journal() {
        let user = |text: &str| json!({ "role": "user", "content": text });
        let assistant = |text: &str| json!({ "role": "assistant", "content": text });
        let known: MessageList = [
            Message::user(format!("{INSTRUCTIONS}x\nhi")),
            Message::assistant("ho\n ho"),
        ]
        .into_iter()
        .collect();
        let next = |messages: Value| after_texts(&known, &converted(messages));

        assert_eq!(
            next(json!([
                user("hi"),
                assistant("hoho "),
                user("a"),
                user("b")
            ])),
            Some(vec![ContentBlock::text("a"), ContentBlock::text("b")])
        );
        let result = json!({ "type": "tool_result", "tool_use_id": "t1", "content": "hi" });
        for other in [
            json!([user("hi"), assistant("hoho")]),
            json!([user("hi"), user("and?")]),
            json!([user("ha"), assistant("hoho"), user("and?")]),
            json!([user("hi"), assistant("Let me see. hoho"), user("and?")]),
            json!([
                user("hi"),
                assistant("hoho"),
                assistant("more"),
                user("and?")
            ]),
            json!([{ "role": "tool", "content": result }, assistant("hoho"), user("and?")]),
        ] {
            assert_eq!(next(other.clone()), None, "{other}");
        }
    }

    #[test]
    fn after_a_round_without_an_answer_another_user_message_may_follow() {
        let transcript = |messages: &[&str]| {
            let user = |text: &&str| json!({ "role": "user", "content": text });
            converted(messages.iter().map(user).collect())
        };
        let next = |rounds: &[(&str, Option<&str>)], messages: &[&str]| {
            let rounds: Vec<_> = rounds
                .iter()
                .map(|(prompt, answer)| ((*prompt).to_owned(), answer.map(str::to_owned)))
                .collect();
            let blocks = after(&rounds, &transcript(messages))?;
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
