//! The request body of a model call.

use callboard::providers::Anthropic;

use super::*;
use crate::support::model_server::{ModelServer, Reply, anthropic_text, anthropic_tool};

const SYSTEM: &str = "The house rules of the operator.";
const KEY: &str = "sk-ant-not-a-real-key-0123456789";

/// A server over Anthropic's API, whose model uses the tool once if the prompt says so.
async fn over_anthropic(system: Option<&str>) -> (Server, ModelServer) {
    let model = ModelServer::answering(|request| {
        let messages = request["messages"].as_array().unwrap();
        let last = messages.last().unwrap().to_string();
        let events = match last.contains("use it") && !last.contains("tool_result") {
            true => anthropic_tool("note", &json!({ "text": "milk" })),
            false => anthropic_text("**yes**"),
        };
        Reply::events(events)
    })
    .await;
    let provider = Anthropic::builder("not-a-real-key")
        .base_url(model.url())
        .build()
        .unwrap();
    let mut builder = Host::builder()
        .shared_provider(Arc::new(provider))
        .model("claude-sonnet-4-5")
        .approval(ApprovalMode::Auto)
        .tool(note());
    if let Some(system) = system {
        builder = builder.system(system);
    }
    let setting = Setting {
        redactor: Redactor::new([KEY]),
        ..Setting::default()
    };
    (
        Server::over(builder.build().await.unwrap(), setting).await,
        model,
    )
}

/// The addresses of the bodies that the figures of a conversation link to, oldest first.
async fn links(browser: &mut Browser, id: &str) -> Vec<String> {
    let page = browser.get(&format!("/console/c/{id}/figures")).await.text;
    let start = format!("/console/c/{id}/call/");
    let parts = page.split(&start).skip(1);
    parts
        .map(|part| format!("{start}{}", part.split('"').next().unwrap()))
        .collect()
}

#[tokio::test]
async fn the_body_of_each_model_call_is_what_the_provider_was_sent() {
    let (server, model) = over_anthropic(None).await;
    server.send("c", "use it").await;
    server.send("c", "and \u{202e}<zzx> again").await;
    let mut browser = Browser::with(&server, ACME).await;

    let links = links(&mut browser, "c").await;
    let sent = model.requests();
    assert_eq!((links.len(), sent.len()), (3, 3));
    for (link, sent) in links.iter().zip(&sent) {
        let body = browser.get(&format!("{link}/body")).await;
        assert_eq!(body.text, String::from_utf8_lossy(&sent.body));
        assert_eq!(body.headers["content-type"], "application/json");
        assert!(
            body.headers["content-disposition"]
                .to_str()
                .unwrap()
                .starts_with("attachment")
        );
        let page = browser.get(link).await;
        assert!(
            page.text.contains("\n  &quot;messages&quot;: [\n"),
            "{}",
            page.text
        );
        assert!(page.text.contains("Download the whole") && !page.text.contains("<zzx"));
        assert!(!page.text.contains('\u{202e}') && !page.text.contains("This is the beginning"));
    }
    // Other entries are no model call, and other tenants have no such conversation.
    let last = links[2].rsplit_once('/').unwrap().1.parse::<u64>().unwrap();
    for path in [
        "/console/c/c/call/1".to_owned(),
        format!("/console/c/c/call/{}/body", last + 1),
        "/console/c/c/call/0".to_owned(),
        format!("/console/c/c/call/{}", u64::MAX),
    ] {
        assert_eq!(browser.get(&path).await.status, 404, "{path}");
    }
    let mut zeta = Browser::with(&server, ZETA).await;
    let theirs = zeta.get(&links[0]).await;
    let none = zeta.get("/console/c/d/call/3").await;
    assert_eq!((theirs.status, theirs.text), (404, none.text));
    server.end().await;
}

#[tokio::test]
async fn the_system_prompt_of_the_host_and_keys_are_not_in_a_shown_body() {
    let (server, model) = over_anthropic(Some(SYSTEM)).await;
    server.send("c", &format!("my key is {KEY}")).await;
    let mut browser = Browser::with(&server, ACME).await;

    let link = links(&mut browser, "c").await.remove(0);
    let sent = String::from_utf8_lossy(&model.requests()[0].body).into_owned();
    assert!(sent.contains(SYSTEM) && sent.contains(KEY));
    for path in [link.clone(), format!("{link}/body")] {
        let seen = browser.get(&path).await.text;
        // The title is that of the thread: the tenant's own words.
        let seen = seen.split("<h2>").last().unwrap();
        assert!(seen.contains("[the system prompt of this host]"), "{seen}");
        assert!(!seen.contains(SYSTEM) && !seen.contains(KEY), "{seen}");
    }
    let whole = server.host.tenant(tenant("acme")).conversation("c");
    let seq = link.rsplit_once('/').unwrap().1.parse().unwrap();
    let whole = whole
        .request_body(callboard_actors::ids::Seq(seq), true)
        .await;
    assert_eq!(whole.unwrap().unwrap().unwrap(), sent.as_bytes());
    server.end().await;
}

#[tokio::test]
async fn of_a_large_body_the_page_shows_the_beginning_and_offers_the_whole() {
    let (server, model) = over_anthropic(None).await;
    server.send("c", &"<word> ".repeat(45_000)).await;
    let mut browser = Browser::with(&server, ACME).await;

    let link = links(&mut browser, "c").await.remove(0);
    let page = browser.get(&link).await.text;
    assert!(
        page.contains("This is the beginning.") && page.len() < 600 * 1024,
        "{}",
        page.len()
    );
    let body = browser.get(&format!("{link}/body")).await.text;
    assert_eq!(body.as_bytes(), model.requests()[0].body);
    server.end().await;
}

#[tokio::test]
async fn a_provider_without_a_wire_format_has_no_body_and_the_page_says_so() {
    let server = asking().await;
    server.send("c", "hello").await;
    let mut browser = Browser::with(&server, ACME).await;

    let link = links(&mut browser, "c").await.remove(0);
    let page = browser.get(&link).await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains("No body can be shown"), "{}", page.text);
    assert_eq!(browser.get(&format!("{link}/body")).await.status, 404);
    server.end().await;
}
