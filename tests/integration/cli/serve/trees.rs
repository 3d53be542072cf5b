//! Requests with trees of very many small values, where the compatible APIs let a client send any JSON.

use std::time::Duration;

use reqwest::StatusCode;

use super::{Home, Key, Served, configure};
use crate::support::model_server::{ModelServer, Reply, Step};

/// A list of small objects: parsed, it would take a hundred times its bytes.
fn tree(items: usize) -> String {
    format!("[{}]", vec![r#"{"":0}"#; items].join(","))
}

/// The most memory that a process has had, in MiB.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_ascii_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() / 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trees_in_requests_take_no_more_memory_than_their_bytes() {
    let home = Home::new();
    let model = ModelServer::start([Reply::stream().then(Step::Stall)]).await;
    let acme = Key::new(&home);
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    configure(
        &home,
        &format!(
            "[[provider]]\nname = \"stalls\"\nkind = \"openai\"\nbase_url = \"{}\"\nmodel = \"m\"\napi_key_file = \"key\"\ncontext_window = 1000000\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
            model.url_v1(),
            acme.hash
        ),
    );
    let served = Served::start(&home, &[]);
    let large = tree(200_000);
    let schema = format!(r#"{{"type":"object","x":{}}}"#, tree(30_000));
    let chat = r#""messages":[{"role":"user","content":"hi"}]"#;
    let function = format!(r#"{{"name":"f","parameters":{schema}}}"#);
    let tool = format!(r#"{{"type":"function","name":"f","parameters":{schema}}}"#);
    let choice = r#""type":"function","function":{"name":"f"}"#;
    let named = r#"{"type":"function","function":{"name":"f"}}"#;
    let taken = [
        (
            "openai/v1/chat/completions",
            format!(r#"{chat},"tools":[{named}],"tool_choice":{{{choice},"x":{large}}}"#),
        ),
        (
            "openai/v1/chat/completions",
            format!(r#"{chat},"tools":[{{"type":"function","function":{function}}}]"#),
        ),
        (
            "openai/v1/responses",
            format!(r#""input":"hi","tools":[{tool},{{"type":"other","x":{large}}}]"#),
        ),
        (
            "openai/v1/responses",
            format!(r#""input":"hi","reasoning":{{"effort":"low"}},"text":{{"x":{large}}}"#),
        ),
        (
            "anthropic/v1/messages",
            format!(r#"{chat},"max_tokens":100,"tools":[{{"name":"f","input_schema":{schema}}}]"#),
        ),
    ];
    let refused = [
        (
            "openai/v1/chat/completions",
            format!(r#"{chat},"functions":{large}"#),
        ),
        (
            "openai/v1/responses",
            format!(r#""input":[{}]"#, vec!["{}"; 200_000].join(",")),
        ),
        (
            "openai/v1/responses",
            format!(r#""input":"hi","metadata":{{"x":{large}}}"#),
        ),
        (
            "openai/v1/responses",
            format!(r#""input":"hi","prompt":{large}"#),
        ),
        (
            "anthropic/v1/messages",
            format!(r#"{chat},"max_tokens":100,"container":{large}"#),
        ),
    ];
    let client = callboard::tls::client_builder()
        .unwrap()
        .no_proxy()
        .build()
        .unwrap();
    let ask = |path: &str, fields: &str| {
        client
            .post(format!("{}/{path}", served.url()))
            .bearer_auth(&acme.key)
            .header("content-type", "application/json")
            .body(format!(r#"{{"model":"m",{fields}}}"#))
            .send()
    };
    let before = peak(served.id());

    let mut open = Vec::new();
    for round in 0..4 {
        for (n, (path, fields)) in taken.iter().enumerate() {
            open.push(tokio::spawn(ask(path, fields)));
            while model.requests().len() <= round * taken.len() + n {
                if open.last().unwrap().is_finished() {
                    let answer = open.pop().unwrap().await.unwrap().unwrap();
                    panic!("{path}: {fields:.80}: {}", answer.text().await.unwrap());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        for (path, fields) in &refused {
            let status = ask(path, fields).await.unwrap().status();
            let expected = [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::BAD_REQUEST];
            assert!(
                expected.contains(&status),
                "{path} is {status}: {fields:.80}"
            );
        }
    }

    let grown = peak(served.id()) - before;
    eprintln!("note: 20 rounds open, whose requests have trees: +{grown} MiB");
    assert!(grown < 250, "{grown} MiB");
    open.iter().for_each(|open| open.abort());
}
