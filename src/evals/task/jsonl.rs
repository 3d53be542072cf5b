//! Reads tasks of a JSONL file: one object a line.
//!
//! Pure.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Grader, Start, Task, TaskError, check_id, check_prompt};
use crate::evals::bounds::{FOLDER_BYTES_MAX, FOLDER_FILES_MAX, TIME_DEFAULT, TIME_MAX};

/// One line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    prompt: String,
    expected: Option<Value>,
    grader: Option<GraderOf>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    difficulty: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    timeout_sec: Option<f64>,
    answer: Option<String>,
}

/// A grader by its name, with `expected` beside it, or as an object.
#[derive(Deserialize)]
#[serde(untagged)]
enum GraderOf {
    Name(String),
    Whole(serde_json::Map<String, Value>),
}

/// The keys of a line, for suggestions.
const KEYS: &[&str] = &[
    "id",
    "prompt",
    "expected",
    "grader",
    "files",
    "difficulty",
    "tags",
    "timeout_sec",
    "answer",
];

/// Reads the task of a line. `place` names file and line in errors.
///
/// # Errors
/// The first mistake of the line.
pub fn parse(place: &str, text: &str) -> Result<Task, TaskError> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        TaskError::file(
            place,
            format!("it is no JSON: {error}; write one object a line"),
        )
    })?;
    let Some(object) = value.as_object() else {
        return Err(TaskError::file(
            place,
            "it is no object; write {\"id\": …, \"prompt\": …, \"expected\": …}",
        ));
    };
    if let Some(unknown) = object.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let nearest = KEYS
            .iter()
            .map(|key| (strsim::jaro_winkler(unknown, key), key))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(score, _)| *score > 0.6);
        let remedy = nearest.map_or_else(
            || format!("the keys are {}", KEYS.join(", ")),
            |(_, key)| format!("did you mean `{key}`?"),
        );
        return Err(TaskError::key(
            place,
            unknown,
            format!("there is no such key; {remedy}"),
        ));
    }
    for needed in ["id", "prompt"] {
        if !object.contains_key(needed) {
            return Err(TaskError::key(place, needed, "it is missing; add it"));
        }
    }
    let line: Line = serde_json::from_value(value.clone()).map_err(|error| {
        TaskError::file(
            place,
            format!("{error}; see the keys of a task in docs/evals.md"),
        )
    })?;
    task(place, line, text)
}

fn task(place: &str, line: Line, text: &str) -> Result<Task, TaskError> {
    check_id(&line.id).map_err(|problem| TaskError::key(place, "id", problem))?;
    check_prompt(&line.prompt).map_err(|problem| TaskError::key(place, "prompt", problem))?;
    let grader = grader(place, &line)?;
    grader
        .check()
        .map_err(|(key, problem)| TaskError::key(place, key, problem))?;
    check_files(place, &line.files)?;
    let timeout = match line.timeout_sec {
        None => TIME_DEFAULT,
        Some(seconds) => Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|time| !time.is_zero() && *time <= TIME_MAX)
            .ok_or_else(|| {
                TaskError::key(
                    place,
                    "timeout_sec",
                    format!("it must be more than 0 and at most {}", TIME_MAX.as_secs()),
                )
            })?,
    };
    let answer = line.answer.or_else(|| match &grader {
        Grader::Exact { expected, .. } | Grader::Contains { expected, .. } => {
            Some(expected.clone())
        }
        Grader::Json { path, expected } => whole(path, expected),
        Grader::Regex { .. } | Grader::Script | Grader::Model { .. } => line
            .expected
            .as_ref()
            .and_then(Value::as_str)
            .map(str::to_owned),
    });
    Ok(Task {
        id: line.id,
        prompt: line.prompt,
        difficulty: line.difficulty,
        tags: line.tags,
        solver_timeout: timeout,
        tests_timeout: TIME_DEFAULT,
        start: Start::Files(line.files.into_iter().collect()),
        grader,
        answer,
        hash: hex(&Sha256::digest(text.trim().as_bytes())),
    })
}

/// A JSON text that has `expected` at a pointer without list places; `None` for others.
fn whole(path: &str, expected: &Value) -> Option<String> {
    let mut value = expected.clone();
    for part in path.split('/').skip(1).collect::<Vec<_>>().iter().rev() {
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let key = part.replace("~1", "/").replace("~0", "~");
        value = Value::Object([(key, value)].into_iter().collect());
    }
    Some(value.to_string())
}

/// The grader of a line. Without a name it is `exact`.
fn grader(place: &str, line: &Line) -> Result<Grader, TaskError> {
    let (name, mut object) = match &line.grader {
        None => ("exact".to_owned(), serde_json::Map::new()),
        Some(GraderOf::Name(name)) => (name.clone(), serde_json::Map::new()),
        Some(GraderOf::Whole(object)) => {
            let name = object.get("type").and_then(Value::as_str);
            let name = name.ok_or_else(|| {
                TaskError::key(
                    place,
                    "grader.type",
                    "it is missing; name one of exact, contains, regex, json, model",
                )
            })?;
            (name.to_owned(), object.clone())
        }
    };
    let key = match name.as_str() {
        "exact" | "contains" | "json" => "expected",
        "regex" => "pattern",
        "model" => "rubric",
        "script" => {
            return Err(TaskError::key(
                place,
                "grader",
                "a script needs a folder with `tests/test.sh`; make the task a folder in Harbor's layout",
            ));
        }
        other => {
            return Err(TaskError::key(
                place,
                "grader",
                format!(
                    "there is no grader `{other}`; name one of exact, contains, regex, json, model"
                ),
            ));
        }
    };
    object.insert("type".to_owned(), name.clone().into());
    if !object.contains_key(key) {
        let Some(expected) = &line.expected else {
            return Err(TaskError::key(
                place,
                "expected",
                format!("it is missing, and the grader `{name}` needs it; add it"),
            ));
        };
        let text = matches!(name.as_str(), "exact" | "contains");
        let expected = match expected {
            Value::Number(_) | Value::Bool(_) if text => expected.to_string().into(),
            other => other.clone(),
        };
        object.insert(key.to_owned(), expected);
    }
    serde_json::from_value(Value::Object(object))
        .map_err(|error| TaskError::key(place, "grader", format!("{error}; see docs/evals.md")))
}

