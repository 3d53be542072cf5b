//! Files and folders of artifacts: where they lie, written as a whole or not at all. Blocks; knows no quota and no age.

use std::{
    fs::{self, File, OpenOptions},
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

/// Folder of what is being written.
const INCOMING: &str = ".incoming";

/// Hex digits of a folder's name.
const FOLDER_DIGITS: usize = 32;

/// Names tried for a temporary file.
const NAMES_MAX: u32 = 8;

/// Bytes of one file of metadata; ours have a few hundred.
const METADATA_BYTES_MAX: u64 = 64 * 1024;

/// The folders of an owner, and its name for the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) tenant: String,
    pub(super) folder: String,
    conversation: String,
}

impl Owner {
    pub(super) fn of(scope: &Scope) -> Self {
        let conversation = scope.conversation.as_str().to_owned();
        Self { tenant: Self::tenant_folder(&scope.tenant), folder: folder_of(conversation.as_bytes()), conversation }
    }

    pub(super) fn tenant_folder(tenant: &TenantId) -> String {
        folder_of(tenant.as_str().as_bytes())
    }

    /// The owner of a folder that was found; nobody knows what it was called.
    pub(super) fn found(tenant: &str, folder: &str) -> Self {
        Self { tenant: tenant.to_owned(), folder: folder.to_owned(), conversation: String::new() }
    }
}

fn folder_of(id: &[u8]) -> String {
    let mut hash = sha256_hex(&[id]);
    hash.truncate(FOLDER_DIGITS);
    hash
}

/// Metadata as it is written beside an artifact.
#[derive(Serialize, Deserialize)]
struct Metadata {
    created_at: String,
    accessed_at: String,
    #[serde(default)]
    size_bytes: u64,
    tool_call_id: String,
    conversation_id: String,
}

/// What is at the place of an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Nothing,
    Same,
    /// Another content that has the same name by right.
    Other,
    /// Something whose content does not have this name.
    Damaged,
}

/// The root folder. Its path stays in here.
pub(super) struct Files {
    root: PathBuf,
    /// Names a content. Another function than the usual one makes collisions, for tests.
    pub(super) name: fn(&[u8]) -> ArtifactId,
}

impl Files {
    pub(super) fn open(root: PathBuf) -> io::Result<Self> {
        make_folder(&root)?;
        let files = Self { root, name: ArtifactId::of };
        make_folder(&files.root.join(INCOMING))?;
        files.remove_abandoned();
        Ok(files)
    }

    /// Removes what was being written by a process that is gone: a writer holds a lock on its file.
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

