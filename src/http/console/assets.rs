//! The style, the script and the icon of the console. Browsers keep them and ask whether they
//! changed.

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::answer::with_type;
use crate::http::KeyHash;

pub(super) const STYLE_PATH: &str = "/console/style.css";
pub(super) const SCRIPT_PATH: &str = "/console/console.js";
pub(super) const ICON_PATH: &str = "/console/icon.svg";

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/console.js");
const ICON: &str = include_str!("assets/icon.svg");

pub(super) async fn style(headers: HeaderMap) -> Response {
    asset(STYLE, "text/css; charset=utf-8", &headers)
}

pub(super) async fn script(headers: HeaderMap) -> Response {
    asset(SCRIPT, "text/javascript; charset=utf-8", &headers)
}

pub(super) async fn icon(headers: HeaderMap) -> Response {
    asset(ICON, "image/svg+xml", &headers)
}

fn asset(text: &'static str, media: &'static str, asked: &HeaderMap) -> Response {
    let tag = format!("\"{}\"", KeyHash::from_key(text));
    let is_kept = asked
        .get(header::IF_NONE_MATCH)
        .is_some_and(|held| held.as_bytes() == tag.as_bytes());
    let mut response = match is_kept {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => with_type(text, media),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.extend(HeaderValue::from_str(&tag).map(|tag| (header::ETAG, tag)));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_browsers_load_is_small_and_from_here() {
        assert!(STYLE.len() + SCRIPT.len() <= 60 * 1024);
        for text in [STYLE, SCRIPT, ICON] {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http:") && !text.contains("https:"));
        }
        for word in ["eval(", "new Function", "document.write"] {
            assert!(!SCRIPT.contains(word), "{word}");
        }
    }
}
