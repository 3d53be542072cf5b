use callboard_actors::chat::{Effort, MessageList, RawJson, ToolDefinition};

use super::*;

const ALL: Shown = Shown {
    images: true,
    documents: true,
};

fn target(host: &str) -> Target<'_> {
    Target {
        host,
        shown: ALL,
        reasons: true,
    }
}

fn message(json: Value) -> Message {
    serde_json::from_value::<Message>(json).unwrap()
}

fn example(messages: impl IntoIterator<Item = Message>) -> ModelRequest {
    ModelRequest {
        model: "m".into(),
        system: None,
        messages: MessageList::from_iter(messages),
        tools: [].into(),
        tool_choice: ToolChoice::Auto,
        max_tokens: 100,
        stop: [].into(),
        effort: None,
        thinking: None,
        temperature: None,
        output_schema: None,
        cache: true,
    }
}

fn sent(request: &ModelRequest) -> Value {
    serde_json::from_slice(&super::request(request, target("h")).joined()).unwrap()
}

fn input_of(messages: impl IntoIterator<Item = Message>) -> Value {
    sent(&example(messages))["input"].take()
}

fn sealed(host: &str, id: &str, parts: &[usize]) -> String {
    let sealed = Sealed {
        host: host.into(),
        id: id.into(),
        encrypted_content: "c2VhbGVk".into(),
        open: false,
        parts: parts.to_vec(),
    };
    Sealer::Responses.seal(&serde_json::to_string(&sealed).unwrap())
}

#[test]
fn a_request_has_every_field_in_its_place_and_stores_nothing() {
    let mut request = example([Message::user("hi")]);
    request.system = Some("sys".into());
    request.tools = [ToolDefinition {
        name: "f".into(),
        description: "d".into(),
        input_schema: RawJson::from_text(r#"{"type":"object"}"#).unwrap(),
    }]
    .into();
    request.tool_choice = ToolChoice::Named("f".into());
    request.effort = Some(Effort::Low);
    request.thinking = Some(Thinking::Adaptive);
    request.temperature = Some(0.5.try_into().unwrap());
    request.output_schema =
        Some(RawJson::from_text(r#"{"type":"object","properties":{}}"#).unwrap());

    let text = |body: Body| String::from_utf8(body.joined().to_vec()).unwrap();
    let prompt = r#""instructions":"sys","tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":false}],"tool_choice":{"type":"function","name":"f"},"input":[{"content":[{"text":"hi","type":"input_text"}],"role":"user","type":"message"}],"reasoning":{"effort":"low","summary":"auto"},"text":{"format":{"type":"json_schema","name":"answer","strict":false,"schema":{"type":"object","properties":{}}}}"#;

    assert_eq!(
        text(super::request(&request, target("h"))),
        format!(
            r#"{{"model":"m","max_output_tokens":100,{prompt},"temperature":0.5,"include":["reasoning.encrypted_content"],"store":false,"stream":true}}"#
        )
    );
    assert_eq!(
        text(super::count(&request, target("h"))),
        format!(r#"{{"model":"m",{prompt}}}"#)
    );
    let plain = Target {
        reasons: false,
        ..target("h")
    };
    assert!(!text(super::request(&request, plain)).contains("include"));
}

#[test]
fn effort_and_summary_follow_what_is_asked_of_the_thinking() {
    let reasoning = |effort, thinking| {
        let mut request = example([Message::user("hi")]);
        request.effort = effort;
        request.thinking = thinking;
        sent(&request)["reasoning"].take()
    };

    assert_eq!(reasoning(None, None), Value::Null);
    assert_eq!(reasoning(None, Some(Thinking::Off)), Value::Null);
    assert_eq!(
        reasoning(Some(Effort::High), Some(Thinking::Off)),
        json!({"effort": "high"})
    );
    for (tokens, effort) in [(1024, "low"), (4096, "medium"), (16_384, "high")] {
        assert_eq!(
            reasoning(None, Some(Thinking::Budget(tokens))),
            json!({"effort": effort, "summary": "auto"})
        );
    }
    assert_eq!(
        reasoning(Some(Effort::Low), Some(Thinking::Budget(99_999))),
        json!({"effort": "low", "summary": "auto"})
    );
}

#[test]
fn reasoning_calls_and_results_go_back_as_items_in_their_order() {
    let input = input_of([
        Message::user("q"),
        message(json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "One.\n\nTwo.", "signature": sealed("h", "rs_1", &[4, 4])},
            {"type": "thinking", "thinking": "", "signature": sealed("h", "rs_2", &[])},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"b": 1.0}},
            {"type": "tool_use", "id": "b", "name": "g", "input": {}},
        ]})),
        message(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "one \"1\""},
            {"type": "tool_result", "tool_use_id": "b", "is_error": true, "content": [
                {"type": "text", "text": "no"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
            ]},
            {"type": "text", "text": "reminder"},
        ]})),
    ]);

    let thought = |id: &str, summary: Value| json!({"type": "reasoning", "id": id, "summary": summary, "encrypted_content": "c2VhbGVk"});
    assert_eq!(
        input,
        json!([
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
            thought("rs_1", json!([{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}])),
            thought("rs_2", json!([])),
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"b\":1.0}"},
            {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "one \"1\""},
            {"type": "function_call_output", "call_id": "b", "output": [
                {"type": "input_text", "text": "no"},
                {"type": "input_image", "image_url": "data:image/png;base64,eA=="},
            ]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "reminder"}]},
        ])
    );
}

