//! Histories of other programs, over `PUT` and import: what providers accept is taken and gives a
//! valid request in both wire forms; the rest is a 422 that points to its place, and an import
//! repairs it. The table is generated from a few talks; [`valid`] and [`broken`] list its classes.

use callboard::providers::{Anthropic, OpenAi};
use callboard_actors::{
    chat::{History, Message, ModelRequest},
    testing::media::padded_png,
};

use super::*;

/// Histories in the table, at least.
const HISTORIES_MIN: usize = 230;

struct Case {
    name: String,
    messages: Vec<Value>,
    /// The place that is refused; `None` for a valid history.
    pointer: Option<String>,
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "look_up", "input": {"q": id}})
}

fn result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": format!("found {id}")})
}

fn user(content: impl Into<Value>) -> Value {
    json!({"role": "user", "content": content.into()})
}

fn assistant(content: impl Into<Value>) -> Value {
    json!({"role": "assistant", "content": content.into()})
}

fn png() -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(padded_png(8, 8, 600))
}

fn image(media_type: &str, data: &str) -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}})
}

/// All orders of `0..n`.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(n - 1);
    shorter
        .iter()
        .flat_map(|order| {
            (0..n).map(|place| {
                let mut order = order.clone();
                order.insert(place, n - 1);
                order
            })
        })
        .collect()
}

/// A talk with `calls` calls in one answer, their results in `order`.
fn talk(calls: usize, order: &[usize]) -> Vec<Value> {
    let id = |n: usize| format!("call_{n}");
    vec![
        user("find it"),
        assistant((0..calls).map(|n| call(&id(n))).collect::<Vec<_>>()),
        user(order.iter().map(|n| result(&id(*n))).collect::<Vec<_>>()),
        assistant("done"),
    ]
}

fn valid() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, messages: Vec<Value>| {
        cases.push(Case {
            name,
            messages,
            pointer: None,
        });
    };
    for calls in 1..=4 {
        for order in orders(calls) {
            add(
                format!("results in the order {order:?}"),
                talk(calls, &order),
            );
            let mut with_text = talk(calls, &order);
            with_text[2]["content"]
                .as_array_mut()
                .unwrap()
                .push(text("and hurry"));
            with_text[1]["content"]
                .as_array_mut()
                .unwrap()
                .insert(0, text("I look."));
            add(
                format!("text behind results in the order {order:?}"),
                with_text,
            );
        }
    }
    for order in orders(3) {
        let mut twice = talk(3, &order);
        twice.push(user("again"));
        twice.push(assistant(vec![call("x"), call("y")]));
        twice.push(user(vec![result("y"), result("x")]));
        add(format!("two exchanges, {order:?}"), twice);
        let mut apart = talk(3, &order);
        let results = apart.remove(2)["content"].as_array().unwrap().clone();
        for (n, result) in results.into_iter().enumerate() {
            apart.insert(2 + n, user(vec![result]));
        }
        add(format!("each result in its message, {order:?}"), apart);
        let mut split = talk(3, &order);
        let calls = split.remove(1)["content"].as_array().unwrap().clone();
        for (n, call) in calls.into_iter().enumerate() {
            split.insert(1 + n, assistant(vec![call]));
        }
        add(format!("each call in its message, {order:?}"), split);
    }
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"});
    for (name, blocks) in [
        ("thinking before text", vec![thinking.clone(), text("so")]),
        (
            "unsigned thinking",
            vec![json!({"type": "thinking", "thinking": "hm"}), text("so")],
        ),
        (
            "redacted thinking",
            vec![
                json!({"type": "redacted_thinking", "data": "eA=="}),
                text("so"),
            ],
        ),
        ("two texts", vec![text("a"), text("b")]),
        (
            "citations",
            vec![json!({"type": "text", "text": "a", "citations": []})],
        ),
        (
            "a cache mark",
            vec![json!({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}})],
        ),
    ] {
        add(name.into(), vec![user("q"), assistant(blocks)]);
    }
    let apart = vec![
        user("q"),
        assistant(vec![thinking]),
        assistant(vec![call("a")]),
        user(vec![result("a")]),
    ];
    add("thinking in a separate message".into(), apart);
    for id in ["functions.find:0", "call/1", "ü", "a b", &"x".repeat(90)] {
        let messages = vec![user("q"), assistant(vec![call(id)]), user(vec![result(id)])];
        add(format!("the id {id:?}"), messages);
    }
    for (name, content) in [
        ("no content", json!(null)),
        ("empty content", json!("")),
        ("blocks", json!([text("r")])),
        ("an image", json!([text("r"), image("image/png", &png())])),
        ("an error", json!("failed")),
    ] {
        let mut result = result("a");
        result["content"] = content;
        result["is_error"] = json!(name == "an error");
        let messages = vec![user("q"), assistant(vec![call("a")]), user(vec![result])];
        add(format!("a result with {name}"), messages);
    }
    let source = |source: Value| json!({"type": "document", "source": source});
    for (name, blocks) in [
        ("an image", vec![text("see"), image("image/png", &png())]),
        ("an image alone", vec![image("image/png", &png())]),
        (
            "an image by URL",
            vec![
                json!({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}),
            ],
        ),
        (
            "a text document",
            vec![source(
                json!({"type": "text", "media_type": "text/plain", "data": "page"}),
            )],
        ),
    ] {
        add(name.into(), vec![user(blocks), assistant("nice")]);
    }
    add("empty".into(), vec![]);
    add("one message".into(), vec![user("a")]);
    add(
        "two user messages".into(),
        vec![user("a"), user("b"), assistant("c")],
    );
    add(
        "two answers".into(),
        vec![user("a"), assistant("b"), assistant("c")],
    );
    for n in 0..20 {
        let long = (0..n).flat_map(|n| [user(format!("q{n}")), assistant(format!("a{n}"))]);
        add(format!("{n} rounds"), long.collect());
    }
    cases
}

