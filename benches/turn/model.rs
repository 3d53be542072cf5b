//! The model of the reference turn as an HTTP server: fixed bytes, keep-alive, nothing computed.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

fn delta(text: &str) -> String {
    format!(
        "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
    )
}

fn reply(deltas: usize, tool: bool) -> Vec<u8> {
    let mut body = String::from(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"stop_reason\":null,\"usage\":{\"input_tokens\":1200,\"output_tokens\":1}}}\n\n\
         event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    );
    (0..deltas).for_each(|_| body.push_str(&delta("word")));
    body.push_str("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n");
    if tool {
        body.push_str("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_REPLACED_BY_SERVER\",\"name\":\"no_op\",\"input\":{}}}\n\n");
        let argument = "x".repeat(44);
        body.push_str(&format!("event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":1,\"delta\":{{\"type\":\"input_json_delta\",\"partial_json\":\"{{\\\"argument\\\":\\\"{argument}\\\"}}\"}}}}\n\n"));
        body.push_str("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}\n\n");
    }
    let stop = if tool { "tool_use" } else { "end_turn" };
    body.push_str(&format!("event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"{stop}\",\"stop_sequence\":null}},\"usage\":{{\"output_tokens\":70}}}}\n\nevent: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"));
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).into_bytes()
}

pub async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}", listener.local_addr().unwrap());
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(serve_one(stream));
    }
}

async fn serve_one(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let (mut buffer, mut calls) = (Vec::new(), 0u64);
    loop {
        // One request: head, content-length, body.
        let (head, length) = loop {
            if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
                let length =
                    text.lines().find_map(|line| line.strip_prefix("content-length: ")).and_then(|n| n.trim().parse::<usize>().ok());
                break (end + 4, length.unwrap_or(0));
            }
            if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        };
        while buffer.len() < head + length {
            if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let body = &buffer[head..head + length];
        let last = body.windows(8).rposition(|eight| eight == b"\"role\":\"").unwrap_or(0);
        let answers_tool = body[last..].windows(11).any(|eleven| eleven == b"tool_result");
        calls += 1;
        let answer = if answers_tool { reply(64, false) } else { reply(32, true) };
        let id = format!("toolu_{calls:018}");
        let answer = String::from_utf8(answer).unwrap().replace("toolu_REPLACED_BY_SERVER", &id).into_bytes();
        buffer.drain(..head + length);
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}
