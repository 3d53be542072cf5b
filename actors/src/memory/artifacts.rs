//! Artifacts in memory, lost with the process and bounded per tenant. For tests and hosts without a
//! disk.

use std::{collections::BTreeMap, future::ready, ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;

use super::lock;
use crate::{
    ids::{ArtifactId, ConversationId, Scope, TenantId},
    limits::{ARTIFACT_BYTES_MAX, TENANT_ARTIFACTS_MAX},
    policy::{ArtifactIndex, IndexPlace, IndexedArtifact},
    ports::{ArtifactError, ArtifactMeta, ArtifactStore, BoxFuture, Cleaned, Clock},
};

/// Content up to this size is hashed in place. Larger content is hashed on a thread of the blocking
/// pool.
const QUICK_BYTES: usize = 256 * 1024;

/// Limits of a [`MemoryArtifacts`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryArtifactsConfig {
    /// Bytes per tenant. Beyond it, the least recently used artifacts are removed.
    pub tenant_bytes_max: u64,
    /// How long an artifact is kept after it was last stored.
    pub max_age: Duration,
}

impl Default for MemoryArtifactsConfig {
    fn default() -> Self {
        Self {
            tenant_bytes_max: 64 * 1024 * 1024,
            max_age: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// Artifacts in memory. Each owner has a separate copy, even of a content that another owner
/// stored.
///
/// Expired artifacts are removed on access, when room is needed, and by `cleanup`.
pub struct MemoryArtifacts {
    clock: Arc<dyn Clock>,
    config: MemoryArtifactsConfig,
    tenants: Mutex<BTreeMap<TenantId, Tenant>>,
    /// Byte quotas of tenants that differ from the default.
    bounds: Mutex<BTreeMap<TenantId, u64>>,
}

#[derive(Default)]
struct Tenant {
    shelf: ArtifactIndex<ConversationId>,
    contents: BTreeMap<IndexPlace<ConversationId>, Bytes>,
}

impl Tenant {
    fn remove(&mut self, place: &IndexPlace<ConversationId>) -> u64 {
        self.contents.remove(place);
        self.shelf
            .remove(place)
            .map_or(0, |shelved| shelved.size_bytes)
    }

    fn remove_all(&mut self, places: &[IndexPlace<ConversationId>]) -> Cleaned {
        let bytes = places.iter().map(|place| self.remove(place)).sum();
        Cleaned {
            removed: places.len() as u64,
            bytes,
        }
    }
}

impl std::fmt::Debug for MemoryArtifacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryArtifacts")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl MemoryArtifacts {
    /// Creates a store with the default limits: 64 MiB per tenant, 24 hours.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with_config(clock, MemoryArtifactsConfig::default())
    }

    /// Creates a store with other limits.
    pub(crate) fn with_config(clock: Arc<dyn Clock>, config: MemoryArtifactsConfig) -> Self {
        Self {
            clock,
            config,
            tenants: Mutex::default(),
            bounds: Mutex::default(),
        }
    }

    fn put(
        &self,
        owner: Scope,
        id: ArtifactId,
        tool_call_id: String,
        content: Bytes,
    ) -> Result<ArtifactId, ArtifactError> {
        let now = self.clock.now();
        let size_bytes = content.len() as u64;
        let place = (owner.conversation, id.clone());
        let quota = lock(&self.bounds)
            .get(&owner.tenant)
            .copied()
            .unwrap_or(self.config.tenant_bytes_max);
        let mut tenants = lock(&self.tenants);
        let tenant = tenants.entry(owner.tenant).or_default();
        if tenant
            .contents
            .get(&place)
            .is_some_and(|there| *there != content)
        {
            return Err(ArtifactError::Collision(id));
        }
        // An artifact that is stored again needs no extra room: it is removed here and inserted
        // below.
        tenant.remove(&place);
        if tenant.shelf.bytes().saturating_add(size_bytes) > quota
            || tenant.shelf.len() >= TENANT_ARTIFACTS_MAX
        {
            let expired = tenant.shelf.expired(self.config.max_age, now);
            tenant.remove_all(&expired);
        }
        let Some(oldest) = tenant
            .shelf
            .room_for(size_bytes, quota, TENANT_ARTIFACTS_MAX)
        else {
            return Err(ArtifactError::OverQuota {
                used: tenant.shelf.bytes(),
                quota,
            });
        };
        tenant.remove_all(&oldest);
        tenant.shelf.put(
            place.clone(),
            IndexedArtifact {
                size_bytes,
                tool_call_id,
                created_at: now,
                accessed_at: now,
            },
        );
        tenant.contents.insert(place, content);
        tracing::debug!("Stored as {id}");
        Ok(id)
    }

    /// Finds an artifact that has not expired. Updates its time of last use if `is_use` is set.
    fn find<T>(
        &self,
        owner: Scope,
        id: ArtifactId,
        is_use: bool,
        of: impl FnOnce(&IndexedArtifact, &Bytes) -> T,
    ) -> Result<T, ArtifactError> {
        let now = self.clock.now();
        let mut tenants = lock(&self.tenants);
        let place = (owner.conversation, id);
        let found = tenants.get_mut(&owner.tenant).and_then(|tenant| {
            if tenant
                .shelf
                .get(&place)?
                .is_expired(self.config.max_age, now)
            {
                tenant.remove(&place);
            } else if is_use {
                tenant.shelf.touch(&place, now);
            }
            Some(of(tenant.shelf.get(&place)?, tenant.contents.get(&place)?))
        });
        found.ok_or(ArtifactError::NotFound(place.1))
    }
}

impl ArtifactStore for MemoryArtifacts {
    fn store(
        &self,
        owner: Scope,
        tool_call_id: String,
        content: Bytes,
    ) -> BoxFuture<'_, Result<ArtifactId, ArtifactError>> {
        Box::pin(async move {
            if content.len() > ARTIFACT_BYTES_MAX {
                return Err(ArtifactError::TooLarge {
                    size: content.len() as u64,
                    max: ARTIFACT_BYTES_MAX as u64,
                });
            }
            let id = if content.len() <= QUICK_BYTES {
                ArtifactId::from_content(&content)
            } else {
                let hashed = content.clone();
                let hashing =
                    crate::task::spawn_blocking(move || ArtifactId::from_content(&hashed));
                hashing
                    .await
                    .map_err(|_| ArtifactError::Unavailable("the host is stopping".to_owned()))?
            };
            self.put(owner, id, tool_call_id, content)
        })
    }

