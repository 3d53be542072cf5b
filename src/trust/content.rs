//! Reads an untrusted file, or a folder of them, once, and hashes it: an agreement names this
//! SHA-256.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

/// Maximum number of files, folders and links in a tree. A folder of skills has tens.
pub const TREE_FILES_MAX: usize = 10_000;

/// Maximum total size of the files in a tree, in bytes.
pub const TREE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Maximum depth of nested folders in a tree.
const TREE_DEPTH_MAX: usize = 32;

/// A file that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The content of the file, unchanged.
    pub bytes: Vec<u8>,
    /// SHA-256 of the bytes in hexadecimal digits, as `sha256sum` prints it.
    pub sha256: String,
}

/// A folder that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// SHA-256 over the names, kinds and contents of everything in it.
    pub sha256: String,
    /// Paths of its regular files relative to the folder, sorted.
    pub files: Vec<String>,
}

/// Why a file or tree cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// The path does not exist.
    #[error("there is no such file")]
    Missing,
    /// A folder, a pipe, a socket or a device.
    #[error("it is not a regular file")]
    NoFile,
    /// The file is larger than the limit for files of this kind, in bytes.
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
    /// The tree exceeds one of its limits.
    #[error(
        "it holds more than {TREE_FILES_MAX} files, {TREE_BYTES_MAX} bytes or {TREE_DEPTH_MAX} levels"
    )]
    TooLarge,
    /// The operating system returned an error of this kind.
    #[error("it cannot be read: {0}")]
    Io(io::ErrorKind),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            other => Self::Io(other),
        }
    }
}

/// Reads a regular file of at most `bytes_max` bytes. A symbolic link at the end of `path` is
/// followed.
///
/// # Errors
/// [`Unread`]. Opening a pipe or a device does not block.
pub fn file(path: &Path, bytes_max: u64) -> Result<Content, Unread> {
    let bytes = read(path, OFlags::empty(), bytes_max)?;
    let sha256 = hex(&Sha256::digest(&bytes));
    Ok(Content { bytes, sha256 })
}

/// Reads every file below a folder. A symbolic link is hashed by its target path; if it points into
/// the folder, the target's content is hashed where it lies.
///
/// # Errors
/// [`Unread`] for the folder or for any file below it.
pub fn tree(folder: &Path) -> Result<Tree, Unread> {
    if !folder.metadata()?.is_dir() {
        return Err(Unread::NoFile);
    }
    let mut walk = Walk {
        hash: Sha256::new(),
        files: Vec::new(),
        seen: 0,
        bytes: 0,
    };
    walk.hash.update(b"callboard tree 1\n");
    walk.below(folder, &PathBuf::new(), 0)?;
    Ok(Tree {
        sha256: hex(&walk.hash.finalize()),
        files: walk.files,
    })
}

struct Walk {
    hash: Sha256,
    files: Vec<String>,
    seen: usize,
    bytes: u64,
}

impl Walk {
    fn below(&mut self, root: &Path, inner: &Path, depth: usize) -> Result<(), Unread> {
        if depth > TREE_DEPTH_MAX {
            return Err(Unread::TooLarge);
        }
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(root.join(inner))? {
            self.seen += 1;
            if self.seen > TREE_FILES_MAX {
                return Err(Unread::TooLarge);
            }
            let entry = entry?;
            entries.push((entry.file_name(), entry.file_type()?));
        }
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, kind) in entries {
            let inner = inner.join(&name);
            let path = root.join(&inner);
            if kind.is_dir() {
                self.part(b"folder", inner.as_os_str().as_encoded_bytes());
                self.below(root, &inner, depth + 1)?;
                self.part(b"end", b"");
            } else if kind.is_symlink() {
                self.part(b"link", inner.as_os_str().as_encoded_bytes());
                self.part(
                    b"to",
                    std::fs::read_link(&path)?.as_os_str().as_encoded_bytes(),
                );
            } else if kind.is_file() {
                let left = TREE_BYTES_MAX.saturating_sub(self.bytes);
                let bytes = read(&path, OFlags::NOFOLLOW, left).map_err(|error| match error {
                    Unread::TooLong(_) => Unread::TooLarge,
                    other => other,
                })?;
                self.bytes += bytes.len() as u64;
                self.part(b"file", inner.as_os_str().as_encoded_bytes());
                self.part(b"holds", &bytes);
                self.files.push(inner.to_string_lossy().into_owned());
            } else {
                // A pipe or a socket has no content; no skill can use it.
                self.part(b"other", inner.as_os_str().as_encoded_bytes());
            }
        }
        Ok(())
    }

    /// Hashes each part with its length, so that two different trees never produce the same input.
    fn part(&mut self, kind: &[u8], text: &[u8]) {
        for part in [kind, text] {
            self.hash.update((part.len() as u64).to_be_bytes());
            self.hash.update(part);
        }
    }
}

fn read(path: &Path, more: OFlags, bytes_max: u64) -> Result<Vec<u8>, Unread> {
    // With NONBLOCK, opening a pipe that has no writer returns at once; the check below refuses it.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | more;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
    if !file.metadata()?.is_file() {
        return Err(Unread::NoFile);
    }
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        Err(Unread::TooLong(bytes_max))
    } else {
        Ok(bytes)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_and_hashed_as_others_hash_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "abc").unwrap();

        let content = file(&path, 3).unwrap();

        assert_eq!(content.bytes, b"abc");
        assert_eq!(
            content.sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(file(&path, 2), Err(Unread::TooLong(2)));
        assert_eq!(file(folder.path(), 9), Err(Unread::NoFile));
        assert_eq!(file(&folder.path().join("b"), 9), Err(Unread::Missing));
        assert_eq!(file(Path::new("/dev/zero"), 9), Err(Unread::NoFile));
    }

    #[test]
    fn every_change_of_a_tree_changes_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("s")).unwrap();
        std::fs::write(at("s/SKILL.md"), "one").unwrap();
        std::fs::write(at("x"), "").unwrap();
        let mut seen = vec![tree(folder.path()).unwrap().sha256];
        let mut changed = |what: &str| {
            let now = tree(folder.path()).unwrap().sha256;
            assert!(!seen.contains(&now), "{what}");
            seen.push(now);
        };

        std::fs::write(at("s/SKILL.md"), "onf").unwrap();
        changed("a byte");
        std::fs::rename(at("x"), at("y")).unwrap();
        changed("a name");
        std::fs::rename(at("y"), at("s/y")).unwrap();
        changed("a folder");
        std::os::unix::fs::symlink("SKILL.md", at("s/z")).unwrap();
        changed("a link");
        std::fs::remove_file(at("s/z")).unwrap();
        std::os::unix::fs::symlink("y", at("s/z")).unwrap();
        changed("where it leads");
        std::fs::create_dir(at("s/empty")).unwrap();
        changed("an empty folder");
    }

    #[test]
    fn a_tree_is_bounded_and_a_pipe_in_it_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        assert_eq!(file(&fifo, 9), Err(Unread::NoFile));
        assert_eq!(tree(folder.path()).unwrap().files, Vec::<String>::new());
        let mut deep = folder.path().to_owned();
        for _ in 0..TREE_DEPTH_MAX + 2 {
            deep.push("d");
        }
        std::fs::create_dir_all(&deep).unwrap();

        assert_eq!(tree(folder.path()), Err(Unread::TooLarge));
        assert_eq!(tree(&fifo), Err(Unread::NoFile));
    }
}
