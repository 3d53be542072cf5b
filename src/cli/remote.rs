//! A running `callboard serve` in place of the store: flags, requests, and errors of one line.

use std::time::Duration;

use callboard_actors::ids::ConversationId;
use clap::Args;
use reqwest::{Client, Response, StatusCode, header};
use serde::{Deserialize, de::DeserializeOwned};

use super::failure::Failure;
use crate::config::{Secret, process_environment};

/// Variables for the flags of the same names.
const SERVER: &str = "CALLBOARD_SERVER";
const KEY: &str = "CALLBOARD_KEY";

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// How long a server may send nothing.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Bytes of one answer: a page of 8 MiB, or one message, which the largest prompt bounds at 33 MB.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of an error or of the description of the API.
const SHORT_BYTES_MAX: usize = 1024 * 1024;

/// Flags of commands that can ask a running host.
#[derive(Debug, Clone, Args)]
pub(super) struct ServerFlags {
    /// Ask a running `callboard serve` at this URL, not the store [env: CALLBOARD_SERVER]
    #[arg(long, value_name = "URL", conflicts_with_all = ["db", "tenant"])]
    server: Option<String>,
    /// Key of the tenant at the server; the variable hides it from other users of the machine
    /// [env: CALLBOARD_KEY]
    #[arg(long, value_name = "KEY")]
    key: Option<KeyText>,
}

/// An unchecked key: clap would quote a key that a parser refuses.
#[derive(Clone)]
pub(super) struct KeyText(String);

impl From<String> for KeyText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Shows no key.
impl std::fmt::Debug for KeyText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyText(masked)")
    }
}

impl ServerFlags {
    /// Whether a flag names a server or a key.
    pub(super) fn is_given(&self) -> bool {
        self.server.is_some() || self.key.is_some()
    }

    /// The flags of a command that declares them itself.
    pub(super) fn new(server: Option<String>, key: Option<KeyText>) -> Self {
        Self { server, key }
    }

    /// The server to ask; `None` to read the store. `names_store` says that another flag names a
    /// store, which outranks the variable.
    ///
    /// # Errors
    /// A wrong URL or key, or a server without a key.
    pub(super) fn remote(&self, names_store: bool) -> Result<Option<Remote>, Failure> {
        let variable = |name: &str| {
            process_environment().find_map(|(known, text)| {
                (known == name && !text.trim().is_empty()).then_some(text)
            })
        };
        let server = match (&self.server, names_store) {
            (Some(server), _) => Some((server.clone(), "--server")),
            (None, true) => None,
            (None, false) => variable(SERVER).map(|server| (server, SERVER)),
        };
        let Some((server, from)) = server else {
            return match self.key {
                Some(_) => Err(Failure::usage("--key needs a server")
                    .hint(format!("add --server URL, or set {SERVER}"))),
                None => Ok(None),
            };
        };
        let base =
            base_url(&server).map_err(|problem| Failure::usage(format!("{from} {problem}")))?;
        let (key, from) = match &self.key {
            Some(key) => (Some(key.0.clone()), "--key"),
            None => (variable(KEY), KEY),
        };
        let key = key.ok_or_else(|| {
            Failure::usage("a server needs a tenant's key").hint(format!(
                "set {KEY}, or give --key; `callboard keys new` makes one"
            ))
        })?;
        let key = Secret::new(&key)
            .map_err(|problem| Failure::usage(format!("the key of {from} {problem}")))?;
        Remote::new(base, key).map(Some)
    }
}

/// Checks a URL and returns it without a slash at its end. The errors do not quote it: it may hold
/// a password.
pub(super) fn base_url(text: &str) -> Result<String, &'static str> {
    const FORM: &str = "must be a URL such as http://127.0.0.1:8787";
    let url = reqwest::Url::parse(text.trim()).map_err(|_| FORM)?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(FORM);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must hold no password; the key has a flag and a variable");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(FORM);
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// A running host.
pub(super) struct Remote {
    client: Client,
    base: String,
    key: Secret,
}

/// A problem document, as far as it is shown.
#[derive(Debug, Default, Deserialize)]
struct Problem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    detail: String,
}

