use callboard_actors::chat::{MessageList, RawJson, ToolDefinition};

use super::*;

const NEW: Target = Target {
    shown: Shown {
        images: true,
        documents: true,
    },
    has_levels: true,
    always_thinks: false,
};

const OLD: Target = Target {
    has_levels: false,
    ..NEW
};

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

fn sent(request: &ModelRequest, target: Target) -> Value {
    serde_json::from_slice(&super::request(request, target).joined()).unwrap()
}

#[test]
fn a_request_has_every_field_in_its_place() {
    let mut request = example([Message::user("hi")]);
    request.system = Some("sys".into());
    request.tools = [ToolDefinition {
        name: "f".into(),
        description: "d".into(),
        input_schema: RawJson::from_text(r#"{"type":"object"}"#).unwrap(),
    }]
    .into();
    request.tool_choice = ToolChoice::Named("f".into());
    request.stop = ["END".to_owned()].into();
    request.effort = Some(Effort::Low);
    request.temperature = Some(0.5.try_into().unwrap());
    request.output_schema =
        Some(RawJson::from_text(r#"{"type":"object","properties":{}}"#).unwrap());

    let text = |body: Body| String::from_utf8(body.joined().to_vec()).unwrap();
    let prompt = r#""contents":[{"role":"user","parts":[{"text":"hi"}]}],"systemInstruction":{"parts":[{"text":"sys"}]},"tools":[{"functionDeclarations":[{"name":"f","description":"d","parametersJsonSchema":{"type":"object"}}]}],"toolConfig":{"functionCallingConfig":{"mode":"ANY","allowedFunctionNames":["f"]}}"#;

    assert_eq!(
        text(super::request(&request, NEW)),
        format!(
            r#"{{{prompt},"generationConfig":{{"maxOutputTokens":100,"stopSequences":["END"],"temperature":0.5,"thinkingConfig":{{"thinkingLevel":"low"}},"responseMimeType":"application/json","responseJsonSchema":{{"type":"object","properties":{{}}}}}}}}"#
        )
    );
    assert_eq!(
        text(super::count(&request, "m", NEW)),
        format!(r#"{{"generateContentRequest":{{"model":"models/m",{prompt}}}}}"#)
    );
    for (choice, mode) in [(ToolChoice::None, "NONE"), (ToolChoice::Any, "ANY")] {
        request.tool_choice = choice;
        assert_eq!(
            sent(&request, NEW)["toolConfig"],
            json!({"functionCallingConfig": {"mode": mode}})
        );
    }
}

#[test]
fn thinking_has_levels_or_a_budget_and_never_both() {
    let config = |effort, thinking, target| {
        let mut request = example([Message::user("hi")]);
        request.effort = effort;
        request.thinking = thinking;
        sent(&request, target)["generationConfig"]["thinkingConfig"].take()
    };
    let pro = Target {
        always_thinks: true,
        ..NEW
    };
    for (effort, thinking, target, expected) in [
        (None, None, NEW, Value::Null),
        (
            Some(Effort::High),
            None,
            NEW,
            json!({"thinkingLevel": "high"}),
        ),
        (
            Some(Effort::High),
            None,
            OLD,
            json!({"thinkingBudget": 24_576}),
        ),
        (
            None,
            Some(Thinking::Off),
            NEW,
            json!({"thinkingLevel": "minimal"}),
        ),
        (
            None,
            Some(Thinking::Off),
            pro,
            json!({"thinkingLevel": "low"}),
        ),
        (None, Some(Thinking::Off), OLD, json!({"thinkingBudget": 0})),
        (
            None,
            Some(Thinking::Adaptive),
            NEW,
            json!({"includeThoughts": true}),
        ),
        (
            Some(Effort::Medium),
            Some(Thinking::Adaptive),
            NEW,
            json!({"includeThoughts": true, "thinkingLevel": "medium"}),
        ),
        (
            Some(Effort::Low),
            Some(Thinking::Budget(2000)),
            NEW,
            json!({"includeThoughts": true, "thinkingBudget": 2000}),
        ),
    ] {
        assert_eq!(config(effort, thinking, target), expected);
    }
}

#[test]
fn signatures_go_back_with_their_parts_and_results_with_their_names() {
    let messages = [
        Message::user("q"),
        message(json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "thinking", "thinking": "own", "signature": "gemini:thought:A"},
            {"type": "text", "text": "I look."},
            {"type": "thinking", "thinking": "", "signature": "gemini:next:B"},
            {"type": "text", "text": "Now."},
            {"type": "thinking", "thinking": "", "signature": "gemini:after:C"},
            {"type": "text", "text": "Then."},
            {"type": "thinking", "thinking": "", "signature": "gemini:next:D"},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"a": 2, "b": 1.0}},
            {"type": "tool_use", "id": "b", "name": "g", "input": {}},
            {"type": "thinking", "thinking": "", "signature": "gemini:next:of a part that was cut"},
        ]})),
        message(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "one"},
            {"type": "tool_result", "tool_use_id": "b", "is_error": true, "content": [
                {"type": "text", "text": "no"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
            ]},
            {"type": "text", "text": "reminder"},
        ]})),
    ];

    let text =
        String::from_utf8(super::request(&example(messages), NEW).joined().to_vec()).unwrap();
    assert!(text.contains(r#""args":{"a":2,"b":1.0}"#), "{text}");
    let sent: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        sent["contents"],
        json!([
            {"role": "user", "parts": [{"text": "q"}]},
            {"role": "model", "parts": [
                {"text": "own", "thought": true, "thoughtSignature": "A"},
                {"text": "I look."},
                {"text": "Now.", "thoughtSignature": "B"},
                {"text": "Then."},
                {"text": "", "thoughtSignature": "C"},
                {"functionCall": {"id": "a", "name": "f", "args": {"b": 1.0, "a": 2}}, "thoughtSignature": "D"},
                {"functionCall": {"id": "b", "name": "g", "args": {}}},
            ]},
            {"role": "user", "parts": [
                {"functionResponse": {"id": "a", "name": "f", "response": {"output": "one"}}},
                {"functionResponse": {"id": "b", "name": "g", "response": {"error": "no"}}},
                {"inlineData": {"mimeType": "image/png", "data": "eA=="}},
                {"text": "reminder"},
            ]},
        ])
    );
}

