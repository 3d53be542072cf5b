//! Counts the tokens of a call without making it.

use std::sync::Arc;

use callboard_actors::{
    chat::{History, Message, MessageList, ModelRequest, Role, ToolChoice, ToolDefinition},
    ids::TenantId,
};

use super::{Transcript, transcript::Begin};
use crate::http::{
    error::Problem,
    shared::{App, too_busy},
};

/// Counts what the model would be sent for a call without a conversation: the host's system prompt
/// and tools, those of the client, and the messages. Counts as one request of the tenant, because
/// it may ask the provider and takes processor time.
///
/// # Errors
/// As a call that is refused before its model is asked.
pub(in crate::http) async fn count_tokens(
    app: &App,
    tenant: &TenantId,
    transcript: Transcript,
    tools: Vec<ToolDefinition>,
) -> Result<u64, Problem> {
    for (index, turn) in transcript.turns.iter().enumerate() {
        app.check_attachments(&turn.blocks, format_args!("/messages/{index}/content"))?;
    }
    app.host.tenant(tenant).admit_change()?;
    let setup = app.host.setup_of(tenant);
    // Counting takes processor time in proportion to the text.
    let place = app.counts.acquire(Some(tenant.clone())).await;
    let place = place.map_err(too_busy)?;
    let runtime = tokio::runtime::Handle::current();
    let counting = tokio::task::spawn_blocking(move || {
        let _held = place;
        let Begin {
            mut history,
            prompt,
        } = transcript.begin()?;
        if let Some(blocks) = prompt {
            let message = Message::new(Role::User, &blocks)
                .map_err(|error| Problem::invalid("/messages", error.to_string()))?;
            history.push(message);
        }
        let (history, _) = History::mend(history);
        let messages: MessageList = history.messages().iter().cloned().collect();
        let own = setup.tools.specs().map(|spec| spec.definition.clone());
        let request = ModelRequest {
            model: setup.model.clone(),
            system: setup.system.clone(),
            messages,
            tools: own.chain(tools).collect(),
            tool_choice: ToolChoice::Auto,
            max_tokens: 1,
            stop: Arc::from([]),
            effort: None,
            thinking: None,
            temperature: None,
            output_schema: None,
            cache: false,
        };
        let counted = setup.tokens.count(&setup.model, request);
        Ok(runtime.block_on(counted).tokens())
    });
    counting.await.unwrap_or_else(|_| Err(Problem::internal()))
}
