//! A route of your own axum application that streams a model's answer. `cargo run --example axum_routes`
//!
//! `callboard::http::serve` has all routes of the host ready; this is for applications that want
//! one route among their own.

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use callboard::{EventKind, Host};
use callboard_actors::testing::{Reply as Script, ScriptedModel};
use futures_util::stream;

async fn ask(State(host): State<Host>, Path(id): Path<String>, prompt: String) -> Response {
    let reply = match host
        .tenant("acme")
        .conversation(id.as_str())
        .send(prompt)
        .await
    {
        Ok(reply) => reply,
        Err(error) if error.is_retryable() => {
            return (StatusCode::TOO_MANY_REQUESTS, error.to_string()).into_response();
        }
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    // A client that disconnects drops this stream and nothing else: the round goes on.
    let text = stream::unfold(reply, async |mut reply| {
        loop {
            match reply.next().await?.kind.clone() {
                EventKind::TextDelta { text } => {
                    return Some((Ok::<_, std::io::Error>(text.to_string()), reply));
                }
                _ => continue,
            }
        }
    });
    Body::from_stream(text).into_response()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::always(Script::text("Good morning to you, too.").chunks(5));
    let host = Host::builder().provider(model).build().await?;
    let app = Router::new()
        .route("/ask/{conversation}", post(ask))
        .with_state(host);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/ask/greetings", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, app).await });

    let answer = callboard::tls::client_builder()?
        .build()?
        .post(url)
        .body("Good morning")
        .send()
        .await?;
    println!("{} {}", answer.status(), answer.text().await?);
    Ok(())
}
