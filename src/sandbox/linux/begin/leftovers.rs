//! What bubblewrap leaves in the workspace when a folder is moved away while mounts are made in it: it
//! creates the missing folder, with an empty file to mount on. The command that moved the folder could not
//! move it back.

use std::{
    ffi::OsStr,
    os::fd::OwnedFd,
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::fs::{AtFlags, FileType, StatxFlags};

use super::covers::open;
use crate::sandbox::fs::{Found, Root};

/// How far the clock of a file system is behind that of programs.
const TICK: Duration = Duration::from_millis(20);

/// Removes the empty files and folders that were created since a search at the places of what it found.
pub(super) fn clear(root: &Root, found: &Found, since: SystemTime) {
    let since = since.checked_sub(TICK).unwrap_or(since);
    let hidden = found.hidden.iter().map(|(path, _)| path);
    for path in hidden.chain(&found.read_only) {
        let mut path = &**path;
        while let (Some(above), Some(name)) = (path.parent(), path.file_name()) {
            // What the search found is the user's, however new it is.
            let known = found.protected.get(path).map(|((_, inode), _)| *inode);
            let is_removed = open(&root.dir, above)
                .ok()
                .and_then(|folder| remove(&folder, name, since, known));
            if is_removed.is_none() {
                break;
            }
            path = above;
        }
    }
}

fn remove(folder: &OwnedFd, name: &OsStr, since: SystemTime, known: Option<u64>) -> Option<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::BTIME
        | StatxFlags::TYPE
        | StatxFlags::SIZE
        | StatxFlags::NLINK
        | StatxFlags::INO;
    let stat = rustix::fs::statx(folder, Path::new(name), flags, wanted).ok()?;
    let born = Duration::new(
        u64::try_from(stat.stx_btime.tv_sec).ok()?,
        stat.stx_btime.tv_nsec,
    );
    let is_new = stat.stx_mask & wanted.bits() == wanted.bits()
        && SystemTime::UNIX_EPOCH.checked_add(born)? >= since
        && known != Some(stat.stx_ino);
    let how = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::Directory => AtFlags::REMOVEDIR,
        FileType::RegularFile if stat.stx_size == 0 && stat.stx_nlink == 1 => AtFlags::empty(),
        _ => return None,
    };
    is_new
        .then(|| rustix::fs::unlinkat(folder, name, how).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::PathRules;

    #[test]
    fn an_empty_folder_that_the_user_has_just_made_stays_and_one_of_a_mount_goes() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path(), PathRules::default()).unwrap();
        let since = SystemTime::now();
        let mut found = Found::default();
        for name in [".idea", ".vscode"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            let stat = rustix::fs::stat(folder.path().join(name)).unwrap();
            let own = (stat.st_dev, stat.st_ino);
            found.protected.insert(name.into(), (own, own));
            found.read_only.push(name.into());
        }
        // The mounts of a command made the second one again.
        std::fs::rename(folder.path().join(".vscode"), folder.path().join("x")).unwrap();
        std::fs::create_dir(folder.path().join(".vscode")).unwrap();

        clear(&root, &found, since);

        assert!(folder.path().join(".idea").exists());
        assert!(!folder.path().join(".vscode").exists());
    }
}
