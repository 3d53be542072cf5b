//! `web_fetch` and `web_search` as a model uses them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use callboard::{
    chat::RawJson,
    ids::{CallKey, Scope, Seq},
    mask::Masker,
    ports::{Approval, CachePolicy, Extensions, Progress, Reach, Tool, ToolContext, ToolOutput},
    tool::{EffectClass, ToolError, ToolErrorType},
    tools::web::{Search, WebTools, tools},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Canary;
use crate::support::model_server::{ModelServer, Reply, Step};

const KEY: &str = "tvly-not-a-real-key-000000000";

fn named(settings: WebTools, name: &str) -> Arc<dyn Tool> {
    tools(settings)
        .unwrap()
        .into_iter()
        .find(|tool| tool.spec().name() == name)
        .unwrap()
}

fn fetcher() -> Arc<dyn Tool> {
    let settings = WebTools {
        allow_hosts: vec!["127.0.0.1".to_owned()],
        masker: Masker::new(["not-a-real-secret"]),
        ..WebTools::default()
    };
    named(settings, "web_fetch")
}

fn searcher(search: Search) -> Arc<dyn Tool> {
    named(
        WebTools {
            search,
            ..WebTools::default()
        },
        "web_search",
    )
}

async fn call_until(
    tool: &Arc<dyn Tool>,
    arguments: serde_json::Value,
    cancel: CancellationToken,
) -> Result<String, ToolError> {
    let context = ToolContext {
        key: CallKey {
            scope: Scope::new("t".try_into().unwrap(), "c".try_into().unwrap()),
            seq: Seq(1),
            index: 0,
        },
        tool_call_id: "call_1".to_owned(),
        cancel,
        deadline: tokio::time::Instant::now() + Duration::from_secs(60),
        attempt: 0,
        progress: Progress::silent(),
        workspace: None,
        extensions: Extensions::default(),
        artifacts: None,
    };
    let arguments = RawJson::from_text(arguments.to_string()).unwrap();
    tool.check(&arguments)?;
    match tool.call(arguments, context).await? {
        ToolOutput::Text(text) => Ok(text),
        other => panic!("{other:?}"),
    }
}

async fn call(tool: &Arc<dyn Tool>, arguments: serde_json::Value) -> Result<String, ToolError> {
    call_until(tool, arguments, CancellationToken::new()).await
}

async fn fetch(url: &str) -> Result<String, ToolError> {
    call(&fetcher(), json!({ "url": url })).await
}

fn html(text: &str) -> Reply {
    Reply::status(200)
        .header("content-type", "text/html; charset=utf-8")
        .send(text)
}

#[test]
fn the_web_tools_declare_what_they_do() {
    let declared: Vec<_> = tools(WebTools::default())
        .unwrap()
        .iter()
        .map(|tool| tool.spec().clone())
        .map(|spec| {
            (
                spec.definition.name,
                spec.effect,
                spec.approval,
                spec.reach,
                spec.cache,
            )
        })
        .collect();

    assert_eq!(
        declared,
        [
            (
                "web_fetch".to_owned(),
                EffectClass::Pure,
                Approval::ByMode,
                Reach::Web,
                CachePolicy::TtlShort
            ),
            (
                "web_search".to_owned(),
                EffectClass::Pure,
                Approval::Never,
                Reach::Web,
                CachePolicy::TtlMedium
            ),
        ]
    );
    let free = named(
        WebTools {
            fetch_without_asking: true,
            ..WebTools::default()
        },
        "web_fetch",
    );
    assert_eq!(free.spec().approval, Approval::Never);
}

