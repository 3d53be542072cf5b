//! The table of all keys. Each row has the key's type, its environment variable and its line in the
//! documentation.

use callboard_actors::ports::ExecLimits;

pub(super) use super::key::{Key, key, variable_part};

use super::{
    tokens,
    tool_names::TOOL_NAMES,
    tool_rules,
    value::{Kind, Value},
    web, webhook,
};
use crate::limits::Limits;

/// Largest count: a larger number is probably a typing mistake.
const COUNT_MAX: u64 = 1_000_000_000;

/// Largest value of a key in milliseconds: a minute.
const MILLIS_MAX: u64 = 60_000;

/// Largest number of bytes: one tebibyte.
const BYTES_MAX: u64 = 1 << 40;

pub(super) const DURABILITIES: &[&str] = &["sync", "batched"];
pub(super) const PROVIDER_KINDS: &[&str] = &[
    "anthropic",
    "openai",
    "openai-responses",
    "gemini",
    "offline",
];
pub(super) const APPROVALS: &[&str] = &["ask", "deny", "auto"];
pub(super) const SANDBOX_MODES: &[&str] = &["auto", "linux", "local", "none"];

/// Keys of the sections that appear at most once, except `[limits]`.
const PLAIN: &[Key] = &[
    key(
        "host",
        "data_dir",
        Kind::Path,
        "folder for all stored data; `$XDG_DATA_HOME/callboard` or `~/.local/share/callboard` by default",
    ),
    key(
        "host",
        "durability",
        Kind::Choice(DURABILITIES),
        "`sync`: acknowledged writes survive a power cut; `batched`: they survive a crash of the process",
    ),
    key(
        "host",
        "listen",
        Kind::Address,
        "address and port of `serve`; `127.0.0.1:8787` by default",
    ),
    key(
        "host",
        "peer_address",
        Kind::BaseUrl,
        "URL under which other hosts on the same PostgreSQL database reach this one; without it, a host serves the database alone",
    ),
    key(
        "host",
        "admin_key_sha256",
        Kind::Hash,
        "SHA-256 of the operator's key (`callboard keys new`); without it, there are no operator's routes",
    ),
    key(
        "host",
        "connections_per_address_max",
        Kind::Count { max: COUNT_MAX },
        "connections to `serve` at once from one client address or IPv6 network; 1000 by default, unlimited from this machine",
    ),
    key(
        "host",
        "connections_max",
        Kind::Count { max: COUNT_MAX },
        "connections to `serve` at once; 10000 by default",
    ),
    key(
        "host",
        "requests_per_tenant_max",
        Kind::Count { max: COUNT_MAX },
        "open requests of one tenant at once, its event streams and waiting prompts included; 10000 by default",
    ),
    key(
        "host",
        "streams_per_tenant_max",
        Kind::Count { max: COUNT_MAX },
        "event streams of one tenant at once; 1000 by default",
    ),
    key(
        "host",
        "body_bytes_max",
        Kind::Count { max: BYTES_MAX },
        "bytes of a request that carries no messages; 1 MiB by default",
    ),
    key(
        "host",
        "tenant_answer_bytes_max",
        Kind::Count { max: BYTES_MAX },
        "bytes of histories and artifacts that clients of one tenant requested and have not read; 64 MiB by default",
    ),
    key(
        "host",
        "connection_answer_bytes_max",
        Kind::Count { max: BYTES_MAX },
        "the same of one connection; 32 MiB by default",
    ),
    key(
        "host",
        "answer_bytes_max",
        Kind::Count { max: BYTES_MAX },
        "the same of all tenants together; 256 MiB by default",
    ),
    key(
        "host",
        "header_s",
        Kind::Seconds,
        "seconds for the head of a request, and seconds that a connection without a request stays open; 15 by default",
    ),
    key(
        "host",
        "write_pause_s",
        Kind::Seconds,
        "seconds that a client may read nothing of an answer; 60 by default",
    ),
    key(
        "host",
        "remote_attachments",
        Kind::Flag,
        "whether a tenant's attachments may be a URL or the id of a file that the provider fetches on your account; `false` by default",
    ),
    key(
        "host",
        "cors_origins",
        Kind::Origins,
        "origins of web pages that may call the API from a browser, such as `https://app.example`, or `*` alone for every page; none by default",
    ),
    key(
        "host",
        "console",
        Kind::Flag,
        "whether the pages for people at `/console` are served; `true` by default",
    ),
    key(
        "host",
        "mcp",
        Kind::Flag,
        "whether MCP clients are served at `/mcp`; `true` by default",
    ),
    key(
        "store",
        "url",
        Kind::StoreUrl,
        "`sqlite:PATH`, `postgres://USER@HOST/DATABASE` or `memory:`; `callboard.db` in the data folder by default",
    ),
    key(
        "tools",
        "enabled",
        Kind::Names(TOOL_NAMES),
        "tools that models are offered; all by default, `[]` for none",
    ),
    key(
        "tools",
        "approve",
        Kind::Choice(APPROVALS),
        "`ask`, `deny` or `auto` for tools that change things; `ask` at a terminal by default, else `deny`",
    ),
    key(
        web::FETCH,
        "allow_hosts",
        Kind::Hosts,
        "hosts, `*.domains`, addresses and ranges that may be reached besides the public internet; none by default",
    ),
    key(
        web::FETCH,
        "approve",
        Kind::Choice(web::FETCH_APPROVALS),
        "`mode`: as `[tools] approve` says; `never`: runs without approval",
    ),
    key(
        web::SEARCH,
        "engine",
        Kind::Choice(web::ENGINES),
        "`tavily`, with a key, or `searxng`, with `base_url`; `tavily` by default",
    ),
    key(
        web::SEARCH,
        "base_url",
        Kind::BaseUrl,
        "URL of the search engine; Tavily's own address by default",
    ),
    key(
        web::SEARCH,
        "api_key_env",
        Kind::EnvName,
        "environment variable that holds Tavily's key; `TAVILY_API_KEY` by default, unless `base_url` is set",
    ),
    key(
        "sandbox",
        "mode",
        Kind::Choice(SANDBOX_MODES),
        "`auto`: `linux` if the machine supports it, else no tools that run commands; `local`: no sandbox",
    ),
    key(
        "sandbox",
        "network",
        Kind::Patterns,
        "hosts, `*.domains` and addresses, each with or without `:port`, that commands can reach; none by default; bubblewrap only",
    ),
    key(
        "sandbox",
        "toolchains",
        Kind::Flag,
        "whether commands of `run` and `chat` can use the toolchains in your home folder that are on `PATH`; `true` by default",
    ),
    key(
        "sandbox",
        "read_only",
        Kind::Paths,
        "folders, such as toolchains, that commands can read and execute from, at the same path; none by default",
    ),
    key(
        "sandbox",
        "memory_bytes",
        Kind::Count { max: BYTES_MAX },
        "bytes of memory of one command, all its processes and its files in memory together",
    ),
    key(
        "sandbox",
        "processes",
        Kind::Count { max: 1 << 22 },
        "processes and threads of one command",
    ),
    key(
        "sandbox",
        "cpu_seconds",
        Kind::Count { max: COUNT_MAX },
        "seconds of processor time of one process of a command",
    ),
    key(
        "sandbox",
        "file_bytes",
        Kind::Count { max: BYTES_MAX },
        "bytes of one file that a command writes",
    ),
    key(
        "sandbox",
        "files",
        Kind::Count { max: BYTES_MAX },
        "files that a command may create; unlimited on file systems that do not count them (btrfs)",
    ),
    key(
        tokens::SECTION,
        "file",
        Kind::Path,
        "YAML file of encoders; by default the first of `config/token_encoders.yaml`, `config/token_encoders.yml` and `~/.config/callboard/token_encoders.yaml` that exists",
    ),
    key(
        "skills",
        "dir",
        Kind::Path,
        "folder of skills, each a folder with a `SKILL.md`; none by default",
    ),
    key(
        "skills",
        "models",
        Kind::Models,
        "models that a skill's `model` may choose besides the conversation's own, `*` for any text; none by default",
    ),
];

