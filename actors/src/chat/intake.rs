//! Takes histories that other programs wrote. What every provider accepts is put into the form of
//! [`History`]; the rest is refused with its place ([`History::accept`]) or repaired
//! ([`History::mend`]).
//!
//! Only the form differs, and nothing is refused, where tool results come in the order in which
//! they were completed, where one turn is written as several messages of its role, and where an id
//! of a call has characters or a length that some provider refuses.
//!
//! Pure.

use std::collections::{HashMap, HashSet};

use super::{
    ContentBlock, History, Message, Repair, Role, ToolResultContent,
    attachment::{check_block, check_prompt_block, is_unknown},
    history::Finding,
};

/// Longest id of a tool call that every provider accepts, in bytes.
const CALL_ID_BYTES_MAX: usize = 40;

/// Longest name of a tool that every provider accepts, in bytes.
const TOOL_NAME_BYTES_MAX: usize = 64;

/// Stands before a history that began with an answer.
const OPENING: &str = "[the conversation begins with the message below]";

/// The first place of a history that providers refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Message validation failed: message {message} of the history: {what}")]
pub struct HistoryFault {
    /// Index of the message.
    pub message: usize,
    /// Index of the content block; `None` for the whole message.
    pub block: Option<usize>,
    /// What is wrong, and what [`History::mend`] does about it.
    pub what: String,
}

impl HistoryFault {
    /// Returns the place as a JSON pointer into the list of messages, such as `/2/content/0`.
    pub fn pointer(&self) -> String {
        match self.block {
            Some(block) => format!("/{}/content/{block}", self.message),
            None => format!("/{}", self.message),
        }
    }
}

impl History {
    /// Takes a history that providers accept, and puts it into the form of a `History`.
    ///
    /// # Errors
    /// [`HistoryFault`], the first place that a provider refuses.
    pub fn accept(messages: impl IntoIterator<Item = Message>) -> Result<Self, HistoryFault> {
        let (history, findings) = take(messages);
        let fault = findings
            .into_iter()
            .filter(|finding| finding.is_fault)
            .min_by_key(|finding| (finding.index, finding.block));
        match fault {
            None => Ok(history),
            Some(Finding {
                index, block, what, ..
            }) => Err(HistoryFault {
                message: index,
                block,
                what,
            }),
        }
    }

    /// Takes any history and repairs what providers refuse. Returns a list of all changes, also of
    /// those in which only the form differed.
    pub fn mend(messages: impl IntoIterator<Item = Message>) -> (Self, Vec<Repair>) {
        let (history, mut findings) = take(messages);
        findings.sort_by_key(|finding| (finding.index, finding.block));
        (history, findings.into_iter().map(Repair::from).collect())
    }
}

/// A message that is being taken, with the place of each block in the input.
struct Turn {
    /// The message of the input, if nothing was changed in it.
    whole: Option<Message>,
    role: Role,
    blocks: Vec<(Place, ContentBlock)>,
}

/// The message and the block of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    message: usize,
    block: usize,
}

impl Turn {
    fn index(&self) -> usize {
        self.blocks.first().map_or(0, |(place, _)| place.message)
    }

    fn has_calls(&self) -> bool {
        self.blocks
            .iter()
            .any(|(_, block)| matches!(block, ContentBlock::ToolUse(_)))
    }

    fn ends_in_thinking(&self) -> bool {
        self.blocks
            .last()
            .is_some_and(|(_, block)| is_thinking(block))
    }

    fn holds_results_only(&self) -> bool {
        self.blocks.iter().all(|(_, block)| is_result(block))
    }

    fn append(&mut self, other: Self) {
        self.whole = None;
        self.blocks.extend(other.blocks);
    }

    fn into_message(self) -> Option<Message> {
        self.whole.or_else(|| {
            let blocks: Vec<_> = self.blocks.into_iter().map(|(_, block)| block).collect();
            Message::new(self.role, &blocks).ok()
        })
    }
}

fn is_thinking(block: &ContentBlock) -> bool {
    matches!(block.kind(), "thinking" | "redacted_thinking")
}

fn is_result(block: &ContentBlock) -> bool {
    matches!(block, ContentBlock::ToolResult(_))
}

fn take(messages: impl IntoIterator<Item = Message>) -> (History, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut turns = turns(messages, &mut findings);
    without_last_thinking(&mut turns, &mut findings);
    with_unique_ids(&mut turns, &mut findings);
    results_first(&mut turns, &mut findings);
    let places: Vec<Vec<Place>> = turns
        .iter()
        .map(|turn| turn.blocks.iter().map(|(place, _)| *place).collect())
        .collect();
    let opening = turns
        .first()
        .filter(|first| first.role == Role::Assistant)
        .map(|first| {
            findings.push(Finding::fault(
                first.index(),
                None,
                "the first message must be of the role user: one was put before it",
            ));
            Message::user(OPENING)
        });
    let shift = usize::from(opening.is_some());
    let messages = opening
        .into_iter()
        .chain(turns.into_iter().filter_map(Turn::into_message));
    let (history, paired) = History::paired(messages);
    findings.extend(paired.into_iter().map(|finding| {
        let places = places.get(finding.index.saturating_sub(shift));
        let place = |block| {
            places
                .and_then(|places| places.get::<usize>(block))
                .copied()
        };
        match finding.block.and_then(place) {
            Some(Place { message, block }) => Finding {
                index: message,
                block: Some(block),
                ..finding
            },
            None => Finding {
                index: place(0).map_or(finding.index, |first| first.message),
                block: None,
                ..finding
            },
        }
    }));
    (history, findings)
}

