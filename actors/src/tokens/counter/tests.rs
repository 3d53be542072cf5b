use serde_json::json;

use super::*;
use crate::tokens::{EncoderConfig, media::IMAGE_TOKENS_MAX};

const GPT: &str = "gpt-4";

fn message(role: &str, content: &serde_json::Value) -> Message {
    Message::from_wire(
        json!({ "role": role, "content": content })
            .to_string()
            .as_bytes(),
    )
    .unwrap()
}

#[test]
fn a_text_costs_its_tokens_times_the_margin_rounded_down() {
    let counter = TokenCounter::default();
    let text = "hello world ".repeat(50);
    let tokens = counter.count_text(GPT, &text);

    assert_eq!(tokens, 101);
    assert_eq!(
        counter.count_text("claude-3-sonnet", &text),
        116,
        "101 x 1.15 = 116.15"
    );
    assert_eq!(
        counter.count_text("glm-4-plus", &text),
        126,
        "101 x 1.25 = 126.25"
    );
    assert_eq!(
        counter.count_text("unheard-of", &text),
        121,
        "101 x 1.2 = 121.2"
    );
    assert_eq!(
        (
            counter.count_text("claude-3", ""),
            counter.count_text("claude-3", "a")
        ),
        (0, 1)
    );
}

#[test]
fn what_looks_like_a_special_token_is_text() {
    let counter = TokenCounter::default();

    assert_eq!(counter.count_text(GPT, "hello <|endoftext|>"), 7);
    assert!(counter.count_text("gpt-oss-20b", "<|start|><|message|>") > 4);
}