/// Values of `[[tenant]] memory`.
const MEMORIES: &[&str] = &["conversation", "tenant"];

/// Values of `[[provider]] shows`.
const SHOWS: &[&str] = &["images", "documents"];

/// The words of `effort`.
const EFFORTS: &[&str] = &["low", "medium", "high"];

/// Longest answer that may be asked for, in tokens.
const ANSWER_TOKENS_MAX: u64 = 10_000_000;

/// How the models of a section are asked to answer.
const fn parameter_keys(section: &'static str) -> [Key; 5] {
    [
        key(
            section,
            "max_tokens",
            Kind::Count {
                max: ANSWER_TOKENS_MAX,
            },
            "tokens of the longest answer; the model's own maximum, up to 8192 and a quarter of its window, by default",
        ),
        key(
            section,
            "effort",
            Kind::Choice(EFFORTS),
            "`low`, `medium` or `high`: how much the model reasons; the provider decides by default",
        ),
        key(
            section,
            "thinking",
            Kind::Thinking,
            "extended thinking of the kinds `anthropic`, `openai-responses` and `gemini`: `off`, `adaptive`, or the most tokens of thoughts in an answer, from 1024; the provider decides by default",
        ),
        key(
            section,
            "temperature",
            Kind::Temperature,
            "0 to 2; the provider decides by default, and newer models refuse it",
        ),
        key(
            section,
            "stop",
            Kind::Texts,
            "up to 4 texts that end an answer; none by default",
        ),
    ]
}