fn broken() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, messages: Vec<Value>, pointer: &str| {
        cases.push(Case {
            name,
            messages,
            pointer: Some(format!("/messages{pointer}")),
        });
    };
    for calls in 1..=4 {
        let order: Vec<usize> = (0..calls).collect();
        for place in 0..calls {
            let mut between = talk(calls, &order);
            between[2]["content"]
                .as_array_mut()
                .unwrap()
                .insert(place, text("wait"));
            add(
                format!("text before result {place} of {calls}"),
                between,
                &format!("/2/content/{place}"),
            );
            let mut missing = talk(calls, &order);
            missing[2]["content"].as_array_mut().unwrap().remove(place);
            if calls == 1 {
                missing.remove(2);
            }
            add(
                format!("no result {place} of {calls}"),
                missing,
                &format!("/1/content/{place}"),
            );
            let mut twice = talk(calls, &order);
            twice[2]["content"]
                .as_array_mut()
                .unwrap()
                .push(result(&format!("call_{place}")));
            add(
                format!("result {place} of {calls} twice"),
                twice,
                &format!("/2/content/{calls}"),
            );
            let mut again = talk(calls, &order);
            again.push(user("more"));
            again.push(assistant(vec![call(&format!("call_{place}"))]));
            again.push(user(vec![result(&format!("call_{place}"))]));
            add(
                format!("the id of call {place} of {calls} in a later answer"),
                again,
                "/5/content/0",
            );
            let mut one = talk(calls, &order);
            one[1]["content"]
                .as_array_mut()
                .unwrap()
                .push(call(&format!("call_{place}")));
            add(
                format!("the id of call {place} of {calls} twice"),
                one,
                &format!("/1/content/{calls}"),
            );
            let mut blank = talk(calls, &order);
            blank[1]["content"]
                .as_array_mut()
                .unwrap()
                .insert(place, text(" \n"));
            add(
                format!("a blank text before call {place} of {calls}"),
                blank,
                &format!("/1/content/{place}"),
            );
        }
        let mut crashed = talk(calls, &order);
        crashed.truncate(2);
        add(
            format!("a crash before {calls} results"),
            crashed,
            "/1/content/0",
        );
        let mut appended = talk(calls, &order);
        appended.insert(2, appended[1].clone());
        add(
            format!("an answer with {calls} calls appended twice"),
            appended,
            "/2",
        );
        let mut orphan = talk(calls, &order);
        orphan.remove(1);
        add(
            format!("{calls} results without calls"),
            orphan,
            "/1/content/0",
        );
        let mut late = talk(calls, &order);
        late.insert(2, user("meanwhile"));
        add(format!("{calls} results too late"), late, "/1/content/0");
        let mut head = talk(calls, &order);
        head.remove(0);
        add(format!("first an answer with {calls} calls"), head, "/0");
    }
    for blank in ["", " ", "\n\t", "\u{a0}"] {
        let with = |blocks: Value| vec![user("q"), assistant("a"), user(blocks), assistant("b")];
        add(
            format!("the message {blank:?}"),
            with(json!(blank)),
            "/2/content/0",
        );
        add(
            format!("{blank:?} before text"),
            with(json!([text(blank), text("x")])),
            "/2/content/0",
        );
        add(
            format!("{blank:?} behind text"),
            with(json!([text("x"), text(blank)])),
            "/2/content/1",
        );
        add(
            format!("the answer {blank:?}"),
            vec![user("q"), assistant(blank)],
            "/1/content/0",
        );
        let inside = json!({"type": "tool_result", "tool_use_id": "a", "content": [text(blank)]});
        let messages = vec![user("q"), assistant(vec![call("a")]), user(vec![inside])];
        add(format!("{blank:?} in a result"), messages, "/2/content/0");
    }
    for (name, data) in [
        ("no base64", "@@@@"),
        ("base64 cut short", &png()[..13]),
        ("empty", ""),
        ("another file", "aGVsbG8gd29ybGQ="),
    ] {
        let broken = image("image/png", data);
        add(
            format!("an image: {name}"),
            vec![user(vec![text("see"), broken.clone()])],
            "/0/content/1",
        );
        let inside =
            json!({"type": "tool_result", "tool_use_id": "a", "content": [broken.clone()]});
        let messages = vec![user("q"), assistant(vec![call("a")]), user(vec![inside])];
        add(
            format!("an image in a result: {name}"),
            messages,
            "/2/content/0",
        );
        let document = json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}});
        add(
            format!("a document: {name}"),
            vec![user(vec![document])],
            "/0/content/0",
        );
    }
    add(
        "a PNG called JPEG".into(),
        vec![user(vec![image("image/jpeg", &png())])],
        "/0/content/0",
    );
    let from_model = vec![
        user("q"),
        assistant(vec![text("see"), image("image/png", &png())]),
    ];
    add("an image in an answer".into(), from_model, "/1/content/1");
    for name in ["", " ", "a.b", "a b", "füge", &"n".repeat(65)] {
        let mut odd = call("a");
        odd["name"] = json!(name);
        let messages = vec![user("q"), assistant(vec![odd]), user(vec![result("a")])];
        add(format!("the tool {name:?}"), messages, "/1/content/0");
    }
    let messages = vec![user("q"), assistant(vec![call("")]), user(vec![result("")])];
    add("an empty id".into(), messages, "/1/content/0");
    for kind in ["tool_use", "tool_result", "thinking"] {
        let mut inside = call("b");
        inside["type"] = json!(kind);
        inside["tool_use_id"] = json!("b");
        inside["thinking"] = json!("b");
        let result = json!({"type": "tool_result", "tool_use_id": "a", "content": [inside]});
        let messages = vec![user("q"), assistant(vec![call("a")]), user(vec![result])];
        add(format!("{kind} in a result"), messages, "/2/content/0");
    }
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"});
    let ends = vec![
        user("q"),
        assistant(vec![text("a"), thinking.clone()]),
        user("r"),
    ];
    add(
        "an answer that ends in thinking".into(),
        ends,
        "/1/content/1",
    );
    add(
        "an answer of thinking".into(),
        vec![user("q"), assistant(vec![thinking])],
        "/1/content/0",
    );
    add(
        "first an answer".into(),
        vec![assistant("Welcome!"), user("q")],
        "/0",
    );
    // Not messages at all.
    for (name, message) in [
        ("no role", json!({"content": "a"})),
        ("another role", json!({"role": "system", "content": "a"})),
        ("no content", json!({"role": "user"})),
        ("no block", json!({"role": "user", "content": []})),
        ("a number", json!({"role": "user", "content": 7})),
        ("a call of a person", user(vec![call("a")])),
        ("a result of a model", assistant(vec![result("a")])),
        (
            "arguments that are a list",
            assistant(vec![
                json!({"type": "tool_use", "id": "a", "name": "f", "input": []}),
            ]),
        ),
        ("a block without a type", user(vec![json!({"text": "a"})])),
    ] {
        add(name.into(), vec![user("q"), assistant("a"), message], "/2");
    }
    cases
}

