//! `[[mcp]]`: converts the section for [`crate::mcp`], with the line of every key.

use std::{fmt::Write as _, path::Path};

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::{
    error::{ConfigError, Origin, hint, quoted},
    toml_text::{in_quotes, whole},
};
use crate::mcp::{
    McpServerConfig, McpTransport, Trust,
    config::{MCP_KEYS, McpDialect, McpEntry, read_server},
};

/// The section's name.
pub(super) const SECTION: &str = "mcp";

/// Reads every `[[mcp]]` of a file. `at` maps a byte offset to its place in the file.
pub(super) fn servers(
    value: &DeValue<'_>,
    section: &Origin,
    folder: &Path,
    at: impl Fn(usize) -> Origin,
) -> Result<Vec<McpServerConfig>, ConfigError> {
    let list = "servers are a list: write `[[mcp]]`, with two brackets";
    let DeValue::Array(items) = value else {
        return Err(ConfigError::Inconsistent { at: section.clone(), problem: list.to_owned() });
    };
    let mut servers: Vec<McpServerConfig> = Vec::new();
    for item in items.iter() {
        let place = at(item.span().start);
        let DeValue::Table(table) = item.get_ref() else {
            return Err(ConfigError::Inconsistent { at: place, problem: list.to_owned() });
        };
        let entries = entries(table, &at);
        let line = line_of(&place);
        match read_server(&entries, line, folder, McpDialect::Toml) {
            Ok(None) => {}
            Ok(Some(server)) if servers.iter().any(|other| other.name == server.name) => {
                let problem = format!("there are two servers `{}`; each needs its own name", quoted(&server.name));
                return Err(ConfigError::Inconsistent { at: place, problem });
            }
            Ok(Some(server)) => servers.push(server),
            Err(problem) => {
                let at = moved(&place, problem.line);
                return Err(match problem.key.as_str() {
                    "" => ConfigError::Inconsistent { at, problem: problem.problem },
                    key if !MCP_KEYS.contains(&key) => ConfigError::Unknown {
                        at,
                        what: "key in [[mcp]]".to_owned(),
                        given: quoted(key),
                        hint: hint(key, MCP_KEYS.iter().copied()),
                    },
                    key => ConfigError::BadValue { at, key: format!("{SECTION}.{key}"), problem: problem.problem },
                });
            }
        }
    }
    Ok(servers)
}

/// The entries of a table in file order.
fn entries(table: &DeTable<'_>, at: &impl Fn(usize) -> Origin) -> Vec<McpEntry> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    let entry = |(name, value): (&toml::Spanned<toml::de::DeString<'_>>, &toml::Spanned<DeValue<'_>>)| McpEntry {
        key: name.get_ref().to_string(),
        line: line_of(&at(name.span().start)),
        value: plain(value.get_ref()),
    };
    entries.into_iter().map(entry).collect()
}

fn line_of(place: &Origin) -> usize {
    match place {
        Origin::File { line, .. } => *line,
        Origin::Default | Origin::Environment(_) | Origin::Flag(_) => 1,
    }
}

fn moved(place: &Origin, line: usize) -> Origin {
    match place {
        Origin::File { path, .. } => Origin::File { path: path.clone(), line },
        other => other.clone(),
    }
}

/// Converts a TOML value to JSON. A value without a JSON counterpart becomes null, which no key
/// accepts. The parser bounds the nesting depth.
fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).map_or(Value::Null, Value::from),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Array(items) => Value::Array(items.iter().map(|item| plain(item.get_ref())).collect()),
        DeValue::Table(table) => {
            Value::Object(table.iter().map(|(name, value)| (name.get_ref().to_string(), plain(value.get_ref()))).collect())
        }
        DeValue::Float(_) | DeValue::Datetime(_) => Value::Null,
    }
}