const PROVIDER_PARAMETERS: [Key; 5] = parameter_keys(PROVIDER_SECTION);
const TENANT_PARAMETERS: [Key; 5] = parameter_keys(TENANT_SECTION);

/// Keys of each `[[provider]]`.
pub(super) const PROVIDER: &[Key] = &[
    key(
        "provider",
        "name",
        Kind::Text,
        "name for `--provider`; its kind by default",
    ),
    key(
        "provider",
        "kind",
        Kind::Choice(PROVIDER_KINDS),
        "`anthropic`, `openai` (any server with the Chat Completions API), `openai-responses` (any with the Responses API), `gemini` or `offline`; its name by default",
    ),
    key(
        "provider",
        "base_url",
        Kind::BaseUrl,
        "base URL as in the official SDKs: Anthropic without `/v1`, OpenAI with it, Gemini with `/v1beta`; the vendor's by default",
    ),
    key("provider", "model", Kind::Text, "model to use"),
    key(
        "provider",
        "api_key_env",
        Kind::EnvName,
        "environment variable that holds the key",
    ),
    key(
        "provider",
        "api_key_file",
        Kind::Path,
        "file that holds the key and nothing else",
    ),
    key(
        "provider",
        "ca_file",
        Kind::Path,
        "PEM file of certificate authorities to trust besides those of the system",
    ),
    key(
        "provider",
        "client_cert_file",
        Kind::Path,
        "PEM file of the certificate that is shown to a server that asks for one",
    ),
    key(
        "provider",
        "client_key_file",
        Kind::Path,
        "PEM file of that certificate's private key",
    ),
    key(
        "provider",
        "connect_s",
        Kind::Seconds,
        "seconds to open a connection, TLS and proxy included; 10 by default",
    ),
    key(
        "provider",
        "connections_max",
        Kind::Count { max: COUNT_MAX },
        "connections to the server at once, calls beyond what they carry are queued; 1000 by default",
    ),
    key(
        "provider",
        "http2",
        Kind::Flag,
        "whether HTTP/2 is offered over TLS; `true` by default. Without it each call has a connection of its own",
    ),
    key(
        "provider",
        "shows",
        Kind::Names(SHOWS),
        "attachments sent to a server of the kind `openai` or `openai-responses`; derived from the model's name by default, `[]` for none",
    ),
    key(
        "provider",
        "request_bytes_max",
        Kind::Count { max: BYTES_MAX },
        "bytes of a request; the oldest attachments of a larger one are left out. 32000000 by default for `anthropic`, 20000000 for the others",
    ),
    key(
        "provider",
        "concurrency",
        Kind::Count { max: COUNT_MAX },
        "model calls at once; `limits.model_calls_max` by default",
    ),
    key(
        "provider",
        "rpm",
        Kind::Count { max: COUNT_MAX },
        "requests per minute; by default what the provider's headers say",
    ),
    key(
        "provider",
        "tpm",
        Kind::Count { max: BYTES_MAX },
        "tokens per minute, in and out; by default what the provider's headers say",
    ),
    key(
        "provider",
        "context_window",
        Kind::Count { max: COUNT_MAX },
        "tokens that its models read and write at most; by default what an OpenAI-compatible server at `base_url` says (llama.cpp, vLLM, Ollama), else by the model's name, else 32768",
    ),
    key(
        "provider",
        "retries_max",
        Kind::CountFromZero { max: 100 },
        "times that a failed model call is made again before its first content; 3 by default",
    ),
    key(
        "provider",
        "retry_delay_s",
        Kind::Seconds,
        "seconds before the first of them, doubled for each further one; 1 by default",
    ),
    PROVIDER_PARAMETERS[0],
    PROVIDER_PARAMETERS[1],
    PROVIDER_PARAMETERS[2],
    PROVIDER_PARAMETERS[3],
    PROVIDER_PARAMETERS[4],
];

