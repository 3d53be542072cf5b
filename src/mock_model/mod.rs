//! A model server for load: the wires of Anthropic and OpenAI over HTTP, answers that are scripted, cheap and late or broken on request.
//!
//! It knows nothing of the rest of this crate, so that any runtime can be measured against it. A prompt whose first word begins with
//! [`MARK`] is answered with that word first: whoever asked can tell its answer from another's.
//!
//! # Layout
//! `settings` what it is told · `fault` what it breaks, by a seed · `asked` what it reads of a request · `meter` rates and concurrency ·
//! `anthropic`, `openai` their JSON · `answer` the bytes of a reply · `link` connections that can be reset · `routes`.

mod settings;
mod fault;
mod asked;
mod meter;
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

/// How the first word of a prompt begins that is to come back as the first word of its answer.
pub const MARK: &str = "load-";

/// How long open replies may go on after the end was asked for.
const DRAIN: Duration = Duration::from_secs(2);

/// Serves until `stop` is cancelled or the most requests of the settings are answered. Returns how many model calls there were.
///
/// # Errors
/// [`BadSettings`] as an [`io::Error`] of the kind `InvalidInput`; what the listener said.
///
/// # Cancel safety
/// Dropping the future closes the listener; replies that are under way go on until their clients leave or the runtime ends.
pub async fn serve(listener: TcpListener, settings: MockModelSettings, stop: CancellationToken) -> io::Result<u64> {
    settings.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let mock = Arc::new(routes::Mock::new(settings, stop.child_token()));
    let over = mock.over().clone();
    let app = routes::router(mock.clone()).into_make_service_with_connect_info::<link::Link>();
    let serving = axum::serve(link::Links(listener), app).with_graceful_shutdown(over.clone().cancelled_owned());
    tokio::select! {
        result = serving => result?,
        () = async { over.cancelled().await; tokio::time::sleep(DRAIN).await } => {}
    }
    Ok(mock.calls())
}