#[test]
fn a_person_agrees_to_a_server_and_calls_are_the_same_in_any_spelling() {
    let tool = named(WebTools::default(), "web_fetch");
    let arguments = |url: &str| RawJson::of(&json!({ "url": url })).unwrap();

    assert_eq!(
        tool.approval_pattern(&arguments("https://Example.com/a?b=c")),
        "https://example.com/*"
    );
    assert_eq!(
        tool.resolve(&arguments("HTTPS://Example.com:443/a/../b#part"))
            .unwrap()
            .as_str(),
        r#"{"url":"https://example.com/b"}"#
    );
    assert_eq!(tool.resolve(&arguments("https://example.com/b")), None);
}

#[tokio::test]
async fn a_page_is_read_as_markdown_with_its_title_and_final_url() {
    let server = ModelServer::start([
        Reply::status(302).header("location", "/final"),
        html(
            "<title>The &quot;page&quot;</title><nav>menu</nav><h1>Head</h1><p>Text with not-a-real-secret and a\u{200b}\u{e0041} \
             <a href=next>link</a>.<script>alert(1)</script>",
        ),
    ])
    .await;

    let text = fetch(&server.url()).await.unwrap();

    let url = server.url();
    assert_eq!(
        text,
        format!(
            "Title: The \"page\"\nURL: {url}/final\n[2 invisible characters were removed]\n\n# Head\n\nText with [masked:1] and a [link]({url}/next)."
        )
    );
}

#[tokio::test]
async fn text_and_json_are_read_as_they_are_in_any_charset() {
    let server = ModelServer::start([
        Reply::json(200, "{\"a\": \"<b>\"}"),
        Reply::status(200)
            .header("content-type", "text/plain; charset=iso-8859-1")
            .then(Step::Send(b"caf\xe9".to_vec())),
        Reply::status(200)
            .header("content-type", "text/html")
            .then(Step::Send(
                b"<meta charset=windows-1251><p>\xcf\xf0".to_vec(),
            )),
    ])
    .await;

    for expected in ["{\"a\": \"<b>\"}", "café", "Пр"] {
        assert_eq!(
            fetch(&server.url()).await.unwrap(),
            format!("URL: {}/\n\n{expected}", server.url())
        );
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_a_clean_error() {
    let server = ModelServer::start([
        Reply::status(404),
        Reply::status(403),
        Reply::status(429).header("retry-after", "12"),
        Reply::status(503),
        Reply::status(200)
            .header("content-type", "image/png")
            .send("\u{89}PNG")
            .then(Step::Stall),
        Reply::status(200)
            .header("content-type", "text/plain")
            .then(Step::Send(b"a\0b".to_vec())),
        Reply::status(302).header("location", "http://169.254.169.254/latest/"),
    ])
    .await;
    let tool = fetcher();

    for (kind, code, message) in [
        (
            ToolErrorType::NotFound,
            "NOT_FOUND",
            "the server answered with HTTP status 404: there is no such document",
        ),
        (
            ToolErrorType::PermissionDenied,
            "PERMISSION_DENIED",
            "the server answered with HTTP status 403: it is not for everybody",
        ),
        (
            ToolErrorType::RateLimit,
            "RATE_LIMIT",
            "the server answered with HTTP status 429: too many requests; try again in 12 s",
        ),
        (
            ToolErrorType::TransientError,
            "TRANSIENT",
            "the server answered with HTTP status 503: the server is in trouble",
        ),
        (
            ToolErrorType::ExecutionError,
            "NOT_TEXT",
            "the document is not text (image/png); only web pages, text and JSON can be read",
        ),
        (
            ToolErrorType::ExecutionError,
            "NOT_TEXT",
            "the document is not text (text/plain); only web pages, text and JSON can be read",
        ),
        (
            ToolErrorType::PermissionDenied,
            "URL_REFUSED",
            "the URL's host has an address that is not public (cloud metadata)",
        ),
    ] {
        let error = call(&tool, json!({ "url": server.url() }))
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind, error.code.as_str(), error.message.as_str()),
            (kind, code, message)
        );
    }
}

