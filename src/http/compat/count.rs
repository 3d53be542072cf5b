//! Counts the tokens of a call without making it.

use std::sync::Arc;

use callboard_actors::{
    chat::{History, Message, MessageList, ModelRequest, Role, ToolChoice, ToolDefinition},
    conversation::Setup,
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
    transcript.check_attachments(app)?;
    app.host.tenant(tenant).admit_change()?;
    let setup = app.host.setup_of(tenant);
    let model = setup.model.clone();
    let tokens = setup.tokens.clone();
    let request = held(app, tenant, move || request(&setup, transcript, tools)).await??;
    // The provider may take its time, so no place is held meanwhile.
    if let Some(counted) = tokens.count_exact(&model, request.clone()).await {
        return Ok(counted);
    }
    held(app, tenant, move || tokens.estimate(&model, &request)).await
}

/// Runs what takes processor time in proportion to a call's text, on a thread for that, when it is
/// the tenant's turn.
async fn held<T: Send + 'static>(
    app: &App,
    tenant: &TenantId,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let place = app.counts.acquire(Some(tenant.clone())).await;
    let place = place.map_err(too_busy)?;
    let done = tokio::task::spawn_blocking(move || {
        let _held = place;
        work()
    });
    done.await.map_err(|_| Problem::internal())
}

/// What the model would be sent.
fn request(
    setup: &Setup,
    transcript: Transcript,
    tools: Vec<ToolDefinition>,
) -> Result<ModelRequest, Problem> {
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
    Ok(ModelRequest {
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
    })
}
