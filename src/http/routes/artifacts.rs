//! Reads artifacts: tool results that were too large for the model's context.

use std::ops::Range;

use axum::{
    Extension,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use callboard_actors::{
    ids::{ArtifactId, ConversationId, Scope, TenantId},
    ports::{ArtifactError, ArtifactMeta, ListQuery},
};
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Path, Query};
use crate::http::{
    answer_body::answer_body, answer_room::ConnectionRoom, auth::Caller, error::Problem,
    shared::App,
};

/// Conversations in which an artifact is searched without a conversation id. Each is a read of the
/// store, so a tenant with more conversations has to name one.
const SEARCHED: usize = 256;

/// Most bytes of one response; clients read larger artifacts by ranges.
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Bytes of an artifact in memory for one response.
const CHUNK_BYTES: u64 = 1024 * 1024;

/// Query parameters of the artifact route.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct Of {
    /// The conversation that the artifact belongs to. Absent: the tenant's conversations are searched,
    /// unless they are more than 256.
    conversation: Option<String>,
}

impl Of {
    /// The artifacts of one conversation.
    pub(in crate::http) fn in_conversation(id: String) -> Self {
        Self {
            conversation: Some(id),
        }
    }
}

/// Reads an artifact, or one range of its bytes.
///
/// The id is the hash of the content, so an artifact never changes and clients may cache it.
#[utoipa::path(
    get, path = "/v1/artifacts/{artifact_id}", tag = "conversations",
    params(
        ("artifact_id" = String, Path, description = "Id of the artifact, from the event `tool_result`"), Of,
        ("Range" = Option<String>, Header, description = "One range of bytes, such as `bytes=0-1023`; a list of ranges is ignored, and the whole artifact returned"),
    ),
    responses(
        (status = 200, description = "The whole artifact", body = String, content_type = "application/octet-stream"),
        (status = 206, description = "The requested range", body = String, content_type = "application/octet-stream"),
        (status = 416, description = "`range_not_satisfiable`: the range starts after the last byte", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(in crate::http) async fn get(
    State(app): State<App>,
    Caller(tenant): Caller,
    Extension(connection): Extension<ConnectionRoom>,
    Path(id): Path<String>,
    Query(of): Query<Of>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    // A malformed id gets the 404 of an unknown one, which reveals nothing about valid ids.
    let id = ArtifactId::parse(&id).map_err(|_| Problem::not_found("artifact"))?;
    // Before the look-up, so that few searches of a tenant run at a time.
    let room = app
        .answers
        .take(&tenant, &connection, CHUNK_BYTES as usize)
        .await?;
    let meta = match of.conversation {
        Some(conversation) => {
            let conversation =
                ConversationId::new(conversation).map_err(|_| Problem::not_found("artifact"))?;
            app.host
                .artifacts()
                .meta(Scope::new(tenant.clone(), conversation), id.clone())
                .await?
        }
        None => find(&app, &tenant, &id).await?,
    };
    let size = meta.size_bytes;
    let wanted = headers
        .get(header::RANGE)
        .and_then(|value| Wanted::parse(value.to_str().ok()?));
    let (status, range) = match wanted.map(|wanted| wanted.within(size)) {
        None => (StatusCode::OK, 0..size),
        Some(Some(range)) => (StatusCode::PARTIAL_CONTENT, range),
        Some(None) => {
            let problem = Problem::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "range_not_satisfiable",
                format!("the artifact has {size} bytes"),
            );
            return Ok((
                [(header::CONTENT_RANGE, format!("bytes */{size}"))],
                problem,
            )
                .into_response());
        }
    };
    let range = range.start..range.end.min(range.start.saturating_add(ANSWER_BYTES_MAX));
    let owner = Scope::new(tenant, meta.conversation_id);
    let parts = Parts {
        app: app.clone(),
        owner,
        id: id.clone(),
        left: range.clone(),
    };
    // The first part is read before the answer begins, so that a missing artifact is an error.
    let (first, parts) = parts.next().await?;

    let mut fields = HeaderMap::new();
    fields.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    fields.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    fields.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("private, immutable, max-age=3600"),
    );
    // The content comes from a tool: a browser must download it, never render it as a page of this
    // origin.
    fields.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    fields.insert(
        header::CONTENT_DISPOSITION,
        HeaderValue::from_static("attachment"),
    );
    fields.extend(
        HeaderValue::from_str(&format!("\"{id}\""))
            .ok()
            .map(|tag| (header::ETAG, tag)),
    );
    if status == StatusCode::PARTIAL_CONTENT {
        let last = range.end.saturating_sub(1);
        fields.extend(
            HeaderValue::from_str(&format!("bytes {}-{last}/{size}", range.start))
                .ok()
                .map(|value| (header::CONTENT_RANGE, value)),
        );
    }
    fields.insert(
        header::CONTENT_LENGTH,
        HeaderValue::from(range.end.saturating_sub(range.start)),
    );
    let rest = stream::try_unfold(parts, async |parts| {
        if parts.left.is_empty() {
            return Ok(None);
        }
        parts.next().await.map(Some)
    });
    let body = stream::once(async { Ok::<_, ArtifactError>(first) }).chain(rest);
    let pause_max = app.config.bounds.write_pause_max;
    Ok((status, fields, answer_body(body, room, pause_max)).into_response())
}

