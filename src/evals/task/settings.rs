//! Reads `task.toml` of a folder in Harbor's layout.
//!
//! Pure.

use std::time::Duration;

use toml::{Table, Value};

use super::TaskError;
use crate::evals::bounds::{TIME_DEFAULT, TIME_MAX};

/// What `task.toml` says.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `[agent] timeout_sec`.
    pub solver_timeout: Duration,
    /// `[verifier] timeout_sec`.
    pub tests_timeout: Duration,
    /// `[metadata] difficulty`.
    pub difficulty: Option<String>,
    /// `[metadata] tags`.
    pub tags: Vec<String>,
    /// Lines for the author: what has no effect here.
    pub notes: Vec<String>,
}

/// No key has this name.
const NONE: &str = "";

/// The sections of the format, with their keys. An empty list accepts any key.
const SECTIONS: &[(&str, &[&str])] = &[
    ("metadata", &[]),
    ("agent", &["timeout_sec"]),
    ("verifier", &["timeout_sec"]),
    ("environment", &[]),
    ("solution", &[NONE]),
    ("task", &[]),
];

/// Keys of the format that would change what a trial is, and that are not supported here.
const UNSUPPORTED: &[&str] = &[
    "agent.allowed_hosts",
    "agent.network_mode",
    "agent.user",
    "multi_step_reward_strategy",
    "solution.env",
    "steps",
    "verifier.allowed_hosts",
    "verifier.collect",
    "verifier.env",
    "verifier.environment",
    "verifier.environment_mode",
    "verifier.network_mode",
    "verifier.user",
];

/// Keys outside of sections.
const TOP: &[&str] = &["version", "schema_version", "source", "artifacts"];

/// Reads the text of `task.toml`. `place` names the file in errors.
///
/// # Errors
/// The first mistake.
pub fn parse(place: &str, text: &str) -> Result<Settings, TaskError> {
    let table: Table = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| {
            1 + text
                .get(..span.start)
                .unwrap_or_default()
                .matches('\n')
                .count()
        });
        TaskError::file(
            format!("{place}:{line}"),
            format!(
                "it is no TOML: {}; correct this line",
                error.message().replace('\n', " ")
            ),
        )
    })?;
    check_keys(place, &table)?;
    let section = |name: &str| table.get(name).and_then(Value::as_table);
    let mut notes = Vec::new();
    if let Some(environment) = section("environment") {
        let ignored: Vec<&str> = environment.keys().map(String::as_str).collect();
        if !ignored.is_empty() {
            notes.push(format!(
                "{place}: [environment] has no effect: commands run in the sandbox ({})",
                ignored.join(", ")
            ));
        }
    }
    let metadata = section("metadata");
    Ok(Settings {
        solver_timeout: timeout(place, "agent", section("agent"))?,
        tests_timeout: timeout(place, "verifier", section("verifier"))?,
        difficulty: text_of(place, "metadata.difficulty", metadata, "difficulty")?,
        tags: tags(place, metadata)?,
        notes,
    })
}

/// Refuses unknown sections and keys, and suggests the nearest known one.
fn check_keys(place: &str, table: &Table) -> Result<(), TaskError> {
    for (name, value) in table {
        let known = SECTIONS.iter().find(|(section, _)| section == name);
        let Some((_, keys)) = known else {
            if TOP.contains(&name.as_str()) {
                continue;
            }
            let all = SECTIONS
                .iter()
                .map(|(section, _)| *section)
                .chain(TOP.iter().copied());
            return Err(unknown(place, name, name, all));
        };
        let Some(section) = value.as_table() else {
            return Err(TaskError::key(
                place,
                name,
                format!("it must be a section; write `[{name}]`"),
            ));
        };
        if keys.is_empty() {
            continue;
        }
        for key in section.keys() {
            if !keys.contains(&key.as_str()) {
                return Err(unknown(
                    place,
                    &format!("{name}.{key}"),
                    key,
                    keys.iter().copied(),
                ));
            }
        }
    }
    Ok(())
}

