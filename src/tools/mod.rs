//! Built-in tools: one file a tool.
