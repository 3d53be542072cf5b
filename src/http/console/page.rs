//! The frame of every page, its headers, and the page of a failure.

use std::{borrow::Cow, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use maud::{DOCTYPE, Markup, html};
use parking_lot::Mutex;

use super::{
    answer::see_other,
    assets::{ICON_PATH, SCRIPT_PATH, STYLE_PATH},
    cookies::{CSRF, cookie},
    slot::SessionSlot,
};
use crate::{
    http::{
        answer_body::whole_body,
        answer_room::AnswerRoom,
        error::Problem,
        sessions::{Session, Who},
    },
    observe::Redactor,
    visible::visible,
};

/// What a browser may load into a page: what this host serves, and nothing else.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";

/// The cookie with the person's choice of colours; a script of the page sets it.
const THEME_COOKIE: &str = "callboard_theme";

/// Why no page is shown. The response is rendered by [`dressed`].
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Failure {
    /// No session: the login page, and where to go on from there.
    LoggedOut { next: Option<String> },
    /// This session has its pages at another path.
    Elsewhere(&'static str),
    /// What the API would answer.
    Problem(Problem),
}

impl<E: Into<Problem>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Problem(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::LoggedOut { next } => {
                let mut to = "/console/login".to_owned();
                if let Some(next) = next.filter(|next| next != "/console") {
                    to.push_str("?next=");
                    to.extend(form_urlencoded::byte_serialize(next.as_bytes()));
                }
                see_other(&to)
            }
            Self::Elsewhere(path) => see_other(path),
            Self::Problem(problem) => {
                let status = problem.status;
                let mut response = Response::new(Body::empty());
                *response.status_mut() =
                    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                response.extensions_mut().insert(Unrendered(problem));
                response
            }
        }
    }
}

/// A failure whose page is not rendered yet.
#[derive(Debug, Clone)]
struct Unrendered(Problem);

/// A part of the console, for the line of links at the top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Conversations,
    FanOuts,
    Host,
    Tenants,
    #[cfg(feature = "evals")]
    Evals,
    Nowhere,
}

/// What a page shows. [`dressed`] puts the frame around it.
#[derive(Clone)]
pub(super) struct Page {
    pub(super) title: String,
    pub(super) section: Section,
    pub(super) who: Option<Who>,
    pub(super) csrf: String,
    pub(super) content: Markup,
    held: Option<Held>,
}

/// What counts a page until it is read.
#[derive(Debug, Clone)]
struct Held {
    room: Arc<Mutex<Option<AnswerRoom>>>,
    pause_max: Duration,
}

/// Bytes of a page besides its content.
const FRAME_BYTES: usize = 4 * 1024;

impl Page {
    /// A page of a session.
    pub(super) fn new(
        session: &Session,
        section: Section,
        title: impl Into<String>,
        content: Markup,
    ) -> Self {
        Self {
            title: title.into(),
            section,
            who: Some(session.who.clone()),
            csrf: session.csrf.to_string(),
            content,
            held: None,
        }
    }

    /// A page without a session.
    pub(super) fn without_session(title: impl Into<String>, content: Markup) -> Self {
        Self {
            title: title.into(),
            section: Section::Nowhere,
            who: None,
            csrf: String::new(),
            content,
            held: None,
        }
    }

    /// The response with this page. It counts in `room` until it is sent, or until its client has
    /// taken no piece of it for `pause_max`.
    ///
    /// # Errors
    /// 429 when it is larger than the room and there is no more.
    pub(super) async fn counted(
        self,
        mut room: AnswerRoom,
        pause_max: Duration,
    ) -> Result<Response, Failure> {
        room.resize(self.content.0.len() + FRAME_BYTES).await?;
        let room = Arc::new(Mutex::new(Some(room)));
        let held = Some(Held { room, pause_max });
        Ok(Self { held, ..self }.into_response())
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(self);
        response
    }
}

/// The hidden field that every form carries.
pub(super) fn csrf(session: &Session) -> Markup {
    csrf_field(&session.csrf)
}

fn csrf_field(token: &str) -> Markup {
    html! { input type="hidden" name=(CSRF) value=(token); }
}