#[test]
fn reasoning_that_is_alone_or_from_elsewhere_stays_behind() {
    let assistant = |blocks: Value| {
        input_of([
            Message::user("q"),
            message(json!({"role": "assistant", "content": blocks})),
        ])
        .as_array_mut()
        .unwrap()
        .split_off(1)
    };
    let text = json!({"type": "text", "text": "t"});

    for (what, signature) in [
        ("another host", sealed("other", "rs_1", &[])),
        ("another API", "gemini:next:abc".to_owned()),
        ("Anthropic", "c2ln".to_owned()),
        ("broken", "openai-responses:{".to_owned()),
    ] {
        let thinking = json!({"type": "thinking", "thinking": "hm", "signature": signature});
        assert_eq!(assistant(json!([thinking, text])).len(), 1, "{what}");
    }
    let own = json!({"type": "thinking", "thinking": "hm", "signature": sealed("h", "rs_1", &[])});
    assert_eq!(assistant(json!([own, text])).len(), 2);
    assert_eq!(assistant(json!([text, own])).len(), 1, "nothing follows it");
    let open = Sealer::Responses.seal(r#"{"host":"h","id":"rs_1","open":true}"#);
    let open = json!({"type": "thinking", "thinking": "hm", "signature": open});
    assert_eq!(
        assistant(json!([open, text]))[0],
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]})
    );
}

#[test]
fn attachments_have_their_parts_and_a_blind_model_gets_notes() {
    let attached = message(json!({"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}, "title": "a.pdf"},
        {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
    ]}));
    let request = example([attached]);
    let blind = Target {
        shown: Shown {
            images: false,
            documents: false,
        },
        ..target("h")
    };
    let content = |target| {
        let body = super::request(&request, target).joined();
        serde_json::from_slice::<Value>(&body).unwrap()["input"][0]["content"].take()
    };

    assert_eq!(
        content(target("h")),
        json!([
            {"type": "input_image", "image_url": "data:image/png;base64,eA=="},
            {"type": "input_image", "image_url": "https://example.com/a.png"},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,eA=="},
            {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        ])
    );
    // The same message, after it was rendered for a model that sees.
    let notes = content(blind);
    assert_eq!(notes[0]["type"], "input_text");
    assert!(
        notes[0]["text"]
            .as_str()
            .unwrap()
            .contains("not shown to this model")
    );
    assert_eq!(content(target("h"))[0]["type"], "input_image");
}
