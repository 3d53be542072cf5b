//! What all routes share, and the bounds that are counted here: watchers and bytes of bodies, a tenant and all together.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use callboard_actors::{
    host::{ConversationHandle, SendError},
    ids::{ConversationId, Scope, TenantId},
    journal::Head,
};
use tokio_util::sync::CancellationToken;

use super::{HttpConfig, error::Problem};
use crate::Host;

/// Bytes of bodies that are being read, of all tenants together: beyond it requests are refused, memory is not.
const BODIES_BYTES_MAX: usize = 512 * 1024 * 1024;

/// The same of one tenant: three prompts of the largest kind.
const TENANT_BODIES_BYTES_MAX: usize = 128 * 1024 * 1024;

/// What handlers are given.
pub(super) type App = Arc<Shared>;

/// What all routes share.
pub(super) struct Shared {
    pub(super) host: Host,
    pub(super) config: HttpConfig,
    /// The operator asked for the end.
    pub(super) drain: CancellationToken,
    /// The end has begun: not ready.
    pub(super) draining: CancellationToken,
    /// The host has ended: streams end, connections close.
    pub(super) closing: CancellationToken,
    counted: Arc<Mutex<Counted>>,
    /// The document, rendered once.
    pub(super) openapi: bytes::Bytes,
}

#[derive(Default)]
struct Counted {
    body_bytes: usize,
    tenants: HashMap<TenantId, OfTenant>,
}

#[derive(Default, Clone, Copy)]
struct OfTenant {
    streams: usize,
    body_bytes: usize,
}

impl Counted {
    /// Forgets a tenant of whom nothing is counted.
    fn tidy(&mut self, tenant: &TenantId) {
        if self.tenants.get(tenant).is_some_and(|held| held.streams == 0 && held.body_bytes == 0) {
            self.tenants.remove(tenant);
        }
    }
}

impl Shared {
    pub(super) fn new(host: Host, config: HttpConfig, openapi: bytes::Bytes) -> Self {
        let (drain, draining, closing) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        Self { host, config, drain, draining, closing, counted: Arc::default(), openapi }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// A conversation of a tenant.
    pub(super) fn conversation(&self, scope: &Scope) -> ConversationHandle {
        self.host.tenant(&scope.tenant).conversation(&scope.conversation)
    }

    /// A conversation of which something is stored. Wakes nothing and makes nothing.
    ///
    /// # Errors
    /// 404 in the same words whether it is another tenant's or nobody's.
    pub(super) async fn known(&self, tenant: &TenantId, id: &str) -> Result<(Scope, ConversationHandle), Problem> {
        let scope = scope(tenant, id)?;
        if self.host.ports().sessions.head(&scope).await? == Head::default() {
            return Err(Problem::not_found("conversation"));
        }
        let conversation = self.conversation(&scope);
        Ok((scope, conversation))
    }

    /// A place for one more watcher.
    ///
    /// # Errors
    /// 429 when the tenant has as many as it may.
    pub(super) fn watch(&self, tenant: &TenantId) -> Result<Watching, Problem> {
        let mut counted = lock(&self.counted);
        let held = counted.tenants.entry(tenant.clone()).or_default();
        if held.streams >= self.config.bounds.streams_per_tenant_max {
            return Err(Problem::too_many("too_many_streams", "this tenant watches as many streams as it may; close one first"));
        }
        held.streams += 1;
        drop(counted);
        Ok(Watching { counted: self.counted.clone(), tenant: tenant.clone() })
    }

    /// Room for the bytes of a body, none yet.
    pub(super) fn body_room(&self, tenant: &TenantId) -> BodyRoom {
        BodyRoom { counted: self.counted.clone(), tenant: tenant.clone(), bytes: 0 }
    }
}

/// Names a conversation.
pub(super) fn scope(tenant: &TenantId, id: &str) -> Result<Scope, Problem> {
    let id = ConversationId::new(id).map_err(SendError::from)?;
    Ok(Scope::new(tenant.clone(), id))
}

fn lock(counted: &Mutex<Counted>) -> std::sync::MutexGuard<'_, Counted> {
    counted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A watcher's place; free again on drop.
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

/// The bytes of a body that is being read; free again on drop.
pub(super) struct BodyRoom {
    counted: Arc<Mutex<Counted>>,
    tenant: TenantId,
    bytes: usize,
}

impl BodyRoom {
    /// Takes room for so many bytes more.
    ///
    /// # Errors
    /// 429 when the tenant, or all together, have as many under way as they may.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Problem> {
        let mut counted = lock(&self.counted);
        let all = counted.body_bytes + bytes;
        let held = counted.tenants.entry(self.tenant.clone()).or_default();
        if all > BODIES_BYTES_MAX || held.body_bytes + bytes > TENANT_BODIES_BYTES_MAX {
            return Err(Problem::too_many("too_many_bytes", "too many large requests at once; send this one again in a moment"));
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