/// Reads the messages, drops or replaces what they may not hold, and joins the messages of one
/// turn.
fn turns(messages: impl IntoIterator<Item = Message>, findings: &mut Vec<Finding>) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    let mut before: Option<Message> = None;
    for (index, message) in messages.into_iter().enumerate() {
        if before.as_ref() == Some(&message) && !message.tool_use_ids().is_empty() {
            findings.push(Finding::fault(
                index,
                None,
                "the message repeats the calls of the message before it: it was dropped",
            ));
            continue;
        }
        before = Some(message.clone());
        let turn = read(index, message, findings);
        if turn.blocks.is_empty() {
            continue; // All of it was blank; each block is in the findings.
        }
        let follows_calls = turns
            .len()
            .checked_sub(2)
            .and_then(|index| turns.get(index))
            .is_some_and(Turn::has_calls);
        let joins = turns.last().is_some_and(|last| match turn.role {
            Role::Assistant => {
                last.role == Role::Assistant && (last.has_calls() || last.ends_in_thinking())
            }
            Role::User | Role::System => {
                last.role == Role::User
                    && follows_calls
                    && last.holds_results_only()
                    && turn.blocks.iter().any(|(_, block)| is_result(block))
            }
        });
        match turns.last_mut().filter(|_| joins) {
            Some(last) => {
                findings.push(Finding::form(
                    index,
                    None,
                    "the message was joined with the one before it",
                ));
                last.append(turn);
            }
            None => turns.push(turn),
        }
    }
    turns
}

fn read(index: usize, message: Message, findings: &mut Vec<Finding>) -> Turn {
    let role = message.role();
    let found_before = findings.len();
    let mut blocks = Vec::new();
    for (place, block) in message.blocks().into_iter().enumerate() {
        let mut found = |what: String| findings.push(Finding::fault(index, Some(place), what));
        let block = match block {
            ContentBlock::Text(text) if text.text.trim().is_empty() => {
                found("the text is blank: it was dropped".into());
                continue;
            }
            ContentBlock::ToolUse(mut call) => {
                if !fits(&call.name, TOOL_NAME_BYTES_MAX) {
                    found(format!(
                        "the name of a tool has 1 to {TOOL_NAME_BYTES_MAX} of A-Z a-z 0-9 _ -: the others were replaced"
                    ));
                    call.name = fitted(&call.name, TOOL_NAME_BYTES_MAX, "unnamed_tool");
                }
                ContentBlock::ToolUse(call)
            }
            ContentBlock::ToolResult(mut result) => {
                if let ToolResultContent::Blocks(raw) = &result.content
                    && let Some(what) = raw.parse::<Vec<ContentBlock>>().map_or_else(
                        |error| Some(error.to_string()),
                        |inside| wrong_inside(&inside),
                    )
                {
                    found(format!(
                        "the content of the tool_result is not valid ({what}): its text was kept"
                    ));
                    result.content = ToolResultContent::Text(result.content.text().into_owned());
                }
                ContentBlock::ToolResult(result)
            }
            block if role == Role::User && is_unknown(&block) => {
                if let Err(error) = check_prompt_block(&block) {
                    found(format!("{error}: a note was put in its place"));
                }
                ContentBlock::text(format!(
                    "[{} left out: its type is not known]",
                    block.kind()
                ))
            }
            block if matches!(block.kind(), "image" | "document") => {
                let wrong = match role {
                    Role::Assistant => Some(format!(
                        "{} does not belong into a message of the role assistant",
                        block.kind()
                    )),
                    Role::User | Role::System => check_block(&block).err().map(|e| e.to_string()),
                };
                match wrong {
                    None => block,
                    Some(what) => {
                        found(format!("{what}: a note was put in its place"));
                        ContentBlock::text(format!("[{} left out: it is not valid]", block.kind()))
                    }
                }
            }
            block => block,
        };
        let place = Place {
            message: index,
            block: place,
        };
        blocks.push((place, block));
    }
    let whole = (findings.len() == found_before).then_some(message);
    Turn {
        whole,
        role,
        blocks,
    }
}

/// Returns why blocks cannot be the content of a tool result.
fn wrong_inside(blocks: &[ContentBlock]) -> Option<String> {
    blocks.iter().find_map(|block| match block {
        ContentBlock::Text(text) if text.text.trim().is_empty() => Some("a blank text".into()),
        ContentBlock::Text(_) => None,
        ContentBlock::Thinking(_) | ContentBlock::ToolUse(_) | ContentBlock::ToolResult(_) => {
            Some(format!("{} inside it", block.kind()))
        }
        ContentBlock::Image(_) | ContentBlock::Document(_) | ContentBlock::Other { .. } => {
            check_block(block).err().map(|error| error.to_string())
        }
    })
}