/// Keys of `[provider.fallback]`.
pub(super) const FALLBACK: &[Key] = &[
    key(
        FALLBACK_SECTION,
        "provider",
        Kind::Text,
        "name of the provider to use while this one does not answer",
    ),
    key(
        FALLBACK_SECTION,
        "model",
        Kind::Text,
        "model to use there; that provider's own by default",
    ),
];

/// Keys of each `[[tenant]]`.
pub(super) const TENANT: &[Key] = &[
    key(
        "tenant",
        "id",
        Kind::TenantId,
        "id: 1 to 128 characters of `A-Z a-z 0-9 . _ : -`",
    ),
    key(
        "tenant",
        "key_sha256",
        Kind::Hashes,
        "SHA-256 of its key, or a list of several (`callboard keys new`)",
    ),
    key(
        "tenant",
        "weight",
        Kind::Count { max: 1_000_000 },
        "its relative share when several tenants wait for the same model; 1 by default",
    ),
    key(
        "tenant",
        "provider",
        Kind::Text,
        "the provider, and so the key, that its calls use; the first by default",
    ),
    key(
        "tenant",
        "model",
        Kind::Text,
        "model to use; the provider's by default",
    ),
    TENANT_PARAMETERS[0],
    TENANT_PARAMETERS[1],
    TENANT_PARAMETERS[2],
    TENANT_PARAMETERS[3],
    TENANT_PARAMETERS[4],
    key("tenant", "system", Kind::Prose, "its system prompt"),
    key(
        "tenant",
        "workspace",
        Kind::Path,
        "folder that its tools work in; without one it has no file tools and no commands",
    ),
    key(
        "tenant",
        "tools",
        Kind::Names(TOOL_NAMES),
        "tools that its models are offered; `[tools] enabled` by default",
    ),
    key(
        "tenant",
        "approve",
        Kind::Choice(APPROVALS),
        "`ask`, `deny` or `auto`; `[tools] approve` by default, else `deny`",
    ),
    key(
        "tenant",
        "skills",
        Kind::Path,
        "folder of its skills; `[skills] dir` by default",
    ),
    key(
        "tenant",
        "project_instructions",
        Kind::Flag,
        "whether the `AGENTS.md` of its workspace is added to the system prompt, whoever wrote it; `false` by default",
    ),
    key(
        "tenant",
        "skill_models",
        Kind::Models,
        "models that its skills, and its fan-outs over HTTP, may choose; `[skills] models` by default",
    ),
    key(
        "tenant",
        "memory",
        Kind::Choice(MEMORIES),
        "scope of the tool `memory`: `conversation` (each has its own, the default) or `tenant` (all share one)",
    ),
    key(
        "tenant",
        "paused",
        Kind::Flag,
        "whether its requests that write or call a model are refused for now",
    ),
];