/// Checks the rules that Anthropic's API documents for messages. Written without the code under
/// test.
fn check_anthropic(messages: &[Value]) -> Result<(), String> {
    let mut seen = std::collections::HashSet::new();
    let mut expected: Vec<String> = Vec::new();
    if messages
        .first()
        .is_some_and(|first| first["role"] != "user")
    {
        return Err("the first message is not the user's".into());
    }
    for (n, message) in messages.iter().enumerate() {
        let blocks = message["content"].as_array().ok_or("content is no list")?;
        if blocks.is_empty() {
            return Err(format!("{n} is empty"));
        }
        let mut open = expected.clone();
        let mut only_results = true;
        expected.clear();
        for block in blocks {
            let name_fits = |text: &str| {
                !text.is_empty()
                    && text.len() <= 64
                    && text
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
            };
            match block["type"].as_str().unwrap() {
                "text" if block["text"].as_str().unwrap().trim().is_empty() => {
                    return Err(format!("{n} has a blank text"));
                }
                "tool_use" => {
                    let id = block["id"].as_str().unwrap();
                    if !name_fits(id) || !name_fits(block["name"].as_str().unwrap()) {
                        return Err(format!("{n}: id or name"));
                    }
                    if !seen.insert(id.to_owned()) {
                        return Err(format!("{n}: id {id} twice"));
                    }
                    expected.push(id.to_owned());
                }
                "tool_result" => {
                    let id = block["tool_use_id"].as_str().unwrap();
                    let place = open.iter().position(|open| open == id);
                    open.remove(place.ok_or(format!("{n}: no call {id}"))?);
                    if !only_results {
                        return Err(format!("{n}: text before a result"));
                    }
                    for inside in block["content"].as_array().into_iter().flatten() {
                        if inside["text"]
                            .as_str()
                            .is_some_and(|text| text.trim().is_empty())
                        {
                            return Err(format!("{n} has a blank text in a result"));
                        }
                    }
                    continue;
                }
                "image" | "document" => {
                    use base64::Engine as _;
                    let source = &block["source"];
                    if source["type"] == "base64" {
                        let data = source["data"].as_str().unwrap_or_default();
                        let decoded = base64::engine::general_purpose::STANDARD.decode(data);
                        if decoded.is_ok_and(|bytes| bytes.len() > 20) && message["role"] == "user"
                        {
                            continue;
                        }
                        return Err(format!("{n}: broken attachment"));
                    }
                }
                _ => {}
            }
            only_results = false;
        }
        if !open.is_empty() {
            return Err(format!("{n}: no result for {open:?}"));
        }
        let last = blocks.last().unwrap()["type"].as_str().unwrap();
        if message["role"] == "assistant" && last.ends_with("thinking") {
            return Err(format!("{n} ends in thinking"));
        }
    }
    if expected.is_empty() {
        Ok(())
    } else {
        Err(format!("no result for {expected:?}"))
    }
}

