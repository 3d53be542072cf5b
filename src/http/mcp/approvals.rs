//! Approvals of tool calls, asked of the client's user (elicitation). Pure.
//!
//! What is not a clear yes is no approval: a form without a decision refuses, and one that was
//! dismissed decides nothing.

use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, EnumSchema,
    InputRequest, InputRequests, Request,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::tools::Approval;
use crate::visible::{escaped_json, visible_strict};

/// Field of the form.
const FIELD: &str = "decision";

const ALLOW: &str = "allow";
const ALWAYS: &str = "allow always";
const REFUSE: &str = "refuse";

/// What the user decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Allow,
    /// This call, and later ones of the same pattern in the conversation.
    Always,
    Refuse,
    /// The form was dismissed.
    Nothing,
}

impl Decision {
    pub(super) fn of(answer: &ElicitResult) -> Self {
        match answer.action {
            ElicitationAction::Accept => {
                let fields = answer.content.as_ref();
                match fields.and_then(|fields| fields[FIELD].as_str()) {
                    Some(ALLOW) => Self::Allow,
                    Some(ALWAYS) => Self::Always,
                    _ => Self::Refuse,
                }
            }
            ElicitationAction::Cancel => Self::Nothing,
            _ => Self::Refuse,
        }
    }

    /// The decision in an answer that came as JSON.
    pub(super) fn read(answer: &Value) -> Self {
        serde_json::from_value::<ElicitResult>(answer.clone())
            .map_or(Self::Nothing, |answer| Self::of(&answer))
    }

    /// The body that the host takes for a call of a round; `None` without a decision.
    pub(super) fn body(self, round: &str) -> Option<Value> {
        let (allow, always) = match self {
            Self::Allow => (true, false),
            Self::Always => (true, true),
            Self::Refuse => (false, false),
            Self::Nothing => return None,
        };
        Some(serde_json::json!({ "allow": allow, "always": always, "round_id": round }))
    }
}

/// The question about a tool call: every argument, with characters that hide or reorder text
/// escaped.
pub(super) fn question(approval: &Approval) -> Result<ElicitRequestParams, &'static str> {
    let input = serde_json::to_string_pretty(&approval.input).unwrap_or_default();
    let message = format!(
        "May the agent run `{}`?\n{}\n\n{}",
        visible_strict(&approval.tool),
        visible_strict(&approval.reason),
        escaped_json(&input)
    );
    let words = [ALLOW, ALWAYS, REFUSE].map(str::to_owned).to_vec();
    let decision = EnumSchema::builder(words).untitled().build();
    Ok(ElicitRequestParams::FormElicitationParams {
        meta: None,
        message,
        requested_schema: ElicitationSchema::builder()
            .required_enum_schema(FIELD, decision)
            .build()?,
    })
}

/// The questions of one result, each under the id of its tool call.
pub(super) fn questions(approvals: &[Approval]) -> Result<InputRequests, &'static str> {
    approvals
        .iter()
        .map(|approval| {
            let asked = Request::new(question(approval)?);
            let asked = InputRequest::Elicitation(asked);
            Ok((approval.tool_call_id.clone(), asked))
        })
        .collect()
}

/// The round that a call goes on with once its questions are answered. The client only carries it:
/// the host looks the ids up with the caller's key, so a changed one is an unknown one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) conversation_id: String,
    pub(super) round_id: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_clear_yes_allows_a_call() {
        let decided = |answer: Value| Decision::read(&answer);

        let form = |decision: &str| json!({"action": "accept", "content": {"decision": decision}});
        assert_eq!(decided(form("allow")), Decision::Allow);
        assert_eq!(decided(form("allow always")), Decision::Always);
        assert_eq!(decided(form("refuse")), Decision::Refuse);
        assert_eq!(decided(form("yes")), Decision::Refuse);
        assert_eq!(decided(json!({"action": "accept"})), Decision::Refuse);
        assert_eq!(decided(json!({"action": "decline"})), Decision::Refuse);
        assert_eq!(decided(json!({"action": "cancel"})), Decision::Nothing);
        assert_eq!(decided(json!({"allow": true})), Decision::Nothing);
    }

    #[test]
    fn a_question_shows_every_argument_and_hides_no_character() {
        let approval = Approval {
            tool_call_id: "call-1".into(),
            tool: "bash".into(),
            input: json!({"command": "rm -rf \u{202e}x", "more": [1, 2]}),
            reason: "it changes files".into(),
        };

        let asked = serde_json::to_value(question(&approval).unwrap()).unwrap();

        let message = asked["message"].as_str().unwrap();
        assert!(message.contains("`bash`") && message.contains("it changes files"));
        assert!(message.contains("rm -rf \\u202ex"), "{message}");
        assert_eq!(
            asked["requestedSchema"]["properties"]["decision"]["enum"],
            json!(["allow", "allow always", "refuse"])
        );
    }
}
