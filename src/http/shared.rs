//! State shared by all handlers, and two counted resources: open event streams and buffered body
//! bytes, each for one tenant and in total.

use std::{collections::HashMap, fmt::Display, sync::Arc};

use axum::http::StatusCode;

use callboard_actors::{
    chat::{ContentBlock, attachment::is_remote},
    host::{ConversationHandle, SendError},
    ids::{ConversationId, Scope, TenantId},
    journal::Head,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    HttpConfig, addresses::Addresses, answer_room::AnswerRooms, error::Problem, fan_outs::FanOuts,
    kept::KeptRooms, owners::RecentOwners, peers::Watched, sessions::Sessions,
};
use crate::{
    Host,
    fair::{FairPlaces, Refused, Waiting},
};

/// Request bodies being read, of all tenants together, in bytes; beyond it requests are refused
/// with 429.
const BODIES_BYTES_MAX: usize = 512 * 1024 * 1024;

/// The same limit for one tenant: three prompts of maximum size.
const TENANT_BODIES_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Bodies that wait to be parsed. They count in their tenants' room for bodies as well.
const PARSES_WAITING: Waiting = Waiting {
    all: 64 * 1024,
    tenant: 16 * 1024,
};

/// Calls that wait to have their tokens counted. Their messages are in memory, in no room.
const COUNTS_WAITING: Waiting = Waiting { all: 64, tenant: 8 };

/// Answers that wait to be built. What they are made of is in memory, in the room of answers.
const VIEWS_WAITING: Waiting = Waiting {
    all: 1024,
    tenant: 64,
};

/// The answer for a request that would wait behind too many others.
pub(super) fn too_busy(_: Refused) -> Problem {
    Problem::too_many(
        "too_many_requests",
        "too many requests of this kind wait; retry in a moment",
    )
}

/// The state that axum passes to every handler.
pub(super) type App = Arc<Shared>;

/// State of all handlers.
pub(super) struct Shared {
    pub(super) host: Host,
    pub(super) config: HttpConfig,
    /// Cancelled by the operator's drain route; starts the shutdown.
    pub(super) drain: CancellationToken,
    /// Cancelled when shutdown begins; `/readyz` answers 503 from then on.
    pub(super) draining: CancellationToken,
    /// Cancelled when the host has shut down; event streams end and connections close.
    pub(super) closing: CancellationToken,
    counted: Arc<Mutex<Counted>>,
    /// A place for each large body that is parsed at the same time: half of the processors, so that
    /// the other half serves requests.
    pub(super) parses: Arc<FairPlaces>,
    /// A place for each count of tokens, likewise. Counting takes seconds, parsing does not.
    pub(super) counts: Arc<FairPlaces>,
    /// A place for each large answer that is built from a journal at the same time, likewise.
    pub(super) views: Arc<FairPlaces>,
    /// Room for copies of bodies that may be sent on.
    pub(super) kept: KeptRooms,
    /// Room for answers that clients have not read yet.
    pub(super) answers: AnswerRooms,
    /// The fan-outs that tenants started.
    pub(super) fan_outs: FanOuts,
    /// Who is logged in to the console.
    pub(super) console: Sessions,
    /// The login forms that are being read, by client address.
    pub(super) logins: Addresses,
    /// The open event streams, where other hosts may take conversations.
    pub(super) watched: Arc<Watched>,
    /// Requests that were sent on, by the address of their host.
    pub(super) sent_on: Arc<Watched<String>>,
    /// The hosts that answered for their conversations of late.
    pub(super) owners: RecentOwners,
    /// The OpenAPI document, rendered once.
    pub(super) openapi: bytes::Bytes,
}

#[derive(Default)]
struct Counted {
    body_bytes: usize,
    tenants: HashMap<TenantId, TenantUsage>,
}

#[derive(Default, Clone, Copy)]
struct TenantUsage {
    requests: usize,
    streams: usize,
    body_bytes: usize,
}

impl Counted {
    /// Removes the entry of a tenant that uses nothing.
    fn tidy(&mut self, tenant: &TenantId) {
        if self
            .tenants
            .get(tenant)
            .is_some_and(|held| (held.requests, held.streams, held.body_bytes) == (0, 0, 0))
        {
            self.tenants.remove(tenant);
        }
    }
}

impl Shared {
    pub(super) fn new(host: Host, config: HttpConfig, openapi: bytes::Bytes) -> Self {
        let drain = CancellationToken::new();
        let draining = CancellationToken::new();
        let closing = CancellationToken::new();
        let processors = std::thread::available_parallelism();
        let half = processors.map_or(1, |all| all.get().div_ceil(2));
        Self {
            answers: AnswerRooms::new(&config.bounds),
            host,
            config,
            drain,
            draining,
            closing,
            counted: Arc::default(),
            parses: FairPlaces::new(half, PARSES_WAITING),
            counts: FairPlaces::new(half, COUNTS_WAITING),
            views: FairPlaces::new(half, VIEWS_WAITING),
            kept: KeptRooms::default(),
            fan_outs: FanOuts::default(),
            console: Sessions::default(),
            logins: Addresses::default(),
            watched: Arc::default(),
            sent_on: Arc::default(),
            owners: RecentOwners::default(),
            openapi,
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// A handle to a conversation; does not activate it.
    pub(super) fn conversation(&self, scope: &Scope) -> ConversationHandle {
        self.host
            .tenant(&scope.tenant)
            .conversation(&scope.conversation)
    }

    /// A handle to a conversation that has stored entries. Neither activates nor creates it.
    ///
    /// # Errors
    /// 404, with the same text for an unknown id and for another tenant's.
    pub(super) async fn known(
        &self,
        tenant: &TenantId,
        id: &str,
    ) -> Result<(Scope, ConversationHandle), Problem> {
        let scope = scope(tenant, id)?;
        if self.host.ports().sessions.head(&scope).await? == Head::default() {
            return Err(Problem::not_found("conversation"));
        }
        let conversation = self.conversation(&scope);
        Ok((scope, conversation))
    }

    /// Refuses blocks that a provider would fetch on the operator's account, unless the operator
    /// lets tenants send them. `pointer` is that of the blocks' list.
    ///
    /// # Errors
    /// 422 `attachment_remote` with the pointer of the first one.
    pub(super) fn check_attachments(
        &self,
        blocks: &[ContentBlock],
        pointer: impl Display,
    ) -> Result<(), Problem> {
        self.check_attachment(blocks.iter().position(is_remote), pointer)
    }

    /// As [`Shared::check_attachments`], of the first such block.
    pub(super) fn check_attachment(
        &self,
        remote: Option<usize>,
        pointer: impl Display,
    ) -> Result<(), Problem> {
        match remote.filter(|_| !self.config.bounds.remote_attachments) {
            None => Ok(()),
            Some(index) => Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "attachment_remote",
                "an attachment must be in the request as base64: this host lets no provider fetch one by URL or file id",
            )
            .at(format!("{pointer}/{index}"))),
        }
    }

