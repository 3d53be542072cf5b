//! What a person can answer to a question, and how the answer is typed.

use std::path::PathBuf;

use callboard_actors::{chat::RawJson, conversation::Consent, journal::summary};
use serde_json::{Value, json};

use super::Question;
use crate::cli::{
    editor,
    failure::Failure,
    terminal::{Paint, err, err_line},
    typed,
};

/// The person's decision.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) enum Answer {
    No,
    /// No, with words for the model.
    Words(String),
    Yes,
    /// Also allows every later call that the approval rule treats as the same.
    Always,
    /// Yes, with these arguments in place of the model's.
    Changed(RawJson),
}

impl Answer {
    /// Whether the call may run.
    pub(in crate::cli) fn allows(&self) -> bool {
        !matches!(self, Self::No | Self::Words(_))
    }

    /// The call with the arguments that the person gave it, on one line.
    pub(in crate::cli) fn changed_call(&self, tool: &str) -> Option<String> {
        match self {
            Self::Changed(input) => Some(summary(tool, input)),
            _ => None,
        }
    }

    /// The answer as a conversation takes it.
    pub(in crate::cli) fn consent(self) -> Consent {
        match self {
            Self::No => Consent::Denied(None),
            Self::Words(words) => Consent::Denied(Some(words)),
            Self::Yes => Consent::Once,
            Self::Always => Consent::Always,
            Self::Changed(input) => Consent::Changed(input),
        }
    }

    /// The answer as the body of a request to a server.
    pub(in crate::cli) fn body(&self, round: Option<&str>) -> Value {
        match self {
            Self::No => json!({ "allow": false, "round_id": round }),
            Self::Words(words) => json!({ "allow": false, "reason": words, "round_id": round }),
            Self::Yes => json!({ "allow": true, "round_id": round }),
            Self::Always => json!({ "allow": true, "always": true, "round_id": round }),
            Self::Changed(input) => json!({ "allow": true, "input": input, "round_id": round }),
        }
    }
}

/// What a key chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    No,
    Words,
    Yes,
    Always,
    Edit,
}

/// The answers that a question offers besides yes and no.
#[derive(Debug, Clone, Default)]
pub(super) struct Offer {
    /// A model reads why a call was refused.
    pub(super) words: bool,
    /// Where the arguments can be changed in an editor: a folder of this user.
    pub(super) edits_in: Option<PathBuf>,
}

impl Offer {
    /// The meaning of a key; `None` for a key that means nothing here. Changed arguments are for one
    /// call only.
    pub(super) fn choice(&self, key: u8, is_changed: bool) -> Option<Choice> {
        match key.to_ascii_lowercase() {
            b'y' => Some(Choice::Yes),
            b'a' if !is_changed => Some(Choice::Always),
            b'e' if self.edits_in.is_some() => Some(Choice::Edit),
            b'd' if self.words => Some(Choice::Words),
            // Enter, Escape and the end of input choose what is safe.
            b'n' | b'\n' | b'\r' | 0x1b | 0x04 => Some(Choice::No),
            _ => None,
        }
    }

    /// The keys, for the person.
    pub(super) fn keys(&self, is_changed: bool) -> String {
        let all = [
            ("[y]es", true),
            ("[a]lways", !is_changed),
            ("[e]dit", self.edits_in.is_some()),
            ("[d]eny with words", self.words),
            ("[N]o", true),
        ];
        let offered: Vec<&str> = all
            .iter()
            .filter(|(_, is_offered)| *is_offered)
            .map(|(key, _)| *key)
            .collect();
        offered.join(", ")
    }

    /// Reads the answer to a question that is on the screen. What cannot be read is a no.
    pub(super) fn read(&self, mut question: Question, is_over: &impl Fn() -> bool) -> Answer {
        let mut changed = None;
        let say = |word: &str| {
            if !is_over() {
                err_line(word);
            }
        };
        loop {
            let is_changed = changed.is_some();
            let keys = self.keys(is_changed);
            let choice = typed::key(
                is_over,
                |key| self.choice(key, is_changed),
                || err(&format!("\n  Press one key by itself: {keys} ")),
            );
            match (choice.unwrap_or(Choice::No), changed.take()) {
                (Choice::No, _) => {
                    say("no");
                    return Answer::No;
                }
                (Choice::Words, _) => return words(is_over),
                (Choice::Yes, None) => {
                    say("yes");
                    return Answer::Yes;
                }
                (Choice::Yes, Some(input)) => {
                    say("yes");
                    return Answer::Changed(input);
                }
                (Choice::Always, _) => {
                    say("always");
                    return Answer::Always;
                }
                (Choice::Edit, before) => {
                    say("edit");
                    changed = before;
                    match self.edit(&question) {
                        Ok(Some(input)) => {
                            question.input = input.as_str().to_owned();
                            changed = Some(input);
                        }
                        Ok(None) => err_line("  nothing was changed"),
                        Err(failure) => err_line(&failure.text(Paint::stderr())),
                    }
                    question.show(Paint::stderr(), &self.keys(changed.is_some()));
                }
            }
        }
    }

