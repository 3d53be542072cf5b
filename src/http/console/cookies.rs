//! The cookies of the console.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::http::sessions::LASTS;

/// The cookie with the id of a session.
pub(super) const SESSION_COOKIE: &str = "callboard_session";

/// The cookie that a login form must come back with.
pub(super) const LOGIN_COOKIE: &str = "callboard_login";

/// The field of every form that proves that this host made it.
pub(super) const CSRF: &str = "csrf";

/// The value of a cookie of a request.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter();
    all.filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value)
}

/// The header that sets a cookie for the console. `lasts` of zero removes it.
pub(super) fn set_cookie(
    headers: &HeaderMap,
    name: &str,
    value: &str,
    lasts: Duration,
) -> Option<(HeaderName, HeaderValue)> {
    // Behind a proxy that speaks TLS the cookie stays with TLS. Only the client's own cookie is at
    // stake, so that it may set the header itself does no harm.
    let proto = HeaderName::from_static("x-forwarded-proto");
    let is_tls = headers
        .get(proto)
        .is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"));
    let secure = if is_tls { "; Secure" } else { "" };
    let text = format!(
        "{name}={value}; Path=/console; Max-Age={}; HttpOnly; SameSite=Strict{secure}",
        lasts.as_secs()
    );
    HeaderValue::from_str(&text)
        .ok()
        .map(|value| (header::SET_COOKIE, value))
}

/// The cookie of a session that was opened.
pub(super) fn session_cookie(headers: &HeaderMap, id: &str) -> Option<(HeaderName, HeaderValue)> {
    set_cookie(headers, SESSION_COOKIE, id, LASTS)
}

/// The removal of that cookie.
pub(super) fn no_session_cookie(headers: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
    set_cookie(headers, SESSION_COOKIE, "", Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::COOKIE,
            HeaderValue::from_static("a=1; callboard_session=x; xcallboard_session=y"),
        );

        assert_eq!(cookie(&headers, SESSION_COOKIE), Some("x"));
        assert_eq!(cookie(&headers, "b"), None);
    }

    #[test]
    fn a_cookie_is_for_the_console_of_this_host_and_no_script() {
        let set = |proto: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(proto) = proto {
                headers.insert("x-forwarded-proto", HeaderValue::from_static(proto));
            }
            let (_, value) = session_cookie(&headers, "x").unwrap();
            value.to_str().unwrap().to_owned()
        };

        let plain = set(None);
        assert!(plain.contains("HttpOnly; SameSite=Strict") && plain.contains("Path=/console;"));
        assert!(!plain.contains("Secure") && set(Some("https")).ends_with("; Secure"));
    }
}