/// Middleware of the console: renders pages and failures in the person's colours, masks secrets in
/// failures, and sets the headers of every answer.
pub(super) async fn dressed(redactor: Redactor, mut request: Request, next: Next) -> Response {
    let theme = theme(request.headers());
    let is_form = request.method() == Method::POST;
    let slot = SessionSlot::default();
    request.extensions_mut().insert(slot.clone());
    let mut response = next.run(request).await;
    if let Some(page) = response.extensions_mut().remove::<Page>() {
        put(&mut response, &page, theme);
    } else if let Some(Unrendered(problem)) = response.extensions_mut().remove::<Unrendered>() {
        let problem = problem.masked(|text| redactor.mask(text));
        put(
            &mut response,
            &failure(&problem, slot.take().as_ref(), is_form),
            theme,
        );
        if let Some(ms) = problem.retry_after_ms {
            let after = HeaderValue::from(ms.div_ceil(1000));
            response.headers_mut().insert(header::RETRY_AFTER, after);
        }
    }
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With `no-referrer` a browser would not say from which site a form comes.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    for (name, value) in fixed {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    let cached = response.headers_mut().entry(header::CACHE_CONTROL);
    cached.or_insert(HeaderValue::from_static("no-store"));
    response
}

fn put(response: &mut Response, page: &Page, theme: Option<&str>) {
    let text = frame(page, theme).into_string();
    let length = HeaderValue::from(text.len());
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, length);
    let held = page.held.as_ref();
    let room = held.and_then(|held| Some((held.room.lock().take()?, held.pause_max)));
    *response.body_mut() = match room {
        Some((room, pause_max)) => whole_body(text.into(), room, pause_max),
        None => Body::from(text),
    };
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, html);
}

/// The colours that a person chose; `None` for those of the system.
fn theme(headers: &HeaderMap) -> Option<&'static str> {
    match cookie(headers, THEME_COOKIE)? {
        "dark" => Some("dark"),
        "light" => Some("light"),
        _ => None,
    }
}

/// The page of a failure. Whoever is logged in keeps the links to the other pages.
fn failure(problem: &Problem, session: Option<&Session>, is_form: bool) -> Page {
    let content = html! {
        div.narrow {
            h1 { (problem.title) }
            p.flash.bad { (visible(&problem.detail)) }
            p.dim { "Code " code { (problem.code) } ", status " (problem.status) }
            @if is_form && session.is_some() {
                p.dim { "The browser\u{2019}s Back leads to the form, with what was typed." }
            }
            p { a href="/console" { "To the start" } }
        }
    };
    match session {
        Some(session) => Page::new(session, Section::Nowhere, problem.title, content),
        None => Page::without_session(problem.title, content),
    }
}

fn frame(page: &Page, theme: Option<&str>) -> Markup {
    let links: &[(Section, &str, &str)] = match page.who {
        Some(Who::Tenant(_)) => &[
            (Section::Conversations, "/console", "Conversations"),
            (Section::FanOuts, "/console/fanouts", "Fan-outs"),
        ],
        Some(Who::Operator) => &[
            (Section::Host, "/console/host", "Host"),
            (Section::Tenants, "/console/host/tenants", "Tenants"),
            #[cfg(feature = "evals")]
            (Section::Evals, "/console/host/evals", "Evaluations"),
        ],
        None => &[],
    };
    let who: Option<Cow<'_, str>> = page.who.as_ref().map(|who| match who {
        Who::Tenant(tenant) => Cow::Owned(tenant.to_string()),
        Who::Operator => Cow::Borrowed("operator"),
    });
    html! {
        (DOCTYPE)
        html lang="en" data-theme=[theme] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (page.title) " · Callboard" }
                link rel="stylesheet" href=(STYLE_PATH);
                link rel="icon" href=(ICON_PATH) type="image/svg+xml";
                script src=(SCRIPT_PATH) defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header.top {
                    a.brand href="/console" { "Callboard" }
                    nav aria-label="Pages" {
                        @for (section, href, name) in links {
                            a href=(href)
                                aria-current=[(*section == page.section).then_some("page")] {
                                (name)
                            }
                        }
                    }
                    span.grow {}
                    @if let Some(who) = who {
                        span.who title="The key of this session" { (who) }
                    }
                    button.quiet #theme type="button" hidden title="Dark or light" { "Theme" }
                    @if page.who.is_some() {
                        form method="post" action="/console/logout" {
                            (csrf_field(&page.csrf))
                            button.quiet type="submit" { "Log out" }
                        }
                    }
                }
                main #main tabindex="-1" { (page.content) }
            }
        }
    }
}
