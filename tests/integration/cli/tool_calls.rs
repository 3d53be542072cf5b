//! `tools`.

use serde_json::{Value, json};

use super::Home;

#[test]
fn a_call_runs_through_the_door_and_gives_one_line() {
    let home = Home::new();

    let mut called = home.run(&["tools", "call", "grep_search", r#"{"pattern": "CAP_MS"}"#]).well().json();

    assert!(called["duration_ms"].take().is_u64());
    let observation = called["observation"].take();
    assert_eq!(observation.as_str().unwrap().trim(), "src/retry.rs:4: pub const RETRY_CAP_MS: u64 = 10_000;");
    let rest = json!({
        "index": 0, "success": true, "is_error": false, "observation": null, "level": "standard", "retry_count": 0, "duration_ms": null,
    });
    assert_eq!(called, rest);
}

#[test]
fn lines_of_arguments_give_lines_of_results_in_order() {
    let home = Home::new();
    let input = "{\"path\": \"src/retry.rs\"}\n\n{\"path\": \"gone.rs\"}\nnot json\n{\"path\": 7}\n{\"path\": \"src/retry.rs\"}";

    let ran = home.run_with_input(&["tools", "call", "file_read"], input);

    let seen: Vec<(u64, bool, Value)> = ran
        .events()
        .iter()
        .map(|called| (called["index"].as_u64().unwrap(), called["success"].as_bool().unwrap(), called["error_code"].clone()))
        .collect();
    let expected = [
        (0, true, Value::Null),
        (1, false, json!("NOT_FOUND")),
        (2, false, json!("INVALID_PARAMETERS")),
        (3, false, json!("INVALID_PARAMETERS")),
        (4, true, Value::Null),
    ];
    assert_eq!(seen, expected);
    assert_eq!(ran.code, Some(1));
}

#[test]
fn what_changes_something_needs_approval() {
    let home = Home::new();
    let arguments = r#"{"path": "new.txt", "old_text": "", "new_text": "hello"}"#;

    let denied = home.run(&["tools", "call", "file_edit", arguments]);
    let untouched = !home.work().join("new.txt").exists();
    home.run(&["tools", "call", "file_edit", arguments, "--approve", "auto"]).well();

    assert_eq!((denied.code, denied.json()["error_code"].as_str()), (Some(1), Some("APPROVAL_DENIED")));
    assert!(untouched);
    assert_eq!(std::fs::read_to_string(home.work().join("new.txt")).unwrap(), "hello");
}

#[test]
fn an_unknown_tool_is_a_result_and_a_hint() {
    let home = Home::new();

    let called = home.run(&["tools", "call", "grep_serch", "{}"]);
    let shown = home.run(&["tools", "show", "grep_serch"]);

    assert_eq!((called.code, called.json()["error_code"].as_str()), (Some(1), Some("NOT_FOUND")));
    for ran in [called, shown] {
        assert_eq!((ran.code, ran.error()), (Some(1), "error: there is no tool `grep_serch` (hint: did you mean `grep_search`?)"));
    }
}

#[test]
fn tools_are_listed_and_shown_with_their_schema() {
    let home = Home::new();

    let list = home.run(&["tools", "list", "--json", "--sandbox", "none"]).well().json();
    let shown = home.run(&["tools", "show", "file_read", "--json"]).well().json();

    let names: Vec<&str> = list.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "think",
            "read_more",
            "file_read",
            "file_edit",
            "file_list",
            "grep_search",
            "memory",
            "web_fetch",
            "web_search",
            "recall",
            "create_subagent"
        ],
        "all built-in tools but `bash`, which needs a sandbox (REQUIREMENTS U-01)"
    );
    for tool in list.as_array().unwrap() {
        for told in ["input_schema", "effect", "level", "cache", "timeout_ms", "retry", "breaker", "reach", "sandbox"] {
            assert!(!tool[told].is_null(), "{told} of {}", tool["name"]);
        }
    }
    assert!(shown["input_schema"]["properties"]["path"].is_object());
}