fn unknown<'k>(
    place: &str,
    full: &str,
    given: &str,
    known: impl Iterator<Item = &'k str>,
) -> TaskError {
    if UNSUPPORTED.contains(&full) {
        return TaskError::key(
            place,
            full,
            "it is not supported here; remove it, or write its effect into the script",
        );
    }
    let nearest = known
        .map(|key| (strsim::jaro_winkler(given, key), key))
        .filter(|(score, _)| *score > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let remedy = nearest.map_or_else(
        || "remove it".to_owned(),
        |(_, key)| format!("did you mean `{key}`?"),
    );
    TaskError::key(place, full, format!("there is no such key; {remedy}"))
}

fn timeout(place: &str, name: &str, section: Option<&Table>) -> Result<Duration, TaskError> {
    let key = format!("{name}.timeout_sec");
    let Some(value) = section.and_then(|section| section.get("timeout_sec")) else {
        return Ok(TIME_DEFAULT);
    };
    #[allow(clippy::cast_precision_loss, reason = "a number of seconds")]
    let seconds = match value {
        Value::Integer(seconds) => Some(*seconds as f64),
        Value::Float(seconds) => Some(*seconds),
        _ => None,
    };
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| !time.is_zero() && *time <= TIME_MAX)
        .ok_or_else(|| {
            TaskError::key(
                place,
                key,
                format!(
                    "it must be a number of seconds, more than 0 and at most {}",
                    TIME_MAX.as_secs()
                ),
            )
        })
}

fn text_of(
    place: &str,
    full: &str,
    section: Option<&Table>,
    key: &str,
) -> Result<Option<String>, TaskError> {
    match section.and_then(|section| section.get(key)) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(TaskError::key(
            place,
            full,
            "it must be a text; put it in quotes",
        )),
    }
}

fn tags(place: &str, metadata: Option<&Table>) -> Result<Vec<String>, TaskError> {
    let wrong = || {
        TaskError::key(
            place,
            "metadata.tags",
            "it must be a list of texts, such as [\"python\"]",
        )
    };
    let Some(tags) = metadata.and_then(|metadata| metadata.get("tags")) else {
        return Ok(Vec::new());
    };
    tags.as_array()
        .ok_or_else(wrong)?
        .iter()
        .map(|tag| tag.as_str().map(str::to_owned).ok_or_else(wrong))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse("t01/task.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn settings_of_harbor_are_read() {
        let settings = parse(
            "t01/task.toml",
            "version = \"1.0\"\n[metadata]\ndifficulty = \"easy\"\nauthor_name = \"x\"\ntags = [\"python\"]\n[verifier]\ntimeout_sec = 30\n[agent]\ntimeout_sec = 12.5\n[environment]\ncpus = 1\n",
        )
        .unwrap();

        assert_eq!(settings.solver_timeout, Duration::from_millis(12_500));
        assert_eq!(settings.tests_timeout, Duration::from_secs(30));
        assert_eq!(settings.difficulty.as_deref(), Some("easy"));
        assert_eq!(settings.tags, ["python"]);
        assert_eq!(settings.notes.len(), 1);
        let usual = parse("t", "").unwrap();
        assert_eq!(usual.solver_timeout, TIME_DEFAULT);
    }

    #[test]
    fn a_mistake_is_one_line_with_file_key_and_remedy() {
        assert_eq!(
            error("[agent]\ntimout_sec = 3\n"),
            "t01/task.toml: `agent.timout_sec`: there is no such key; did you mean `timeout_sec`?"
        );
        assert_eq!(
            error("[agents]\n"),
            "t01/task.toml: `agents`: there is no such key; did you mean `agent`?"
        );
        assert_eq!(
            error("[agent]\ntimeout_sec = -1\n"),
            "t01/task.toml: `agent.timeout_sec`: it must be a number of seconds, more than 0 and at most 86400"
        );
        assert_eq!(
            error("[metadata]\ntags = 3\n"),
            "t01/task.toml: `metadata.tags`: it must be a list of texts, such as [\"python\"]"
        );
        assert_eq!(
            error("agent = 3\n"),
            "t01/task.toml: `agent`: it must be a section; write `[agent]`"
        );
        assert_eq!(
            error("[verifier]\nenv = { A = \"1\" }\n"),
            "t01/task.toml: `verifier.env`: it is not supported here; remove it, or write its effect into the script"
        );
        assert!(error("\n\n[agent\n").starts_with("t01/task.toml:3: it is no TOML: "));
        assert!(!error("[agent\n").contains('\n'));
    }
}