/// Keys of `[tenant.quotas]`: what a tenant may use at once and per minute.
pub(super) const QUOTAS: &[Key] = &[
    key(
        QUOTAS_SECTION,
        "conversations_max",
        Kind::Count { max: BYTES_MAX },
        "stored conversations",
    ),
    key(
        QUOTAS_SECTION,
        "turns_max",
        Kind::Count { max: COUNT_MAX },
        "rounds at once; more wait",
    ),
    key(
        QUOTAS_SECTION,
        "prompts_max",
        Kind::Count { max: COUNT_MAX },
        "prompts admitted and not yet answered; more are refused",
    ),
    key(
        QUOTAS_SECTION,
        "requests_per_minute",
        Kind::Count { max: COUNT_MAX },
        "prompts, changes of conversations and tasks of fan-outs per minute; more are refused, tasks wait",
    ),
    key(
        QUOTAS_SECTION,
        "tokens_per_minute",
        Kind::Count { max: BYTES_MAX },
        "tokens per minute, in and out",
    ),
    key(
        QUOTAS_SECTION,
        "artifact_bytes_max",
        Kind::Count { max: BYTES_MAX },
        "bytes of its artifacts",
    ),
    key(
        QUOTAS_SECTION,
        "stored_bytes_max",
        Kind::Count { max: BYTES_MAX },
        "bytes of its conversations in the store; more are refused; `[limits] tenant_stored_bytes_max` by default",
    ),
    key(
        QUOTAS_SECTION,
        "workspace_files_max",
        Kind::Count { max: COUNT_MAX },
        "files and folders in its workspace, whoever made them; `[limits] tenant_workspace_files_max` by default",
    ),
    key(
        QUOTAS_SECTION,
        "workspace_bytes_max",
        Kind::Count { max: BYTES_MAX },
        "bytes on the disk of the files in its workspace; `[limits] tenant_workspace_bytes_max` by default",
    ),
    key(
        QUOTAS_SECTION,
        "memory_bytes_max",
        Kind::Count { max: BYTES_MAX },
        "bytes of memory that its running work may use",
    ),
];

/// Keys of `[tenant.budget]` and `[tenant.conversation_budget]`.
pub(super) const BUDGETS: &[Key] = &[
    key(
        BUDGET_SECTION,
        "tokens",
        Kind::Count { max: BYTES_MAX },
        "tokens that all its conversations may use together, until its data is erased; restarts do not refill a budget, a higher number does",
    ),
    key(
        BUDGET_SECTION,
        "usd",
        Kind::Usd,
        "US dollars that they may cost together; needs a price for the model",
    ),
    key(
        BUDGET_SECTION,
        "wall_s",
        Kind::Seconds,
        "seconds that all their rounds may take together",
    ),
    key(
        EACH_SECTION,
        "tokens",
        Kind::Count { max: BYTES_MAX },
        "tokens that each of its conversations may use",
    ),
    key(
        EACH_SECTION,
        "usd",
        Kind::Usd,
        "US dollars that each may cost; needs a price for the model",
    ),
    key(
        EACH_SECTION,
        "wall_s",
        Kind::Seconds,
        "seconds that its rounds may take together",
    ),
];

/// Returns the `[sandbox]` limit with this key.
pub(super) fn exec_limit(limits: &ExecLimits, name: &str) -> Option<u64> {
    match name {
        "memory_bytes" => Some(limits.memory_bytes),
        "processes" => Some(limits.processes.into()),
        "cpu_seconds" => Some(limits.cpu_seconds),
        "file_bytes" => Some(limits.file_bytes),
        "files" => Some(limits.files),
        _ => None,
    }
}

/// Sets the `[sandbox]` limit with this key.
pub(super) fn set_exec_limit(limits: &mut ExecLimits, name: &str, count: u64) {
    match name {
        "memory_bytes" => limits.memory_bytes = count,
        "processes" => limits.processes = u32::try_from(count).unwrap_or(u32::MAX),
        "cpu_seconds" => limits.cpu_seconds = count,
        "file_bytes" => limits.file_bytes = count,
        "files" => limits.files = count,
        _ => {}
    }
}

