//! `[prices]`: what the answers of models cost, in events, figures and budgets.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{answers, home, home_with, provider, tenants::of};
use crate::support::model_server::{ModelServer, Reply, Step, anthropic_text, openai_text, sse};

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

/// A Chat Completions answer that activates the skill `dear`.
fn activates() -> Vec<String> {
    vec![
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"t1","type":"function","function":{"name":"activate_skill","arguments":"{\"skill_name\":\"dear\"}"}}]},"finish_reason":null}]}"#.into(),
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#.into(),
        r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#.into(),
        "[DONE]".into(),
    ]
}

/// The values of one field in the events of one type.
fn values(events: &[Value], of: &str, field: &str) -> Vec<Value> {
    let of_type = events.iter().filter(|event| event["type"] == of);
    of_type.map(|event| event[field].clone()).collect()
}

/// `gpt-4` has a window of 8192 tokens, `gpt-4o` of 128000, and costs ten times as much here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn price_and_window_are_those_of_the_model_that_a_skill_chose() {
    let model = ModelServer::answering(|asked| {
        let messages = asked["messages"].as_array().map_or(0, Vec::len);
        match (asked["model"].as_str(), messages) {
            (_, 0) => Reply::status(404), // The question for the window of the model.
            (Some("gpt-4o"), 6..) => Reply::events(openai_text("ok")),
            _ => Reply::events(activates()),
        }
    })
    .await;
    let home = home(&format!(
        "[[provider]]\nname = \"p\"\nkind = \"openai\"\nbase_url = \"{}\"\nmodel = \"gpt-4\"\n\
         [skills]\ndir = \"../skills\"\nmodels = [\"gpt-4o\"]\n\
         [prices]\n\"gpt-4\" = {{ input = 100, output = 10000 }}\n\"gpt-4o\" = {{ input = 1000, output = 100000 }}\n",
        model.url_v1()
    ));
    let skill = home.path().join("skills/dear");
    std::fs::create_dir_all(&skill).unwrap();
    let text = "---\nname: dear\ndescription: Wants more.\nmodel: gpt-4o\n---\nDo it well.\n";
    std::fs::write(skill.join("SKILL.md"), text).unwrap();

    let events = home.run(&["run", "--json", "go"]).well().events();

    assert_eq!(values(&events, "usage", "cost_usd"), [0.0205, 0.205, 0.205]);
    // The last call of a round reports none.
    assert_eq!(values(&events, "context", "window"), [8192, 128_000]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_price_is_that_of_the_fallback_that_answered() {
    let failing = ModelServer::start([Reply::status(500)]).await;
    let spare = ModelServer::start([Reply::events(answer())]).await;
    let home = home_with(
        &failing,
        &format!(
            "model = \"claude-cheap\"\nretries_max = 0\n[provider.fallback]\nprovider = \"spare\"\n{}model = \"claude-dear\"\n\
             [prices]\n\"claude-cheap\" = {{ input = 1, output = 1 }}\n\"claude-dear\" = {{ input = 1000, output = 100000 }}\n",
            provider("spare", &spare)
        ),
    );

    let events = home
        .run(&["run", "--no-tools", "--json", "Hello"])
        .well()
        .events();

    // 1230 x 0.001 + 4 x 0.1
    assert_eq!(values(&events, "usage", "cost_usd"), [1.63]);
}

/// Each request for a summary takes 5 tokens and gives 2, at 0.1 and at 0.5 dollars.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn summaries_are_in_the_figures_and_the_budget_of_their_tenant() {
    let model = answers("SUMMARY").await;
    let shared = "[compaction]\nsummary_model = \"claude-summary\"\nmax_cost_per_hour = 100000\n\
                  [prices]\n\"claude-summary\" = { input = 100000, output = 500000 }\n\"*\" = { input = 1, output = 1 }\n";
    let of = of(&model, shared, "tools = []\nbudget = { usd = 100000 }");
    let message = |n: usize| {
        let role = ["user", "assistant"][n % 2];
        json!({"role": role, "content": format!("{n} {}", "words of a person ".repeat(50))})
    };
    let messages: Vec<Value> = (0..120).map(message).collect();
    let put = json!({"messages": messages});
    of.ask(Method::PUT, "/v1/conversations/c", put).await;

    let done = of
        .ask(Method::POST, "/v1/conversations/c/compact", json!({}))
        .await;

    assert!(done.status.is_success(), "{done:?}");
    // A summary that is not waited for may still be on its way.
    let counted = async {
        loop {
            let asked = model.requests().len() as f64;
            let figures = of.text("/v1/metrics").await;
            let figure = |name: &str| -> f64 {
                let lines = figures.lines().filter(|line| line.starts_with(name));
                let values = lines.map(|line| line.rsplit(' ').next().unwrap());
                values.map(|value| value.parse::<f64>().unwrap()).sum()
            };
            let tokens = figure("callboard_tokens_total{");
            let cost = figure("callboard_cost_usd_total ");
            if asked > 0.0 && (tokens, cost) == (asked * 7.0, asked * 1.5) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), counted)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_budget_of_a_conversation_survives_a_kill() {
    let model = ModelServer::start([Reply::events(answer())]).await;
    let prices = "[prices]\n\"*\" = { input = 1000, output = 1000 }\n";
    let mut of = of(
        &model,
        prices,
        "tools = []\nconversation_budget = { usd = 1.25 }",
    );
    let first = of.say("c", "Hi").await;
    assert_eq!(first.body["stop_reason"], "end_turn", "{first:?}");

    of.restart_after_a_kill();
    let second = of.say("c", "Hi").await;
    let other = of.say("other", "Hi").await;

    assert_eq!(second.body["stop_reason"], "budget", "{second:?}");
    assert_eq!(other.body["stop_reason"], "end_turn", "{other:?}");
    assert_eq!(model.requests().len(), 2);
}

/// An answer takes 1,234 tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_budget_of_a_tenant_survives_a_kill_and_its_deleted_conversations() {
    let model = ModelServer::start([Reply::events(answer())]).await;
    let mut of = of(&model, "", "tools = []\nbudget = { tokens = 1300 }");
    let first = of.say("c", "Hi").await;
    assert_eq!(first.body["stop_reason"], "end_turn", "{first:?}");
    of.until_stored("SELECT 1 FROM spending WHERE tenant = 'acme' AND tokens = 1234");

    of.restart_after_a_kill();
    let second = of.say("c", "Hi").await;
    let gone = of
        .ask(Method::DELETE, "/v1/conversations/c", json!({}))
        .await;
    assert!(gone.status.is_success(), "{gone:?}");
    of.restart_after_a_kill();
    let third = of.say("other", "Hi").await;

    for refused in [second, third] {
        assert_eq!(refused.body["stop_reason"], "budget", "{refused:?}");
    }
    assert_eq!(model.requests().len(), 1);
}

