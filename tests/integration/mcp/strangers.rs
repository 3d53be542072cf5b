//! Untrusted servers must not harm others: looping schemas, thousands of tools, hidden characters,
//! invalid ids, unknown versions.

use std::time::{Duration, Instant};

use callboard::{conversation::Toolset, mcp, schema::JsonSchemas};
use tokio_util::sync::CancellationToken;

use super::{Stage, call, run};

#[tokio::test]
async fn a_tool_with_an_unusable_schema_is_left_out_and_stops_no_host() {
    let stage = Stage::new();
    let config = stage.peer("loop");
    let mut other = stage.peer("plain");
    other.name = "other".to_owned();

    let (tools, notes) =
        mcp::tools(&[config, other], &stage.pool, &stage.tenant, &stage.pins).await;

    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].starts_with("peer: omitted: `loop`: its schema cannot be used: more than 16 of its schemas refer to one another"),
        "{notes:?}"
    );
    let set = Toolset::new(tools, Some(&JsonSchemas))
        .map_err(|error| error.to_string())
        .unwrap();
    assert!(
        set.get("peer__loop").is_none()
            && set.get("peer__echo").is_some()
            && set.get("other__echo").is_some()
    );
}

#[tokio::test]
async fn ten_thousand_tools_of_one_server_leave_room_for_the_others() {
    let stage = Stage::new();
    let mut many = stage.peer("thousands");
    let mut large = stage.peer("large");
    let mut plain = stage.peer("plain");
    (large.name, plain.name) = ("large".to_owned(), "plain".to_owned());

    let (tools, notes) = mcp::tools(
        &[many.clone(), large, plain],
        &stage.pool,
        &stage.tenant,
        &stage.pins,
    )
    .await;

    let of = |server: &str| {
        tools
            .iter()
            .filter(|tool| tool.spec().name().starts_with(server))
            .count()
    };
    assert_eq!(of("peer__"), 128);
    assert!((40..60).contains(&of("large__")), "{}", of("large__"));
    assert!((20..30).contains(&of("plain__")), "{}", of("plain__"));
    let bytes: usize = tools
        .iter()
        .map(|tool| {
            tool.spec().definition.description.len()
                + tool.spec().definition.input_schema.as_str().len()
        })
        .sum();
    assert!(bytes < 2 * mcp::DEFINITIONS_BYTES_MAX, "{bytes}");
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert_eq!(notes[0], "peer: omitted: all tools after the first 1024");
    assert!(
        notes[1].starts_with("peer: omitted: 896 of 1024 tools, because at most 128 tools and 256 KiB of definitions are offered"),
        "{notes:?}"
    );
    assert!(notes[2].starts_with("large: omitted: "), "{notes:?}");

    (many.name, many.tools_max) = ("few".to_owned(), 3);
    let (tools, _) = stage.tools(&many).await;
    assert_eq!(tools.len(), 3, "`tools_max` counts");
}

#[tokio::test]
async fn what_a_result_hides_is_shown_to_the_model() {
    let stage = Stage::new();
    let tool = stage.tool(&stage.peer("plain"), "peer__hidden").await;

    let text = run(&tool, r#"{"as": "text"}"#, CancellationToken::new())
        .await
        .observation;
    let data = run(&tool, "{}", CancellationToken::new()).await.observation;

    let shown = r"\u{202e}live\u{202c} \u{200b}\u{e0041}\u{9b}2J\u{1b}]0;x\u{7}";
    assert_eq!(text, format!("{shown} 👩\u{200d}💻 مرحبا"));
    assert!(
        !data.chars().any(callboard::visible::is_invisible) && data.matches("u{202e}").count() == 2,
        "{data}"
    );
}

#[tokio::test]
async fn an_answer_that_names_a_number_as_text_is_no_answer() {
    let stage = Stage::new();
    let server = stage.server(&stage.peer("plain"));

    let began = Instant::now();
    let refused = call(&server, "typed", "{}").await.unwrap_err().to_string();

    assert!(
        refused.contains("its response has a string id; the request's id is a number"),
        "{refused}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "it fails at once, not at its timeout"
    );
    assert!(
        call(&server, "echo", "{}").await.is_ok(),
        "the connection still works"
    );
}

#[tokio::test]
async fn an_unknown_protocol_version_is_refused_by_name() {
    let stage = Stage::new();

    let (tools, notes) = stage.tools(&stage.peer("ancient")).await;

    assert!(tools.is_empty());
    let expected = "the MCP server peer cannot be reached: it uses protocol version `1999-01-01`; supported versions: \
                    2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25, 2026-07-28";
    assert_eq!(notes, [expected]);
}
