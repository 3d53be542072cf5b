//! The console: pages for people at `/console`. Whoever has a key of a tenant, or the operator's,
//! reads and does there what the API lets that key read and do; every page and form calls what the
//! API's routes call, and there is no other way to the data.
//!
//! # Layout
//! | Module | Holds |
//! |---|---|
//! | `session`, `slot`, `cookies`, `form` | who asks, also where a page fails; cookies; forms, which carry a token of the session |
//! | `page`, `answer`, `assets` | the frame and the headers of pages; style and script |
//! | `html`, `markdown` | small parts; Markdown as HTML |
//! | `login`, `list` | the login; the conversations of a tenant |
//! | `thread`, `item`, `files` | one of them, its items, its images and events |
//! | `items`, `timeline` | what a person reads of a journal, and when it happened (pure) |
//! | `figures`, `fan_outs` | tokens and cost; subagents and fan-outs |
//! | `tasks`, `bars`, `flame` | when each task of a fan-out ran, and what it cost; bars; their places (pure) |
//! | `call` | the request body of a model call |
//! | `compare`, `rounds` | two conversations side by side; the rounds of a journal (pure) |
//! | `actions` | what the forms of a conversation do |
//! | `host`, `evals` | the operator's pages; evaluations |
//!
//! # Promises
//! - Text of people, models and tools is escaped: only `html::trusted` writes HTML, and only
//!   `markdown` calls it.
//! - A page loads and asks nothing but this host, and runs no script but the console's.
//! - A browser never holds a key; its session ends with the key.

mod actions;
mod answer;
mod assets;
mod bars;
mod call;
mod compare;
mod cookies;
#[cfg(feature = "evals")]
mod evals;
mod fan_outs;
mod figures;
mod files;
mod flame;
mod form;
mod host;
mod html;
mod imported;
mod item;
mod items;
mod list;
mod login;
mod markdown;
mod page;
mod rounds;
mod session;
mod slot;
mod tasks;
mod thread;
mod timeline;

use axum::{
    Router, middleware,
    routing::{get, post},
};

use self::page::Failure;
pub(super) use self::session::tenant_of;
use super::{error::Problem, shared::App};
use crate::observe::Redactor;

/// What the paths of the console begin with.
pub(super) const PREFIX: &str = "/console";

#[cfg(feature = "evals")]
fn evaluations() -> Router<App> {
    Router::new()
        .route("/console/host/evals", get(evals::runs))
        .route("/console/host/evals/of/{run}", get(evals::one))
        .route("/console/host/evals/compare", get(evals::side_by_side))
}

#[cfg(not(feature = "evals"))]
fn evaluations() -> Router<App> {
    Router::new()
}

/// The routes of the console. `redactor` masks secrets in the texts of failures.
pub(super) fn routes(redactor: &Redactor) -> Router<App> {
    let redactor = redactor.clone();
    let missing = async || Failure::from(Problem::not_found("page"));
    Router::new()
        .route("/console/style.css", get(assets::style))
        .route("/console/console.js", get(assets::script))
        .route("/console/icon.svg", get(assets::icon))
        .route("/console/login", get(login::form).post(login::log_in))
        .route("/console/logout", post(login::log_out))
        .route("/console", get(list::list))
        .route("/console/new", post(actions::new))
        .route("/console/compare", get(compare::compare))
        .route("/console/c/{id}", get(thread::thread))
        .route("/console/c/{id}/events", get(files::live))
        .route("/console/c/{id}/entry/{seq}", get(thread::entry))
        .route("/console/c/{id}/call/{seq}", get(call::page))
        .route("/console/c/{id}/call/{seq}/body", get(call::body))
        .route("/console/c/{id}/image/{seq}/{index}", get(files::image))
        .route("/console/c/{id}/artifact/{artifact}", get(files::artifact))
        .route("/console/c/{id}/timeline", get(figures::timeline))
        .route("/console/c/{id}/figures", get(figures::figures))
        .route("/console/c/{id}/subagents", get(fan_outs::subagents))
        .route("/console/c/{id}/send", post(actions::send))
        .route("/console/c/{id}/interrupt", post(actions::interrupt))
        .route("/console/c/{id}/approve", post(actions::approve))
        .route("/console/c/{id}/rewind", post(actions::rewind))
        .route("/console/c/{id}/fork", post(actions::fork))
        .route("/console/c/{id}/compact", post(actions::compact))
        .route("/console/c/{id}/reset", post(actions::reset))
        .route("/console/c/{id}/delete", post(actions::delete))
        .route("/console/fanouts", get(fan_outs::list))
        .route("/console/fanouts/start", post(fan_outs::start))
        .route("/console/fanouts/of/{name}", get(fan_outs::one))
        .route("/console/fanouts/of/{name}/cost", get(tasks::cost))
        .route("/console/fanouts/of/{name}/cancel", post(fan_outs::cancel))
        .route("/console/fanouts/of/{name}/delete", post(fan_outs::delete))
        .route("/console/host", get(host::host))
        .route("/console/host/live", get(host::live))
        .route("/console/host/reload", post(host::reload))
        .route("/console/host/drain", post(host::drain))
        .route("/console/host/tenants", get(host::tenants))
        .route("/console/host/tenants/new", post(host::put))
        .route("/console/host/tenants/{tenant}/pause", post(host::pause))
        .route("/console/host/tenants/{tenant}/quota", post(host::quota))
        .route(
            "/console/host/tenants/{tenant}/key",
            get(host::new_key).post(host::key),
        )
        .route("/console/host/tenants/{tenant}/erase", post(host::erase))
        .route("/console/host/tenants/{tenant}/remove", post(host::remove))
        .merge(evaluations())
        .route("/console/{*rest}", get(missing))
        .layer(middleware::from_fn(move |request, next| {
            page::dressed(redactor.clone(), request, next)
        }))
        .route("/", get(login::start))
}
