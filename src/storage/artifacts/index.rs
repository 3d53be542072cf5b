//! An index of artifacts for each tenant, and the files that belong to it. Blocks.
//!
//! An index is read from disk on first use. Its lock is held while names change, never while
//! contents are written, flushed, hashed or compared.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use callboard_actors::{
    ids::ArtifactId,
    limits::TENANT_ARTIFACTS_MAX,
    policy::{ArtifactIndex, IndexPlace, IndexedArtifact},
    ports::{ArtifactError, Cleaned},
    time::Timestamp,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    ArtifactSettings, away,
    files::{Comparison, Files, Owner},
    lock,
};

pub(super) struct ArtifactIndexes {
    pub(super) files: Files,
    tenants: Mutex<BTreeMap<String, Arc<Mutex<Tenant>>>>,
}

/// A tenant's index.
#[derive(Default)]
struct Tenant {
    index: Option<ArtifactIndex<String>>,
    /// Bytes of artifacts that are being written; they count toward the quota.
    reserved: u64,
}

impl Tenant {
    fn index(&mut self, files: &Files, tenant: &str) -> &mut ArtifactIndex<String> {
        self.index.get_or_insert_with(|| files.load(tenant))
    }
}

/// An artifact that clean-up may remove, ordered by last use.
struct Candidate {
    accessed_at: Timestamp,
    tenant: String,
    place: IndexPlace<String>,
    size_bytes: u64,
}

impl ArtifactIndexes {
    pub(super) fn new(files: Files) -> Self {
        Self {
            files,
            tenants: Mutex::default(),
        }
    }

    fn tenant(&self, folder: &str) -> Arc<Mutex<Tenant>> {
        lock(&self.tenants)
            .entry(folder.to_owned())
            .or_default()
            .clone()
    }

    /// Stores a content, or renews the existing artifact with the same content.
    pub(super) fn store(
        &self,
        owner: &Owner,
        id: &ArtifactId,
        indexed: IndexedArtifact,
        content: &[u8],
        settings: &ArtifactSettings,
    ) -> Result<(), ArtifactError> {
        let tenant = self.tenant(&owner.tenant);
        let place = (owner.folder.clone(), id.clone());
        match self
            .files
            .compare(owner, id, content)
            .map_err(|error| away(&error))?
        {
            Comparison::Other => return Err(collision(id)),
            Comparison::Same => {
                let mut tenant = lock(&tenant);
                // The comparison ran without the lock: if the file was removed since, it is stored
                // below.
                if self.files.known(owner, id).is_some() {
                    tenant
                        .index(&self.files, &owner.tenant)
                        .put(place, indexed.clone());
                    return self
                        .files
                        .note(owner, id, &indexed)
                        .map_err(|error| away(&error));
                }
            }
            Comparison::Damaged => self.remove(owner, id),
            Comparison::Nothing => {}
        }
        // Reserve under the lock, write without it, settle under it again. `reserved` counts toward
        // the quota meanwhile, so concurrent stores of a tenant cannot exceed it together.
        self.make_room(&mut lock(&tenant), owner, &indexed, settings)?;
        let size = indexed.size_bytes;
        let placed = self.write(&tenant, owner, id, indexed, content);
        let mut tenant = lock(&tenant);
        tenant.reserved = tenant.reserved.saturating_sub(size);
        placed
    }

    fn make_room(
        &self,
        tenant: &mut Tenant,
        owner: &Owner,
        indexed: &IndexedArtifact,
        settings: &ArtifactSettings,
    ) -> Result<(), ArtifactError> {
        let quota = settings.tenant_bytes_max;
        let size = tenant.reserved.saturating_add(indexed.size_bytes);
        let index = tenant.index(&self.files, &owner.tenant);
        let is_full = |index: &ArtifactIndex<String>| {
            index.bytes().saturating_add(size) > quota || index.len() >= TENANT_ARTIFACTS_MAX
        };
        if is_full(index) {
            let Some(_) = index.room_for(size, quota, TENANT_ARTIFACTS_MAX) else {
                return Err(ArtifactError::OverQuota {
                    used: index.bytes(),
                    quota,
                });
            };
            for place in index.expired(settings.max_age, indexed.created_at) {
                self.drop_from(index, &owner.tenant, &place);
            }
            for place in index
                .room_for(size, quota, TENANT_ARTIFACTS_MAX)
                .unwrap_or_default()
            {
                self.drop_from(index, &owner.tenant, &place);
            }
            if is_full(index) {
                return Err(ArtifactError::OverQuota {
                    used: index.bytes(),
                    quota,
                });
            }
        }
        tenant.reserved = size;
        Ok(())
    }