// One row per field of `Limits`, expanded into the keys, the reader and the writer. A field without
// a row does not compile.
macro_rules! limits {
    ($($field:ident, $name:literal, $type:ident, $what:literal;)*) => {
        const LIMITS: &[Key] = &[$(key("limits", $name, limits!(@kind $type), $what),)*];

        /// All keys of `[limits]` with their values.
        pub(super) fn limit_values(limits: &Limits) -> Vec<(&'static str, Value)> {
            let Limits { $($field),* } = limits;
            vec![$(($name, limits!(@value $type, *$field)),)*]
        }

        /// Sets the `[limits]` value with this key. An unknown key or a value of another type has
        /// no effect.
        pub(super) fn set_limit(limits: &mut Limits, name: &str, value: &Value) {
            match (name, value) {
                $(($name, limits!(@pattern $type, given)) => limits.$field = limits!(@read $type, given),)*
                _ => {}
            }
        }
    };
    (@kind count) => { Kind::Count { max: COUNT_MAX } };
    (@kind bytes) => { Kind::Count { max: BYTES_MAX } };
    (@kind seconds) => { Kind::Seconds };
    (@kind millis) => { Kind::Millis { max: MILLIS_MAX } };
    (@value seconds, $value:expr) => { Value::Seconds($value) };
    (@value millis, $value:expr) => { Value::Count(u64::try_from($value.as_millis()).unwrap_or(u64::MAX)) };
    (@value $type:ident, $value:expr) => { Value::Count(u64::try_from($value).unwrap_or(u64::MAX)) };
    (@pattern seconds, $given:ident) => { Value::Seconds($given) };
    (@pattern $type:ident, $given:ident) => { Value::Count($given) };
    (@read seconds, $given:ident) => { *$given };
    (@read millis, $given:ident) => { std::time::Duration::from_millis(*$given) };
    (@read $type:ident, $given:ident) => { (*$given).try_into().unwrap_or_default() };
}

limits! {
    tool_iterations_max, "tool_iterations_max", count, "batches of tools a round may run";
    parallel_tools_max, "parallel_tools_max", count, "tool calls of one batch at once";
    subagents_a_round_max, "subagents_a_round_max", count, "subagents that a round may start";
    subagents_max, "subagents_max", count, "subagents that all rounds of a conversation together may start";
    identical_calls_max, "identical_calls_max", count, "times a round may get the same result from the same call";
    client_result, "client_result_s", seconds, "seconds that a call of a tool that a caller brought waits for its result";
    inbox_prompts_max, "inbox_prompts_max", count, "prompts that may wait in one conversation";
    held_mail_max, "held_mail_max", count, "messages held for a conversation that is starting or stopping";
    tenant_turns_max, "tenant_turns_max", count, "rounds of one tenant at once";
    tenant_seats_max, "tenant_seats_max", count, "prompts of one tenant admitted and not yet answered";
    tenant_stored_bytes_max, "tenant_stored_bytes_max", bytes, "bytes of one tenant's conversations in the store, unless it has its own quota";
    tenant_workspace_files_max, "tenant_workspace_files_max", count, "files and folders in one tenant's workspace, unless its quota says";
    tenant_workspace_bytes_max, "tenant_workspace_bytes_max", bytes, "bytes on the disk of the files in one tenant's workspace, unless its quota says; a tebibyte, the default, is no bound";
    memory_bytes_max, "memory_bytes_max", bytes, "bytes of all prompts from admission to the end of their rounds, and of the histories of conversations that work; a tenant gets more only while as much as it has is left, so one alone gets half";
    model_calls_max, "model_calls_max", count, "calls of one provider key at once";
    model_waiting_max, "model_waiting_max", count, "callers that wait for a model permit";
    idle, "idle_s", seconds, "seconds until an idle conversation leaves memory";
    idle_conversations_max, "idle_conversations_max", count, "idle conversations in memory; beyond it the least recently used ones leave";
    idle_bytes_max, "idle_bytes_max", bytes, "bytes of the histories of idle conversations in memory, and 10 KB for each; beyond it the least recently used ones leave";
    sweep, "sweep_s", seconds, "seconds between searches for idle conversations";
    flush, "flush_ms", millis, "least milliseconds between two text events of a model call; text that arrives meanwhile becomes one event; 0, the default, sends text as it arrives";
    model_first_byte, "model_first_byte_s", seconds, "seconds to wait for the first byte of a model's answer; a local model may read a long prompt for minutes";
    model_idle, "model_idle_s", seconds, "seconds to wait for the next bytes of a model's stream";
    model_total, "model_total_s", seconds, "seconds that one model call may take";
    ring_bytes, "ring_bytes", bytes, "bytes of ephemeral events kept for the watchers of a round";
    ring_age, "ring_age_s", seconds, "seconds that the events of a finished round are kept";
    events_bytes_max, "events_bytes_max", bytes, "bytes of memory of the events of all rounds; beyond it the rounds that ended first lose theirs early";
    journal_backlog_bytes, "journal_backlog_bytes", bytes, "bytes of one conversation that may wait for the store";
    store_pause, "store_pause_s", seconds, "seconds that a conversation waits for a store that cannot be written; its open round goes on when the store is back";
}