    fn retrieve(
        &self,
        owner: Scope,
        id: ArtifactId,
    ) -> BoxFuture<'_, Result<Bytes, ArtifactError>> {
        Box::pin(ready(
            self.find(owner, id, true, |_, content| content.clone()),
        ))
    }

    fn read_range(
        &self,
        owner: Scope,
        id: ArtifactId,
        range: Range<u64>,
    ) -> BoxFuture<'_, Result<Bytes, ArtifactError>> {
        Box::pin(ready(self.find(owner, id, true, |_, content| {
            let within = |place: u64| {
                usize::try_from(place)
                    .unwrap_or(usize::MAX)
                    .min(content.len())
            };
            let start = within(range.start);
            let end = within(range.end);
            content.slice(start..end.max(start))
        })))
    }

    fn meta(
        &self,
        owner: Scope,
        id: ArtifactId,
    ) -> BoxFuture<'_, Result<ArtifactMeta, ArtifactError>> {
        let conversation_id = owner.conversation.clone();
        Box::pin(ready(self.find(owner, id.clone(), false, |shelved, _| {
            let IndexedArtifact {
                size_bytes,
                tool_call_id,
                created_at,
                accessed_at,
            } = shelved.clone();
            ArtifactMeta {
                id,
                size_bytes,
                tool_call_id,
                conversation_id,
                created_at,
                accessed_at,
            }
        })))
    }

    fn touch(&self, owner: Scope, id: ArtifactId) -> BoxFuture<'_, Result<(), ArtifactError>> {
        Box::pin(ready(self.find(owner, id, true, |_, _| ())))
    }

    fn release(
        &self,
        tenant: TenantId,
        conversation: Option<ConversationId>,
    ) -> BoxFuture<'_, Result<(), ArtifactError>> {
        let mut tenants = lock(&self.tenants);
        match conversation {
            None => drop(tenants.remove(&tenant)),
            Some(conversation) => {
                if let Some(held) = tenants.get_mut(&tenant) {
                    let places = held.shelf.owned_by(&conversation);
                    held.remove_all(&places);
                    if held.shelf.is_empty() {
                        tenants.remove(&tenant);
                    }
                }
            }
        }
        Box::pin(ready(Ok(())))
    }

    fn bound(&self, tenant: &TenantId, bytes_max: Option<u64>) {
        let mut bounds = lock(&self.bounds);
        match bytes_max {
            Some(bytes_max) => drop(bounds.insert(tenant.clone(), bytes_max)),
            None => drop(bounds.remove(tenant)),
        }
    }

    fn cleanup(&self, max_age: Duration) -> BoxFuture<'_, Result<Cleaned, ArtifactError>> {
        let now = self.clock.now();
        let max_age = max_age.min(self.config.max_age);
        let mut cleaned = Cleaned::default();
        lock(&self.tenants).retain(|_, tenant| {
            let expired = tenant.shelf.expired(max_age, now);
            let gone = tenant.remove_all(&expired);
            cleaned = Cleaned {
                removed: cleaned.removed + gone.removed,
                bytes: cleaned.bytes + gone.bytes,
            };
            !tenant.shelf.is_empty()
        });
        Box::pin(ready(Ok(cleaned)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        testing::{ManualClock, contract},
        time::Timestamp,
    };

    #[tokio::test]
    async fn memory_keeps_the_contract_of_an_artifact_store() {
        contract::artifact_store(async |clock, bounds: contract::ArtifactBounds| {
            let config = MemoryArtifactsConfig {
                tenant_bytes_max: bounds.tenant_bytes_max,
                max_age: bounds.max_age,
            };
            Arc::new(MemoryArtifacts::with_config(clock, config)) as Arc<dyn ArtifactStore>
        })
        .await;
    }

    #[tokio::test]
    async fn two_contents_of_one_name_are_noticed_and_neither_is_served_as_the_other() {
        let store = MemoryArtifacts::new(Arc::new(ManualClock::at(Timestamp(1))));
        let owner = Scope::new("t".try_into().unwrap(), "c".try_into().unwrap());
        let id = store
            .store(owner.clone(), "1".into(), Bytes::from_static(b"first"))
            .await
            .unwrap();

        let forged = store.put(
            owner.clone(),
            id.clone(),
            "2".into(),
            Bytes::from_static(b"other"),
        );

        assert_eq!(forged, Err(ArtifactError::Collision(id.clone())));
        assert_eq!(
            store.retrieve(owner, id).await,
            Ok(Bytes::from_static(b"first"))
        );
    }

    #[test]
    fn debug_shows_no_owner_and_no_content() {
        let store = MemoryArtifacts::new(Arc::new(ManualClock::default()));

        assert!(format!("{store:?}").starts_with("MemoryArtifacts { config: "));
    }
}