    /// Writes the content without the lock, then moves it into place under the lock.
    fn write(
        &self,
        tenant: &Mutex<Tenant>,
        owner: &Owner,
        id: &ArtifactId,
        indexed: IndexedArtifact,
        content: &[u8],
    ) -> Result<(), ArtifactError> {
        let failed = |error: io::Error| away(&error);
        let incoming = self.files.begin(content, true).map_err(failed)?;
        incoming.set_time(indexed.created_at);
        let mut tenant = lock(tenant);
        // Another task may have stored the id meanwhile. Equal content is fine; other content is a
        // collision and keeps the id.
        match self.files.compare(owner, id, content).map_err(failed)? {
            Comparison::Other => return Err(collision(id)),
            Comparison::Same => {}
            Comparison::Damaged | Comparison::Nothing => {
                self.files.place(incoming, owner, id).map_err(failed)?
            }
        }
        // An artifact without metadata is known by its file, so a failure here does not fail the
        // store.
        if let Err(error) = self.files.note(owner, id, &indexed) {
            tracing::warn!(
                "the metadata of {id} could not be written: {}",
                error.kind()
            );
        }
        tenant
            .index(&self.files, &owner.tenant)
            .put((owner.folder.clone(), id.clone()), indexed);
        Ok(())
    }

    /// An owner's artifact, unless it has expired; `is_use` records the access time.
    pub(super) fn find(
        &self,
        owner: &Owner,
        id: &ArtifactId,
        is_use: bool,
        now: Timestamp,
        max_age: Duration,
    ) -> Result<IndexedArtifact, ArtifactError> {
        let not_found = || ArtifactError::NotFound(id.clone());
        let tenant = self.tenant(&owner.tenant);
        let mut tenant = lock(&tenant);
        let place = (owner.folder.clone(), id.clone());
        let Some(on_disk) = self.files.known(owner, id) else {
            // Removed by another process, or never stored. The index of an unknown tenant is not
            // loaded.
            if let Some(index) = &mut tenant.index {
                index.remove(&place);
            }
            return Err(not_found());
        };
        let index = tenant.index(&self.files, &owner.tenant);
        index.put(place.clone(), on_disk.clone());
        if on_disk.is_expired(max_age, now) {
            self.drop_from(index, &owner.tenant, &place);
            return Err(not_found());
        }
        if !is_use || on_disk.accessed_at == now {
            return Ok(on_disk);
        }
        let used = index.touch(&place, now).cloned().unwrap_or(on_disk);
        if let Err(error) = self.files.note(owner, id, &used) {
            tracing::debug!(
                "the access time of {id} could not be stored: {}",
                error.kind()
            );
        }
        Ok(used)
    }

    pub(super) fn remove(&self, owner: &Owner, id: &ArtifactId) {
        let tenant = self.tenant(&owner.tenant);
        let mut tenant = lock(&tenant);
        let index = tenant.index(&self.files, &owner.tenant);
        self.drop_from(index, &owner.tenant, &(owner.folder.clone(), id.clone()));
    }

    /// Removes one artifact; one that cannot be removed stays and is logged. Returns whether this
    /// call removed it.
    fn drop_from(
        &self,
        index: &mut ArtifactIndex<String>,
        tenant: &str,
        place: &IndexPlace<String>,
    ) -> bool {
        match self.files.remove(&Owner::found(tenant, &place.0), &place.1) {
            Ok(removed) => {
                index.remove(place);
                removed
            }
            Err(error) => {
                tracing::warn!("{} could not be removed: {}", place.1, error.kind());
                false
            }
        }
    }

