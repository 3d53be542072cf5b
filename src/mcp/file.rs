//! Reads an `mcpServers` file (`--mcp FILE`), `{"mcpServers": {name: {command, args, env, url}}}`,
//! and finds the line of every key for error messages.

use std::{io::Read as _, path::Path};

use serde_json::Value;

use super::config::{McpDialect, McpEntry, McpServerConfig, read_server};
use crate::visible::visible_line;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Most servers of one file.
const SERVERS_MAX: usize = 128;

/// An invalid `mcpServers` file. `Display` is one line with file and line number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {problem}", line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct McpFileError {
    /// The path as the user gave it.
    pub file: String,
    /// Line of the error, from 1; `None` if it concerns the whole file.
    pub line: Option<usize>,
    /// What is wrong.
    pub problem: String,
}

/// Reads an `mcpServers` file; the servers are in order of name.
///
/// # Errors
/// The first error in the file.
pub fn read_file(path: &Path) -> Result<Vec<McpServerConfig>, McpFileError> {
    let file = visible_line(&path.to_string_lossy(), 200);
    let error = |line, problem: String| McpFileError {
        file: file.clone(),
        line,
        problem,
    };
    let mut bytes = Vec::new();
    match std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
    {
        Ok(_) if bytes.len() as u64 > FILE_BYTES_MAX => {
            return Err(error(None, "it is longer than 1 MiB".to_owned()));
        }
        Ok(_) => {}
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            return Err(error(None, "there is no such file".to_owned()));
        }
        Err(cause) => return Err(error(None, format!("it cannot be read: {}", cause.kind()))),
    }
    let text =
        String::from_utf8(bytes).map_err(|_| error(None, "it is not UTF-8 text".to_owned()))?;
    read_text(&text, path.parent().unwrap_or(Path::new("")))
        .map_err(|(line, problem)| error(line, problem))
}

/// Reads servers that another program passes in the form of an `mcpServers` file.
///
/// # Errors
/// The first error in the text, without a line.
pub fn read_servers(text: &str) -> Result<Vec<McpServerConfig>, String> {
    read_text(text, Path::new("")).map_err(|(_, problem)| problem)
}

fn read_text(text: &str, folder: &Path) -> Result<Vec<McpServerConfig>, (Option<usize>, String)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let what = if error.is_eof() {
            "the file ends unexpectedly"
        } else {
            "this is not valid JSON"
        };
        (Some(error.line()), what.to_owned())
    })?;
    let Some(servers) = value.get("mcpServers") else {
        return Err((
            None,
            "`mcpServers` is missing; write {\"mcpServers\": {\"name\": {\"command\": …}}}"
                .to_owned(),
        ));
    };
    let lines = Lines::from_text(text);
    let line = |path: &[&str]| lines.line(path);
    let Some(servers) = servers.as_object() else {
        return Err((
            line(&["mcpServers"]),
            "`mcpServers` must be an object that maps names to servers".to_owned(),
        ));
    };
    if servers.len() > SERVERS_MAX {
        return Err((
            line(&["mcpServers"]),
            format!("`mcpServers` contains more than {SERVERS_MAX} servers"),
        ));
    }
    let mut read = Vec::new();
    for (name, server) in servers {
        let at = line(&["mcpServers", name]);
        let shown = visible_line(name, 64);
        let Some(fields) = server.as_object() else {
            return Err((
                at,
                format!("`{shown}` must be an object with `command` or `url`"),
            ));
        };
        let own = McpEntry {
            key: "name".to_owned(),
            line: at.unwrap_or(1),
            value: Value::String(name.clone()),
        };
        let fields = fields
            .iter()
            .filter(|(key, _)| *key != "name")
            .map(|(key, value)| McpEntry {
                key: key.clone(),
                line: line(&["mcpServers", name, key]).unwrap_or(1),
                value: value.clone(),
            });
        let entries: Vec<McpEntry> = std::iter::once(own).chain(fields).collect();
        let server = read_server(&entries, at.unwrap_or(1), folder, McpDialect::Json).map_err(
            |problem| {
                let key = if problem.key.is_empty() {
                    shown.clone()
                } else {
                    format!("{shown}.{}", visible_line(&problem.key, 64))
                };
                (Some(problem.line), format!("`{key}`: {}", problem.problem))
            },
        )?;
        read.extend(server);
    }
    Ok(read)
}

