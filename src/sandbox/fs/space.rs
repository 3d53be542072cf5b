//! Counts the files and bytes of a workspace, so that one tenant cannot use up the inodes of a disk
//! that all tenants share.
//!
//! The file tools and the sandbox over one [`Root`] share the count. It is taken before and after
//! each command, and when a file tool finds no room. In between, files that the file tools create
//! are added.
//!
//! **Everything in the folder counts**, whoever created it: each of several tenants that share a
//! folder is held to its quota of the whole. A file with several hard links counts once for each.
//! Its bytes are the blocks that it takes on disk.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
};

use super::{
    jail::{FOLDER, PathError, Root},
    quota::{Excess, WorkspaceQuota, WorkspaceUsage},
};

/// How long a count is valid for the file tools, since programs outside the sandbox may create
/// files too.
const COUNT_AGE_MAX: Duration = Duration::from_secs(60);

/// Most names counted. A workspace with more exceeds any realistic quota.
const NAMES_MAX: u64 = 16_000_000;

impl Root {
    /// Returns the same folder with a quota. The file tools and every sandbox over the folder
    /// enforce it, except [`crate::sandbox::Local`], which has no boundary.
    #[must_use]
    pub fn bounded(self, quota: WorkspaceQuota) -> Self {
        self.set_quota(quota);
        self
    }

    /// Changes the quota. The new one applies to the next file and the next command.
    pub fn set_quota(&self, quota: WorkspaceQuota) {
        self.space.state().quota = quota;
    }

    /// The current quota.
    pub fn quota(&self) -> WorkspaceQuota {
        self.space.state().quota
    }

    /// Usage at the last count; `None` before the first. A folder with a quota is counted before
    /// and after each command, and when a file tool creates a file.
    pub fn usage(&self) -> Option<WorkspaceUsage> {
        self.space.state().counted.map(|(usage, _)| usage)
    }

    /// Stores a count.
    pub(super) fn note_usage(&self, usage: WorkspaceUsage) {
        self.space.state().counted = Some((usage, Instant::now()));
    }

    /// Counts the contents of the folder and stores the result for [`Root::usage`]. Counts bytes
    /// only if they are limited. Blocks: some hundred milliseconds for a million files, some
    /// seconds if bytes are counted.
    pub fn count(&self) -> WorkspaceUsage {
        let usage = self.count_all(self.quota().bytes_max.is_some());
        self.note_usage(usage);
        usage
    }

    /// Checks that the quota has room for `names` more names and `bytes` more bytes. Counts again
    /// before it refuses.
    ///
    /// # Errors
    /// [`PathError::Full`] with the path as the caller gave it.
    pub(super) fn room_for(&self, given: &str, names: u64, bytes: u64) -> Result<(), PathError> {
        let quota = self.quota();
        // A change that adds no file ignores the quota of files, so that a full workspace can still
        // be edited.
        let quota = WorkspaceQuota {
            files_max: quota.files_max.filter(|_| names > 0),
            bytes_max: quota.bytes_max.filter(|_| bytes > 0),
        };
        if !quota.is_bounded() {
            return Ok(());
        }
        let with = |usage: WorkspaceUsage| WorkspaceUsage {
            files: usage.files.saturating_add(names),
            bytes: usage.bytes.map(|held| held.saturating_add(bytes)),
        };
        let recent = self.space.state().counted.filter(|(usage, at)| {
            at.elapsed() < COUNT_AGE_MAX && (usage.bytes.is_some() || quota.bytes_max.is_none())
        });
        if recent.is_some_and(|(usage, _)| quota.excess(with(usage)).is_none()) {
            return Ok(());
        }
        let usage = self.count();
        match quota.excess(with(usage)) {
            None => Ok(()),
            Some(excess) => {
                let what = match excess {
                    Excess::Files(_, max) => Excess::Files(usage.files, max),
                    Excess::Bytes(_, max) => Excess::Bytes(usage.bytes.unwrap_or_default(), max),
                };
                Err(PathError::Full {
                    path: given.to_owned(),
                    what: what.to_string(),
                })
            }
        }
    }

    /// Adds what was created since the last count.
    pub(super) fn made(&self, names: u64, bytes: u64) {
        if let Some((usage, _)) = &mut self.space.state().counted {
            usage.files = usage.files.saturating_add(names);
            usage.bytes = usage.bytes.map(|held| held.saturating_add(bytes));
        }
    }

    /// Number of names on the path that do not exist and would have to be created.
    pub(super) fn missing_names(&self, path: &Path) -> u64 {
        let mut path_so_far = PathBuf::new();
        let mut names = path.iter();
        for name in names.by_ref() {
            path_so_far.push(name);
            if matches!(
                rustix::fs::statat(&self.dir, &path_so_far, AtFlags::SYMLINK_NOFOLLOW),
                Err(Errno::NOENT)
            ) {
                return 1 + names.count() as u64;
            }
        }
        0
    }

