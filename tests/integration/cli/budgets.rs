//! Budgets and time limits of a run: tokens, money, seconds.

use super::Home;
use crate::support::model_server::{ModelServer, Reply, Step, anthropic_text, anthropic_tool, sse};

#[test]
fn a_budget_of_tokens_that_is_used_up_ends_the_round() {
    let home = Home::new();

    let ran = home.run(&[
        "run",
        "--provider",
        "offline",
        "--budget-tokens",
        "10",
        "--json",
        "Where is the cap?",
    ]);

    assert_eq!(ran.code, Some(1), "{ran:?}");
    let events = ran.events();
    let end = events
        .iter()
        .find(|event| event["type"] == "round_finished")
        .unwrap();
    assert_eq!(end["stop_reason"], "budget", "{end}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_of_tokens_ends_a_round_after_the_text_so_far() {
    let home = Home::new();
    let model = ModelServer::start([
        Reply::events(anthropic_tool(
            "think",
            &serde_json::json!({"thought": "x"}),
        )),
        Reply::events(anthropic_text("Never said.")),
    ])
    .await;
    let url = model.url();

    let ran = home.run(&[
        "run",
        "--provider",
        "anthropic",
        "--base-url",
        &url,
        "--budget-tokens",
        "8000",
        "--tools",
        "think",
        "Think.",
    ]);
    let fits = ran.code == Some(0);
    let cut = home.run(&[
        "run",
        "--provider",
        "anthropic",
        "--base-url",
        &url,
        "--budget-tokens",
        "1",
        "--tools",
        "think",
        "Think.",
    ]);

    assert!(fits, "{ran:?}");
    assert_eq!(cut.code, Some(1), "{cut:?}");
    assert_eq!(
        model.requests().len(),
        2,
        "nothing is asked that cannot be paid"
    );
}

#[test]
fn a_budget_of_money_without_a_price_is_wrong_usage() {
    let home = Home::new();
    std::fs::write(
        home.work().join("callboard.toml"),
        "[prices]\n\"rule\" = { input = 1, output = 1 }\n",
    )
    .unwrap();

    let ran = home.run(&[
        "run",
        "--provider",
        "offline",
        "--budget-usd",
        "1",
        "Where is the cap?",
    ]);

    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.error().contains(
            "a budget of money needs a price for the model `rules`; the nearest price is for `rule`"
        ),
        "{ran:?}"
    );
}

#[test]
fn a_budget_of_money_that_is_used_up_ends_the_round() {
    let home = Home::new();
    std::fs::write(
        home.work().join("callboard.toml"),
        "[prices]\n\"rules\" = { input = 100, output = 100 }\n",
    )
    .unwrap();

    let poor = home.run(&[
        "run",
        "--provider",
        "offline",
        "--budget-usd",
        "0.0001",
        "--json",
        "Where is the cap?",
    ]);
    let rich = home.run(&[
        "run",
        "--provider",
        "offline",
        "--budget-usd",
        "1000",
        "Where is the cap?",
    ]);

    assert_eq!(poor.code, Some(1), "{poor:?}");
    assert!(
        poor.events()
            .iter()
            .any(|event| event["stop_reason"] == "budget"),
        "{poor:?}"
    );
    assert_eq!(rich.code, Some(0), "{rich:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_ends_the_round_and_prints_the_text_so_far() {
    let home = Home::new();
    let model = ModelServer::start([Reply::stream()
        .send(sse(anthropic_text("So far").iter().take(3)))
        .then(Step::Stall)])
    .await;
    let url = model.url();

    let ran = home.run(&[
        "run",
        "--provider",
        "anthropic",
        "--base-url",
        &url,
        "--timeout",
        "1",
        "Speak.",
    ]);

    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.out.contains("So far"), "{ran:?}");
    assert!(ran.err.contains("--timeout"), "{ran:?}");
}