#[test]
fn calls_of_another_model_get_what_stands_in_for_a_signature() {
    let request = example([
        Message::user("q"),
        message(json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "tool_use", "id": "a", "name": "f", "input": {}},
            {"type": "tool_use", "id": "b", "name": "g", "input": {}},
        ]})),
    ]);
    let parts = |target| sent(&request, target)["contents"][1]["parts"].take();
    let call = |id: &str, name: &str| json!({"functionCall": {"id": id, "name": name, "args": {}}});
    let mut first = call("a", "f");

    assert_eq!(parts(OLD), json!([first, call("b", "g")]));
    // The same messages, after they were rendered for the other model.
    first["thoughtSignature"] = NO_SIGNATURE.into();
    assert_eq!(parts(NEW), json!([first, call("b", "g")]));
}

#[test]
fn what_cannot_be_sent_is_replaced_by_a_note() {
    let request = example([message(json!({"role": "user", "content": [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    ]}))]);
    let blind = Target {
        shown: Shown {
            images: true,
            documents: false,
        },
        ..NEW
    };

    let parts = |target| sent(&request, target)["contents"][0]["parts"].take();
    assert_eq!(
        parts(NEW),
        json!([
            {"inlineData": {"mimeType": "application/pdf", "data": "eA=="}},
            {"text": "[a image that this provider cannot be sent]"},
        ])
    );
    assert!(
        parts(blind)[0]["text"]
            .as_str()
            .unwrap()
            .contains("not shown to this model")
    );
}
