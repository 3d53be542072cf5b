//! `[[mcp]]`: converts the section for [`crate::mcp`], with the line of every key.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_json::{Map, Value as Json, json};

use super::{
    error::{ConfigError, Origin, hint, quoted},
    section::Section,
    toml_text::{self, whole},
};
use crate::mcp::{
    McpServerConfig, McpTransport, Trust,
    config::{MCP_KEYS, McpDialect, McpEntry, Template, read_server},
};

/// The section's name.
pub(super) const SECTION: &str = "mcp";

/// Reads every `[[mcp]]` of a file. Relative paths are relative to `folder`.
pub(super) fn servers(
    sections: &[Section<'_, '_>],
    folder: &Path,
) -> Result<Vec<McpServerConfig>, ConfigError> {
    let mut servers: Vec<McpServerConfig> = Vec::new();
    for section in sections {
        let entries = section.entries().into_iter();
        let entries: Vec<_> = entries
            .map(|entry| McpEntry {
                key: entry.name.to_owned(),
                line: entry.line,
                value: entry.json(),
            })
            .collect();
        match read_server(&entries, line_of(&section.at), folder, McpDialect::Toml) {
            Ok(None) => {}
            Ok(Some(server)) if servers.iter().any(|other| other.name == server.name) => {
                return Err(section.inconsistent(format!(
                    "there are two servers `{}`; each needs its own name",
                    quoted(&server.name)
                )));
            }
            Ok(Some(server)) => servers.push(server),
            Err(problem) => {
                let at = section.file.at_line(problem.line);
                return Err(match problem.key.as_str() {
                    "" => ConfigError::Inconsistent {
                        at,
                        problem: problem.problem,
                    },
                    key if !MCP_KEYS.contains(&key) => ConfigError::Unknown {
                        at,
                        what: "key in [[mcp]]".to_owned(),
                        given: quoted(key),
                        hint: hint(key, MCP_KEYS.iter().copied()),
                    },
                    key => ConfigError::BadValue {
                        at,
                        key: format!("{SECTION}.{key}"),
                        problem: problem.problem,
                    },
                });
            }
        }
    }
    Ok(servers)
}

fn line_of(place: &Origin) -> usize {
    match place {
        Origin::File { line, .. } => *line,
        Origin::Default | Origin::Environment(_) | Origin::Flag(_) | Origin::Request(_) => 1,
    }
}

/// Writes the servers as TOML that can be read again. The file refers to keys by variable, so no
/// key is shown.
pub(super) fn show(text: &mut String, servers: &[McpServerConfig]) {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let texts = |templates: &BTreeMap<String, Template>| -> Json {
        templates
            .iter()
            .map(|(name, template)| (name.clone(), Json::from(template.text())))
            .collect()
    };
    for server in servers {
        let transport = match &server.transport {
            McpTransport::Stdio {
                command,
                args,
                env,
                env_from,
                cwd,
            } => {
                json!({ "command": command, "args": args, "env": texts(env), "env_from": env_from, "cwd": cwd.as_deref().map(whole) })
            }
            McpTransport::Http {
                url,
                headers,
                allow_private,
            } => {
                json!({ "url": url, "headers": texts(headers), "allow_private": allow_private })
            }
        };
        let of_each = json!({
            "name": server.name,
            "timeout_ms": millis(server.timeout),
            "start_timeout_ms": millis(server.start_timeout),
            "probe_ms": millis(server.probe),
            "idle_ms": millis(server.idle),
            "trust": if server.trust == Trust::Annotations { "annotations" } else { "none" },
            "tools": server.tools,
            "tools_max": server.tools_max,
        });
        let fields: Map<String, Json> = [transport, of_each]
            .iter()
            .filter_map(Json::as_object)
            .flatten()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        toml_text::section(text, "[[mcp]]", MCP_KEYS, &fields);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, file::parse};

    fn read(text: &str) -> Result<Vec<crate::mcp::McpServerConfig>, String> {
        parse("conf/callboard.toml".as_ref(), text, None)
            .map(|layer| layer.mcp)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn servers_are_read_and_mistakes_name_file_line_and_key() {
        let servers = read(
            "[[mcp]]\nname = \"time\"\ncommand = \"python3\"\nargs = [\"-m\", \"x\"]\nenv = { A = \"${B}\" }\n\n\
             [[mcp]]\nname = \"web\"\nurl = \"https://example.com/mcp\"\n",
        )
        .unwrap();

        assert_eq!(
            servers
                .iter()
                .map(|server| server.name.as_str())
                .collect::<Vec<_>>(),
            ["time", "web"]
        );
        for (text, expected) in [
            (
                "[mcp]\nname = \"a\"\n",
                "conf/callboard.toml:1: servers are a list: write `[[mcp]]`, with two brackets",
            ),
            (
                "[[mcp]]\nname = \"a\"\n",
                "conf/callboard.toml:1: a server needs a `command` to start or a `url` to reach",
            ),
            (
                "[[mcp]]\nname = \"a\"\ncomand = \"x\"\n",
                "conf/callboard.toml:3: unknown key in [[mcp]] `comand`; did you mean `command`?",
            ),
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
        let load = || {
            Config::load(
                Some(&file),
                [("HOME".to_owned(), "/h".to_owned())].into_iter(),
            )
            .unwrap()
        };
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