/// The parts of an OpenAPI document that name a server.
#[derive(Deserialize)]
struct Description {
    info: Info,
    #[serde(default)]
    paths: std::collections::BTreeMap<String, serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Info {
    title: String,
    version: String,
}

/// A client for requests with a tenant's key.
pub(super) fn client() -> Result<reqwest::Client, Failure> {
    crate::tls::client_builder()
        .map_err(|error| Failure::work(error.to_string()))?
        // A proxy or another host must not receive the key.
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_WITHIN)
        .read_timeout(SILENCE_MAX)
        .build()
        .map_err(|error| Failure::work(error.to_string()))
}

impl Remote {
    fn new(base: String, key: Secret) -> Result<Self, Failure> {
        let client = client()?;
        Ok(Self { client, base, key })
    }

    /// Reads a resource of the tenant.
    ///
    /// # Errors
    /// One line that says whether the server, the key or the version is wrong.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        route: &'static str,
        query: &str,
    ) -> Result<T, Failure> {
        self.read(route, route.to_owned(), query, None).await
    }

    /// Reads a resource of a conversation; `{id}` in the route is its id.
    ///
    /// # Errors
    /// As [`Remote::get`], and an unknown conversation.
    pub(super) async fn get_of<T: DeserializeOwned>(
        &self,
        route: &'static str,
        id: &ConversationId,
        query: &str,
    ) -> Result<T, Failure> {
        let path = route.replace("{id}", id.as_str());
        self.read(route, path, query, Some(id)).await
    }

    async fn read<T: DeserializeOwned>(
        &self,
        route: &'static str,
        path: String,
        query: &str,
        id: Option<&ConversationId>,
    ) -> Result<T, Failure> {
        let mark = if query.is_empty() { "" } else { "?" };
        let url = format!("{}{path}{mark}{query}", self.base);
        let answer = self.answer(self.client.get(url), route, id).await?;
        let body = self.body(answer, ANSWER_BYTES_MAX).await?;
        match serde_json::from_slice(&body) {
            Ok(value) => Ok(value),
            Err(_) => Err(self.unknown_form(route).await),
        }
    }

    /// Writes to a conversation and returns the answer, whose body is still to be read; `{id}` and
    /// `{tool_call_id}` in the route are its id and that of a call.
    ///
    /// # Errors
    /// As [`Remote::get_of`].
    pub(super) async fn post_of(
        &self,
        route: &'static str,
        id: &ConversationId,
        tool_call_id: Option<&str>,
        body: &serde_json::Value,
    ) -> Result<Response, Failure> {
        let call: String =
            form_urlencoded::byte_serialize(tool_call_id.unwrap_or_default().as_bytes()).collect();
        let path = route
            .replace("{id}", id.as_str())
            .replace("{tool_call_id}", &call);
        let request = self
            .client
            .post(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string());
        self.answer(request, route, Some(id)).await
    }

    async fn answer(
        &self,
        request: reqwest::RequestBuilder,
        route: &'static str,
        id: Option<&ConversationId>,
    ) -> Result<Response, Failure> {
        let sent = request.bearer_auth(self.key.expose()).send();
        let answer = sent.await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = self.body(answer, SHORT_BYTES_MAX).await.unwrap_or_default();
        let problem = serde_json::from_slice(&body).unwrap_or_default();
        Err(self.refused(status, problem, route, id).await)
    }

    /// The address of the server.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    async fn body(&self, mut answer: Response, bytes_max: usize) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            match answer.chunk().await {
                Ok(None) => return Ok(body),
                Ok(Some(chunk)) if body.len() + chunk.len() <= bytes_max => {
                    body.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => {
                    return Err(Failure::work(format!(
                        "an answer of the server at {} has more than {bytes_max} bytes",
                        self.base
                    )));
                }
                Err(error) => return Err(self.unreachable(&error)),
            }
        }
    }

    /// The error for a server that cannot be reached, or whose answer broke off.
    pub(super) fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let base = &self.base;
        if error.is_timeout() {
            return Failure::work(format!("the server at {base} does not answer in time"));
        }
        let mut cause: &dyn std::error::Error = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        let words = match cause.downcast_ref::<std::io::Error>() {
            Some(error) => crate::os_error::words(error),
            None => cause.to_string(),
        };
        let failure = match error.is_connect() {
            true => Failure::work(format!("no server answers at {base}: {words}")),
            false => Failure::work(format!(
                "the answer of the server at {base} broke off: {words}"
            )),
        };
        failure.hint("is `callboard serve` running there, and the URL right?")
    }

    async fn refused(
        &self,
        status: StatusCode,
        problem: Problem,
        route: &str,
        id: Option<&ConversationId>,
    ) -> Failure {
        let base = &self.base;
        match (status, problem.code.as_str()) {
            (StatusCode::UNAUTHORIZED, "unauthorized") => {
                Failure::work(format!("the server at {base} does not accept this key")).hint(
                    format!("give the key of one of its tenants with --key or {KEY}"),
                )
            }
            (StatusCode::FORBIDDEN, "tenant_key_needed") => {
                Failure::work("this is the operator's key; conversations belong to tenants")
                    .hint("give a tenant's key")
            }
            (StatusCode::NOT_FOUND, "not_found") => match (self.describe().await, id) {
                (Some(known), Some(id)) if known.paths.contains_key(route) => {
                    Failure::work(format!("session `{id}` not found at {base}"))
                        .hint("`callboard sessions list` with the same --server shows all sessions")
                }
                (Some(known), _) if !known.paths.contains_key(route) => self.too_old(&known),
                _ => self.answered(status, &problem),
            },
            (_, "") => self.unknown_form(route).await,
            _ => self.answered(status, &problem),
        }
    }

    fn answered(&self, status: StatusCode, problem: &Problem) -> Failure {
        let base = &self.base;
        match problem.detail.as_str() {
            "" => Failure::work(format!("the server at {base} answered {status}")),
            detail => Failure::work(format!("the server at {base} answered: {detail}")),
        }
    }

    /// The error for an answer that is not what this version reads.
    async fn unknown_form(&self, route: &str) -> Failure {
        match self.describe().await {
            Some(known) if !known.paths.contains_key(route) || known.info.version != VERSION => {
                self.too_old(&known)
            }
            Some(_) => Failure::work(format!(
                "an answer of the server at {} cannot be read",
                self.base
            )),
            None => Failure::work(format!("the server at {} is not Callboard", self.base))
                .hint("--server is the address of `callboard serve`, without a path"),
        }
    }

    fn too_old(&self, known: &Description) -> Failure {
        Failure::work(format!(
            "the server at {} is Callboard {}, too old for this command of version {VERSION}",
            self.base, known.info.version
        ))
        .hint("use the `callboard` program of the server's version")
    }

    /// What the server says about itself; `None` if it is not Callboard. Sends no key.
    async fn describe(&self) -> Option<Description> {
        let url = format!("{}/openapi.json", self.base);
        let answer = self
            .client
            .get(url)
            .header(header::ACCEPT, "application/json");
        let answer = answer.send().await.ok()?;
        let body = self.body(answer, SHORT_BYTES_MAX).await.ok()?;
        let known: Description = serde_json::from_slice(&body).ok()?;
        (known.info.title == "Callboard").then_some(known)
    }
}

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_a_server_has_neither_password_nor_query() {
        for (given, taken) in [
            ("http://127.0.0.1:8787", Some("http://127.0.0.1:8787")),
            (
                " https://calls.example/base/ ",
                Some("https://calls.example/base"),
            ),
            ("127.0.0.1:8787", None),
            ("file:///etc/passwd", None),
            ("http://user:not-a-real-password@calls.example", None),
            ("http://calls.example/?key=not-a-real-key", None),
        ] {
            let found = base_url(given);
            assert_eq!(found.as_deref().ok(), taken, "{given}");
            if let Err(problem) = found {
                assert!(!problem.contains("not-a-real"), "{problem}");
            }
        }
    }

    #[test]
    fn a_key_of_the_command_line_does_not_show_in_debug() {
        let flags = ServerFlags {
            server: Some("http://127.0.0.1:1".to_owned()),
            key: Some(KeyText("cb_not-a-real-key".to_owned())),
        };

        assert!(!format!("{flags:?}").contains("not-a-real-key"));
    }
}
