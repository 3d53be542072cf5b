//! Files and folders of artifacts: their paths, and atomic writes. Blocks; quotas and expiry are
//! handled in `index`.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read, Seek, SeekFrom, Write},
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use crate::private::make_folder;
use callboard_actors::{
    ids::{ArtifactId, Scope, TenantId, sha256_hex},
    limits::ARTIFACT_BYTES_MAX,
    policy::{ArtifactIndex, IndexPlace, IndexedArtifact},
    time::Timestamp,
};
use serde::{Deserialize, Serialize};

/// Folder of files that are still being written.
const INCOMING: &str = ".incoming";

/// Hex digits in the name of a tenant's or owner's folder.
const FOLDER_DIGITS: usize = 32;

/// Attempts to create a temporary file that is neither there already nor taken for an abandoned one.
const NAMES_MAX: u32 = 64;

/// Largest metadata file that is read, in bytes; written ones have a few hundred.
const METADATA_BYTES_MAX: u64 = 64 * 1024;

/// An owner's folders, and its conversation id for the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) tenant: String,
    pub(super) folder: String,
    conversation: String,
}

impl Owner {
    pub(super) fn from_scope(scope: &Scope) -> Self {
        let conversation = scope.conversation.as_str().to_owned();
        Self {
            tenant: Self::tenant_folder(&scope.tenant),
            folder: folder_of(conversation.as_bytes()),
            conversation,
        }
    }

    pub(super) fn tenant_folder(tenant: &TenantId) -> String {
        folder_of(tenant.as_str().as_bytes())
    }

    /// The owner of a folder found on disk. Its conversation id is unknown, since folder names are
    /// hashes.
    pub(super) fn found(tenant: &str, folder: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            folder: folder.to_owned(),
            conversation: String::new(),
        }
    }
}

fn folder_of(id: &[u8]) -> String {
    let mut hash = sha256_hex(&[id]);
    hash.truncate(FOLDER_DIGITS);
    hash
}

/// The metadata file beside an artifact.
#[derive(Serialize, Deserialize)]
struct Metadata {
    created_at: String,
    accessed_at: String,
    #[serde(default)]
    size_bytes: u64,
    tool_call_id: String,
    conversation_id: String,
}

/// What a path holds, compared with a content that is to be stored there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Nothing,
    Same,
    /// Another content whose id is the same: a hash collision.
    Other,
    /// A content that does not match its id.
    Damaged,
}

/// The root folder. No other type knows its path.
pub(super) struct Files {
    root: PathBuf,
    /// Computes the id of a content. Tests replace it to cause collisions.
    pub(super) name: fn(&[u8]) -> ArtifactId,
}

impl Files {
    pub(super) fn open(root: PathBuf) -> io::Result<Self> {
        make_folder(&root)?;
        let files = Self {
            root,
            name: ArtifactId::from_content,
        };
        make_folder(&files.root.join(INCOMING))?;
        files.remove_abandoned();
        Ok(files)
    }

    /// Removes files left by a process that was killed while writing. A live writer holds a lock on
    /// its file.
    pub(super) fn remove_abandoned(&self) {
        for path in entries(&self.root.join(INCOMING)).map(|(path, _)| path) {
            if let Ok(file) = File::open(&path)
                && file.try_lock().is_ok()
            {
                let _ = fs::remove_file(&path);
            }
        }
    }

    fn tenant_path(&self, tenant: &str) -> PathBuf {
        self.root.join(tenant)
    }

    fn owner_path(&self, owner: &Owner) -> PathBuf {
        self.tenant_path(&owner.tenant).join(&owner.folder)
    }

    fn path(&self, owner: &Owner, id: &ArtifactId) -> PathBuf {
        self.owner_path(owner).join(id.hash())
    }

    fn metadata_path(&self, owner: &Owner, id: &ArtifactId) -> PathBuf {
        self.owner_path(owner).join(format!("{}.json", id.hash()))
    }

