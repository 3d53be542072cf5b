//! What a model is asked when it is to write a summary (REQUIREMENTS C-29..C-31). Nothing is dropped: a long span is asked for in
//! chunks, and a last prompt joins the parts.

use crate::chat::{ContentBlock, Message, Role};

use super::rules::clip;

/// What summaries look at (C-31).
pub const FOCUS_AREAS: [&str; 3] = ["tool_calls", "errors", "decisions"];

/// Messages of a chunk (C-30), unless that made more chunks than [`CHUNKS_MAX`].
const CHUNK_MESSAGES: usize = 20;

/// Most chunks of a span: each is a call to a model.
const CHUNKS_MAX: usize = 8;

/// Characters of a text, and of a result's beginning.
const TEXT_CHARS: usize = 200;

const SUMMARY: &str = include_str!("prompts/summary.md");
const MERGE: &str = include_str!("prompts/merge.md");

/// The prompts for a span, in order; a summary is asked for with each. More than one are joined by [`merge_prompt`].
pub fn summary_prompts<'a>(messages: impl IntoIterator<Item = &'a Message>, focus: &[&str]) -> Vec<String> {
    let lines: Vec<String> = messages.into_iter().map(transcript_line).collect();
    let chunk = CHUNK_MESSAGES.max(lines.len().div_ceil(CHUNKS_MAX));
    let prompts = lines.chunks(chunk).map(|lines| fill(SUMMARY, focus, "{conversation}", &lines.concat()));
    prompts.collect()
}

/// The prompt that joins the summaries of chunks.
pub fn merge_prompt(parts: &[String], focus: &[&str]) -> String {
    let parts: String = parts.iter().enumerate().map(|(index, part)| format!("{}. {}\n", index + 1, defused(part.trim()))).collect();
    fill(MERGE, focus, "{parts}", &parts)
}

/// About how many tokens all prompts for a span come to: three bytes each.
pub(super) fn estimate_tokens<'a>(messages: impl IntoIterator<Item = &'a Message>) -> u64 {
    summary_prompts(messages, &FOCUS_AREAS).iter().map(|prompt| prompt.len().div_ceil(3) as u64).sum()
}

fn fill(template: &str, focus: &[&str], place: &str, text: &str) -> String {
    let focus = if focus.is_empty() { String::new() } else { format!("重点关注：{}\n", focus.join(", ")) };
    template.replacen("{focus}\n", &focus, 1).replacen(place, text, 1)
}

/// One message as a line of the transcript.
fn transcript_line(message: &Message) -> String {
    let role = match message.role() {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::System => "system",
    };
    let blocks: Vec<String> = message.blocks().iter().map(transcript_block).collect();
    format!("{role}: {}\n", defused(&blocks.join(" ")))
}

fn transcript_block(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(block) => clip(&block.text, TEXT_CHARS),
        ContentBlock::ToolUse(call) => format!("[调用工具: {}]", call.name),
        // The seeds ask for results and do not give them (C-30).
        ContentBlock::ToolResult(result) if result.is_error => format!("[工具结果] (error) {}", clip(&result.content.text(), TEXT_CHARS)),
        ContentBlock::ToolResult(result) => format!("[工具结果] {}", clip(&result.content.text(), TEXT_CHARS)),
        ContentBlock::Thinking(_) => "[思考过程]".to_owned(),
        ContentBlock::Other { kind, .. } => format!("[{kind}]"),
    }
}

/// A text that cannot end the tags it stands in.
fn defused(text: &str) -> String {
    text.replace("</conversation>", "</conversation >").replace("</parts>", "</parts >")
}
