//! Names of OpenTelemetry's semantic conventions, and how the kernel's field names map to them.
//! Released names are the default; `gen_ai_latest_experimental` selects the newer ones.

/// Edition of the semantic conventions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Edition {
    /// Semantic conventions 1.41.
    #[default]
    Released,
    /// The newer names, from the repository that the GenAI conventions moved to.
    Latest,
}

impl Edition {
    /// Environment variable that selects newer names: a comma-separated list.
    pub const VARIABLE: &str = "OTEL_SEMCONV_STABILITY_OPT_IN";

    /// The edition that a value of that variable selects.
    pub fn from_opt_in(opted_in: &str) -> Self {
        let latest = opted_in
            .split(',')
            .any(|word| word.trim() == "gen_ai_latest_experimental");
        if latest { Self::Latest } else { Self::Released }
    }
}

/// Name of the operation; on every span and measurement.
pub const OPERATION: &str = "gen_ai.operation.name";
/// Value of [`OPERATION`] for a round.
pub const INVOKE_AGENT: &str = "invoke_agent";
/// Value of [`OPERATION`] for a model call.
pub const CHAT: &str = "chat";
/// Value of [`OPERATION`] for a tool call.
pub const EXECUTE_TOOL: &str = "execute_tool";
/// Class of a failure; absent on success.
pub const ERROR_TYPE: &str = "error.type";
/// Whether a measurement counts input or output tokens.
pub const TOKEN_TYPE: &str = "gen_ai.token.type";
/// Name of the agent; always `callboard`.
pub const AGENT_NAME: &str = "gen_ai.agent.name";
/// Name of the model's provider.
pub const PROVIDER: &str = "gen_ai.provider.name";
/// Name of the requested model.
pub const MODEL: &str = "gen_ai.request.model";
/// Name of the called tool.
pub const TOOL: &str = "gen_ai.tool.name";
/// Why the model stopped; a list with one element.
pub const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";

/// The attribute that a field of the kernel's spans is exported as; `None` keeps the field's name.
/// The fields `tool.name`, `tool.success` and `tool.duration_ms` keep theirs beside the
/// convention's.
pub fn attribute(field: &str, edition: Edition) -> Option<&'static str> {
    Some(match field {
        "conversation" => "gen_ai.conversation.id",
        "tenant" => "callboard.tenant",
        "round" => "callboard.round.id",
        "epoch" => "callboard.conversation.epoch",
        "inbox" => "callboard.conversation.inbox",
        "queue_wait_ms" => "callboard.queue_wait_ms",
        "latency_ms" => "callboard.round.latency_ms",
        "stop_reason" => "callboard.stop_reason",
        "attempt" => "callboard.tool.attempt",
        "provider" => PROVIDER,
        "model" => MODEL,
        "max_tokens" => "gen_ai.request.max_tokens",
        "input_tokens" => "gen_ai.usage.input_tokens",
        "output_tokens" => "gen_ai.usage.output_tokens",
        "cache_read_tokens" => "gen_ai.usage.cache_read.input_tokens",
        "cache_write_tokens" => match edition {
            Edition::Released => "gen_ai.usage.cache_creation.input_tokens",
            Edition::Latest => "gen_ai.usage.cache_write.input_tokens",
        },
        "finish_reason" => FINISH_REASONS,
        "tool.call_id" => "gen_ai.tool.call.id",
        "error" => ERROR_TYPE,
        _ => return None,
    })
}

/// Names of the instruments.
#[derive(Debug, Clone, Copy)]
pub struct Instruments {
    /// Duration of model calls, in seconds.
    pub call_duration: &'static str,
    /// Time to the first content of a model call, in seconds.
    pub first_chunk: &'static str,
    /// Tokens of model calls.
    pub tokens: &'static str,
    /// Duration of rounds, in seconds.
    pub turn_duration: &'static str,
    /// Duration of tool calls, in seconds.
    pub tool_duration: &'static str,
}

/// Names of an edition's instruments. The released conventions have none for rounds and tools;
/// those use Callboard's own names.
pub const fn instruments(edition: Edition) -> Instruments {
    match edition {
        Edition::Released => Instruments {
            call_duration: "gen_ai.client.operation.duration",
            first_chunk: "gen_ai.client.operation.time_to_first_chunk",
            tokens: "gen_ai.client.token.usage",
            turn_duration: "callboard.turn.duration",
            tool_duration: "callboard.tool.duration",
        },
        Edition::Latest => Instruments {
            call_duration: "gen_ai.client.inference.duration",
            first_chunk: "gen_ai.client.inference.time_to_first_chunk",
            tokens: "gen_ai.client.inference.usage.tokens",
            turn_duration: "gen_ai.invoke_agent.duration",
            tool_duration: "gen_ai.execute_tool.duration",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_names_come_only_by_opting_in() {
        assert_eq!(Edition::from_opt_in(""), Edition::Released);
        assert_eq!(Edition::from_opt_in("http"), Edition::Released);
        assert_eq!(
            Edition::from_opt_in("http, gen_ai_latest_experimental"),
            Edition::Latest
        );
        assert_eq!(
            attribute("cache_write_tokens", Edition::Released),
            Some("gen_ai.usage.cache_creation.input_tokens")
        );
        assert_eq!(
            instruments(Edition::Latest).call_duration,
            "gen_ai.client.inference.duration"
        );
    }
}
