//! The listings of a workspace's folders, kept from one search to the next.
//!
//! A folder's listing is cached with the folder's change time, so the next search of an unchanged
//! tree needs one `stat` per folder. Programs cannot set the change time. A listing made too soon
//! after the folder's last change is not cached, and neither is one from a file system that other
//! machines can change.
//!
//! Each folder knows the places of its subfolders in the cache. A search that finds a folder
//! unchanged joins no path and looks no path up.

use std::{
    collections::HashMap,
    ffi::OsString,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::found::{Changed, FileStatus, Identity};
use crate::sandbox::fs::git::Parts;

/// Age of a folder's last change from which a listing is certain to include it: the kernel's file
/// clock ticks in milliseconds.
const SETTLED: Duration = Duration::from_millis(100);

/// The same on a file system that stores whole seconds.
const SETTLED_SECONDS: Duration = Duration::from_secs(3);

/// Identity of a folder and the change time of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) own: Identity,
    changed: Changed,
}

impl From<FileStatus> for Stamp {
    fn from(status: FileStatus) -> Self {
        Self {
            own: status.own,
            changed: status.changed,
        }
    }
}

impl Stamp {
    /// Whether the folder's last change is old enough that a listing made now includes it.
    pub(super) fn is_settled(&self) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let (Ok(seconds), Ok(nanos)) = (u64::try_from(seconds), u32::try_from(nanoseconds)) else {
            return false;
        };
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
        let settled = if nanos == 0 { SETTLED_SECONDS } else { SETTLED };
        SystemTime::now()
            .duration_since(changed)
            .is_ok_and(|age| age > settled)
    }
}

/// The relevant names of a folder.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) stamp: Stamp,
    /// Folders to search, sorted.
    pub(super) folders: Vec<OsString>,
    /// Names that are protected or sensitive here, sorted.
    pub(super) marked: Vec<OsString>,
    /// Other symbolic links, sorted.
    pub(super) links: Vec<OsString>,
    pub(super) parts: Parts,
    /// Number of all names.
    pub(super) names: u64,
}

/// One folder of the last search.
#[derive(Debug)]
pub(super) struct CachedFolder {
    pub(super) path: Arc<Path>,
    pub(super) listing: Arc<Listing>,
    /// The place of each of `listing.folders` in [`Listings::folders`], if it is cached.
    places: Vec<Option<usize>>,
}

/// The folders of one search.
#[derive(Debug, Default)]
pub(super) struct Listings {
    folders: Vec<CachedFolder>,
    /// Places of the folders that the search entered by name instead of through the listing of the
    /// folder above: the root, protected folders and those of repositories.
    entrances: HashMap<Arc<Path>, usize>,
}

/// How a search reached a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By its name.
    Entrance,
    /// As a subfolder in the listing of another folder.
    Listed {
        /// Place of that folder in the order of the search.
        above: usize,
        /// Place of the subfolder in `listing.folders`.
        place: usize,
    },
}

/// What a search remembers of a folder.
#[derive(Debug)]
pub(super) enum Remembered<'a> {
    /// The folder has not changed since the last search.
    Same(&'a CachedFolder),
    New(Arc<Listing>),
    /// Its listing must not be cached.
    Nothing,
}

/// One folder of a search, in its order: a folder comes after the one that leads to it.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) path: Arc<Path>,
    pub(super) way: Way,
    /// Number of its names.
    pub(super) names: u64,
    pub(super) remembered: Remembered<'a>,
}

impl Listings {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.folders.len()
    }

    /// A folder that is entered by its name.
    pub(super) fn entrance(&self, path: &Path) -> Option<&CachedFolder> {
        self.folders.get(*self.entrances.get(path)?)
    }

    /// The subfolder at this place of a folder's listing.
    pub(super) fn at(&self, above: &CachedFolder, place: usize) -> Option<&CachedFolder> {
        self.folders.get((*above.places.get(place)?)?)
    }

    /// The subfolder with this name. The folder's listing need no longer be valid.
    pub(super) fn named(&self, above: &CachedFolder, name: &OsString) -> Option<&CachedFolder> {
        let place = above.listing.folders.binary_search(name).ok()?;
        self.at(above, place)
    }

    /// Returns the listings of a search that follows this one.
    pub(super) fn after(self: &Arc<Self>, seen: Vec<Seen<'_>>) -> Arc<Self> {
        let is_same = seen.len() == self.folders.len()
            && seen
                .iter()
                .all(|seen| matches!(seen.remembered, Remembered::Same(_)));
        if is_same {
            return self.clone();
        }
        let mut new = Self::default();
        let mut places = Vec::with_capacity(seen.len());
        for seen in seen {
            let place = new.folders.len();
            let listing = match seen.remembered {
                Remembered::Same(last) => last.listing.clone(),
                Remembered::New(listing) => listing,
                Remembered::Nothing => {
                    places.push(None);
                    continue;
                }
            };
            match seen.way {
                Way::Entrance => drop(new.entrances.insert(seen.path.clone(), place)),
                Way::Listed { above, place: name } => {
                    let above = places.get(above).copied().flatten();
                    let above = above.and_then(|above: usize| new.folders.get_mut(above));
                    match above.and_then(|above| above.places.get_mut(name)) {
                        Some(slot) => *slot = Some(place),
                        // The folder above is not cached, so its next listing leads nowhere yet.
                        None => drop(new.entrances.insert(seen.path.clone(), place)),
                    }
                }
            }
            places.push(Some(place));
            new.folders.push(CachedFolder {
                path: seen.path,
                places: vec![None; listing.folders.len()],
                listing,
            });
        }
        Arc::new(new)
    }
}
