//! The operator's pages: figures of the host as they change, gateways, and tenants with their
//! quotas, keys and data.

use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use callboard_actors::{host::HostFigures, ids::TenantId, metrics_collector::Distribution};
use futures_util::stream;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    answer::see_other,
    form::Form,
    html::{badge, bytes, card, duration, money, number},
    page::{Failure, Page, Section, csrf},
    session::{OperatorSession, session_of},
};
use crate::http::sessions::Session;
use crate::http::{
    KeyHash, MadeKey,
    auth::Admin,
    body::AdminJson,
    error::Problem,
    routes::{Path, Query, admin},
    shared::App,
    sse,
};

/// Time between two figures of a plot.
const EVERY: Duration = Duration::from_secs(2);

type Id = Result<Path<String>, Problem>;

/// The plots: their name in the events, their title and their unit.
const PLOTS: [(&str, &str, &str); 6] = [
    ("rounds", "Rounds per second", ""),
    ("tokens", "Tokens per second", ""),
    ("cost", "Cost per minute", "$"),
    ("queue", "Calls waiting for a provider", ""),
    ("first", "First token, 95 % within", "ms"),
    ("round", "Round, 95 % within", "ms"),
];

/// Shows the figures of the host.
pub(super) async fn host(State(app): State<App>, operator: OperatorSession) -> Response {
    let figures = app.host.figures().await;
    let content = html! {
        h1 { "Host" }
        @if app.is_draining() { p.flash.bad { "This host is shutting down." } }
        @if let Some(outage) = app.host.store_outage() {
            p.flash.bad { "The store cannot be written: " (outage.message) }
        }
        (sums(&figures))
        div.plots #plots data-live="/console/host/live" {
            @for (name, title, unit) in PLOTS {
                figure {
                    figcaption { (title) " " strong data-value=(name) { "–" } }
                    svg.plot data-plot=(name) data-unit=(unit) viewBox="0 0 300 80"
                        preserveAspectRatio="none" role="img" aria-label=(title) {
                        polyline points="" {}
                    }
                }
            }
        }
        p.dim.small { "The plots begin when this page opens and show ten minutes." }
        (latencies(&figures))
        (gateways(&figures))
        (prefixes(&figures))
        h2 { "This host" }
        @if let Some(peers) = &app.config.peers {
            p { "Other hosts on the same database reach it at " code { (peers.address()) } "." }
        }
        div.row {
            form method="post" action="/console/host/reload" {
                (csrf(&operator.session)) button type="submit" { "Reload the configuration" }
            }
            form method="post" action="/console/host/drain"
                data-confirm="Shut this host down? Open rounds may finish first." {
                (csrf(&operator.session)) button.danger type="submit" { "Drain and stop" }
            }
        }
    };
    Page::new(&operator.session, Section::Host, "Host", content).into_response()
}

fn sums(figures: &HostFigures) -> Markup {
    let total = &figures.total;
    let tokens = total.input_tokens.saturating_add(total.output_tokens);
    let cached = total.cache_read_tokens.saturating_mul(100) / total.input_tokens.max(1);
    let cards = [
        (
            "Rounds",
            number(total.rounds),
            format!("{} failed", number(total.rounds_failed)),
        ),
        (
            "Prompts",
            number(total.prompts),
            format!("{} refused", number(total.refusals)),
        ),
        (
            "Model calls",
            number(total.model_calls),
            format!("{} retries", number(total.model_retries)),
        ),
        (
            "Tool calls",
            number(total.tool_calls),
            format!("{} failed", number(total.tool_calls_failed)),
        ),
        (
            "Tokens",
            number(tokens),
            format!("{cached} % of the input from caches"),
        ),
        (
            "Cost",
            money(total.cost_micro_usd),
            "of models with a price".to_owned(),
        ),
        (
            "In memory",
            number(figures.awake as u64),
            "conversations".to_owned(),
        ),
        (
            "Restarts",
            number(total.crashes),
            "after a crash of a conversation".to_owned(),
        ),
    ];
    html! {
        ul.cards { @for (name, value, more) in cards { (card(name, &value, &more)) } }
    }
}

