//! The contract suite of tools: a name and a schema that model APIs accept, arguments checked
//! before the call, and an end on cancellation.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    chat::RawJson,
    conversation::Toolset,
    ids::{CallKey, ConversationId, Scope, Seq, TenantId},
    ports::{Extensions, Progress, Tool, ToolContext},
    tool::ToolErrorType,
};

/// The context of a call in this suite.
pub fn example_context(cancel: CancellationToken) -> ToolContext {
    let scope = Scope::new(
        TenantId::new("contract").unwrap(),
        ConversationId::new("tool").unwrap(),
    );
    ToolContext {
        key: CallKey {
            scope,
            seq: Seq(1),
            index: 0,
        },
        tool_call_id: "call_1".into(),
        cancel,
        deadline: Instant::now() + Duration::from_secs(60),
        attempt: 0,
        progress: Progress::silent(),
        workspace: None,
        extensions: Extensions::default(),
        artifacts: None,
    }
}

/// Checks a tool. `good` are arguments that it accepts; a call with them may succeed or fail, but
/// must end.
pub async fn tool(tool: Arc<dyn Tool>, good: &Value) {
    let spec = tool.spec();
    let name = spec.name().to_owned();
    assert!(
        Toolset::new([tool.clone()], None).is_ok(),
        "{name}: a name that model APIs take"
    );
    assert!(
        !spec.definition.description.trim().is_empty(),
        "{name}: a description"
    );
    let schema: Value = spec.definition.input_schema.parse().unwrap();
    assert_eq!(
        schema.get("type"),
        Some(&Value::from("object")),
        "{name}: the schema is an object's"
    );
    assert!(!spec.timeout.is_zero(), "{name}: a time limit");
    assert_eq!(
        tool.spec(),
        spec,
        "{name}: the same declaration at every look"
    );

    let good = RawJson::of(good).unwrap();
    assert_eq!(tool.check(&good), Ok(()), "{name}: good arguments");
    let wrong =
        RawJson::from_text(r#"{"no such argument, ever": [[]], "path": 7, "pattern": {}, "command": null, "thought": []}"#).unwrap();
    let refused = tool
        .check(&wrong)
        .expect_err("wrong arguments are refused before the call");
    assert_eq!(
        (refused.kind, refused.not_started),
        (ToolErrorType::InvalidParameters, true),
        "{name}"
    );

    let cancel = CancellationToken::new();
    cancel.cancel();
    let call = tool.call(good.clone(), example_context(cancel));
    assert!(
        tokio::time::timeout(Duration::from_secs(10), call)
            .await
            .is_ok(),
        "{name}: a cancelled call ends"
    );
    let call = tool.call(good, example_context(CancellationToken::new()));
    assert!(
        tokio::time::timeout(Duration::from_secs(60), call)
            .await
            .is_ok(),
        "{name}: a call ends"
    );
}