#[tokio::test]
async fn a_private_url_is_refused_before_anything_begins() {
    let canary = Canary::at("127.0.0.1:0").await;
    let tool = named(WebTools::default(), "web_fetch");

    for host in [
        "127.0.0.1",
        "0x7f.1",
        "[::ffff:127.0.0.1]",
        "localhost",
        "a@127.0.0.1",
    ] {
        let error = call(
            &tool,
            json!({ "url": format!("http://{host}:{}/", canary.port) }),
        )
        .await
        .unwrap_err();
        assert_eq!(
            (error.kind, error.code.as_str(), error.not_started),
            (ToolErrorType::PermissionDenied, "URL_REFUSED", true),
            "{host}"
        );
    }
    let nonsense = call(&tool, json!({ "url": "no url" })).await.unwrap_err();
    assert_eq!(nonsense.kind, ToolErrorType::InvalidParameters);
    assert_eq!(canary.accepted("127.0.0.1").await, 0);
}

#[tokio::test]
async fn a_hostile_page_costs_neither_the_stack_nor_much_time() {
    let server = ModelServer::start([
        html(&("<div><b><ul><li>".repeat(100_000) + "the end")),
        html("").then(Step::Endless(
            format!("<p>{}</p>", "line ".repeat(400)).into_bytes(),
        )),
    ])
    .await;
    let begin = Instant::now();

    assert!(fetch(&server.url()).await.unwrap().contains("the end"));
    let endless = fetch(&server.url()).await.unwrap();

    assert!(endless.contains("[kept 4194304 bytes of more; the rest was not read]"));
    assert!(
        endless.contains("[kept the first 1048576 bytes of the text; the rest is left out]")
            && endless.len() < 1024 * 1024 + 1024
    );
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_fetch_stops_when_it_is_cancelled() {
    let server = ModelServer::start([html("<p>x").then(Step::Stall)]).await;
    let tool = fetcher();
    let cancel = CancellationToken::new();

    let arguments = json!({ "url": server.url() });
    let (result, ()) = tokio::join!(call_until(&tool, arguments, cancel.clone()), async {
        server.requests_came(1).await;
        cancel.cancel();
    });

    assert_eq!(result.unwrap_err().code, "INTERRUPTED");
    server.clients_left(1).await;
}

#[tokio::test]
async fn without_a_key_a_search_names_what_to_configure() {
    let error = call(&searcher(Search::None), json!({ "query": "x" }))
        .await
        .unwrap_err();

    assert_eq!(
        (error.kind, error.code.as_str(), error.not_started),
        (ToolErrorType::DependencyError, "NOT_CONFIGURED", true)
    );
    assert!(
        error.message.contains("TAVILY_API_KEY") && error.message.contains("searxng"),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn tavily_is_asked_with_the_key_and_its_results_are_numbered() {
    let answer = json!({ "query": "q", "answer": null, "response_time": 1.2, "results": [
        { "title": "First \n title", "url": "https://a.example/1", "content": "What it\u{200b} says.", "score": 0.9, "raw_content": null },
        { "title": "", "url": "https://b.example/2", "content": format!("leaks {KEY}") },
        { "title": "bad", "url": "javascript:alert(1)", "content": "x" },
        { "title": "long", "url": "https://c.example/3", "content": "w ".repeat(5000) },
    ] });
    let server = ModelServer::start([Reply::json(200, &answer.to_string())]).await;
    let tool = searcher(Search::Tavily {
        key: KEY.to_owned(),
        base_url: Some(server.url()),
    });

    let text = call(&tool, json!({ "query": " what is new " }))
        .await
        .unwrap();

    let begin = "1. First title\n   https://a.example/1\n   What it says.\n2. (no title)\n   https://b.example/2\n   leaks [masked:1]\n\
3. long\n   https://c.example/3\n   w w w";
    assert!(text.starts_with(begin), "{text}");
    assert!(text.len() < 2000 && !text.contains(KEY) && !text.contains("javascript"));
    let request = &server.requests()[0];
    assert_eq!(
        (request.line.as_str(), request.header("authorization")),
        ("POST /search", Some(format!("Bearer {KEY}").as_str()))
    );
    assert_eq!(
        (&request.json()["query"], request.json().get("api_key")),
        (&json!("what is new"), None)
    );
}

#[tokio::test]
async fn searxng_is_asked_without_a_key() {
    let answer = json!({ "query": "q", "results": [{ "url": "https://a.example/", "title": "A", "content": null, "engine": "e" }], "answers": [] });
    let server = ModelServer::start([
        Reply::json(200, &answer.to_string()),
        Reply::json(200, r#"{"results":[]}"#),
        Reply::status(403),
    ])
    .await;
    let tool = searcher(Search::SearxNg {
        base_url: format!("{}/", server.url()),
    });

    assert_eq!(
        call(&tool, json!({ "query": "a b&c" })).await.unwrap(),
        "1. A\n   https://a.example/\n"
    );
    assert_eq!(
        call(&tool, json!({ "query": "none" })).await.unwrap(),
        "No results for \"none\"."
    );
    let refused = call(&tool, json!({ "query": "x" })).await.unwrap_err();
    assert!(
        refused.message.contains("search.formats"),
        "{}",
        refused.message
    );
    assert_eq!(
        server.requests()[0].line,
        "GET /search?q=a+b%26c&format=json"
    );
}

#[tokio::test]
async fn an_engine_in_trouble_is_a_clean_error_without_the_key() {
    let server = ModelServer::start([
        Reply::json(429, r#"{"detail":{"error":"slow down"}}"#).header("retry-after", "30"),
        Reply::json(401, &format!(r#"{{"detail":"{KEY}"}}"#)),
        Reply::status(432),
        Reply::status(500),
        html("<html>a login page"),
        Reply::json(
            200,
            &format!(r#"{{"results":["{}"]}}"#, "x".repeat(2_000_000)),
        ),
        Reply::status(307).header("location", "https://elsewhere.example/"),
    ])
    .await;
    let tool = searcher(Search::Tavily {
        key: KEY.to_owned(),
        base_url: Some(server.url()),
    });

    for (kind, part) in [
        (ToolErrorType::RateLimit, "try again in 30 s"),
        (ToolErrorType::PermissionDenied, "Tavily refuses the key"),
        (
            ToolErrorType::RateLimit,
            "Tavily answered with HTTP status 429",
        ),
        (ToolErrorType::TransientError, "HTTP status 500"),
        (ToolErrorType::DependencyError, "no list of results"),
        (ToolErrorType::DependencyError, "more than can be read"),
        (ToolErrorType::DependencyError, "redirects"),
    ] {
        let error = call(&tool, json!({ "query": "x" })).await.unwrap_err();
        assert!(
            error.kind == kind && error.message.contains(part) && !error.message.contains(KEY),
            "{error:?}"
        );
    }
    let debug = format!(
        "{:?}",
        WebTools {
            search: Search::Tavily {
                key: KEY.to_owned(),
                base_url: None
            },
            ..WebTools::default()
        }
    );
    assert!(!debug.contains(KEY), "{debug}");
}

#[tokio::test]
async fn the_permission_for_the_search_engine_does_not_extend_to_the_model() {
    let server = ModelServer::start([Reply::json(200, r#"{"results":[]}"#)]).await;
    let settings = WebTools {
        search: Search::SearxNg {
            base_url: server.url(),
        },
        ..WebTools::default()
    };

    assert!(
        call(
            &named(settings.clone(), "web_search"),
            json!({ "query": "x" })
        )
        .await
        .is_ok()
    );
    let error = call(
        &named(settings, "web_fetch"),
        json!({ "url": server.url() }),
    )
    .await
    .unwrap_err();

    assert_eq!(
        (error.code.as_str(), server.connections()),
        ("URL_REFUSED", 1)
    );
}
