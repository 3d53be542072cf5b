//! The request body of a model call, built as it would be now from the journal at that call.

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::Response,
};
use callboard_actors::{ids::Seq, ports::ProviderError};
use maud::html;

use super::{
    html::{bytes, clip_visible},
    page::{Failure, Page, Section},
    session::TenantSession,
    thread::Subject,
};
use crate::{
    http::{
        answer_body::{built, whole_answer},
        answer_room::AnswerRoom,
        error::Problem,
        routes::Path,
        shared::{App, too_busy},
    },
    observe::Redactor,
};

/// Bytes of a body that a page shows, with its indentation.
const SHOWN_MAX: usize = 256 * 1024;

/// Bytes that are reserved before a body is built.
const ROOM_BYTES: usize = 8 * 1024 * 1024;

/// Deepest indentation, in spaces.
const INDENT_MAX: usize = 40;

/// A body, or why its provider has none.
type Built = Result<Vec<u8>, ProviderError>;

/// Builds the body. The system prompt is left out: the API shows it to no tenant either.
async fn build(
    app: &App,
    viewer: &TenantSession,
    subject: &Subject,
    seq: u64,
) -> Result<(Built, AnswerRoom), Failure> {
    let mut room = app
        .answers
        .take(&viewer.tenant, &viewer.connection, ROOM_BYTES)
        .await?;
    // Reading takes as long as building, so it needs a place as well: pages that are asked for at once
    // are built one after another, in turns with what other tenants have built.
    let place = app.views.acquire(Some(viewer.tenant.clone())).await;
    let place = place.map_err(too_busy)?;
    let body = subject.conversation.request_body(Seq(seq), false).await?;
    drop(place);
    let body = body.ok_or_else(|| Problem::not_found("model call"))?;
    let body = body.map(|body| body.to_vec());
    // The body and its masked copy.
    let length = body.as_ref().map_or(0, Vec::len);
    room.resize(length.saturating_mul(2).max(SHOWN_MAX)).await?;
    Ok((body, room))
}

/// Shows the beginning of the body.
pub(super) async fn page(
    State(app): State<App>,
    viewer: TenantSession,
    path: Result<Path<(String, u64)>, Problem>,
) -> Result<Response, Failure> {
    let Path((id, seq)) = path?;
    let subject = Subject::find(&app, &viewer, id).await?;
    let (body, room) = build(&app, &viewer, &subject, seq).await?;
    let title = format!("Request of {} at {seq}", subject.id);
    let redactor = app.config.redactor.clone();
    let render = move || {
        let shown = body.map(|body| (shown(&redactor, &body), body.len()));
        html! {
            (subject.top("/call"))
            h2 { "Request body of the model call at " a.seq href={ "../entry/" (seq) } { "#" (seq) } }
            p {
                "Built now, by the code that calls the provider, from what the journal held when this "
                "call began. The journal does not keep tools, model and settings: these are today\u{2019}s, "
                "so the call itself may have had others. A line stands for the system prompt, and "
                "keys are masked. A call that went on to a fallback began with this body."
            }
            @match shown {
                Ok(((text, left), length)) => {
                    p {
                        a href={ (seq) "/body" } download { "Download the whole" }
                        span.dim { ", " (bytes(length as u64)) " in one line" }
                    }
                    pre.code.whole { (text) }
                    @if left { p.dim.small { "This is the beginning." } }
                }
                Err(error) => p.flash {
                    "No body can be shown: " (clip_visible(&error.to_string(), 300).0) "."
                },
            }
        }
    };
    let (content, room) = built(&app, &viewer.tenant, usize::MAX, room, render).await?;
    let page = Page::new(&viewer.session, Section::Conversations, title, content);
    page.counted(room, app.config.bounds.write_pause_max).await
}

/// Sends the whole body, to be saved.
pub(super) async fn body(
    State(app): State<App>,
    viewer: TenantSession,
    path: Result<Path<(String, u64)>, Problem>,
) -> Result<Response, Failure> {
    let Path((id, seq)) = path?;
    let subject = Subject::find(&app, &viewer, id).await?;
    let (body, room) = build(&app, &viewer, &subject, seq).await?;
    let body = body.map_err(|_| Problem::not_found("request body"))?;
    let redactor = app.config.redactor.clone();
    let mask = move || redactor.mask(&String::from_utf8_lossy(&body));
    let (text, room) = built(&app, &viewer.tenant, usize::MAX, room, mask).await?;
    let pause_max = app.config.bounds.write_pause_max;
    let mut response = whole_answer("application/json", text, room, pause_max).await?;
    let saved = HeaderValue::from_static("attachment; filename=\"request.json\"");
    response
        .headers_mut()
        .insert(header::CONTENT_DISPOSITION, saved);
    Ok(response)
}

/// The beginning of a body, indented, and whether something is left out.
fn shown(redactor: &Redactor, body: &[u8]) -> (String, bool) {
    let start = body.get(..SHOWN_MAX).unwrap_or(body);
    let mut text = String::from_utf8_lossy(start).into_owned();
    let mut is_cut = start.len() < body.len();
    if is_cut {
        text.push('…'); // So that half a key is masked as well.
    }
    let text = indented(&redactor.mask_cut(&text));
    let (text, left) = clip_visible(&text, SHOWN_MAX);
    is_cut |= left > 0;
    (text, is_cut)
}

/// JSON with a line for each field. Its end may be missing. Stops beyond [`SHOWN_MAX`].
fn indented(json: &str) -> String {
    let mut out = String::new();
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    let mut chars = json.chars().peekable();
    while let Some(letter) = chars.next() {
        if out.len() > SHOWN_MAX {
            break;
        }
        if in_text {
            out.push(letter);
            in_text = is_escaped || letter != '"';
            is_escaped = !is_escaped && letter == '\\';
            continue;
        }
        let line = |out: &mut String, depth: usize| {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', (depth * 2).min(INDENT_MAX)));
        };
        match letter {
            '{' | '[' => {
                out.push(letter);
                depth += 1;
                match chars.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => {
                        depth -= 1;
                        out.push(end);
                    }
                    None => line(&mut out, depth),
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(letter);
            }
            ',' => {
                out.push(letter);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            '"' => {
                out.push(letter);
                in_text = true;
            }
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_indented_and_its_texts_are_left_as_they_are() {
        let json = r#"{"a":[1,{"b":"x, {\"y\"}\\"}],"c":{},"d":[]}"#;
        let expected = [
            "{",
            "  \"a\": [",
            "    1,",
            "    {",
            r#"      "b": "x, {\"y\"}\\""#,
            "    }",
            "  ],",
            "  \"c\": {},",
            "  \"d\": []",
            "}",
        ];

        assert_eq!(indented(json), expected.join("\n"));
        assert_eq!(indented("{\"a\":\"b"), "{\n  \"a\": \"b");
    }

    #[test]
    fn of_a_large_body_the_beginning_is_shown() {
        let redactor = Redactor::default();
        let deep = "[".repeat(SHOWN_MAX);
        let long = format!("[{}]", "1,".repeat(SHOWN_MAX));

        for body in [deep, long] {
            let (text, is_cut) = shown(&redactor, body.as_bytes());
            assert!(text.len() <= SHOWN_MAX && is_cut);
        }
        assert_eq!(shown(&redactor, b"[1]"), ("[\n  1\n]".to_owned(), false));
    }
}