    pub(super) fn release_owner(&self, owner: &Owner) -> Result<(), ArtifactError> {
        let tenant = self.tenant(&owner.tenant);
        let mut tenant = lock(&tenant);
        let removed = self.files.remove_owner(owner);
        tenant.index = None; // Rebuilt on the next use, since a removal may have failed half way.
        removed.map_err(|error| away(&error))
    }

    pub(super) fn release_tenant(&self, folder: &str) -> Result<(), ArtifactError> {
        let tenant = self.tenant(folder);
        let mut tenant = lock(&tenant);
        let removed = self.files.remove_tenant(folder);
        tenant.index = None;
        removed.map_err(|error| away(&error))
    }

    /// Removes expired artifacts, then, if more than `bytes_max` remain, the least recently used
    /// until 80 % of that are left.
    pub(super) fn clean(
        &self,
        max_age: Duration,
        bytes_max: u64,
        now: Timestamp,
        stop: &CancellationToken,
    ) -> io::Result<Cleaned> {
        self.files.remove_abandoned();
        let mut cleaned = Cleaned::default();
        let mut left = Vec::new();
        let mut total = 0u64;
        for folder in self.files.tenants()? {
            let tenant = self.tenant(&folder);
            let mut tenant = lock(&tenant);
            // Rebuilt from disk: another process may have stored, used or removed artifacts.
            let index = tenant.index.insert(self.files.load(&folder));
            for place in index.expired(max_age, now) {
                if stop.is_cancelled() {
                    return Ok(cleaned);
                }
                self.drop_counted(index, &folder, &place, &mut cleaned);
            }
            self.files.tidy(&folder);
            total = total.saturating_add(index.bytes());
            left.extend(index.iter().map(|(place, indexed)| Candidate {
                accessed_at: indexed.accessed_at,
                tenant: folder.clone(),
                place: place.clone(),
                size_bytes: indexed.size_bytes,
            }));
        }
        if total > bytes_max {
            left.sort_by(|a, b| {
                (a.accessed_at, &a.tenant, &a.place).cmp(&(b.accessed_at, &b.tenant, &b.place))
            });
            // 80 % without overflow and without rounding up.
            let target = bytes_max / 5 * 4 + bytes_max % 5 * 4 / 5;
            for candidate in left {
                if total <= target || stop.is_cancelled() {
                    break;
                }
                total -= self.drop_unused(&candidate, &mut cleaned);
            }
        }
        Ok(cleaned)
    }

    /// Removes a candidate unless it was used since the scan. Returns the bytes that are gone, by
    /// whichever process.
    fn drop_unused(&self, candidate: &Candidate, cleaned: &mut Cleaned) -> u64 {
        let tenant = self.tenant(&candidate.tenant);
        let mut tenant = lock(&tenant);
        let owner = Owner::found(&candidate.tenant, &candidate.place.0);
        match self.files.known(&owner, &candidate.place.1) {
            Some(known) if known.accessed_at != candidate.accessed_at => return 0,
            Some(_) => {}
            None => return candidate.size_bytes,
        }
        let index = tenant.index(&self.files, &candidate.tenant);
        let before = cleaned.bytes;
        self.drop_counted(index, &candidate.tenant, &candidate.place, cleaned);
        cleaned.bytes - before
    }

    fn drop_counted(
        &self,
        index: &mut ArtifactIndex<String>,
        tenant: &str,
        place: &IndexPlace<String>,
        cleaned: &mut Cleaned,
    ) {
        let bytes = index.get(place).map_or(0, |indexed| indexed.size_bytes);
        if self.drop_from(index, tenant, place) {
            cleaned.removed += 1;
            cleaned.bytes += bytes;
        }
    }
}

fn collision(id: &ArtifactId) -> ArtifactError {
    tracing::warn!(
        "hash collision: another content already has the id {id}; the new one is refused"
    );
    ArtifactError::Collision(id.clone())
}