    /// Writes a file that nobody sees yet.
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
                    let mut incoming = Incoming { path, file, is_placed: false };
                    let _ = incoming.file.try_lock(); // Where files cannot be locked, nobody removes them either.
                    incoming.file.write_all(content)?;
                    if durable {
                        incoming.file.sync_all()?;
                    }
                    return Ok(incoming);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                // Somebody removed the folder: it is made again.
                Err(error) if error.kind() == ErrorKind::NotFound => make_folder(&self.root.join(INCOMING))?,
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Makes a written file an owner's artifact. All of it is there before, and the name survives a power cut where the system can.
    pub(super) fn place(&self, incoming: Incoming, owner: &Owner, id: &ArtifactId) -> io::Result<()> {
        make_folder(&self.tenant_path(&owner.tenant))?;
        let folder = self.owner_path(owner);
        make_folder(&folder)?;
        let path = self.path(owner, id);
        if !folder.is_dir() {
            make_folder(&folder)?; // Another process tidied it away just now.
        }
        incoming.move_to(&path)?;
        if let Ok(folder) = File::open(&folder) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Writes what is known of an artifact: as a whole, but not flushed; what a power cut takes is rebuilt.
    pub(super) fn note(&self, owner: &Owner, id: &ArtifactId, shelved: &IndexedArtifact) -> io::Result<()> {
        let metadata = Metadata {
            created_at: shelved.created_at.to_string(),
            accessed_at: shelved.accessed_at.to_string(),
            size_bytes: shelved.size_bytes,
            tool_call_id: shelved.tool_call_id.clone(),
            conversation_id: owner.conversation.clone(),
        };
        let text = serde_json::to_vec(&metadata)?;
        self.begin(&text, false)?.move_to(&self.metadata_path(owner, id))
    }

    /// What is known of an artifact that is there: its metadata, else what its file tells.
    pub(super) fn known(&self, owner: &Owner, id: &ArtifactId) -> Option<IndexedArtifact> {
        let file = fs::symlink_metadata(self.path(owner, id)).ok().filter(fs::Metadata::is_file)?;
        let size_bytes = file.len();
        let told = self.told(owner, id, size_bytes);
        Some(told.unwrap_or_else(|| {
            let since = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
            let at = Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
            IndexedArtifact { size_bytes, tool_call_id: String::new(), created_at: at, accessed_at: at }
        }))
    }

    fn told(&self, owner: &Owner, id: &ArtifactId, size_bytes: u64) -> Option<IndexedArtifact> {
        let mut text = Vec::new();
        let file = File::open(self.metadata_path(owner, id)).ok()?; // Killed between file and metadata: rebuilt without a word.
        let read = file.take(METADATA_BYTES_MAX).read_to_end(&mut text).is_ok();
        let metadata = read.then(|| serde_json::from_slice::<Metadata>(&text).ok()).flatten();
        let times = metadata.as_ref().and_then(|told| Some((from_iso(&told.created_at)?, from_iso(&told.accessed_at)?)));
        let (Some(metadata), Some((created_at, accessed_at))) = (metadata, times) else {
            tracing::warn!("the metadata of {id} is unreadable and is rebuilt from its file");
            return None;
        };
        Some(IndexedArtifact { size_bytes, tool_call_id: metadata.tool_call_id, created_at, accessed_at })
    }

    /// Compares a content with what is at its place.
    pub(super) fn look(&self, owner: &Owner, id: &ArtifactId, content: &[u8]) -> io::Result<Look> {
        let Some(there) = self.read(owner, id)? else { return Ok(Look::Nothing) };
        Ok(match there == content {
            true => Look::Same,
            false if (self.name)(&there) == *id => Look::Other,
            false => Look::Damaged,
        })
    }

    /// All of an artifact; `None` when it is not there. What is longer than any artifact is read as one byte too many.
    pub(super) fn read(&self, owner: &Owner, id: &ArtifactId) -> io::Result<Option<Vec<u8>>> {
        let Some((file, len)) = self.file(owner, id)? else { return Ok(None) };
        let max = ARTIFACT_BYTES_MAX as u64 + 1;
        let mut content = Vec::with_capacity(usize::try_from(len.min(max)).unwrap_or_default());
        file.take(max).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// Some bytes of an artifact.
    pub(super) fn read_range(&self, owner: &Owner, id: &ArtifactId, range: &Range<u64>) -> io::Result<Option<Vec<u8>>> {
        let Some((mut file, len)) = self.file(owner, id)? else { return Ok(None) };
        let len = len.min(ARTIFACT_BYTES_MAX as u64);
        let (start, end) = (range.start.min(len), range.end.min(len));
        let mut content = Vec::with_capacity(usize::try_from(end.saturating_sub(start)).unwrap_or_default());
        file.seek(SeekFrom::Start(start))?;
        file.take(end.saturating_sub(start)).read_to_end(&mut content)?;
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

    /// Removes an artifact. Who reads it keeps his file. Returns whether it was there.
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

    /// Removes folders of a tenant that hold nothing, and metadata of what is gone.
    pub(super) fn tidy(&self, tenant: &str) {
        for (folder, _) in entries(&self.tenant_path(tenant)).filter(|(_, name)| is_hex(name, FOLDER_DIGITS)) {
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

    /// The tenants that have a folder.
    pub(super) fn tenants(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.root)?; // Says why it cannot be read.
        Ok(entries(&self.root).map(|(_, name)| name).filter(|name| is_hex(name, FOLDER_DIGITS)).collect())
    }

    /// What is on a tenant's shelf, by what is on the disk.
    pub(super) fn load(&self, tenant: &str) -> ArtifactIndex<String> {
        let mut shelf = ArtifactIndex::default();
        for (folder, name) in entries(&self.tenant_path(tenant)).filter(|(_, name)| is_hex(name, FOLDER_DIGITS)) {
            let owner = Owner::found(tenant, &name);
            for (_, hash) in entries(&folder) {
                if let Ok(id) = ArtifactId::parse(&format!("artifact_{hash}"))
                    && let Some(shelved) = self.known(&owner, &id)
                {
                    let place: IndexPlace<String> = (name.clone(), id);
                    shelf.put(place, shelved);
                }
            }
        }
        shelf
    }
}

/// A written file that nobody sees yet; removed unless it is moved to its place.
pub(super) struct Incoming {
    path: PathBuf,
    file: File,
    is_placed: bool,
}

impl Incoming {
    fn move_to(mut self, place: &Path) -> io::Result<()> {
        fs::rename(&self.path, place)?;
        self.is_placed = true;
        Ok(())
    }

    /// Leaves the file behind, as a killed process does.
    #[cfg(test)]
    pub(super) fn abandon(&mut self) {
        self.is_placed = true;
    }

    pub(super) fn set_time(&self, at: Timestamp) {
        let _ = self.file.set_modified(UNIX_EPOCH + Duration::from_millis(at.0));
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

/// What a folder holds, with names; nothing when it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = (PathBuf, String)> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)))
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Reads the form that [`Timestamp`] writes: `2026-11-21T23:59:59.999Z`.
fn from_iso(text: &str) -> Option<Timestamp> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, by: &[char]| text.split(by).map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    let ([year, month, day], [hour, minute, second, milli]) = (&numbers(date, &['-'])?[..], &numbers(time, &[':', '.'])?[..]) else {
        return None;
    };
    let fits = (1970..=9999).contains(year) && (1..=12).contains(month) && (1..=31).contains(day);
    if !fits || *hour > 23 || *minute > 59 || *second > 59 || *milli > 999 {
        return None;
    }
    // Days from the civil date, the reverse of what `Timestamp` does; years begin in March.
    let year = if *month <= 2 { year - 1 } else { *year };
    let from_march = (month + 9) % 12;
    let (era, of_era) = (year / 400, year % 400);
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * from_march + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    Some(Timestamp((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + milli))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for ms in [0, 1, 951_782_400_000, 951_868_799_999, 1_795_305_599_999, 4_107_542_400_000, 1_709_164_800_000] {
            assert_eq!(from_iso(&Timestamp(ms).to_string()), Some(Timestamp(ms)), "{}", Timestamp(ms));
        }
        for bad in ["", "2026-11-21", "2026-13-01T00:00:00.000Z", "2026-11-21T24:00:00.000Z", "1969-12-31T00:00:00.000Z", "x-1-1T1:1:1.1Z"]
        {
            assert_eq!(from_iso(bad), None, "{bad}");
        }
    }
}
