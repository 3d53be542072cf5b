use callboard_actors::chat::{Effort, MessageList, RawJson, ToolDefinition};
use serde_json::{Value, json};

use super::*;
use crate::providers::body::PIECE_BYTES;

fn message(json: &Value) -> Message {
    serde_json::from_value::<Message>(json.clone()).unwrap()
}

fn tool(name: &str) -> ToolDefinition {
    ToolDefinition {
        name: name.into(),
        description: "Does it.".into(),
        input_schema: RawJson::from_text(r#"{"type":"object"}"#).unwrap(),
    }
}

fn example() -> ModelRequest {
    ModelRequest {
        model: "claude-test".into(),
        system: Some("Be \"brief\".".into()),
        messages: MessageList::from_iter([
            Message::user("one"),
            message(&json!({"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}},
            ]})),
            message(
                &json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]}),
            ),
            Message::assistant("fine"),
            message(
                &json!({"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "image", "source": {"type": "url", "url": "u"}}]}),
            ),
        ]),
        tools: [tool("f"), tool("g")].into(),
        tool_choice: ToolChoice::Auto,
        max_tokens: 100,
        stop: [].into(),
        effort: None,
        thinking: None,
        temperature: None,
        output_schema: None,
        cache: false,
    }
}

fn text(body: Body) -> String {
    String::from_utf8(body.joined().to_vec()).unwrap()
}

#[test]
fn keys_come_in_one_order_and_messages_as_they_are() {
    let request = example();
    let wires: Vec<&str> = request.messages.iter().map(Message::wire_str).collect();
    let tools = r#"[{"name":"f","description":"Does it.","input_schema":{"type":"object"}},{"name":"g","description":"Does it.","input_schema":{"type":"object"}}]"#;
    let prompt = format!(
        r#""system":[{{"type":"text","text":"Be \"brief\"."}}],"tools":{tools},"messages":[{}]"#,
        wires.join(",")
    );

    assert_eq!(
        text(super::request(&request)),
        format!(r#"{{"model":"claude-test","max_tokens":100,{prompt},"stream":true}}"#)
    );
    assert_eq!(
        text(count(&ModelRequest {
            cache: true,
            ..request.clone()
        })),
        format!(r#"{{"model":"claude-test",{prompt}}}"#)
    );
}

#[test]
fn the_cache_adds_four_marks_and_nothing_else() {
    let plain = example();
    let marked = text(request(&ModelRequest {
        cache: true,
        ..plain.clone()
    }));

    assert_eq!(marked.replace(MARK, ""), text(request(&plain)));
    let body: Value = serde_json::from_str(&marked).unwrap();
    let mark = json!({"type": "ephemeral"});
    for path in [
        "/system/0",
        "/tools/1",
        "/messages/2/content/0",
        "/messages/4/content/1",
    ] {
        assert_eq!(body.pointer(path).unwrap()["cache_control"], mark, "{path}");
    }
    assert_eq!(marked.matches("cache_control").count(), 4);
}

#[test]
fn the_bytes_of_a_long_message_are_sent_from_where_they_lie() {
    let long = Message::user("x".repeat(PIECE_BYTES));
    let plain = ModelRequest {
        messages: [long.clone(), Message::assistant("short")]
            .into_iter()
            .collect(),
        cache: false,
        ..example()
    };

    let pieces = request(&plain).into_pieces();

    let starts: Vec<_> = pieces.iter().map(|piece| piece.as_ptr()).collect();
    assert!(starts.contains(&long.wire().as_ptr()));
    assert_eq!(pieces.len(), 3, "short texts are joined");
}

#[test]
fn what_the_api_refuses_is_left_out() {
    let mut request = example();
    request.tools = [].into();
    request.system = None;
    request.cache = true;
    request.messages = MessageList::from_iter([
        message(
            &json!({"role": "user", "content": [{"type": "text", "text": "q", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}),
        ),
        message(
            &json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "unsigned"}, {"type": "text", "text": ""}, {"type": "text", "text": "a"}]}),
        ),
        message(
            &json!({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "cache_control": {}, "source": 1}]}),
        ),
        message(
            &json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "unsigned"}]}),
        ),
        message(
            &json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "openai-responses:{}"}, {"type": "thinking", "thinking": "", "signature": "gemini:next:x"}, {"type": "text", "text": "b"}]}),
        ),
    ]);

    let body: Value = serde_json::from_slice(&super::request(&request).joined()).unwrap();

    let mark = json!({"type": "ephemeral"});
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "q", "cache_control": mark}]},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
            {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": 1, "cache_control": mark}]},
            {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
        ])
    );
}

#[test]
fn choices_stops_effort_and_schema_have_their_fields() {
    let schema = RawJson::from_text(r#"{"type":"object"}"#).unwrap();
    for (choice, expected) in [
        (ToolChoice::Auto, Value::Null),
        (ToolChoice::None, json!({"type": "none"})),
        (ToolChoice::Any, json!({"type": "any"})),
        (
            ToolChoice::Named("f".into()),
            json!({"type": "tool", "name": "f"}),
        ),
    ] {
        let request = ModelRequest {
            tool_choice: choice,
            stop: ["END".to_owned()].into(),
            effort: Some(Effort::High),
            output_schema: Some(schema.clone()),
            ..example()
        };

        let body: Value = serde_json::from_slice(&super::request(&request).joined()).unwrap();

        assert_eq!(body["tool_choice"], expected);
        assert_eq!(body["stop_sequences"], json!(["END"]));
        assert_eq!(
            body["output_config"],
            json!({"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}})
        );
    }
}

#[test]
fn thinking_and_temperature_are_written_only_where_they_are_asked_for() {
    let body = |thinking| -> Value {
        let request = ModelRequest {
            thinking,
            temperature: thinking.map(|_| 0.25.try_into().unwrap()),
            ..example()
        };
        serde_json::from_slice(&super::request(&request).joined()).unwrap()
    };
    let silent = body(None);
    assert!(silent.get("thinking").is_none() && silent.get("temperature").is_none());
    for (thinking, expected) in [
        (Thinking::Off, json!({"type": "disabled"})),
        (Thinking::Adaptive, json!({"type": "adaptive"})),
        (
            Thinking::Budget(2048),
            json!({"type": "enabled", "budget_tokens": 2048}),
        ),
    ] {
        let body = body(Some(thinking));
        assert_eq!(
            (&body["thinking"], &body["temperature"]),
            (&expected, &json!(0.25))
        );
    }
}

#[test]
fn images_and_documents_go_as_they_are_and_a_document_goes_without_its_text() {
    use callboard_actors::{
        chat::{Attachment, attachment::document_text},
        testing::media::{pdf, png},
    };
    let picture = Attachment::sniffed(&png(3, 2)).unwrap().block();
    let document = Attachment::sniffed(&pdf(["x"]))
        .unwrap()
        .title("a.pdf")
        .block();
    let read = document_text(Some("a.pdf"), 1, "x");
    let what = ContentBlock::text("what?");
    let kept = Message::new(
        Role::User,
        &[picture.clone(), document.clone(), read, what.clone()],
    )
    .unwrap();
    let plain = Message::new(Role::User, &[picture, document, what]).unwrap();

    assert_eq!(*sendable(&kept), *plain.wire());
    assert_eq!(
        sendable(&plain).as_ptr(),
        plain.wire().as_ptr(),
        "the bytes of the conversation, not a copy"
    );
}
