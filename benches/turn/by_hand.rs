//! The same turn, written by hand: reqwest, a line reader, serde_json, history as values, deltas to one subscriber by channel.

use bytes::BytesMut;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    content_block: Option<Block>,
}

#[derive(Deserialize, Default)]
struct Delta {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    partial_json: Option<String>,
}

#[derive(Deserialize)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Args {
    #[allow(dead_code, reason = "parsing it is the check")]
    argument: String,
}

async fn call(
    client: &reqwest::Client,
    url: &str,
    messages: &[Value],
    tools: &Value,
    events: &mpsc::Sender<String>,
) -> (String, Option<(String, String, String)>) {
    let body = json!({ "model": "m", "max_tokens": 8192, "stream": true, "messages": messages, "tools": tools });
    let response = client
        .post(format!("{url}/v1/messages"))
        .header("x-api-key", "k")
        .header("anthropic-version", "2023-06-01")
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&body).unwrap())
        .send()
        .await
        .unwrap();
    let mut stream = response.bytes_stream();
    let mut buffer = BytesMut::new();
    let (mut text, mut tool) = (String::new(), None);
    while let Some(chunk) = stream.next().await {
        buffer.extend_from_slice(&chunk.unwrap());
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(end + 1);
            let Some(data) = line.strip_prefix(b"data: ") else { continue };
            let event: Event = serde_json::from_slice(data).unwrap();
            match event.kind.as_str() {
                "content_block_start" => {
                    if let Some(Block { kind, id, name }) = event.content_block
                        && kind == "tool_use"
                    {
                        tool = Some((id, name, String::new()));
                    }
                }
                "content_block_delta" => {
                    let delta = event.delta.unwrap_or_default();
                    if let Some(piece) = delta.text {
                        text.push_str(&piece);
                        events.send(piece).await.unwrap();
                    }
                    if let (Some(piece), Some((_, _, input))) = (delta.partial_json, &mut tool) {
                        input.push_str(&piece);
                    }
                }
                _ => {}
            }
        }
    }
    (text, tool)
}

async fn talk(client: reqwest::Client, url: String, turns: usize) {
    let mut messages: Vec<Value> = super::history().iter().map(|message| serde_json::from_str(message.wire_str()).unwrap()).collect();
    let tools = json!([{ "name": "no_op", "description": "Does nothing.", "input_schema": { "type": "object", "properties": { "argument": { "type": "string" } }, "required": ["argument"] } }]);
    for _ in 0..turns {
        let (events, mut subscriber) = mpsc::channel::<String>(64);
        let reader = tokio::spawn(async move {
            let mut bytes = 0;
            while let Some(piece) = subscriber.recv().await {
                bytes += piece.len();
            }
            bytes
        });
        messages.push(json!({ "role": "user", "content": [{ "type": "text", "text": super::prompt() }] }));
        let (text, tool) = call(&client, &url, &messages, &tools, &events).await;
        let (id, name, input) = tool.unwrap();
        let _: Args = serde_json::from_str(&input).unwrap();
        let input: Value = serde_json::from_str(&input).unwrap();
        messages.push(json!({ "role": "assistant", "content": [{ "type": "text", "text": text }, { "type": "tool_use", "id": id, "name": name, "input": input }] }));
        let result = tokio::spawn(async { "r".repeat(200) }).await.unwrap();
        messages.push(json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": id, "content": result }] }));
        let (text, _) = call(&client, &url, &messages, &tools, &events).await;
        messages.push(json!({ "role": "assistant", "content": [{ "type": "text", "text": text }] }));
        drop(events);
        assert_eq!(reader.await.unwrap(), (32 + 64) * 4);
    }
}

pub async fn run(url: &str, conversations: usize, turns: usize) {
    let client = reqwest::Client::new();
    let talks = (0..conversations).map(|_| tokio::spawn(talk(client.clone(), url.to_owned(), turns)));
    for talk in talks.collect::<Vec<_>>() {
        talk.await.unwrap();
    }
}