    /// Opens a path below the root without following links.
    pub(super) fn open_real(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::ResolveFlags;
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(&self.dir, path, flags, Mode::empty(), resolve) {
                // An older kernel, or a seccomp filter around this process: open name by name.
                Err(Errno::NOSYS | Errno::PERM) => {}
                other => return other,
            }
        }
        let mut here = rustix::fs::openat(&self.dir, ".", FOLDER, Mode::empty())?;
        let mut names = path.iter().filter(|name| *name != ".").peekable();
        while let Some(name) = names.next() {
            here = rustix::fs::openat(
                &here,
                name,
                if names.peek().is_some() {
                    FOLDER
                } else {
                    flags
                },
                Mode::empty(),
            )?;
        }
        Ok(here)
    }

    /// Counts everything below the root. Skips what cannot be read: it was removed, or it belongs
    /// to another user.
    fn count_all(&self, wants_bytes: bool) -> WorkspaceUsage {
        let mut files = 0_u64;
        let mut bytes = 0_u64;
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let Ok(dir) = self.open_real(&folder, FOLDER) else {
                continue;
            };
            let Ok(entries) = Dir::read_from(&dir) else {
                continue;
            };
            for entry in entries.map_while(Result::ok) {
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                files += 1;
                let mut kind = entry.file_type();
                if (wants_bytes || kind == FileType::Unknown)
                    && let Ok(stat) =
                        rustix::fs::statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
                {
                    kind = FileType::from_raw_mode(stat.st_mode);
                    bytes = bytes.saturating_add(
                        u64::try_from(stat.st_blocks)
                            .unwrap_or(0)
                            .saturating_mul(512),
                    );
                }
                if kind == FileType::Directory {
                    folders.push(folder.join(name));
                }
            }
            if files > NAMES_MAX {
                break;
            }
        }
        WorkspaceUsage {
            files,
            bytes: wants_bytes.then_some(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::PathRules;

    fn root(quota: WorkspaceQuota) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path(), PathRules::default())
            .unwrap()
            .bounded(quota);
        (folder, root)
    }

    fn create(root: &Root, path: &str, text: &str) -> Result<(), PathError> {
        root.slot(path, true)?.replace(text.as_bytes())
    }

    #[test]
    fn a_file_beyond_the_quota_is_not_made_nor_the_folders_above_it_until_others_are_removed() {
        let (folder, root) = root(WorkspaceQuota {
            files_max: Some(4),
            ..WorkspaceQuota::default()
        });
        std::fs::create_dir(folder.path().join(".git")).unwrap();
        create(&root, "a/b", "x").unwrap();

        let refused = create(&root, "c/d", "x").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "\"c/d\" was not written: the workspace's quota is 4 files and folders, and it has 3; remove some"
        );
        assert!(!folder.path().join("c").exists());
        create(&root, "c", "x").unwrap();
        assert!(matches!(
            create(&root, "e", "x"),
            Err(PathError::Full { .. })
        ));
        create(&root, "c", "what is there may be changed").unwrap();

        std::fs::remove_file(folder.path().join("c")).unwrap();
        create(&root, "e", "x").unwrap();
        assert_eq!(
            root.usage(),
            Some(WorkspaceUsage {
                files: 4,
                bytes: None
            })
        );
    }

    #[test]
    fn a_file_that_grows_beyond_the_quota_of_bytes_stays_as_it_is() {
        let (folder, root) = root(WorkspaceQuota {
            bytes_max: Some(100_000),
            ..WorkspaceQuota::default()
        });
        create(&root, "a", &"x".repeat(50_000)).unwrap();

        assert!(matches!(
            create(&root, "a", &"x".repeat(150_000)),
            Err(PathError::Full { .. })
        ));
        assert!(matches!(
            create(&root, "b", &"x".repeat(80_000)),
            Err(PathError::Full { .. })
        ));

        assert_eq!(
            std::fs::metadata(folder.path().join("a")).unwrap().len(),
            50_000
        );
        create(&root, "a", "less").unwrap();
        create(&root, "b", &"x".repeat(80_000)).unwrap();
        root.set_quota(WorkspaceQuota::default());
        create(&root, "c", &"x".repeat(150_000)).unwrap();
    }

    #[test]
    fn links_lead_no_count_out_of_the_workspace() {
        let (folder, root) = root(WorkspaceQuota::default());
        std::os::unix::fs::symlink("/", folder.path().join("all")).unwrap();
        std::fs::create_dir_all(folder.path().join("a/.git/objects")).unwrap();

        assert_eq!(root.count().files, 4);
    }
}