fn latencies(figures: &HostFigures) -> Markup {
    let all = &figures.latencies;
    let rows: [(&str, &Distribution); 5] = [
        ("Round", &all.round),
        ("Model call", &all.model_call),
        ("First token", &all.first_chunk),
        ("Wait for a place", &all.queue_wait),
        ("Tool call", &all.tool_call),
    ];
    let at = |of: &Distribution, part: f64| {
        let found = of
            .quantile(part)
            .map(|time| duration(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
        found.unwrap_or_else(|| "–".to_owned())
    };
    html! {
        h2 { "Durations since the start" }
        div.wide { table.rows {
            thead { tr {
                th { "Of" } th.num { "Count" } th.num { "50 %" } th.num { "95 %" } th.num { "99 %" }
            } }
            tbody { @for (name, of) in rows { tr {
                td { (name) }
                td.num { (number(of.count())) }
                td.num { (at(of, 0.5)) } td.num { (at(of, 0.95)) } td.num { (at(of, 0.99)) }
            } } }
        } }
    }
}

fn gateways(figures: &HostFigures) -> Markup {
    html! {
        h2 { "Providers" }
        div.wide { table.rows {
            thead { tr {
                th { "Gateway" } th { "State" } th.num { "Running" } th.num { "Waiting" }
                th { "Waits for" } th.num { "Requests left" } th.num { "Tokens left" }
                th { "Fallback" }
            } }
            tbody { @for (name, status) in &figures.gateways { tr {
                td { (name) " " span.dim.small { (status.provider) } }
                td {
                    @if status.breaker_open { (badge("bad", "refused after failures")) }
                    @else if status.held_ms.is_some() { (badge("wait", "held back")) }
                    @else { (badge("good", "open")) }
                }
                td.num { (status.running) } td.num { (status.waiting) }
                td { @if let Some(wait) = status.waits_for { (wait.words()) } }
                td.num { @if let Some(left) = status.requests_left { (left) } @else { "–" } }
                td.num { @if let Some(left) = status.tokens_left { (left) } @else { "–" } }
                td { (status.fallback.as_deref().unwrap_or("–")) }
            } } }
        } }
    }
}

/// Why requests did not begin as the ones before them.
fn prefixes(figures: &HostFigures) -> Markup {
    let total = &figures.total;
    let causes = [
        ("compactions", total.prefix_breaks_compaction),
        ("skills", total.prefix_breaks_skill),
        ("edits of a history", total.prefix_breaks_edit),
        (
            "changes of the configuration",
            total.prefix_breaks_configuration,
        ),
        ("unknown", total.prefix_breaks_unknown),
    ];
    html! {
        h2 { "Requests that began differently" }
        p.dim.small { "A provider's cache applies to a request that begins as an earlier one." }
        dl.named { @for (name, count) in causes { dt { (name) } dd { (number(count)) } } }
    }
}

/// Sends the figures that the plots show, every two seconds.
pub(super) async fn live(
    State(app): State<App>,
    _: OperatorSession,
    headers: HeaderMap,
) -> Response {
    let events = stream::unfold(
        (app, headers, true),
        |(app, headers, is_first)| async move {
            if !is_first {
                tokio::select! {
                    () = sleep(EVERY) => {}
                    () = app.closing.cancelled() => return None,
                }
            }
            // The stream ends with its session.
            session_of(&headers, &app)?;
            let text = format!(
                "event: figures\ndata: {}\n\n",
                plotted(&app.host.figures().await)
            );
            Some((
                Ok::<_, Infallible>(Bytes::from(text)),
                (app, headers, false),
            ))
        },
    );
    (sse::headers(), Body::from_stream(events)).into_response()
}

/// Totals, from which the page makes rates, and what holds now.
fn plotted(figures: &HostFigures) -> Value {
    let total = &figures.total;
    let waiting: usize = figures
        .gateways
        .iter()
        .map(|(_, status)| status.waiting)
        .sum();
    json!({
        "rounds": total.rounds,
        "tokens": total.input_tokens.saturating_add(total.output_tokens),
        "cost": total.cost_micro_usd,
        "queue": waiting,
        "first": buckets(&figures.latencies.first_chunk),
        "round": buckets(&figures.latencies.round),
        "bounds": callboard_actors::metrics_collector::BOUNDS_US,
    })
}

fn buckets(of: &Distribution) -> &[u64] {
    &of.buckets
}

/// Lists the tenants.
pub(super) async fn tenants(
    State(app): State<App>,
    operator: OperatorSession,
    done: Result<Query<Done>, Problem>,
) -> Result<Response, Failure> {
    let Query(done) = done?;
    let Json(all) = admin::list(State(app.clone()), Admin).await?;
    let quotas = match &app.config.operator {
        Some(operator) => operator.quotas().await,
        None => BTreeMap::new(),
    };
    let costs: BTreeMap<_, _> = app.host.figures().await.tenants.into_iter().collect();
    let cost = |id: &TenantId| costs.get(id).map_or(0, |figures| figures.cost_micro_usd);
    let session = &operator.session;
    let content = html! {
        h1 { "Tenants" }
        div.wide { table.rows {
            thead { tr {
                th { "Tenant" } th { "State" } th.num { "Running" } th.num { "Waiting" }
                th.num { "Prompts" } th.num { "Tokens" }
                th.num title="Of models with a price, since the host started" { "Cost" }
                th.num { "Refused" } th.num { "Stored" }
            } }
            tbody { @for tenant in &all.tenants {
                @let usage = &tenant.usage;
                tr {
                    td { a href={ "#t-" (tenant.id) } { (tenant.id) } }
                    td {
                        @if tenant.paused { (badge("wait", "paused")) }
                        @else { (badge("good", "open")) }
                    }
                    td.num { (usage.turns_running) }
                    td.num { (usage.turns_waiting) }
                    td.num { (number(usage.prompts_admitted)) }
                    td.num { (number(usage.tokens)) }
                    td.num {
                        (money(cost(&tenant.id)))
                        @if usage.spent.micro_usd > 0 {
                            " " span.dim.small { (money(usage.spent.micro_usd)) " of its budget" }
                        }
                    }
                    td.num { (number(usage.refused.total())) }
                    td.num { (bytes(usage.stored_bytes)) }
                }
            } }
        } }
        @for tenant in &all.tenants {
            (controls(session, tenant, quotas.get(&tenant.id), done.at(&tenant.id)))
        }
        section.new {
            h2 { "Create or change a tenant" }
            form.stack method="post" action="/console/host/tenants/new" {
                (csrf(session))
                label for="id" { "Id" }
                input #id name="id" required maxlength="128";
                label for="config" { "Keys of a " code { "[[tenant]]" } ", as JSON" }
                textarea #config name="config" rows="4" required spellcheck="false" {
                    "{\"provider\": \"offline\"}"
                }
                button.main type="submit" { "Save" }
            }
        }
    };
    Ok(Page::new(session, Section::Tenants, "Tenants", content).into_response())
}

fn controls(
    session: &Session,
    tenant: &admin::TenantShown,
    quotas: Option<&Value>,
    done: Option<&str>,
) -> Markup {
    let path = |what: &str| format!("/console/host/tenants/{}/{what}", tenant.id);
    html! {
        section.tenant id={ "t-" (tenant.id) } {
            h2 { (tenant.id) }
            @if let Some(done) = done { p.flash role="status" { (done) } }
            @if let Some(workspace) = &tenant.workspace {
                p.dim { "Workspace: " (number(workspace.files)) " files"
                    @if let Some(count) = workspace.bytes { ", " (bytes(count)) } }
            }
            div.row {
                form method="post" action=(path("pause")) {
                    (csrf(session))
                    input type="hidden" name="paused" value=(!tenant.paused);
                    button type="submit" { @if tenant.paused { "Resume" } @else { "Pause" } }
                }
                form.row method="post" action=(path("key")) {
                    (csrf(session))
                    label.check {
                        input type="checkbox" name="replace" value="1"; " revoke the others"
                    }
                    button type="submit" { "New key" }
                }
                form method="post" action=(path("erase"))
                    data-confirm={ "Erase all data of " (tenant.id) "?" } {
                    (csrf(session)) button.danger type="submit" { "Erase its data" }
                }
                form method="post" action=(path("remove"))
                    data-confirm={ "Remove " (tenant.id) " and erase its data?" } {
                    (csrf(session)) button.danger type="submit" { "Remove" }
                }
            }
            form.stack method="post" action=(path("quota")) {
                (csrf(session))
                label for={ "q-" (tenant.id) } { "Quotas, as JSON" }
                textarea id={ "q-" (tenant.id) } name="quota" rows="2" required spellcheck="false" {
                    @if let Some(quotas) = quotas { (quotas) } @else { "{}" }
                }
                p.dim.small {
                    "These are set now. The form sets all of them: a quota that is left out is "
                    "removed. As in " code { "{\"turns_max\": 64, \"requests_per_minute\": 600}" } "."
                }
                button type="submit" { "Set" }
            }
        }
    }
}

/// What a form did before it led back here.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Done {
    #[serde(default)]
    done: String,
    /// The tenant.
    #[serde(default)]
    of: String,
}

