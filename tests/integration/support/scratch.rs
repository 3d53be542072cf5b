//! A folder for tests that flush thousands of files.

use std::path::Path;

/// A temporary folder in memory if the system has one, or else in the usual place.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir()
        && let Ok(folder) = tempfile::tempdir_in(memory)
    {
        return folder;
    }
    tempfile::tempdir().unwrap()
}