    /// Reserves a place for one more open request of a tenant.
    ///
    /// # Errors
    /// 429 when the tenant has reached its limit.
    pub(super) fn begin(&self, tenant: &TenantId) -> Result<OpenRequest, Problem> {
        let mut counted = lock(&self.counted);
        let held = counted.tenants.entry(tenant.clone()).or_default();
        if held.requests >= self.config.bounds.requests_per_tenant_max {
            return Err(Problem::too_many(
                "too_many_requests",
                "this tenant has reached its limit of open requests; wait for answers, or retry in a moment",
            ));
        }
        held.requests += 1;
        drop(counted);
        Ok(OpenRequest {
            counted: self.counted.clone(),
            tenant: tenant.clone(),
        })
    }

    /// Reserves an event stream.
    ///
    /// # Errors
    /// 429 when the tenant has reached its limit.
    pub(super) fn watch(&self, tenant: &TenantId) -> Result<Watching, Problem> {
        let mut counted = lock(&self.counted);
        let held = counted.tenants.entry(tenant.clone()).or_default();
        if held.streams >= self.config.bounds.streams_per_tenant_max {
            return Err(Problem::too_many(
                "too_many_streams",
                "this tenant has reached its limit of open event streams; close one first",
            ));
        }
        held.streams += 1;
        drop(counted);
        Ok(Watching {
            counted: self.counted.clone(),
            tenant: tenant.clone(),
        })
    }

    /// The reserved bytes of request bodies of a tenant.
    #[cfg(all(test, feature = "mcp-server"))]
    pub(super) fn body_bytes(&self, tenant: &TenantId) -> usize {
        let counted = lock(&self.counted);
        counted
            .tenants
            .get(tenant)
            .map_or(0, |held| held.body_bytes)
    }

    /// A reservation for the bytes of one request body; empty until [`BodyRoom::take`].
    pub(super) fn body_room(&self, tenant: &TenantId) -> BodyRoom {
        BodyRoom {
            counted: self.counted.clone(),
            tenant: tenant.clone(),
            bytes: 0,
        }
    }
}

/// Parses a conversation id into a scope of the tenant.
pub(super) fn scope(tenant: &TenantId, id: &str) -> Result<Scope, Problem> {
    let id = ConversationId::new(id).map_err(SendError::from)?;
    Ok(Scope::new(tenant.clone(), id))
}

fn lock(counted: &Mutex<Counted>) -> parking_lot::MutexGuard<'_, Counted> {
    counted.lock()
}

/// One open request of a tenant. Dropping it frees the place.
pub(super) struct OpenRequest {
    counted: Arc<Mutex<Counted>>,
    tenant: TenantId,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut counted = lock(&self.counted);
        if let Some(held) = counted.tenants.get_mut(&self.tenant) {
            held.requests = held.requests.saturating_sub(1);
        }
        counted.tidy(&self.tenant);
    }
}

/// One reserved event stream. Dropping it frees the place.
pub(super) struct Watching {
    counted: Arc<Mutex<Counted>>,
    tenant: TenantId,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut counted = lock(&self.counted);
        if let Some(held) = counted.tenants.get_mut(&self.tenant) {
            held.streams = held.streams.saturating_sub(1);
        }
        counted.tidy(&self.tenant);
    }
}

/// Reserved bytes of a request body. Dropping it frees them.
pub(super) struct BodyRoom {
    counted: Arc<Mutex<Counted>>,
    tenant: TenantId,
    bytes: usize,
}

impl BodyRoom {
    /// Reserves `bytes` more.
    ///
    /// # Errors
    /// 429 when the tenant or the host has reached its limit.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Problem> {
        let mut counted = lock(&self.counted);
        let all = counted.body_bytes + bytes;
        let held = counted.tenants.entry(self.tenant.clone()).or_default();
        if all > BODIES_BYTES_MAX || held.body_bytes + bytes > TENANT_BODIES_BYTES_MAX {
            return Err(Problem::too_many(
                "too_many_bytes",
                "too many large requests at once; retry in a moment",
            ));
        }
        held.body_bytes += bytes;
        counted.body_bytes = all;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for BodyRoom {
    fn drop(&mut self) {
        let mut counted = lock(&self.counted);
        counted.body_bytes = counted.body_bytes.saturating_sub(self.bytes);
        if let Some(held) = counted.tenants.get_mut(&self.tenant) {
            held.body_bytes = held.body_bytes.saturating_sub(self.bytes);
        }
        counted.tidy(&self.tenant);
    }
}