#[test]
fn a_message_costs_its_role_and_every_block() {
    let counter = TokenCounter::default();
    let of = |text: &str| counter.count_text("claude-3", text);
    let call = message(
        "assistant",
        &json!([
            { "type": "thinking", "thinking": "I should look.", "signature": "c2lnbmF0dXJlIHRoYXQgaXMgbm90IHRleHQ=" },
            { "type": "text", "text": "Let me look." },
            { "type": "tool_use", "id": "toolu_1", "name": "grep_search", "input": { "pattern": "重试" } },
        ]),
    );
    let result = message(
        "user",
        &json!([
            { "type": "tool_result", "tool_use_id": "toolu_1", "content": "src/retry.rs:4" },
            { "type": "tool_result", "tool_use_id": "toolu_2", "content": [{ "type": "text", "text": "a list" }, { "type": "image", "source": {} }] },
            { "type": "redacted_thinking", "data": "b3BhcXVl" },
        ]),
    );

    assert_eq!(
        counter.count_message("claude-3", &call),
        of("assistant")
            + of("I should look.")
            + of("Let me look.")
            + of("grep_search")
            + of(r#"{"pattern":"重试"}"#)
    );
    let blocks = result.blocks();
    let raw = blocks[2].raw().unwrap();
    assert_eq!(
        counter.count_message("claude-3", &result),
        of("user") + of("src/retry.rs:4") + of("a list") + IMAGE_TOKENS_MAX + of(raw.as_str())
    );
    let text = message("user", &json!("Hello there"));
    assert_eq!(
        counter.count_message("claude-3", &text),
        of("user") + of("Hello there")
    );
}

#[test]
fn escaped_characters_in_a_tool_input_cost_what_they_stand_for() {
    let counter = TokenCounter::default();
    let input = |input: &str| {
        let wire = format!(
            r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"t","name":"f","input":{input}}}]}}"#
        );
        counter.count_message(GPT, &Message::from_wire(wire.as_bytes()).unwrap())
    };

    assert_eq!(input(r#"{"q":"\u6c49\u5b57"}"#), input(r#"{"q":"汉字"}"#));
}

#[test]
fn an_attachment_is_not_counted_as_text() {
    let counter = TokenCounter::default();
    let data = "iVBORw0KGgo".repeat(20_000);
    let source = json!({ "type": "base64", "media_type": "image/png", "data": data });
    let image = message("user", &json!([{ "type": "image", "source": source }]));

    assert_eq!(counter.count_message(GPT, &image), 1 + IMAGE_TOKENS_MAX);
    assert!(counter.count_text(GPT, &data) > 50_000);
}

#[test]
fn the_text_of_a_document_costs_what_the_text_of_a_message_does() {
    let counter = TokenCounter::default();
    let text = "\u{6c49}\u{5b57}\u{7684}\u{6587}\u{672c}".repeat(200);
    let source = json!({ "type": "text", "media_type": "text/plain", "data": text });
    let document = message("user", &json!([{ "type": "document", "source": source }]));

    assert_eq!(
        counter.count_message(GPT, &document),
        counter.count_message(GPT, &Message::user(text.as_str()))
    );
}

#[test]
fn a_message_is_counted_once_for_each_way_of_counting() {
    let counter = TokenCounter::default();
    let message = Message::user("hello world, hello world, hello world");
    let claude = counter.count_message("claude-3", &message);
    let gpt = counter.count_message(GPT, &message);
    assert_ne!(claude, gpt);

    // The cached count is returned for this encoding and margin, and for no other.
    let way = counter
        .registry()
        .profile(&counter.registry().resolve(GPT))
        .unwrap();
    assert_eq!(message.counted_tokens(way).map(u64::from), Some(gpt));
    message.keep_tokens(way, 4711);

    assert_eq!(
        (
            counter.count_message("gpt-4-turbo", &message),
            counter.count_message("claude-3", &message)
        ),
        (4711, claude)
    );
    counter.registry().register_encoder_config(
        "gpt-4",
        EncoderConfig::new(ModelFamily::Gpt, "cl100k_base", 2.0),
    );
    assert_eq!(
        counter.count_message(GPT, &message),
        2 * gpt,
        "a new margin is another way"
    );
}

#[test]
fn a_conversation_costs_the_sum_of_its_messages() {
    let counter = TokenCounter::default();
    let messages: Vec<Message> = (0..100)
        .map(|n| Message::user(format!("message {n} 汉字")))
        .collect();
    let sum: u64 = messages
        .iter()
        .map(|message| counter.count_message("glm-4", message))
        .sum();
    let list: MessageList = messages.into_iter().collect();

    assert_eq!(counter.count_conversation("glm-4", &list), sum);
    assert_eq!(
        counter.count_conversation("glm-4", &MessageList::default()),
        0
    );
}

#[test]
fn a_request_costs_its_system_prompt_its_tools_and_its_messages() {
    let counter = TokenCounter::default();
    let tool = ToolDefinition {
        name: "think".into(),
        description: "Thinks aloud.".into(),
        input_schema: RawJson::from_text(r#"{"type":"object"}"#).unwrap(),
    };
    let tools = counter.count_tools(GPT, &[tool.clone(), tool.clone()]);
    let of = |text: &str| counter.count_text(GPT, text);
    assert_eq!(
        tools,
        2 * (of("think") + of("Thinks aloud.") + of(r#"{"type":"object"}"#))
    );

    let request = ModelRequest {
        tools: vec![tool.clone(), tool].into(),
        ..crate::testing::contract::example_request()
    };

    assert_eq!(
        counter.count_request(GPT, &request),
        of("Be brief.") + tools + counter.count_conversation(GPT, &request.messages)
    );
}

#[test]
fn the_info_of_a_model_is_that_of_the_specification() {
    let info = TokenCounter::default().model_info("glm-4-plus");

    assert_eq!(
        serde_json::to_value(&info).unwrap(),
        json!({
            "model": "glm-4-plus", "model_family": "glm", "encoding_name": "cl100k_base",
            "safety_margin": 1.25, "use_exact_counting": false, "has_api_client": false,
        })
    );
}

#[test]
fn free_functions_count_as_a_fresh_counter() {
    let counter = TokenCounter::default();
    let said = Message::user("hello world");
    let list = MessageList::from_iter([said.clone()]);

    assert_eq!(
        count_text("glm-4", "hello world"),
        counter.count_text("glm-4", "hello world")
    );
    assert_eq!(
        count_message("glm-4", &said),
        counter.count_message("glm-4", &said)
    );
    assert_eq!(
        count_conversation("glm-4", &list),
        counter.count_conversation("glm-4", &list)
    );
}

#[test]
fn many_threads_count_and_register_at_once() {
    let counter = TokenCounter::default();

    std::thread::scope(|scope| {
        for thread in 0..8 {
            let counter = &counter;
            scope.spawn(move || {
                for n in 0..200 {
                    let model = format!("model-{thread}");
                    let margin = 1.0 + f64::from(n);
                    counter.registry().register_encoder_config(
                        &model,
                        EncoderConfig::new(ModelFamily::Custom, "cl100k_base", margin),
                    );
                    assert_eq!(
                        counter.count_text(&model, "hello world"),
                        2 * (1 + n as u64)
                    );
                    assert_eq!(counter.count_text("glm-4", "hello world"), 2);
                }
            });
        }
    });
}