/// Drops thinking at the end of an answer. Providers refuse it.
fn without_last_thinking(turns: &mut Vec<Turn>, findings: &mut Vec<Finding>) {
    for turn in turns.iter_mut() {
        while turn.ends_in_thinking() {
            let Some((place, _)) = turn.blocks.pop() else {
                break;
            };
            turn.whole = None;
            findings.push(Finding::fault(
                place.message,
                Some(place.block),
                "the message ends in thinking: it was dropped",
            ));
        }
    }
    turns.retain(|turn| !turn.blocks.is_empty());
}

/// Gives a call a new id where its own is used by an earlier message or is not accepted by every
/// provider. The results follow.
fn with_unique_ids(turns: &mut [Turn], findings: &mut Vec<Finding>) {
    let calls = turns.iter().flat_map(|turn| &turn.blocks);
    let taken = calls.filter_map(|(_, block)| match block {
        ContentBlock::ToolUse(call) => Some(call.id.clone()),
        _ => None,
    });
    let mut ids = Ids {
        taken: taken.collect(),
        numbers: HashMap::new(),
    };
    let mut earlier: HashSet<String> = HashSet::new();
    let mut renamed: HashMap<String, String> = HashMap::new();
    for turn in turns {
        let mut is_changed = false;
        match turn.role {
            Role::Assistant => {
                renamed.clear();
                let mut mine: HashSet<String> = HashSet::new();
                for (place, block) in &mut turn.blocks {
                    let ContentBlock::ToolUse(call) = block else {
                        continue;
                    };
                    if mine.insert(call.id.clone()) {
                        let is_repeated = earlier.contains(&call.id);
                        if !is_repeated && fits(&call.id, CALL_ID_BYTES_MAX) {
                            continue;
                        }
                        let id = ids.free(&call.id);
                        let what = format!("tool_use id {:?} was replaced by {id}", call.id);
                        findings.push(Finding {
                            index: place.message,
                            block: Some(place.block),
                            is_fault: is_repeated || call.id.is_empty(),
                            what: match is_repeated {
                                true => format!("{what}, because an earlier message has it"),
                                false => what,
                            },
                        });
                        renamed.insert(call.id.clone(), id);
                    }
                    // A repeated id within a message stays repeated: pairing drops the later call.
                    if let Some(id) = renamed.get(&call.id) {
                        call.id.clone_from(id);
                        is_changed = true;
                    }
                }
                earlier.extend(mine);
            }
            Role::User | Role::System => {
                for (_, block) in &mut turn.blocks {
                    if let ContentBlock::ToolResult(result) = block
                        && let Some(id) = renamed.get(&result.tool_use_id)
                    {
                        result.tool_use_id.clone_from(id);
                        is_changed = true;
                    }
                }
                renamed.clear();
            }
        }
        if is_changed {
            turn.whole = None;
        }
    }
}

/// Puts the results of calls before the other blocks of their message.
fn results_first(turns: &mut [Turn], findings: &mut Vec<Finding>) {
    let mut follows_calls = false;
    for turn in turns {
        if turn.role == Role::User && follows_calls {
            let last_result = turn.blocks.iter().rposition(|(_, block)| is_result(block));
            let other = turn.blocks.iter().position(|(_, block)| !is_result(block));
            if let (Some(last), Some(other)) = (last_result, other)
                && other < last
            {
                if let Some((place, _)) = turn.blocks.get(other) {
                    findings.push(Finding::fault(
                        place.message,
                        Some(place.block),
                        "tool results come before all other blocks: they were put first",
                    ));
                }
                turn.blocks.sort_by_key(|(_, block)| !is_result(block));
                turn.whole = None;
            }
        }
        follows_calls = turn.has_calls();
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

fn fits(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Replaces what does not fit; `empty` stands for an empty text.
fn fitted(text: &str, bytes_max: usize, empty: &str) -> String {
    let text = if text.trim().is_empty() { empty } else { text };
    let plain = |c: char| match u8::try_from(c) {
        Ok(byte) if is_plain(byte) => c,
        _ => '_',
    };
    text.chars().take(bytes_max).map(plain).collect()
}

/// The ids of all calls of a history.
struct Ids {
    taken: HashSet<String>,
    /// The next number to try for each stem, so that many equal ids cost linear work.
    numbers: HashMap<String, u64>,
}

impl Ids {
    /// Returns an id like `id` that no call has, and takes it.
    fn free(&mut self, id: &str) -> String {
        let stem = fitted(id, CALL_ID_BYTES_MAX - 12, "call");
        let number = self.numbers.entry(stem.clone()).or_insert(1);
        loop {
            let id = match *number {
                1 => stem.clone(),
                number => format!("{stem}-{number}"),
            };
            *number += 1;
            if self.taken.insert(id.clone()) {
                return id;
            }
        }
    }
}