/// Lines of the keys in the first three levels of a JSON text that serde_json has accepted.
struct Lines(Vec<(Vec<String>, usize)>);

impl Lines {
    fn from_text(text: &str) -> Self {
        let mut found = Vec::new();
        let mut path = Vec::<String>::new();
        let mut line = 1;
        // The open brackets; the flag says whether the next string in the bracket is a key.
        let mut open: Vec<(char, bool)> = Vec::new();
        let mut characters = text.char_indices();
        while let Some((at, c)) = characters.next() {
            match c {
                '\n' => line += 1,
                '{' | '[' => open.push((c, c == '{')),
                '}' | ']' => {
                    open.pop();
                    path.truncate(open.len());
                }
                ',' => {
                    path.truncate(open.len().saturating_sub(1));
                    if let Some(last) = open.last_mut() {
                        last.1 = last.0 == '{';
                    }
                }
                '"' => {
                    let mut end = at;
                    let mut escaped = false;
                    for (here, c) in characters.by_ref() {
                        end = here;
                        match c {
                            _ if escaped => escaped = false,
                            '\\' => escaped = true,
                            '"' => break,
                            _ => {}
                        }
                    }
                    if let Some(last) = open.last_mut().filter(|last| last.1) {
                        last.1 = false;
                        let key: String = text
                            .get(at..=end)
                            .and_then(|quoted| serde_json::from_str(quoted).ok())
                            .unwrap_or_default();
                        path.truncate(open.len().saturating_sub(1));
                        // Keys below an array are never looked up.
                        path.resize(open.len().saturating_sub(1), String::new());
                        path.push(key);
                        if path.len() <= 3 {
                            found.push((path.clone(), line));
                        }
                    }
                }
                _ => {}
            }
        }
        Self(found)
    }

    /// The line of a key. Of duplicate keys the last one counts, as in serde_json.
    fn line(&self, path: &[&str]) -> Option<usize> {
        self.0
            .iter()
            .rev()
            .find(|(known, _)| known.iter().eq(path.iter()))
            .map(|(_, line)| *line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::config::McpTransport;

    const FILE: &str = r#"{
  "other": {"mcpServers": {"time": {"command": 1}}, "list": [{"a": [1, 2]}, "x"]},
  "mcpServers": {
    "time": {
      "command": "python3", "args": ["-m", "x, {\"y\": 1}"],
      "env": {"KEY": "not-real"}
    },

    "web": {
      "url": "https://example.com/mcp",
      "timeout_ms": 5
    }
  }
}"#;

    #[test]
    fn the_usual_file_is_read() {
        let servers = read_text(FILE, Path::new("")).unwrap();

        assert_eq!(
            servers
                .iter()
                .map(|server| server.name.as_str())
                .collect::<Vec<_>>(),
            ["time", "web"]
        );
        assert!(
            matches!(&servers[0].transport, McpTransport::Stdio { args, .. } if args[1] == "x, {\"y\": 1}")
        );
        assert!(!format!("{servers:?}").contains("not-real"));
    }

    #[test]
    fn mistakes_name_their_line() {
        let error = |from: &str, to: &str| {
            read_text(&FILE.replacen(from, to, 1), Path::new("")).unwrap_err()
        };

        assert_eq!(
            error("\"timeout_ms\": 5", "\"timeout_ms\": \"5\""),
            (
                Some(11),
                "`web.timeout_ms`: must be 1 to 3600000 milliseconds".into()
            )
        );
        assert_eq!(
            error("\"url\": \"https", "\"uri\": \"https"),
            (
                Some(9),
                "`web`: a server needs a `command` to start or a `url` to reach".into()
            )
        );
        assert_eq!(error("    \"time\"", "    \"my time\"").0, Some(4));
        assert_eq!(error("\"env\":", "\"env\"").0, Some(6));
        assert_eq!(error("mcpServers\": {\n", "servers\": {\n").0, None);
        assert_eq!(
            read_text("{\"mcpServers\": []}", Path::new(""))
                .unwrap_err()
                .0,
            Some(1)
        );
        assert_eq!(
            read_text(&"[".repeat(5000), Path::new("")).unwrap_err().0,
            Some(1)
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read_file(Path::new("no/such.json")).unwrap_err();

        assert_eq!(error.to_string(), "no/such.json: there is no such file");
    }
}