/// The same for Chat Completions.
fn check_openai(messages: &[Value]) -> Result<(), String> {
    let mut open: Vec<String> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (n, message) in messages.iter().enumerate() {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().unwrap();
            let place = open.iter().position(|open| open == id);
            open.remove(place.ok_or(format!("{n}: no call {id}"))?);
            if !message["content"].is_string() {
                return Err(format!("{n}: a tool's content is a string"));
            }
            continue;
        }
        if !open.is_empty() {
            return Err(format!("{n}: no result for {open:?}"));
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let id = call["id"].as_str().unwrap();
            if id.is_empty() || id.len() > 40 || !seen.insert(id.to_owned()) {
                return Err(format!("{n}: id {id:?}"));
            }
            serde_json::from_str::<serde_json::Map<String, Value>>(
                call["function"]["arguments"].as_str().unwrap(),
            )
            .map_err(|error| error.to_string())?;
            open.push(id.to_owned());
        }
        if message["content"].is_null() && message["tool_calls"].is_null() {
            return Err(format!("{n} is empty"));
        }
    }
    Ok(())
}

struct Wires {
    anthropic: Anthropic,
    openai: OpenAi,
}

impl Wires {
    fn new() -> Self {
        Self {
            anthropic: Anthropic::builder("not-a-real-key").build().unwrap(),
            openai: OpenAi::builder().api_key("not-a-real-key").build().unwrap(),
        }
    }

