//! Searches for protected and sensitive names: visits every folder of the workspace, or returns an
//! error that says why not.
//!
//! An unchanged folder is not listed again ([`Listings`]).
//!
//! **Invariant:** nothing is skipped silently. A folder that cannot be searched is protected as a
//! whole, or the search fails.

mod account;
mod file;
mod hard_links;
mod links;
mod open;
mod outer;
mod repositories;

use std::{
    collections::{BTreeSet, VecDeque},
    ffi::OsStr,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{Dir, FileType},
    io::Errno,
};

use super::{
    aside::{random_endings, rename_with},
    found::{FileStatus, Found, Identity},
    known::Known,
    listings::{CachedFolder, Listing, Listings, Remembered, Seen, Stamp, Way},
};
use account::Named;
pub(in crate::sandbox::fs) use file::{is_behind_protected_link, is_named_by_git};
use hard_links::{HARD_LINK_NAMES_MAX, add_hard_links};
pub(super) use open::{all_names, open_real, read};
use open::{reopen, reopen_root};

use crate::sandbox::{
    fs::{
        Root,
        git::{PROGRAM_NAMES, Parts},
        shown,
    },
    policy::{Names, lower_name},
};

/// Folders of a workspace. Each is checked before and after every command, in one or two
/// microseconds; even large monorepos have fewer folders.
const FOLDERS_MAX: usize = 200_000;

/// Names listed in one search: one or two seconds of work.
const NAMES_MAX: usize = 4_000_000;

/// Folders visited after a command. More than before, since a command can create many.
const FOLDERS_AFTER_MAX: usize = 4 * FOLDERS_MAX;

/// Mounts that cover the result of a search: bubblewrap's setup time grows with the square of their
/// number.
pub(super) const COVERS_MAX: usize = 1000;

/// Bytes read of a list of rebase steps or of a configuration. A longer list counts as one that
/// runs commands.
const GIT_FILE_BYTES_MAX: usize = 1 << 20;

/// Magic numbers of file systems that other machines or processes change unnoticed by this kernel:
/// NFS, SMB, 9P, AFS, Ceph, Coda, FUSE, shared folders of virtual machines.
const REMOTE: &[u32] = &[
    0x6969,
    0x517b,
    0xfe53_4d42,
    0xff53_4d42,
    0x0102_1997,
    0x5346_414f,
    0x00c3_6400,
    0x7375_7245,
    0x6573_5546,
    0x786f_4256,
    0x6a65_6a63,
];

/// Why a workspace cannot be guarded; no command runs then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::sandbox) enum Unguarded {
    #[error(
        "the workspace is too large to be guarded: it has more than {FOLDERS_MAX} folders; choose a smaller folder as workspace"
    )]
    Folders,
    #[error(
        "the workspace is too large to be guarded: it has more than {NAMES_MAX} files; choose a smaller folder as workspace"
    )]
    Names,
    #[error(
        "the workspace cannot be guarded: more than {COVERS_MAX} files in it are protected or may hold keys; choose a smaller folder as workspace"
    )]
    Covers,
    #[error(
        "the workspace cannot be guarded: {0:?}, which is protected or may hold keys, has hard links that are not among the first {HARD_LINK_NAMES_MAX} names; replace it by a copy, or choose a smaller folder as workspace"
    )]
    HardLinks(String),
    #[error(
        "the workspace cannot be guarded: a folder in {0:?} lies too deep to be searched; remove it"
    )]
    Deep(String),
    #[error(
        "the workspace cannot be guarded: the folder {0:?} cannot be searched ({1}); make it readable or choose another workspace"
    )]
    Unreadable(String, String),
    #[error(
        "the workspace cannot be guarded: git's configuration {0:?} cannot be read ({1}); make it readable or choose another workspace"
    )]
    Settings(String, String),
}

/// The purpose of a search: what it looks for and what it may do.
pub(super) struct Purpose<'a> {
    /// Listings cached by an earlier search.
    pub(super) last: &'a Arc<Listings>,
    /// After a command: what existed before it. Only links and configurations from before are
    /// followed then, since the target of a new one must not be moved aside because of it.
    pub(super) known: Option<&'a Known>,
    /// Whether to make folders readable again that a command has closed to their owner: what lies in
    /// them must be searched, and their owner can enter them without reading them.
    pub(super) reopens: bool,
    /// Folders that are searched. Before a command, more are an error.
    pub(super) folders_max: usize,
}

