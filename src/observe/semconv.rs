//! Every name of OpenTelemetry's semantic conventions that leaves this process, in one place: what the kernel's short names become. The
//! released names by default; the newer ones of `gen_ai_latest_experimental` where somebody opted in.

/// Which edition of the names is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Edition {
    /// Semantic conventions 1.41.
    #[default]
    Released,
    /// The newer names, of the repository that GenAI moved to.
    Latest,
}

impl Edition {
    /// The variable that opts in to newer names: a list, separated by commas.
    pub const VARIABLE: &str = "OTEL_SEMCONV_STABILITY_OPT_IN";

    /// What the value of that variable says.
    pub fn of(opted_in: &str) -> Self {
        let latest = opted_in.split(',').any(|word| word.trim() == "gen_ai_latest_experimental");
        if latest { Self::Latest } else { Self::Released }
    }
}

/// The operation, on every span and measurement.
pub const OPERATION: &str = "gen_ai.operation.name";
/// Operation of a turn.
pub const INVOKE_AGENT: &str = "invoke_agent";
/// Operation of a model call.
pub const CHAT: &str = "chat";
/// Operation of a tool call.
pub const EXECUTE_TOOL: &str = "execute_tool";
/// Class of a failure; absent without one.
pub const ERROR_TYPE: &str = "error.type";
/// Class of tokens of a measurement.
pub const TOKEN_TYPE: &str = "gen_ai.token.type";
/// Name of the agent.
pub const AGENT_NAME: &str = "gen_ai.agent.name";
/// Provider.
pub const PROVIDER: &str = "gen_ai.provider.name";
/// Model.
pub const MODEL: &str = "gen_ai.request.model";
/// Tool.
pub const TOOL: &str = "gen_ai.tool.name";
/// Why a model stopped: a list of one.
pub const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";

/// What a field of the kernel's spans is called outside; `None` keeps its own name. Fields of X-18 (`tool.…`) keep theirs beside the
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

/// The names of the instruments.
#[derive(Debug, Clone, Copy)]
pub struct Instruments {
    /// Duration of model calls, in seconds.
    pub call_duration: &'static str,
    /// Time to the first content, in seconds.
    pub first_chunk: &'static str,
    /// Tokens of model calls.
    pub tokens: &'static str,
    /// Duration of turns, in seconds.
    pub turn_duration: &'static str,
    /// Duration of tool calls, in seconds.
    pub tool_duration: &'static str,
}

/// The names of the instruments of an edition. Turns and tools have no released name, so they bear ours there.
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
        assert_eq!(Edition::of(""), Edition::Released);
        assert_eq!(Edition::of("http"), Edition::Released);
        assert_eq!(Edition::of("http, gen_ai_latest_experimental"), Edition::Latest);
        assert_eq!(attribute("cache_write_tokens", Edition::Released), Some("gen_ai.usage.cache_creation.input_tokens"));
        assert_eq!(instruments(Edition::Latest).call_duration, "gen_ai.client.inference.duration");
    }
}