/// The answer to a single call, of which about 5,000 tokens came, is in no conversation afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_calls_that_the_end_of_a_host_cuts_are_in_the_budget_of_their_tenant() {
    let words = anthropic_text(&"long ".repeat(4000));
    let cut = || {
        Reply::stream()
            .send(sse(words.iter().take(3)))
            .then(Step::Stall)
    };
    // A killed host forgets how much was written.
    for (signals, least) in [(&["TERM", "TERM"][..], 5000), (&["KILL"], 100)] {
        let model = ModelServer::start([cut()]).await;
        let mut of = of(&model, "", "tools = []\nbudget = { tokens = 100000 }");
        let call = of.single_call(20_000).await;

        of.restart_after(signals);

        drop(call);
        of.until_stored(&format!(
            "SELECT 1 FROM spending WHERE tenant = 'acme' AND tokens > {least}"
        ));
    }
}

/// Each request for a summary takes 5 tokens and gives 2, at 0.1 and at 0.5 dollars.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_of_a_summary_survives_a_kill() {
    let model = answers("SUMMARY").await;
    let shared = "[compaction]\nsummary_model = \"claude-summary\"\nmax_cost_per_hour = 100000\n\
                  [prices]\n\"claude-summary\" = { input = 100000, output = 500000 }\n\"*\" = { input = 1, output = 1 }\n";
    let mut of = of(
        &model,
        shared,
        "tools = []\nconversation_budget = { usd = 1.25 }",
    );
    let message = |n: usize| {
        let role = ["user", "assistant"][n % 2];
        json!({"role": role, "content": format!("{n} {}", "words of a person ".repeat(50))})
    };
    let messages: Vec<Value> = (0..120).map(message).collect();
    let put = json!({"messages": messages});
    of.ask(Method::PUT, "/v1/conversations/c", put).await;
    let done = of
        .ask(Method::POST, "/v1/conversations/c/compact", json!({}))
        .await;
    assert!(done.status.is_success(), "{done:?}");
    assert!(!model.requests().is_empty(), "a model wrote a summary");

    of.restart_after_a_kill();
    let second = of.say("c", "Hi").await;
    let other = of.say("other", "Hi").await;

    assert_eq!(second.body["stop_reason"], "budget", "{second:?}");
    assert_eq!(other.body["stop_reason"], "end_turn", "{other:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncation_pays_for_a_summary_only_where_a_request_asks_for_one() {
    let model = answers("SUMMARY").await;
    let of = of(
        &model,
        "[compaction]\nstrategy = \"truncate\"\n",
        "tools = []",
    );
    let message = |n: usize| {
        let role = ["user", "assistant"][n % 2];
        json!({"role": role, "content": format!("{n} {}", "words of a person ".repeat(50))})
    };
    let put = json!({"messages": (0..120).map(message).collect::<Vec<Value>>()});
    for (id, query, asked) in [("a", "", false), ("b", "?summary=true", true)] {
        let path = format!("/v1/conversations/{id}");
        of.ask(Method::PUT, &path, put.clone()).await;

        let compact = format!("{path}/compact{query}");
        let done = of.ask(Method::POST, &compact, json!({})).await;

        assert_eq!(done.body["compacted"], true, "{done:?}");
        assert_eq!(!model.requests().is_empty(), asked, "{query}");
    }
}
