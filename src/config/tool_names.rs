//! Names of tools that the configuration accepts.

/// Names of the built-in tools that `[tools] enabled` accepts.
pub const TOOL_NAMES: &[&str] = &[
    "bash",
    "create_subagent",
    "file_edit",
    "file_list",
    "file_read",
    "grep_search",
    "memory",
    "read_more",
    "think",
    "web_fetch",
    "web_search",
];

/// Whether a name has the form `server__tool`. The tools of an MCP server are known only once it
/// was asked.
pub(super) fn is_of_server(name: &str) -> bool {
    let word = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    name.split_once("__")
        .is_some_and(|(server, tool)| word(server) && word(tool))
}