/// The parts of an artifact that are not read yet. Each is read when the client takes the one before
/// it.
struct Parts {
    app: App,
    owner: Scope,
    id: ArtifactId,
    left: Range<u64>,
}

impl Parts {
    async fn next(mut self) -> Result<(Bytes, Self), ArtifactError> {
        let end = self
            .left
            .end
            .min(self.left.start.saturating_add(CHUNK_BYTES));
        let part = self.left.start..end;
        let (owner, id) = (self.owner.clone(), self.id.clone());
        let bytes = self
            .app
            .host
            .artifacts()
            .read_range(owner, id, part)
            .await?;
        self.left.start = end;
        Ok((bytes, self))
    }
}

/// Searches the tenant's conversations in order of id and returns the first match.
async fn find(app: &App, tenant: &TenantId, id: &ArtifactId) -> Result<ArtifactMeta, Problem> {
    let artifacts = app.host.artifacts();
    let rows = app
        .host
        .tenant(tenant)
        .conversations(ListQuery {
            after: None,
            count: SEARCHED + 1,
            open: None,
            subagents: false,
        })
        .await?;
    if rows.len() > SEARCHED {
        let detail = format!("is needed where a tenant has more than {SEARCHED} conversations");
        return Err(Problem::bad_parameter("conversation", detail));
    }
    for row in rows {
        match artifacts
            .meta(Scope::new(tenant.clone(), row.conversation), id.clone())
            .await
        {
            Ok(meta) => return Ok(meta),
            Err(ArtifactError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Problem::not_found("artifact"))
}

/// A parsed `Range` header with one range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// `bytes=a-b`, both included.
    Between(u64, u64),
    /// `bytes=a-`.
    From(u64),
    /// `bytes=-n`: the last `n` bytes.
    Last(u64),
}

impl Wanted {
    /// Parses a range; `None` for what RFC 9110 §14.2 lets a server ignore: several ranges, other
    /// units, invalid syntax.
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
        let number = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| text.parse::<u64>().ok())
                .flatten()
        };
        match (first.trim(), last.trim()) {
            ("", last) => number(last).map(Self::Last),
            (first, "") => number(first).map(Self::From),
            (first, last) => {
                let first = number(first)?;
                let last = number(last)?;
                (first <= last).then_some(Self::Between(first, last))
            }
        }
    }

    /// The bytes of the range within an artifact of `size` bytes; `None` when the range is empty.
    fn within(self, size: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::Between(first, last) => first..last.saturating_add(1).min(size),
            Self::From(first) => first..size,
            Self::Last(count) => size.saturating_sub(count)..size,
        };
        (range.start < range.end).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_parsed_and_anything_else_is_ignored() {
        let range = |text: &str| Wanted::parse(text).map(|wanted| wanted.within(10));

        assert_eq!(range("bytes=0-3"), Some(Some(0..4)));
        assert_eq!(range("bytes=8-99"), Some(Some(8..10)));
        assert_eq!(range("bytes=4-"), Some(Some(4..10)));
        assert_eq!(range("bytes=-3"), Some(Some(7..10)));
        assert_eq!(range("bytes=-99"), Some(Some(0..10)));
        assert_eq!(range("bytes=10-"), Some(None));
        assert_eq!(range("bytes=-0"), Some(None));
        for passed_over in [
            "",
            "bytes=",
            "bytes=-",
            "bytes=3-1",
            "bytes=0-1,4-5",
            "lines=0-1",
            "bytes=+1-2",
            "bytes=99999999999999999999-",
        ] {
            assert_eq!(range(passed_over), None, "{passed_over}");
        }
    }
}