fn check_files(place: &str, files: &BTreeMap<String, String>) -> Result<(), TaskError> {
    if files.len() > FOLDER_FILES_MAX {
        return Err(TaskError::key(
            place,
            "files",
            format!("there are {}; {FOLDER_FILES_MAX} are allowed", files.len()),
        ));
    }
    let bytes: usize = files.values().map(String::len).sum();
    if bytes as u64 > FOLDER_BYTES_MAX {
        return Err(TaskError::key(
            place,
            "files",
            format!("they have {bytes} bytes; {FOLDER_BYTES_MAX} are allowed"),
        ));
    }
    for path in files.keys() {
        let inside = !path.is_empty()
            && !path.contains(['\\', '\0'])
            && path
                .split('/')
                .all(|part| !part.is_empty() && part != "." && part != "..");
        if !inside {
            return Err(TaskError::key(
                place,
                "files",
                format!("{path:?} leaves the workspace; write a relative path without `..`"),
            ));
        }
    }
    Ok(())
}

/// Bytes as lower-case hex digits.
pub(in crate::evals) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse("tasks.jsonl:3", text).unwrap_err().to_string()
    }

    #[test]
    fn a_line_is_a_task() {
        let task = parse(
            "t",
            r#"{"id":"capital","prompt":"Capital of France?","expected":"Paris","tags":["geo"],"files":{"a/b.txt":"x"}}"#,
        )
        .unwrap();

        assert_eq!(task.id, "capital");
        assert_eq!(task.answer.as_deref(), Some("Paris"));
        assert_eq!(
            task.grader,
            Grader::Exact {
                expected: "Paris".into(),
                case: true
            }
        );
        assert_eq!(
            task.start,
            Start::Files(vec![("a/b.txt".into(), "x".into())])
        );
    }

    #[test]
    fn graders_are_named_or_given_whole() {
        let grader = |text: &str| parse("t", text).unwrap().grader;

        assert_eq!(
            grader(r#"{"id":"a","prompt":"p","expected":"^4$","grader":"regex"}"#),
            Grader::Regex {
                pattern: "^4$".into()
            }
        );
        assert_eq!(
            grader(r#"{"id":"a","prompt":"p","grader":{"type":"json","path":"/n","expected":4}}"#),
            Grader::Json {
                path: "/n".into(),
                expected: 4.into()
            }
        );
        assert_eq!(
            grader(r#"{"id":"a","prompt":"p","grader":{"type":"model","rubric":"It rhymes."}}"#),
            Grader::Model {
                rubric: "It rhymes.".into(),
                pass_at: 1.0
            }
        );
        let json = parse(
            "t",
            r#"{"id":"a","prompt":"p","grader":{"type":"json","path":"/a/b","expected":4}}"#,
        );
        assert_eq!(json.unwrap().answer.as_deref(), Some(r#"{"a":{"b":4}}"#));
    }

    #[test]
    fn a_mistake_is_one_line_with_place_key_and_remedy() {
        for (text, line) in [
            (r#"{"id":"a""#, "tasks.jsonl:3: it is no JSON: "),
            ("3", "tasks.jsonl:3: it is no object; "),
            (
                r#"{"id":"a","promt":"p"}"#,
                "tasks.jsonl:3: `promt`: there is no such key; did you mean `prompt`?",
            ),
            (
                r#"{"id":"a"}"#,
                "tasks.jsonl:3: `prompt`: it is missing; add it",
            ),
            (
                r#"{"id":"../a","prompt":"p","expected":"x"}"#,
                "tasks.jsonl:3: `id`: \"../a\" is no id of a task; ",
            ),
            (
                r#"{"id":"a","prompt":"p"}"#,
                "tasks.jsonl:3: `expected`: it is missing, and the grader `exact` needs it; add it",
            ),
            (
                r#"{"id":"a","prompt":"p","expected":"(","grader":"regex"}"#,
                "tasks.jsonl:3: `grader.pattern`: it is no regular expression: ",
            ),
            (
                r#"{"id":"a","prompt":"p","expected":"x","grader":"fuzzy"}"#,
                "tasks.jsonl:3: `grader`: there is no grader `fuzzy`; ",
            ),
            (
                r#"{"id":"a","prompt":"p","expected":"x","files":{"../x":""}}"#,
                "tasks.jsonl:3: `files`: \"../x\" leaves the workspace; ",
            ),
            (
                r#"{"id":"a","prompt":"p","expected":"x","timeout_sec":0}"#,
                "tasks.jsonl:3: `timeout_sec`: it must be more than 0",
            ),
            (
                r#"{"id":"a","prompt":" ","expected":"x"}"#,
                "tasks.jsonl:3: `prompt`: it is empty; ",
            ),
        ] {
            let error = error(text);
            assert!(error.starts_with(line), "{error}\n{line}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