/// The outcome of a search.
pub(super) struct Searched {
    pub(super) found: Found,
    /// The listings of this search, or those of the last search if nothing changed.
    pub(super) listings: Arc<Listings>,
    /// Files and folders below the root; `None` without a quota of files.
    pub(super) files: Option<u64>,
    /// After a command: what could not be searched. Before a command that is an error.
    pub(super) missed: Vec<Unguarded>,
}

struct Item<'a> {
    path: Arc<Path>,
    way: Way,
    /// The folder in the last search.
    last: Option<&'a CachedFolder>,
    /// Identity of the folder that contains this one.
    above: Identity,
    /// Whether a mount covers the folder, so that nothing in it can change.
    covered: bool,
    /// Whether the folder is only counted, since nothing in it can be protected or hidden.
    only_counted: bool,
    /// Whether the folder lies in a git repository's own folder.
    in_repository: bool,
}

impl<'a> Item<'a> {
    /// The folder's entry of the last search, if it is still valid.
    fn unchanged(&self, status: FileStatus) -> Option<&'a CachedFolder> {
        self.last
            .filter(|last| last.listing.stamp == Stamp::from(status))
    }
}

/// The listing of a folder in this search.
enum Folder<'a> {
    /// That of the last search.
    Same(&'a CachedFolder),
    New(Arc<Listing>),
}

impl Folder<'_> {
    fn listing(&self) -> &Arc<Listing> {
        match self {
            Self::Same(same) => &same.listing,
            Self::New(listing) => listing,
        }
    }
}

struct Search<'a> {
    root: &'a Root,
    purpose: Purpose<'a>,
    names: Names,
    found: Found,
    seen: Vec<Seen<'a>>,
    missed: Vec<Unguarded>,
    repositories: BTreeSet<PathBuf>,
    /// Hooks, programs and included files that git's configuration names, which may not exist.
    named: Vec<PathBuf>,
    /// What the configuration of the account names.
    account: Arc<Named>,
    /// Folders of the last search come first. A command may create very many new folders, and the
    /// damage it can hide among them is smaller than in the old ones.
    known: VecDeque<Item<'a>>,
    fresh: VecDeque<Item<'a>>,
    listed: usize,
    searched: usize,
    /// Whether the bound on folders is hit, so that no new folder is searched any more.
    is_full: bool,
    /// Whether all names are counted.
    counts: bool,
    /// The device whose listings are cached; `None` if none are.
    remembers: Option<u64>,
}

/// Searches a workspace before a command.
pub(super) fn before(root: &Root, last: &Arc<Listings>) -> Result<Searched, Unguarded> {
    let mut searched = Search::new(
        root,
        Purpose {
            last,
            known: None,
            reopens: false,
            folders_max: FOLDERS_MAX,
        },
    )
    .run();
    if let Some(why) = searched.missed.pop() {
        return Err(why);
    }
    if searched.found.covers() > COVERS_MAX {
        return Err(Unguarded::Covers);
    }
    Ok(searched)
}

/// Searches a workspace after a command, as completely as possible.
pub(super) fn after(root: &Root, last: &Arc<Listings>, known: &Known) -> Searched {
    after_within(root, last, known, FOLDERS_AFTER_MAX)
}

/// Searches a workspace after a command. Of more folders than `folders_max` those of the last search
/// and every `.git` in them are still searched, and no others.
pub(super) fn after_within(
    root: &Root,
    last: &Arc<Listings>,
    known: &Known,
    folders_max: usize,
) -> Searched {
    reopen_root(root);
    Search::new(
        root,
        Purpose {
            last,
            known: Some(known),
            reopens: true,
            folders_max,
        },
    )
    .run()
}

/// Counts a workspace while a command runs.
pub(super) fn during(root: &Root, last: &Arc<Listings>) -> Searched {
    Search::new(
        root,
        Purpose {
            last,
            known: Some(&Known::default()),
            reopens: false,
            folders_max: FOLDERS_AFTER_MAX,
        },
    )
    .run()
}

