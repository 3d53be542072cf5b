//! A model in this process that always gives the same reply.
#![allow(dead_code, reason = "each bench needs some of it")]

use callboard::{chat::ModelRequest, ports::Capabilities};
use callboard_actors::scripted::{Reply, ScriptedModel};

/// The model's capabilities. The window is so large that nothing is compacted.
pub(crate) fn capabilities() -> Capabilities {
    Capabilities {
        context_window: u32::MAX,
        output_max: 8192,
        tools: true,
        output_schema: false,
        counts_tokens: false,
        images: false,
        documents: false,
        request_bytes_max: None,
        thinking: false,
    }
}

/// A model whose script sees the request. It keeps no record: benches measure memory.
pub(crate) fn answering(
    script: impl Fn(&ModelRequest) -> Reply + Send + Sync + 'static,
) -> ScriptedModel {
    ScriptedModel::answering(move |request, _| script(request))
        .named("in-process")
        .capabilities(capabilities())
        .without_record()
}

/// A model that gives the same reply to every call.
pub(crate) fn always(reply: Reply) -> ScriptedModel {
    answering(move |_| reply.clone())
}

/// A model that streams 64 bytes in 16 pieces.
pub(crate) fn brief() -> ScriptedModel {
    always(Reply::text("word".repeat(16)).chunks(16))
}
