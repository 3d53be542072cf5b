//! stub
use crate::{
    chat::{Message, MessageList},
    ports::ToolDefinition,
};
/// stub
#[derive(Debug, Default)]
pub struct TokenCounter;
#[allow(missing_docs)]
impl TokenCounter {
    pub fn count_text(&self, _: &str, text: &str) -> u64 {
        text.len() as u64 / 3
    }
    pub fn count_message(&self, _: &str, message: &Message) -> u64 {
        message.wire().len() as u64 / 3
    }
    pub fn count_tools(&self, _: &str, tools: &[ToolDefinition]) -> u64 {
        tools.iter().map(|tool| tool.input_schema.as_str().len() as u64 / 3).sum()
    }
    pub fn count_conversation(&self, model: &str, list: &MessageList) -> u64 {
        list.iter().map(|message| self.count_message(model, message)).sum()
    }
}
