//! A mock model server for load tests: the Anthropic and OpenAI APIs over HTTP, with scripted
//! answers that can be delayed or broken on request.
//!
//! It uses nothing else of this crate, so any runtime can be measured against it. If the first word
//! of a prompt begins with [`MARK`], the answer begins with that word: a client can check that an
//! answer belongs to its prompt.
//!
//! # Layout
//! `settings` its configuration · `fault` which calls fail, by a seed · `asked` the parsed request
//! · `meter` rates and concurrency · `call` the values that a reply renders · `anthropic`, `openai` their JSON ·
//! `answer` the bytes of a reply · `link` connections that can be reset · `routes`.

mod settings;
mod fault;
mod asked;
mod meter;
mod call;
mod anthropic;
mod openai;
mod answer;
mod link;
mod routes;

use std::{io, sync::Arc, time::Duration};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use fault::Fault;
pub use settings::{BadSettings, MockModelSettings};

/// Prefix of a mark: the first word of a prompt that begins so is repeated as the first word of its
/// answer.
pub const MARK: &str = "load-";

/// How long open replies may continue after a shutdown was requested.
const DRAIN: Duration = Duration::from_secs(2);

/// Serves until `stop` is cancelled or `requests_max` requests are answered. Returns the number of
/// model calls.
///
/// # Errors
/// [`BadSettings`] as an [`io::Error`] of the kind `InvalidInput`, and errors of the listener.
///
/// # Cancel safety
/// Dropping the future closes the listener. Open replies continue until their clients disconnect or
/// the runtime ends.
pub async fn serve(
    listener: TcpListener,
    settings: MockModelSettings,
    stop: CancellationToken,
) -> io::Result<u64> {
    settings
        .check()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let mock = Arc::new(routes::Mock::new(settings, stop.child_token()));
    let over = mock.over().clone();
    let app = routes::router(mock.clone()).into_make_service_with_connect_info::<link::Link>();
    let serving = axum::serve(link::Links(listener), app)
        .with_graceful_shutdown(over.clone().cancelled_owned());
    tokio::select! {
        result = serving => result?,
        () = async { over.cancelled().await; tokio::time::sleep(DRAIN).await } => {}
    }
    Ok(mock.calls())
}