impl Done {
    /// What was done to a tenant, in words.
    fn at(&self, tenant: &TenantId) -> Option<&'static str> {
        let words = match &*self.done {
            "quota" => "The quotas are set.",
            "pause" => "New prompts are refused from now on; open rounds go on.",
            "resume" => "New prompts are accepted again.",
            "erase" => "Its data is erased.",
            _ => return None,
        };
        (self.of == tenant.as_str()).then_some(words)
    }
}

/// Leads back to a tenant, with what was done.
fn done(what: &str, tenant: &str) -> Response {
    see_other(&format!(
        "/console/host/tenants?done={what}&of={tenant}#t-{tenant}"
    ))
}

fn back() -> Response {
    see_other("/console/host/tenants")
}

/// The request that a route of the operator reads its body from.
fn request(body: &Value) -> Request {
    let mut request = Request::new(Body::from(body.to_string()));
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(header::CONTENT_TYPE, json);
    request
}

fn parsed(form: &Form, field: &str) -> Result<Value, Problem> {
    serde_json::from_str(&form.fields.get(field)).map_err(|error| {
        Problem::invalid(
            format!("/{field}"),
            format!("`{field}` is not JSON: {error}"),
        )
    })
}

/// Pauses or resumes a tenant.
pub(super) async fn pause(State(app): State<App>, id: Id, form: Form) -> Result<Response, Failure> {
    form.operator()?;
    let Path(id) = id?;
    let paused = form.fields.get("paused") == "true";
    let body = json!({ "paused": paused });
    admin::pause(State(app), Admin, Path(id.clone()), request(&body)).await?;
    Ok(done(if paused { "pause" } else { "resume" }, &id))
}

