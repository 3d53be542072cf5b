//! Opens the files that a user or a configuration names.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::OFlags;

/// Opens a file for reading. A named pipe that has no writer reads as empty: opening it in the usual
/// way would wait for a writer, and a signal that the program handles would not end the wait. Pipes
/// of the shell (`<(command)`) have their writer.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let not_waiting = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(not_waiting)
        .open(path)?;
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn a_named_pipe_without_a_writer_reads_as_empty_and_one_with_a_writer_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut text = String::new();

        open(&pipe).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "");

        // Opened for both, which does not wait for a reader.
        let mut writer = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&pipe)
            .unwrap();
        let mut reader = open(&pipe).unwrap();
        let waits = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        writer.write_all(b"one ").unwrap();
        writer.write_all(b"two").unwrap();
        drop(writer);
        assert_eq!(waits.join().unwrap().unwrap(), "one two");
    }
}
