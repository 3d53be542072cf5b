//! The tasks of a fan-out by time and cost.

use callboard_actors::{
    chat::Usage,
    policy::{Price, Prices},
};

use super::*;

/// A server whose model takes as many tokens as its task says, and starts a subagent for `more`.
async fn costly(price: Option<f64>) -> Server {
    let model = ScriptedModel::answering(|request, _| {
        let last = request.messages.last().map(|message| message.text());
        let last = last.unwrap_or_default();
        let output = last.split(' ').find_map(|word| word.parse().ok());
        let reply = match last.starts_with("more") {
            true => Reply::tool("create_subagent", &json!({ "task": "below <zzx> 30000" })),
            false if last.starts_with("stall") => Reply::stall(),
            false => Reply::text("done"),
        };
        reply.usage(Usage {
            input_uncached: 1,
            output: output.unwrap_or_default(),
            ..Usage::default()
        })
    });
    let mut prices = Prices::default();
    if let Some(price) = price {
        prices = prices.with("scripted*", Price::per_million(0.0, price).unwrap());
    }
    let host = Host::builder()
        .shared_provider(Arc::new(model))
        .model("scripted-1")
        .prices(prices)
        .subagents()
        .build()
        .await
        .unwrap();
    Server::over(host, Setting::default()).await
}

/// The bars of a page: their classes and their titles.
fn bars(page: &str) -> Vec<(String, String)> {
    let parts = page.split("<g class=\"bar ").skip(1);
    parts
        .map(|part| {
            let (class, rest) = part.split_once("\"><title>").unwrap();
            let title = rest.split("</title>").next().unwrap();
            (class.to_owned(), title.to_owned())
        })
        .collect()
}

#[tokio::test]
async fn the_tasks_of_a_fan_out_are_bars_coloured_by_cost_and_a_table() {
    let server = costly(Some(100.0)).await;
    let mut browser = Browser::with(&server, ACME).await;
    let tasks = [
        ("name", "f"),
        ("tasks", "task 60000\ntask 10000\ntask 30000"),
    ];
    browser.form("/console/fanouts/start", &tasks).await;
    let results = browser.until("/console/fanouts/of/f", "3 of 3 ended").await;
    assert!(results.contains("href=\"/console/fanouts/of/f/cost\""));

    let page = browser.get("/console/fanouts/of/f/cost").await.text;
    assert!(page.contains("3 tasks, 100,003 tokens, $10.00"), "{page}");
    let bars = bars(&page);
    let heats = [
        ("Task 0:", "heat5 hot"),
        ("Task 1:", "heat0"),
        ("Task 2:", "heat2"),
    ];
    for (start, heat) in heats {
        let bar = bars.iter().find(|(_, title)| title.starts_with(start));
        assert_eq!(bar.map(|(class, _)| class.as_str()), Some(heat), "{bars:?}");
    }
    let first = bars.iter().find(|(_, title)| title.starts_with("Task 0"));
    let title = &first.unwrap().1;
    assert!(title.contains("$6.00 (60.0 %), 60,001 tokens, "), "{title}");
    // The same as text, the costliest first, each with a link to its conversation.
    assert_eq!(table(&page), ["Task 0", "Task 2", "Task 1"]);
    server.end().await;
}

/// The names of a page's table by cost.
fn table(page: &str) -> Vec<&str> {
    let table = page.split_once("As a table").unwrap().1;
    let links = table.split("<a href=\"/console/c/subagent:").skip(1);
    let names = links.map(|row| {
        row.split("</a>")
            .next()
            .unwrap()
            .rsplit('>')
            .next()
            .unwrap()
    });
    names.collect()
}

#[tokio::test]
async fn subagents_of_a_conversation_are_bars_coloured_by_cost() {
    let server = costly(Some(100.0)).await;
    server.send("c", "more").await;
    let mut browser = Browser::with(&server, ACME).await;

    let page = browser.get("/console/c/c/subagents").await.text;
    let bars = bars(&page);
    let [(class, title)] = bars.as_slice() else {
        panic!("{page}");
    };
    assert_eq!(class, "heat5 hot");
    assert!(
        title.starts_with("below &lt;zzx&gt; 30000: $3.00 (100.0 %), 30,001 tokens, "),
        "{title}"
    );
    assert_eq!(table(&page), ["below &lt;zzx&gt; 30000"]);
    assert!(!page.contains("<zzx"));
    server.end().await;
}

#[tokio::test]
async fn a_task_that_runs_is_a_bar_and_tokens_stand_for_costs_without_a_price() {
    let server = costly(None).await;
    let mut browser = Browser::with(&server, ACME).await;
    let tasks = [("name", "f"), ("tasks", "stall\ntask 500")];
    browser.form("/console/fanouts/start", &tasks).await;
    browser.until("/console/fanouts/of/f", "1 of 2 ended").await;

    let page = browser
        .until("/console/fanouts/of/f/cost", "2 tasks, ")
        .await;
    assert!(page.contains("colours stand for tokens"));
    let bars = bars(&page);
    let (class, _) = bars
        .iter()
        .find(|(_, title)| title.starts_with("A task"))
        .unwrap();
    assert!(class.ends_with(" open"), "{bars:?}");
    let (class, _) = bars
        .iter()
        .find(|(_, title)| title.starts_with("Task 1"))
        .unwrap();
    assert!(class.starts_with("heat5"), "{bars:?}");
    browser.form("/console/fanouts/of/f/cancel", &[]).await;
    browser.until("/console/fanouts/of/f", "2 of 2 ended").await;
    let page = browser.get("/console/fanouts/of/f/cost").await.text;
    let failed = self::bars(&page);
    assert!(
        failed.iter().any(|(class, _)| class.ends_with(" failed")),
        "{failed:?}"
    );

    let mut zeta = Browser::with(&server, ZETA).await;
    let theirs = zeta.get("/console/fanouts/of/f/cost").await;
    let none = zeta.get("/console/fanouts/of/g/cost").await;
    assert_eq!((theirs.status, theirs.text), (404, none.text));
    server.end().await;
}

#[tokio::test]
async fn of_very_many_tasks_those_with_the_most_tokens_are_shown() {
    let server = costly(Some(1.0)).await;
    let mut browser = Browser::with(&server, ACME).await;
    let tasks: Vec<String> = (0..1100).map(|n| format!("task {n}")).collect();
    let start = [("name", "f"), ("tasks", &*tasks.join("\n"))];
    browser.form("/console/fanouts/start", &start).await;
    browser
        .until("/console/fanouts/of/f", "1,100 of 1,100 ended")
        .await;

    let page = browser.get("/console/fanouts/of/f/cost").await.text;
    assert!(page.contains("the 1,000 with the most tokens, of 1,100 tasks"));
    let bars = bars(&page);
    assert_eq!(bars.len(), 1000);
    assert!(
        bars.iter()
            .any(|(_, title)| title.starts_with("Task 1099:"))
    );
    assert!(!bars.iter().any(|(_, title)| title.starts_with("Task 99:")));
    assert!(page.len() < 1024 * 1024, "{}", page.len());
    server.end().await;
}