/// Makes a key. The page that shows it is another one: loading it again makes no further key.
pub(super) async fn key(State(app): State<App>, id: Id, form: Form) -> Result<Response, Failure> {
    form.operator()?;
    let Path(id) = id?;
    let body = json!({ "replace": form.fields.has("replace") });
    let made = admin::key(State(app), Admin, Path(id.clone()), request(&body)).await?;
    let made = axum::body::to_bytes(made.into_body(), 64 * 1024).await;
    let made: Value = serde_json::from_slice(&made.unwrap_or_default()).unwrap_or_default();
    let key = made.get("key").and_then(Value::as_str).unwrap_or_default();
    let made = MadeKey {
        key: key.to_owned(),
        hash: KeyHash::from_key(key),
    };
    form.session.keep_key(id.clone(), made);
    Ok(see_other(&format!("/console/host/tenants/{id}/key")))
}

/// Shows a key that was made, once.
pub(super) async fn new_key(operator: OperatorSession, id: Id) -> Result<Response, Failure> {
    let Path(id) = id?;
    let made = operator.session.take_key(&id);
    let content = html! {
        div.narrow {
            h1 { "New key of " (id) }
            @if let Some(MadeKey { key, hash }) = &made {
                p.flash { "This is the only time that this host shows it." }
                div.copy {
                    pre.code #key { (key) }
                    button type="button" data-copy="key" hidden { "Copy" }
                }
                p.dim.small { "SHA-256: " code { (hash) } }
            } @else {
                p.flash { "A key is shown once, right after it was made. Make another one there:" }
            }
            p { a href={ "/console/host/tenants#t-" (id) } { "Back to the tenants" } }
        }
    };
    Ok(Page::new(&operator.session, Section::Tenants, "New key", content).into_response())
}