/// Writes the servers as TOML that can be read again. The file refers to keys by variable, so no
/// key is shown.
pub(super) fn show(text: &mut String, servers: &[McpServerConfig]) {
    let list = |items: &mut dyn Iterator<Item = &String>| format!("[{}]", items.map(|item| in_quotes(item)).collect::<Vec<_>>().join(", "));
    for server in servers {
        let mut line = |key: &str, value: String| {
            let _ = writeln!(text, "{key} = {value}");
        };
        line("\n[[mcp]]\nname", in_quotes(&server.name));
        match &server.transport {
            McpTransport::Stdio { command, args, env, env_from, cwd } => {
                line("command", in_quotes(command));
                line("args", list(&mut args.iter()));
                line("env", table(env.iter().map(|(name, value)| (name, value.text()))));
                line("env_from", list(&mut env_from.iter()));
                if let Some(cwd) = cwd {
                    line("cwd", in_quotes(&whole(cwd)));
                }
            }
            McpTransport::Http { url, headers, allow_private } => {
                line("url", in_quotes(url));
                line("headers", table(headers.iter().map(|(name, value)| (name, value.text()))));
                line("allow_private", allow_private.to_string());
            }
        }
        for (key, wait) in [
            ("timeout_ms", server.timeout),
            ("start_timeout_ms", server.start_timeout),
            ("probe_ms", server.probe),
            ("idle_ms", server.idle),
        ] {
            line(key, wait.as_millis().to_string());
        }
        line("trust", in_quotes(if server.trust == Trust::Annotations { "annotations" } else { "none" }));
        if let Some(tools) = &server.tools {
            line("tools", list(&mut tools.iter()));
        }
        line("tools_max", server.tools_max.to_string());
    }
}

fn table<'t>(fields: impl Iterator<Item = (&'t String, &'t str)>) -> String {
    let fields: Vec<String> = fields.map(|(name, value)| format!("{} = {}", in_quotes(name), in_quotes(value))).collect();
    format!("{{ {} }}", fields.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::{Config, file::parse};

    fn read(text: &str) -> Result<Vec<crate::mcp::McpServerConfig>, String> {
        parse("conf/callboard.toml".as_ref(), text, None).map(|layer| layer.mcp).map_err(|error| error.to_string())
    }

    #[test]
    fn servers_are_read_and_mistakes_name_file_line_and_key() {
        let servers = read(
            "[[mcp]]\nname = \"time\"\ncommand = \"python3\"\nargs = [\"-m\", \"x\"]\nenv = { A = \"${B}\" }\n\n\
             [[mcp]]\nname = \"web\"\nurl = \"https://example.com/mcp\"\n",
        )
        .unwrap();

        assert_eq!(servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["time", "web"]);
        for (text, expected) in [
            ("[mcp]\nname = \"a\"\n", "conf/callboard.toml:1: servers are a list: write `[[mcp]]`, with two brackets"),
            ("[[mcp]]\nname = \"a\"\n", "conf/callboard.toml:1: a server needs a `command` to start or a `url` to reach"),
            ("[[mcp]]\nname = \"a\"\ncomand = \"x\"\n", "conf/callboard.toml:3: unknown key in [[mcp]] `comand`; did you mean `command`?"),
            (
                "[[mcp]]\nname = \"a\"\ncommand = \"x\"\ntimeout_ms = 1.5\n",
                "conf/callboard.toml:4: `mcp.timeout_ms` must be 1 to 3600000 milliseconds",
            ),
            (
                "[[mcp]]\nname = \"a\"\ncommand = \"x\"\n[[mcp]]\nname = \"a\"\ncommand = \"y\"\n",
                "conf/callboard.toml:4: there are two servers `a`; each needs its own name",
            ),
        ] {
            assert_eq!(read(text), Err(expected.to_owned()));
        }
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("callboard.toml");
        let load = || Config::load(Some(&file), [("HOME".to_owned(), "/h".to_owned())].into_iter()).unwrap();
        std::fs::write(
            &file,
            "[[mcp]]\nname = \"a\"\ncommand = \"x\"\nargs = [\"\\\"\"]\nenv = { A = \"${B}c\" }\nenv_from = [\"D\"]\ncwd = \"/tmp\"\ntools = [\"t\"]\ntools_max = 9\n\
             [[mcp]]\nname = \"b\"\nurl = \"http://127.0.0.1:1/\"\nallow_private = true\nheaders = { Authorization = \"Bearer ${T}\" }\ntrust = \"annotations\"\nidle_ms = 7\n",
        )
        .unwrap();

        let first = load();
        std::fs::write(&file, first.show()).unwrap();

        assert_eq!(first.mcp.len(), 2);
        assert_eq!(load().mcp, first.mcp);
    }
}
