use callboard_actors::chat::{
    Attachment, Effort, MessageList, RawJson, ToolDefinition, attachment::document_text,
};

use super::*;

const ALL: Shown = Shown {
    images: true,
    documents: true,
};
const NONE: Shown = Shown {
    images: false,
    documents: false,
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

fn sent(request: &ModelRequest) -> Value {
    serde_json::from_slice(&super::request(request, MaxTokens::Plain, ALL).joined()).unwrap()
}

fn messages_of(messages: impl IntoIterator<Item = Message>) -> Value {
    sent(&example(messages))["messages"].take()
}

fn image() -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}})
}

fn image_part() -> Value {
    json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}})
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

    let plain = String::from_utf8(
        super::request(&request, MaxTokens::Plain, ALL)
            .joined()
            .to_vec(),
    )
    .unwrap();

    assert_eq!(
        plain,
        r#"{"model":"m","max_tokens":100,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],"tool_choice":{"type":"function","function":{"name":"f"}},"messages":[{"role":"system","content":"sys"},{"role":"user","content":"hi"}],"stop":["END"],"reasoning_effort":"low","temperature":0.5,"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":false,"schema":{"type":"object","properties":{}}}},"stream":true,"stream_options":{"include_usage":true}}"#
    );
    let other = super::request(&request, MaxTokens::Completion, ALL).joined();
    assert_eq!(
        other,
        plain.replace("\"max_tokens\"", "\"max_completion_tokens\"")
    );
}

#[test]
fn calls_and_results_become_tool_messages_and_the_text_after_them_a_user_message() {
    let sent = messages_of([
        Message::user("q"),
        message(json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"b": 1.0}},
            {"type": "tool_use", "id": "b", "name": "g", "input": {}},
        ]})),
        message(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "one \"1\""},
            {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "no"}, image()], "is_error": true},
            {"type": "text", "text": "reminder"},
        ]})),
    ]);

    assert_eq!(
        sent,
        json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"b\":1.0}"}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "a", "content": "one \"1\""},
            {"role": "tool", "tool_call_id": "b", "content": "no"},
            {"role": "user", "content": [image_part(), {"type": "text", "text": "reminder"}]},
        ])
    );
}

#[test]
fn user_messages_that_follow_each_other_become_one() {
    let result = || {
        message(
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "r"}, {"type": "text", "text": "note"}]}),
        )
    };
    let call = || {
        message(
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}),
        )
    };
    let call_sent = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});

    assert_eq!(
        messages_of([
            call(),
            result(),
            Message::user("next"),
            Message::user("é\n\"last\"")
        ]),
        json!([call_sent, {"role": "tool", "tool_call_id": "a", "content": "r"}, {"role": "user", "content": "note\n\nnext\n\né\n\"last\""}])
    );
    assert_eq!(
        messages_of([
            Message::user("look"),
            message(
                json!({"role": "user", "content": [image(), {"type": "text", "text": "what?"}]})
            ),
            Message::user("now")
        ]),
        json!([{"role": "user", "content": [
            {"type": "text", "text": "look"}, image_part(), {"type": "text", "text": "what?"}, {"type": "text", "text": "now"},
        ]}])
    );
    // An assistant message without content to send does not separate them.
    let only_thinking =
        message(json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}));
    assert_eq!(
        messages_of([Message::user("a"), only_thinking, Message::user("b")]),
        json!([{"role": "user", "content": "a\n\nb"}])
    );
}

#[test]
fn documents_and_unknown_blocks_are_sent_as_well_as_can_be() {
    let sent = messages_of([message(json!({"role": "user", "content": [
        {"type": "document", "title": "a.pdf", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
        {"type": "image", "source": {"type": "url", "url": "https://x.test/y.png"}},
        {"type": "container_upload", "file_id": "f"},
    ]}))]);

    assert_eq!(
        sent[0]["content"],
        json!([
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,eA=="}},
            {"type": "text", "text": "plain"},
            {"type": "image_url", "image_url": {"url": "https://x.test/y.png"}},
            {"type": "text", "text": "[a container_upload that this provider cannot be sent]"},
        ])
    );
}

#[test]
fn what_the_model_is_not_shown_is_a_note_or_its_text() {
    let png = callboard_actors::testing::media::png(640, 480);
    let picture = serde_json::to_value(Attachment::sniffed(&png).unwrap().block()).unwrap();
    let pdf = callboard_actors::testing::media::pdf(["x"]);
    let document =
        serde_json::to_value(Attachment::pdf(&pdf).unwrap().title("a.pdf").block()).unwrap();
    let text = serde_json::to_value(document_text(Some("a.pdf"), 1, "[page 1]\nx")).unwrap();
    let history = [
        message(
            json!({"role": "user", "content": [picture, document, text, {"type": "text", "text": "what?"}]}),
        ),
        message(
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}),
        ),
        message(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "seen"}, picture, document]},
        ]})),
    ];
    let sent = |shown| -> Value {
        let body = super::request(&example(history.clone()), MaxTokens::Plain, shown).joined();
        serde_json::from_slice::<Value>(&body).unwrap()["messages"].take()
    };

    let blind = sent(NONE);
    let seeing = sent(ALL);
    let again = sent(NONE);

    let note = "[image: 640x480 image/png, not shown to this model]";
    let read = "<document title=\"a.pdf\" context=\"The text of the PDF before it, 1 page\">\n[page 1]\nx\n</document>";
    assert_eq!(
        blind[0],
        json!({"role": "user", "content": format!("{note}\n\n{read}\n\nwhat?")})
    );
    let kept =
        format!("seen\n{note}\n[document: \"a.pdf\" application/pdf, not shown to this model]");
    assert_eq!(
        blind[2],
        json!({"role": "tool", "tool_call_id": "a", "content": kept})
    );
    assert_eq!(blind.as_array().unwrap().len(), 3);
    assert_eq!(
        again, blind,
        "a form made for a model that sees is not taken for one that does not"
    );
    let kinds = |message: &Value| -> Vec<String> {
        message["content"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| part["type"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        kinds(&seeing[0]),
        ["image_url", "file", "text"],
        "the document itself, not its text too"
    );
    assert_eq!(seeing[0]["content"][1]["file"]["filename"], "a.pdf");
    assert_eq!(
        (seeing[2]["content"].clone(), kinds(&seeing[3])),
        (
            json!("seen"),
            vec!["image_url".to_owned(), "file".to_owned()]
        )
    );
}

#[test]
fn a_message_is_converted_once_and_another_adapters_form_is_not_taken_for_ours() {
    let shared = Message::user("hi");
    let first = Rendered::from_message(&shared, ALL).user.unwrap().1;
    let again = Rendered::from_message(&shared, ALL).user.unwrap().1;
    assert_eq!(first.as_ptr(), again.as_ptr());

    let foreign = Message::user("hi");
    foreign.rendered_with(|message| Some(message.wire().clone()));
    assert_eq!(
        messages_of([foreign]),
        json!([{"role": "user", "content": "hi"}])
    );
}

#[test]
fn a_schema_is_strict_only_if_it_keeps_the_rules() {
    for (schema, strict) in [
        (
            r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}"#,
            true,
        ),
        (
            r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}"#,
            false,
        ),
        (
            r#"{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}"#,
            false,
        ),
        (
            r#"{"type":"object","properties":{"a":{"type":"object"}},"required":["a"],"additionalProperties":false}"#,
            false,
        ),
        (r#"{"type":"array"}"#, false),
    ] {
        assert_eq!(
            fits_strict(&RawJson::from_text(schema).unwrap()),
            strict,
            "{schema}"
        );
    }
}
