//! A folder for tests that flush thousands of files.

use std::path::Path;

/// A temporary folder in memory where the system has such a place, else where temporary folders are.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir()
        && let Ok(folder) = tempfile::tempdir_in(memory)
    {
        return folder;
    }
    tempfile::tempdir().unwrap()
}