    fn check(&self, request: &ModelRequest) -> Result<(), String> {
        let messages = |body: bytes::Bytes| {
            let body: Value = serde_json::from_slice(&body).unwrap();
            body["messages"].as_array().unwrap().clone()
        };
        check_anthropic(&messages(self.anthropic.request_body(request).unwrap()))
            .map_err(|why| format!("Anthropic: {why}"))?;
        check_openai(&messages(self.openai.request_body(request).unwrap()))
            .map_err(|why| format!("OpenAI: {why}"))
    }
}

async fn put(server: &Server, id: &str, messages: &[Value]) -> Response {
    let request = server.ask(Method::PUT, &format!("/v1/conversations/{id}"), ACME);
    soon(with_json(request, &json!({ "messages": messages })).send())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_is_taken_or_refused_with_its_place_and_both_wires_accept_what_is_taken() {
    let mut bounds = HttpBounds::default();
    bounds.remote_attachments = true; // What every provider accepts, whoever fetches it.
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = ScriptedModel::always(Reply::text("yes"));
    let server = Server::with(Arc::new(model), setting).await;
    let wires = Wires::new();
    let cases: Vec<Case> = valid().into_iter().chain(broken()).collect();
    assert!(cases.len() >= HISTORIES_MIN, "{}", cases.len());
    let setup = server.host.setup_of(&tenant("acme"));
    let mut wrong = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        let id = format!("h{n}");
        let response = put(&server, &id, &case.messages).await;
        let status = response.status();
        let answer = body(response).await;
        match &case.pointer {
            None if status == StatusCode::CREATED => {
                let state = server
                    .host
                    .tenant("acme")
                    .conversation(id.as_str())
                    .state()
                    .await;
                let checked = wires.check(&setup.request(&state.unwrap()));
                wrong.extend(checked.err().map(|why| format!("{}: {why}", case.name)));
            }
            Some(pointer) if status == 422 && answer["pointer"] == json!(pointer) => {}
            expected => wrong.push(format!(
                "{}: {status} {answer}, expected the fault at {expected:?}",
                case.name
            )),
        }
    }
    put(&server, "whole", &talk(2, &[1, 0])).await;
    let path = "/v1/conversations/whole/messages";
    let context = body(server.get(path).await).await;
    let whole = body(server.get(&format!("{path}?whole=true&limit=9")).await).await;
    assert_eq!((&whole, &whole["total"]), (&context, &json!(4)));
    assert_eq!(
        problem(server.get(&format!("{path}?whole=perhaps")).await)
            .await
            .0,
        422
    );
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repaired_history_is_valid_in_both_wires_and_reports_each_fault() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let wires = Wires::new();
    let setup = server.host.setup_of(&tenant("acme"));
    for (n, case) in valid().into_iter().chain(broken()).enumerate() {
        let messages: Result<Vec<Message>, _> = case
            .messages
            .iter()
            .map(|message| Message::from_wire(message.to_string().as_bytes()))
            .collect();
        let Ok(messages) = messages else {
            assert!(case.pointer.is_some(), "{}", case.name);
            continue; // An import refuses it with the number of the message.
        };

        let (history, repairs) = History::mend(messages);

        assert!(
            case.pointer.is_none() || !repairs.is_empty(),
            "{}",
            case.name
        );
        let mended: Vec<Message> = history.messages().iter().cloned().collect();
        assert_eq!(
            History::accept(mended.clone()).as_ref(),
            Ok(&history),
            "{}",
            case.name
        );
        let handle = server.host.tenant("acme").conversation(format!("m{n}"));
        handle.import(mended).await.unwrap();
        let checked = wires.check(&setup.request(&handle.state().await.unwrap()));
        assert_eq!(checked, Ok(()), "{}\n{:?}", case.name, history.messages());
    }
    server.end().await;
}
