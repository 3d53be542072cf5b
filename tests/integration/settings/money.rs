//! `[prices]`: what the answers of models cost, in events, figures and budgets.

use super::home_with;
use crate::support::model_server::{ModelServer, Reply};

/// An answer whose four kinds of tokens all differ.
fn answer() -> Vec<String> {
    vec![
        r#"{"type":"message_start","message":{"content":[],"usage":{"input_tokens":1000,"cache_read_input_tokens":200,"cache_creation_input_tokens":30,"output_tokens":1}}}"#.into(),
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#.into(),
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ok"}}"#.into(),
        r#"{"type":"content_block_stop","index":0}"#.into(),
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}"#.into(),
        r#"{"type":"message_stop"}"#.into(),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_costs_what_the_four_prices_of_its_model_say() {
    let model = ModelServer::start([Reply::events(answer())]).await;
    let home = home_with(
        &model,
        "model = \"claude-own-1\"\n[prices]\n\"claude-own-*\" = { input = 1000, output = 100000, cache_read = 10000, cache_write = 20000 }\n",
    );

    let events = home
        .run(&["run", "--no-tools", "--json", "Hello"])
        .well()
        .events();

    // 1000 x 0.001 + 200 x 0.01 + 30 x 0.02 + 4 x 0.1
    let usage = events
        .iter()
        .find(|event| event["type"] == "usage")
        .unwrap();
    assert_eq!(usage["cost_usd"], 4.0, "{usage}");
}