/// Sections that appear at most once, in the order in which `show` prints them.
pub(super) const SECTIONS: &[&str] = &[
    "host",
    "store",
    "tools",
    web::FETCH,
    web::SEARCH,
    "sandbox",
    tokens::SECTION,
    "skills",
    tool_rules::ARTIFACTS,
    webhook::SECTION,
    "limits",
];

/// Name of the section that is repeated for each provider.
pub(super) const PROVIDER_SECTION: &str = "provider";

/// Name of the section that is repeated for each tenant.
pub(super) const TENANT_SECTION: &str = "tenant";

pub(super) const FALLBACK_SECTION: &str = "provider.fallback";
pub(super) const QUOTAS_SECTION: &str = "tenant.quotas";
pub(super) const BUDGET_SECTION: &str = "tenant.budget";
pub(super) const EACH_SECTION: &str = "tenant.conversation_budget";

/// Sections within a provider or a tenant, in the order in which `show` prints them.
pub(super) const NESTED: &[&str] = &[
    FALLBACK_SECTION,
    QUOTAS_SECTION,
    BUDGET_SECTION,
    EACH_SECTION,
    webhook::OF_TENANT,
];

/// The keys of `[[tenant]]` and of its nested sections.
pub(super) fn of_tenants() -> impl Iterator<Item = &'static Key> {
    TENANT
        .iter()
        .chain(QUOTAS)
        .chain(BUDGETS)
        .chain(webhook::TENANT_KEYS)
}

/// All keys outside `[[provider]]` and `[[tenant]]`.
pub(super) fn plain() -> impl Iterator<Item = &'static Key> {
    PLAIN
        .iter()
        .chain(tool_rules::KEYS)
        .chain(webhook::KEYS)
        .chain(LIMITS)
}

/// The keys of one section, including those of providers and tenants.
pub(super) fn of_section(section: &str) -> impl Iterator<Item = &'static Key> {
    plain()
        .chain(PROVIDER)
        .chain(FALLBACK)
        .chain(of_tenants())
        .filter(move |key| key.section == section)
}

/// The table of all keys for `docs/configuration.md`. A test compares the page with it.
pub fn reference() -> String {
    let mut text = String::from("| Key | Environment | Value |\n|---|---|---|\n");
    for key in plain() {
        text += &format!(
            "| `[{}] {}` | `{}` | {} |\n",
            key.section,
            key.name,
            key.variable(),
            key.what
        );
    }
    // A variable contains the provider's name, so no variable can set the name.
    text +=
        "| `[[provider]] name` | | name for `--provider` and variables; its kind by default |\n";
    for key in PROVIDER.iter().filter(|key| key.name != "name") {
        text += &format!(
            "| `[[provider]] {}` | `{}` | {} |\n",
            key.name,
            key.variable_of_provider("NAME"),
            key.what
        );
    }
    for key in FALLBACK.iter().chain(of_tenants()) {
        text += &match key.section.split_once('.') {
            Some((section, nested)) => format!(
                "| `[[{section}]] {nested}.{}` | | {} |\n",
                key.name, key.what
            ),
            None => format!("| `[[{}]] {}` | | {} |\n", key.section, key.name, key.what),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_limit_is_read_and_written() {
        let mut limits = Limits::default();
        for key in LIMITS {
            let value = match key.kind {
                Kind::Seconds => Value::Seconds(Duration::from_secs(7)),
                _ => Value::Count(7),
            };
            set_limit(&mut limits, key.name, &value);
        }

        assert_eq!(limit_values(&limits).len(), LIMITS.len());
        for (name, value) in limit_values(&limits) {
            assert!(
                matches!(value, Value::Count(7)) || value == Value::Seconds(Duration::from_secs(7)),
                "{name} {value:?}"
            );
        }
    }
}