impl<'a> Search<'a> {
    fn new(root: &'a Root, purpose: Purpose<'a>) -> Self {
        let device = FileStatus::at(root.dir.as_fd(), Path::new(""))
            .ok()
            .map(|status| status.own.0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the numbers have 32 bits, their type differs"
        )]
        let is_remote =
            rustix::fs::fstatfs(&root.dir).map_or(true, |fs| REMOTE.contains(&(fs.f_type as u32)));
        Self {
            root,
            purpose,
            names: root.rules().names(),
            found: Found::default(),
            seen: Vec::new(),
            missed: Vec::new(),
            repositories: BTreeSet::new(),
            named: Vec::new(),
            account: Arc::default(),
            known: VecDeque::new(),
            fresh: VecDeque::new(),
            listed: 0,
            searched: 0,
            is_full: false,
            counts: root.quota().files_max.is_some(),
            remembers: device.filter(|_| !is_remote),
        }
    }

    /// Whether this search comes before a command; then anything it cannot search is an error.
    fn is_before(&self) -> bool {
        self.purpose.known.is_none()
    }

    fn run(mut self) -> Searched {
        self.search_account();
        self.search_python_folders();
        self.search_outer_above();
        self.enter(Path::new(""), (0, 0), false, false);
        while let Some(mut item) = self.known.pop_front().or_else(|| self.fresh.pop_front()) {
            self.searched += 1;
            let waiting = self.known.len() + self.fresh.len();
            if self.searched.max(waiting) > self.purpose.folders_max && !self.is_full {
                self.missed.push(Unguarded::Folders);
                self.is_full = true;
                self.fresh.clear();
                if self.is_before() {
                    break;
                }
            }
            let (names, remembered) = if item.only_counted {
                self.count_folder(&item)
            } else {
                self.search_folder(&mut item)
            }
            .unwrap_or((0, Remembered::Nothing));
            self.seen.push(Seen {
                path: item.path,
                way: item.way,
                names,
                remembered,
            });
            if self.is_before() && !self.missed.is_empty() {
                break;
            }
        }
        self.found.deduplicate();
        if self.is_before() && self.missed.is_empty() {
            let folders = self.seen.iter().map(|seen| &*seen.path);
            let added = add_hard_links(self.root, &mut self.found, folders, HARD_LINK_NAMES_MAX);
            self.missed.extend(added.err());
        }
        let files = self.counts.then(|| self.count());
        let listings = self.purpose.last.after(self.seen);
        Searched {
            found: self.found,
            listings,
            files,
            missed: self.missed,
        }
    }

    /// Number of names.
    fn count(&self) -> u64 {
        self.seen.iter().map(|seen| seen.names).sum()
    }

    /// Searches a folder that is entered by its name.
    fn enter(&mut self, path: &Path, above: Identity, covered: bool, in_repository: bool) {
        self.enqueue(Item {
            last: self.purpose.last.entrance(path),
            path: path.into(),
            way: Way::Entrance,
            above,
            covered,
            only_counted: false,
            in_repository,
        });
    }

    /// Counts the names in a folder that is not searched, and in all folders below it.
    fn enter_to_count(&mut self, path: &Path, above: Identity) {
        if self.counts {
            self.enqueue(Item {
                last: self.purpose.last.entrance(path),
                path: path.into(),
                way: Way::Entrance,
                above,
                covered: false,
                only_counted: true,
                in_repository: false,
            });
        }
    }

    /// Searches a subfolder in the listing of `item`, or counts it.
    fn enter_listed(&mut self, item: &Item<'a>, folder: &Folder<'a>, place: usize, covered: bool) {
        if item.only_counted && !self.counts {
            return;
        }
        let Some(name) = folder.listing().folders.get(place) else {
            return;
        };
        let all = self.purpose.last;
        let last = match (folder, item.last) {
            (Folder::Same(same), _) => all.at(same, place),
            (Folder::New(_), Some(before)) => all.named(before, name),
            (Folder::New(_), None) => None,
        };
        let (path, last) = match last {
            Some(last) => (last.path.clone(), Some(last)),
            None => {
                let path = item.path.join(name);
                let last = all.entrance(&path);
                (path.into(), last)
            }
        };
        self.enqueue(Item {
            path,
            way: Way::Listed {
                above: self.seen.len(),
                place,
            },
            last,
            above: folder.listing().stamp.own,
            covered,
            only_counted: item.only_counted,
            in_repository: item.in_repository,
        });
    }

    fn enqueue(&mut self, item: Item<'a>) {
        if item.last.is_some() || is_git(&item.path) {
            self.known.push_back(item);
        } else if !self.is_full {
            self.fresh.push_back(item);
        }
    }

    /// Counts one folder; `None` if it cannot be read. It is not in the search, so nothing is missed.
    fn count_folder(&mut self, item: &Item<'a>) -> Option<(u64, Remembered<'a>)> {
        let status = self.status(&item.path).ok()?;
        if status.kind != FileType::Directory {
            return None;
        }
        let folder = match item.unchanged(status) {
            Some(same) => Folder::Same(same),
            None => Folder::New(self.list_reopening(item, status).ok().flatten()?),
        };
        let listing = folder.listing().clone();
        for place in 0..listing.folders.len() {
            self.enter_listed(item, &folder, place, item.covered);
        }
        for name in &listing.marked {
            self.enter_to_count(&item.path.join(name), status.own);
        }
        Some((listing.names, self.remember(folder)))
    }

    /// Whether the next search may rely on a listing.
    fn remember(&self, folder: Folder<'a>) -> Remembered<'a> {
        match folder {
            Folder::Same(same) => Remembered::Same(same),
            Folder::New(listing)
                if self.remembers == Some(listing.stamp.own.0) && listing.stamp.is_settled() =>
            {
                Remembered::New(listing)
            }
            Folder::New(_) => Remembered::Nothing,
        }
    }

    fn status(&self, path: &Path) -> Result<FileStatus, Errno> {
        FileStatus::at(self.root.dir.as_fd(), path)
    }

    /// Searches one folder. Returns the number of its names and its listing; `None` if there is no
    /// listing.
    fn search_folder(&mut self, item: &mut Item<'a>) -> Option<(u64, Remembered<'a>)> {
        let status = match self.status(&item.path) {
            Ok(status) if status.kind == FileType::Directory => status,
            Err(Errno::NAMETOOLONG) => {
                self.miss_deep(&item.path);
                return None;
            }
            Err(errno @ (Errno::IO | Errno::STALE | Errno::NOTCONN)) => {
                self.miss(&item.path, errno);
                return None;
            }
            Err(errno) if item.path.as_os_str().is_empty() => {
                self.miss(&item.path, errno);
                return None;
            }
            // It was removed or became something else; or its parent cannot be entered and is
            // protected as a whole.
            Ok(_) | Err(_) => return None,
        };
        let folder = match item.unchanged(status) {
            Some(same) => Folder::Same(same),
            None => Folder::New(self.list_for_search(item, status)?),
        };
        let listing = folder.listing().clone();
        // Git may accept a folder named `.git` later, when its missing parts are there.
        let is_repository = listing.parts.is_repository() || is_git(&item.path);
        item.in_repository |= is_repository;
        if is_repository && !item.covered {
            self.search_repository(&item.path);
        }
        for name in &listing.links {
            self.search_link(item, status.own, name);
        }
        for name in &listing.marked {
            self.search_name(item, status.own, name);
        }
        for (place, name) in listing.folders.iter().enumerate() {
            let covered = item.covered
                || (is_repository
                    && PROGRAM_NAMES.iter().any(|program| *name == *program)
                    && self
                        .status(&item.path.join(name))
                        .is_ok_and(|status| self.is_covered(&item.path.join(name), status)));
            self.enter_listed(item, &folder, place, covered);
        }
        Some((listing.names, self.remember(folder)))
    }

    /// Lists a folder that is new or has changed. If that fails, the folder is protected or missed.
    fn list_for_search(&mut self, item: &Item<'a>, status: FileStatus) -> Option<Arc<Listing>> {
        match self.list_reopening(item, status) {
            Ok(listing) => return listing,
            // Another command may have removed it during the search.
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            // The folder's owner can open it again at any time, so nothing in it may change
            // meanwhile.
            Err(Errno::ACCESS | Errno::PERM) if !item.path.as_os_str().is_empty() => {
                if !item.covered {
                    self.found
                        .protect(item.path.to_path_buf(), status, item.above);
                }
            }
            Err(Errno::NAMETOOLONG) => self.miss_deep(&item.path),
            Err(errno) => self.miss(&item.path, errno),
        }
        None
    }

    pub(in crate::sandbox::fs) fn miss(&mut self, path: &Path, errno: Errno) {
        self.missed.push(Unguarded::Unreadable(
            shown(path),
            std::io::Error::from(errno).to_string(),
        ));
    }

    /// Reports a path that is too deep, shortened to fit a line. After a command it gets a name that no
    /// command can know: links could otherwise make a short way to it, by which programs would find
    /// protected names in it.
    fn miss_deep(&mut self, path: &Path) {
        if self.purpose.reopens
            && let (Some(parent), Some(name)) = (path.parent(), path.file_name())
            && let Ok(dir) = open_real(self.root, parent)
        {
            // What cannot be renamed is in the line that says what was not searched.
            let _ = rename_with(&dir, name, random_endings());
        }
        self.missed.push(Unguarded::Deep(shown(
            &path.iter().take(3).collect::<PathBuf>(),
        )));
    }

    /// Lists a folder. A folder that a command closed to its own user is reopened first.
    fn list_reopening(
        &mut self,
        item: &Item<'_>,
        status: FileStatus,
    ) -> Result<Option<Arc<Listing>>, Errno> {
        match self.list(&item.path) {
            Err(Errno::ACCESS | Errno::PERM)
                if self.purpose.reopens
                    && !self.is_covered(&item.path, status)
                    && reopen(self.root, &item.path).is_some() =>
            {
                self.list(&item.path)
            }
            listed => listed,
        }
    }

    /// Lists a folder; `None` if it was removed.
    fn list(&mut self, path: &Path) -> Result<Option<Arc<Listing>>, Errno> {
        let dir = match open_real(self.root, path) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        // Checks the folder through itself: a folder that can be listed but not entered is as good
        // as unreadable.
        let status = FileStatus::at(dir.as_fd(), Path::new(""))?;
        let folder: Vec<String> = path.iter().map(lower_name).collect();
        let holds_branches = holds_branches(&folder);
        let mut folders = Vec::new();
        let mut marked = Vec::new();
        let mut links = Vec::new();
        let mut parts = Parts::default();
        let mut lower = String::new();
        let mut names = 0;
        let rules = self.root.rules();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            self.listed += 1;
            names += 1;
            if self.listed > NAMES_MAX && self.is_before() {
                self.missed.push(Unguarded::Names);
                return Ok(None);
            }
            lower.clear();
            match name.to_str().filter(|name| name.is_ascii()) {
                Some(ascii) => lower.extend(ascii.chars().map(|c| c.to_ascii_lowercase())),
                None => lower = lower_name(name),
            }
            parts.add(&lower);
            let is_marked =
                || rules.is_protected_name(&folder, &lower) || rules.is_sensitive(&path.join(name));
            let is_branch = holds_branches && !lower.starts_with('.');
            let kind = match entry.file_type() {
                FileType::Unknown => FileStatus::at(dir.as_fd(), Path::new(name))
                    .map_or(FileType::Unknown, |status| status.kind),
                kind => kind,
            };
            if lower == ".git"
                || (!is_branch && self.names.has(&lower) && is_marked())
                || (kind != FileType::Directory && rules.is_pointer(&folder, &lower))
            {
                marked.push(name.to_owned());
            } else if kind == FileType::Directory {
                folders.push(name.to_owned());
            } else if kind == FileType::Symlink {
                links.push(name.to_owned());
            }
        }
        folders.sort();
        marked.sort();
        links.sort();
        Ok(Some(Arc::new(Listing {
            stamp: Stamp::from(status),
            folders,
            marked,
            links,
            parts,
            names,
        })))
    }

    /// Checks one name in a folder whose identity is `here`.
    fn search_name(&mut self, item: &Item<'_>, here: Identity, name: &OsStr) {
        let path = item.path.join(name);
        let status = match self.status(&path) {
            Ok(status) => status,
            Err(Errno::NAMETOOLONG) => {
                self.miss_deep(&path);
                return;
            }
            Err(_) => return,
        };
        let lower = lower_name(name);
        if lower == ".git" {
            match status.kind {
                FileType::Directory if item.covered => self.enter_to_count(&path, here),
                _ if item.covered => {}
                FileType::Directory => self.enter(&path, here, false, true),
                // A link or file named `.git`, whatever its target: git may resolve it where we
                // cannot.
                _ => self.protect(path, status, here),
            }
            return;
        }
        let folder: Vec<String> = item.path.iter().map(lower_name).collect();
        let rules = self.root.rules();
        let is_protected = rules.is_protected_name(&folder, &lower)
            || (status.kind != FileType::Directory && rules.is_pointer(&folder, &lower));
        if is_protected && !item.covered {
            self.protect(path.clone(), status, here);
        }
        if self.is_before() && !item.covered {
            self.hold(&item.path, rules.naming_folders(&folder, &lower));
        }
        if self.root.rules().is_sensitive(&path) && status.kind == FileType::Symlink {
            // The keys lie in a file of another name: `.env` may lead to `settings`.
            self.hide_target(&path, Path::new(""));
        }
        let is_pipe = status.kind == FileType::Fifo;
        if self.root.rules().is_sensitive(&path) && (is_pipe || status.is_coverable()) {
            let is_folder = status.kind == FileType::Directory;
            self.found.hidden.push((path.clone(), is_folder));
            if is_folder && self.is_covered(&path, status) {
                self.enter_to_count(&path, here);
            } else if is_folder {
                self.enter(&path, here, item.covered, item.in_repository);
            }
        } else if status.kind == FileType::Directory {
            let covered = item.covered || (is_protected && self.is_covered(&path, status));
            self.enter(&path, here, covered, item.in_repository);
        }
    }

    /// Hides what lies at `below` behind a link.
    fn hide_target(&mut self, link: &Path, below: &Path) {
        let target = self.locate(link).map(|target| {
            if below.as_os_str().is_empty() {
                target
            } else {
                target.join(below)
            }
        });
        // A folder that contains the link would take the user's other files with it.
        let target = target.filter(|target| !link.starts_with(target));
        let kind = |target: &PathBuf| self.status(target).ok().map(|status| status.kind);
        let hidden = target.and_then(|target| match kind(&target)? {
            FileType::RegularFile | FileType::Fifo => Some((target, false)),
            FileType::Directory => Some((target, true)),
            _ => None,
        });
        self.found.hidden.extend(hidden);
    }

    /// Keeps a folder and those above it in their places, `count` in all: under another name, what is
    /// known by their names would be neither protected nor hidden from the next command.
    fn hold(&mut self, folder: &Path, count: usize) {
        let folders = folder.ancestors().take(count);
        let inner = folders.filter(|folder| !folder.as_os_str().is_empty());
        self.found.held.extend(inner.map(Path::to_owned));
    }

    /// Whether a protected or hidden file is covered, so that no command can change what lies in it.
    /// After a command these are the files from before it. A new folder is moved aside or stays, with
    /// all that lies in it.
    fn is_covered(&self, path: &Path, status: FileStatus) -> bool {
        self.purpose.known.is_none_or(|known| {
            known.has(status.own, None) && !known.is_another(self.root, path, status.own)
        })
    }
}

/// Whether git takes a folder for a repository because of its name.
fn is_git(path: &Path) -> bool {
    // Asked for each folder of a workspace: an ordinary name is compared without a copy.
    path.file_name().is_some_and(|name| match name.to_str() {
        Some(ascii) if ascii.is_ascii() => ascii.eq_ignore_ascii_case(".git"),
        _ => lower_name(name) == ".git",
    })
}

/// Whether the search takes a folder for a repository.
pub(super) fn is_repository(root: &Root, path: &Path) -> bool {
    is_git(path)
        || ["HEAD", "objects", "refs"]
            .iter()
            .all(|part| FileStatus::at(root.dir.as_fd(), &path.join(part)).is_ok())
}

/// Whether a folder (in lower case) holds the names of branches, which may be any but those that
/// begin with a dot: a branch can have the name of a protected file.
fn holds_branches(folder: &[String]) -> bool {
    folder
        .iter()
        .skip_while(|name| *name != ".git")
        .any(|name| name == "refs" || name == "logs")
}