    /// Opens the arguments in the person's editor. `None` if they stay as they are.
    fn edit(&self, question: &Question) -> Result<Option<RawJson>, Failure> {
        let folder = self.edits_in.clone().unwrap_or_default();
        let file = folder.join(format!("arguments-{}.json", std::process::id()));
        let before: Value = serde_json::from_str(&question.input).unwrap_or_default();
        let text = serde_json::to_string_pretty(&before)
            .map_err(|error| Failure::work(error.to_string()))?;
        changed(&before, &editor::edit(&file, &text)?)
    }
}

/// The arguments that were saved, if they differ.
fn changed(before: &Value, saved: &str) -> Result<Option<RawJson>, Failure> {
    let wrong = |why: String| Failure::work(format!("these are no arguments: {why}"));
    let after: Value = serde_json::from_str(saved).map_err(|error| wrong(error.to_string()))?;
    if !after.is_object() {
        return Err(wrong("they must be a JSON object".to_owned()));
    }
    if after == *before {
        return Ok(None);
    }
    let input = RawJson::of(&after).map_err(|fault| wrong(fault.to_string()))?;
    Ok(Some(input))
}

/// Reads why the person says no.
fn words(is_over: &impl Fn() -> bool) -> Answer {
    err("no\n  Why not? ");
    let line = typed::line(is_over).unwrap_or_default();
    match line.trim() {
        "" => Answer::No,
        words => Answer::Words(words.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        use Choice::{Always, Edit, No, Words, Yes};

        let all = Offer {
            words: true,
            edits_in: Some(PathBuf::from("/")),
        };
        assert_eq!(
            b"yYaAeEdDn\n\x1b".map(|key| all.choice(key, false)),
            [
                Yes, Yes, Always, Always, Edit, Edit, Words, Words, No, No, No
            ]
            .map(Some)
        );
        assert_eq!(
            [b'q', b' ', 0x80].map(|key| all.choice(key, false)),
            [None; 3]
        );
        assert_eq!(all.choice(b'a', true), None);
        assert_eq!(
            b"ed".map(|key| Offer::default().choice(key, false)),
            [None; 2]
        );
        assert_eq!(Offer::default().keys(false), "[y]es, [a]lways, [N]o");
        assert_eq!(all.keys(true), "[y]es, [e]dit, [d]eny with words, [N]o");
    }

    #[test]
    fn saved_arguments_are_an_object_that_differs() {
        let before = serde_json::json!({"a": 1});

        let saved = |text: &str| {
            changed(&before, text).map(|input| input.map(|input| input.as_str().to_owned()))
        };
        assert_eq!(saved("{ \"a\": 2 }").unwrap().unwrap(), r#"{"a":2}"#);
        assert_eq!(saved("{\"a\":1}").unwrap(), None);
        assert!(saved("[1]").is_err());
        assert!(saved("{\"a\":").is_err());
    }

    #[test]
    fn an_answer_is_the_same_for_a_server() {
        let input = RawJson::of(&serde_json::json!({"a": 2})).unwrap();
        let bodies = [
            Answer::No,
            Answer::Words("why".into()),
            Answer::Yes,
            Answer::Always,
            Answer::Changed(input),
        ]
        .map(|answer| answer.body(Some("r")).to_string());

        assert_eq!(
            bodies,
            [
                r#"{"allow":false,"round_id":"r"}"#,
                r#"{"allow":false,"reason":"why","round_id":"r"}"#,
                r#"{"allow":true,"round_id":"r"}"#,
                r#"{"allow":true,"always":true,"round_id":"r"}"#,
                r#"{"allow":true,"input":{"a":2},"round_id":"r"}"#,
            ]
        );
    }
}