/// Sets the quotas of a tenant.
pub(super) async fn quota(State(app): State<App>, id: Id, form: Form) -> Result<Response, Failure> {
    form.operator()?;
    let Path(id) = id?;
    let quota = parsed(&form, "quota")?;
    admin::quota(State(app), Path(id.clone()), AdminJson(quota)).await?;
    Ok(done("quota", &id))
}

/// Creates or changes a tenant.
pub(super) async fn put(State(app): State<App>, form: Form) -> Result<Response, Failure> {
    form.operator()?;
    let config = parsed(&form, "config")?;
    let id = form.fields.get("id").trim().to_owned();
    admin::put(State(app), Path(id), AdminJson(config)).await?;
    Ok(back())
}

/// Erases the data of a tenant.
pub(super) async fn erase(State(app): State<App>, id: Id, form: Form) -> Result<Response, Failure> {
    form.operator()?;
    let Path(id) = id?;
    let _ = admin::erase(State(app), Admin, Path(id.clone())).await?;
    Ok(done("erase", &id))
}

/// Removes a tenant.
pub(super) async fn remove(
    State(app): State<App>,
    id: Id,
    form: Form,
) -> Result<Response, Failure> {
    form.operator()?;
    admin::remove(State(app), Admin, id?).await?;
    Ok(back())
}

/// Reads the configuration again, and shows what changed.
pub(super) async fn reload(State(app): State<App>, form: Form) -> Result<Response, Failure> {
    form.operator()?;
    let Json(done) = admin::reload(State(app), Admin).await?;
    let lists = [
        ("Added", &done.added),
        ("Changed", &done.changed),
        ("Removed", &done.removed),
        ("Needs a restart", &done.needs_restart),
    ];
    let content = html! {
        div.narrow {
            h1 { "Reloaded" }
            dl.named { @for (name, all) in lists {
                dt { (name) }
                dd { @if all.is_empty() { "none" } @else { (all.join(", ")) } }
            } }
            p { a href="/console/host" { "Back to the host" } }
        }
    };
    Ok(Page::new(&form.session, Section::Host, "Reloaded", content).into_response())
}

/// Begins to shut the host down.
pub(super) async fn drain(State(app): State<App>, form: Form) -> Result<Response, Failure> {
    form.operator()?;
    admin::drain(State(app), Admin).await;
    let content = html! {
        div.narrow {
            h1 { "Draining" }
            p { "New prompts are refused; open rounds finish. Then this host stops." }
        }
    };
    Ok(Page::new(&form.session, Section::Host, "Draining", content).into_response())
}
