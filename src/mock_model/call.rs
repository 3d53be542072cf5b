//! The values of a call that both APIs render as JSON.

/// The values of one call that its JSON contains.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) nth: u64,
    pub(super) model: &'a str,
    /// Name and arguments of the tool call in the reply.
    pub(super) tool: Option<(&'a str, &'a str)>,
    pub(super) input_tokens: usize,
    pub(super) output_tokens: usize,
}

/// The text of an answer without streaming.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) text: String,
}
