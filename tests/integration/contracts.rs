//! The contract suites of the kernel's ports, called by the adapters that have no suite of their own module.

use std::sync::Arc;

use callboard::{
    clock::{SystemClock, SystemEntropy},
    ports::{Clock, Entropy, Schemas, erased},
    sandbox::Mode,
    schema::JsonSchemas,
    tools,
};
use callboard_actors::testing::{SeededEntropy, contract};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_built_in_tool_keeps_the_contract_of_tools() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "one\ntwo\n").unwrap();
    let toolbox = tools::with_sandbox(folder.path(), Mode::Local);
    let mut names = Vec::new();

    for tool in toolbox {
        let name = tool.spec().name().to_owned();
        let good = match name.as_str() {
            "file_read" => json!({ "path": "notes.txt" }),
            "file_edit" => json!({ "path": "notes.txt", "old_text": "one", "new_text": "three" }),
            "file_list" => json!({}),
            "grep_search" => json!({ "pattern": "t.o" }),
            "think" => json!({ "thought": "hm" }),
            "read_more" => json!({ "result_id": "artifact_0123456789abcdef", "page": 1 }),
            "bash" => json!({ "command": "echo hello" }),
            other => panic!("no example for {other}"),
        };
        let schema = JsonSchemas
            .compile(&name, &tool.spec().definition.input_schema)
            .unwrap();
        assert_eq!(schema.check(&good), Ok(()), "{name}");
        let wrong = schema.check(&json!({ "no such argument": 1 })).unwrap_err();
        assert!(
            wrong.message.contains("/no such argument is unknown"),
            "{}",
            wrong.message
        );
        contract::tool(tool, &good).await;
        names.push(name);
    }

    let data = tempfile::tempdir().unwrap();
    let memory = erased(tools::memory::Memory::per_tenant(data.path()));
    contract::tool(
        memory,
        &json!({ "action": "write", "path": "a", "content": "b" }),
    )
    .await;

    names.sort();
    assert_eq!(
        names,
        [
            "bash",
            "file_edit",
            "file_list",
            "file_read",
            "grep_search",
            "read_more",
            "think"
        ]
    );
}

#[test]
fn the_systems_clock_and_chance_keep_their_contracts() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    contract::clock(&clock);
    for entropy in [
        Arc::new(SystemEntropy) as Arc<dyn Entropy>,
        Arc::new(SeededEntropy::new(3)),
    ] {
        contract::entropy(&entropy);
    }
}