    /// Writes a temporary file that no reader can see.
    pub(super) fn begin(&self, content: &[u8], durable: bool) -> io::Result<Incoming> {
        for _ in 0..NAMES_MAX {
            let chance = getrandom::u64().map_err(|_| io::Error::from(ErrorKind::Other))?;
            let path = self.root.join(INCOMING).join(format!("{chance:016x}"));
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            match options.open(&path) {
                Ok(file) => {
                    let mut incoming = Incoming {
                        path,
                        file,
                        is_placed: false,
                    };
                    // Until this lock is held, `remove_abandoned` takes the file for one of a dead
                    // writer: it may be removing it now, or have removed it. If locks are
                    // unsupported, it cannot lock the file either, and leaves it.
                    let is_being_removed =
                        matches!(incoming.file.try_lock(), Err(TryLockError::WouldBlock));
                    if is_being_removed || !incoming.path.try_exists()? {
                        continue;
                    }
                    incoming.file.write_all(content)?;
                    if durable {
                        incoming.file.sync_all()?;
                    }
                    return Ok(incoming);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                // The folder was removed from outside: create it again.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    make_folder(&self.root.join(INCOMING))?
                }
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Renames a completely written file to an owner's artifact, and flushes the folder so that the
    /// name survives a power cut.
    pub(super) fn place(
        &self,
        incoming: Incoming,
        owner: &Owner,
        id: &ArtifactId,
    ) -> io::Result<()> {
        make_folder(&self.tenant_path(&owner.tenant))?;
        let folder = self.owner_path(owner);
        make_folder(&folder)?;
        let path = self.path(owner, id);
        if !folder.is_dir() {
            make_folder(&folder)?; // Another process has just removed the empty folder.
        }
        incoming.move_to(&path)?;
        if let Ok(folder) = File::open(&folder) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Writes an artifact's metadata atomically, without flushing: metadata lost in a power cut is
    /// rebuilt.
    pub(super) fn note(
        &self,
        owner: &Owner,
        id: &ArtifactId,
        indexed: &IndexedArtifact,
    ) -> io::Result<()> {
        let metadata = Metadata {
            created_at: indexed.created_at.to_string(),
            accessed_at: indexed.accessed_at.to_string(),
            size_bytes: indexed.size_bytes,
            tool_call_id: indexed.tool_call_id.clone(),
            conversation_id: owner.conversation.clone(),
        };
        let text = serde_json::to_vec(&metadata)?;
        self.begin(&text, false)?
            .move_to(&self.metadata_path(owner, id))
    }

    /// What is known of a stored artifact: its metadata, or else the size and time of its file.
    pub(super) fn known(&self, owner: &Owner, id: &ArtifactId) -> Option<IndexedArtifact> {
        let file = fs::symlink_metadata(self.path(owner, id))
            .ok()
            .filter(fs::Metadata::is_file)?;
        let size_bytes = file.len();
        let noted = self.read_metadata(owner, id, size_bytes);
        Some(noted.unwrap_or_else(|| {
            let since = file
                .modified()
                .ok()
                .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
                .unwrap_or_default();
            let at = Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
            IndexedArtifact {
                size_bytes,
                tool_call_id: String::new(),
                created_at: at,
                accessed_at: at,
            }
        }))
    }

    fn read_metadata(
        &self,
        owner: &Owner,
        id: &ArtifactId,
        size_bytes: u64,
    ) -> Option<IndexedArtifact> {
        let mut text = Vec::new();
        // Missing after a crash between the two writes: rebuilt without a warning.
        let file = File::open(self.metadata_path(owner, id)).ok()?;
        let read = file.take(METADATA_BYTES_MAX).read_to_end(&mut text).is_ok();
        let metadata = read
            .then(|| serde_json::from_slice::<Metadata>(&text).ok())
            .flatten();
        let times = metadata
            .as_ref()
            .and_then(|noted| Some((from_iso(&noted.created_at)?, from_iso(&noted.accessed_at)?)));
        let (Some(metadata), Some((created_at, accessed_at))) = (metadata, times) else {
            tracing::warn!("the metadata of {id} is unreadable and is rebuilt from its file");
            return None;
        };
        Some(IndexedArtifact {
            size_bytes,
            tool_call_id: metadata.tool_call_id,
            created_at,
            accessed_at,
        })
    }

    /// Compares a content with the file at its path.
    pub(super) fn compare(
        &self,
        owner: &Owner,
        id: &ArtifactId,
        content: &[u8],
    ) -> io::Result<Comparison> {
        let Some(there) = self.read(owner, id)? else {
            return Ok(Comparison::Nothing);
        };
        Ok(match there == content {
            true => Comparison::Same,
            false if (self.name)(&there) == *id => Comparison::Other,
            false => Comparison::Damaged,
        })
    }

    /// Reads a whole artifact; `None` if it does not exist. Of a file above the size limit, one
    /// byte more than the limit is read.
    pub(super) fn read(&self, owner: &Owner, id: &ArtifactId) -> io::Result<Option<Vec<u8>>> {
        let Some((file, len)) = self.file(owner, id)? else {
            return Ok(None);
        };
        let max = ARTIFACT_BYTES_MAX as u64 + 1;
        let mut content = Vec::with_capacity(usize::try_from(len.min(max)).unwrap_or_default());
        file.take(max).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// Reads a range of an artifact, clamped to its size.
    pub(super) fn read_range(
        &self,
        owner: &Owner,
        id: &ArtifactId,
        range: &Range<u64>,
    ) -> io::Result<Option<Vec<u8>>> {
        let Some((mut file, len)) = self.file(owner, id)? else {
            return Ok(None);
        };
        let len = len.min(ARTIFACT_BYTES_MAX as u64);
        let start = range.start.min(len);
        let end = range.end.min(len);
        let mut content =
            Vec::with_capacity(usize::try_from(end.saturating_sub(start)).unwrap_or_default());
        file.seek(SeekFrom::Start(start))?;
        file.take(end.saturating_sub(start))
            .read_to_end(&mut content)?;
        Ok(Some(content))
    }

    fn file(&self, owner: &Owner, id: &ArtifactId) -> io::Result<Option<(File, u64)>> {
        let path = self.path(owner, id);
        match fs::symlink_metadata(&path) {
            Ok(data) if data.is_file() => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        match File::open(&path) {
            Ok(file) => {
                let len = file.metadata()?.len();
                Ok(Some((file, len)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes an artifact; open readers keep their file handle. Returns whether it existed.
    pub(super) fn remove(&self, owner: &Owner, id: &ArtifactId) -> io::Result<bool> {
        let removed = match fs::remove_file(self.path(owner, id)) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        let _ = fs::remove_file(self.metadata_path(owner, id));
        Ok(removed)
    }

    pub(super) fn remove_owner(&self, owner: &Owner) -> io::Result<()> {
        remove_folder(&self.owner_path(owner))
    }

    pub(super) fn remove_tenant(&self, tenant: &str) -> io::Result<()> {
        remove_folder(&self.tenant_path(tenant))
    }

    /// Removes empty folders of a tenant, and metadata without an artifact.
    pub(super) fn tidy(&self, tenant: &str) {
        for (folder, _) in
            entries(&self.tenant_path(tenant)).filter(|(_, name)| is_hex(name, FOLDER_DIGITS))
        {
            for (path, name) in entries(&folder) {
                let of = name.strip_suffix(".json").filter(|hash| is_hex(hash, 16));
                if of.is_some_and(|hash| !folder.join(hash).exists()) {
                    let _ = fs::remove_file(path);
                }
            }
            let _ = fs::remove_dir(folder); // Only if it is empty.
        }
        let _ = fs::remove_dir(self.tenant_path(tenant));
    }

    /// Folders of all tenants.
    pub(super) fn tenants(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.root)?; // Reports why the folder cannot be read; `entries` would not.
        Ok(entries(&self.root)
            .map(|(_, name)| name)
            .filter(|name| is_hex(name, FOLDER_DIGITS))
            .collect())
    }

    /// Builds a tenant's index from the files on disk.
    pub(super) fn load(&self, tenant: &str) -> ArtifactIndex<String> {
        let mut index = ArtifactIndex::default();
        for (folder, name) in
            entries(&self.tenant_path(tenant)).filter(|(_, name)| is_hex(name, FOLDER_DIGITS))
        {
            let owner = Owner::found(tenant, &name);
            for (_, hash) in entries(&folder) {
                if let Ok(id) = ArtifactId::parse(&format!("artifact_{hash}"))
                    && let Some(indexed) = self.known(&owner, &id)
                {
                    let place: IndexPlace<String> = (name.clone(), id);
                    index.put(place, indexed);
                }
            }
        }
        index
    }
}

/// A written file that no reader can see; removed on drop unless it was renamed to its place.
pub(super) struct Incoming {
    path: PathBuf,
    file: File,
    is_placed: bool,
}

impl Incoming {
    pub(super) fn move_to(mut self, place: &Path) -> io::Result<()> {
        fs::rename(&self.path, place)?;
        self.is_placed = true;
        Ok(())
    }

    /// Keeps the file on drop, as if the process had been killed.
    #[cfg(test)]
    pub(super) fn abandon(&mut self) {
        self.is_placed = true;
    }

    pub(super) fn set_time(&self, at: Timestamp) {
        let _ = self
            .file
            .set_modified(UNIX_EPOCH + Duration::from_millis(at.0));
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Paths and names in a folder; empty if it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = (PathBuf, String)> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)))
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Parses the form that [`Timestamp`] displays: `2026-11-21T23:59:59.999Z`.
fn from_iso(text: &str) -> Option<Timestamp> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, by: &[char]| {
        text.split(by)
            .map(|part| part.parse::<u64>().ok())
            .collect::<Option<Vec<_>>>()
    };
    let ([year, month, day], [hour, minute, second, milli]) = (
        &numbers(date, &['-'])?[..],
        &numbers(time, &[':', '.'])?[..],
    ) else {
        return None;
    };
    let fits = (1970..=9999).contains(year) && (1..=12).contains(month) && (1..=31).contains(day);
    if !fits || *hour > 23 || *minute > 59 || *second > 59 || *milli > 999 {
        return None;
    }
    // Days from the civil date, the inverse of `Timestamp`'s display; years begin in March.
    let year = if *month <= 2 { year - 1 } else { *year };
    let from_march = (month + 9) % 12;
    let era = year / 400;
    let of_era = year % 400;
    let days =
        era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * from_march + 2) / 5 + day
            - 1;
    let days = days.checked_sub(719_468)?;
    Some(Timestamp(
        (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + milli,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_from_their_printed_form() {
        for ms in [
            0,
            1,
            951_782_400_000,
            951_868_799_999,
            1_795_305_599_999,
            4_107_542_400_000,
            1_709_164_800_000,
        ] {
            assert_eq!(
                from_iso(&Timestamp(ms).to_string()),
                Some(Timestamp(ms)),
                "{}",
                Timestamp(ms)
            );
        }
        for bad in [
            "",
            "2026-11-21",
            "2026-13-01T00:00:00.000Z",
            "2026-11-21T24:00:00.000Z",
            "1969-12-31T00:00:00.000Z",
            "x-1-1T1:1:1.1Z",
        ] {
            assert_eq!(from_iso(bad), None, "{bad}");
        }
    }
}
