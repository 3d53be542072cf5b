//! Writes logs to standard error, a file, or both, with keys masked.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    sync::Arc,
};

use tracing_subscriber::fmt::MakeWriter;

use super::TelemetryError;
use crate::{
    config::Observability,
    observe::{Redactor, redact::RedactingWriter},
    private::make_folder,
    visible::escaped_json,
};

/// A log writer that writes whole events. Clones share their outputs.
#[derive(Debug, Clone)]
pub(super) struct Sink {
    redactor: Redactor,
    stderr: bool,
    file: Option<Arc<File>>,
}

impl Sink {
    /// Opens the outputs that `log_output` names. The file is opened in append mode, so that
    /// another program may rotate or truncate it meanwhile.
    pub(super) fn open(redactor: Redactor, config: &Observability) -> Result<Self, TelemetryError> {
        let stderr = config
            .settings
            .log_output
            .iter()
            .any(|output| output != "file");
        let open = |path: &std::path::PathBuf| {
            path.parent().map_or(Ok(()), make_folder)?;
            OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(path)
        };
        let file = match &config.log_file {
            None => None,
            Some(path) => {
                let no_file = |error: io::Error| TelemetryError::NoFile {
                    file: path.display().to_string(),
                    reason: error.kind().to_string(),
                };
                Some(Arc::new(open(path).map_err(no_file)?))
            }
        };
        Ok(Self {
            redactor,
            stderr,
            file,
        })
    }

    /// Writes one line immediately.
    pub(super) fn line(&self, text: &str) {
        let _ = writeln!(self.make_writer(), "{text}");
    }
}

/// The outputs of one event. An error in one output does not keep the event from the other.
pub(super) struct Places {
    stderr: bool,
    file: Option<Arc<File>>,
}

impl io::Write for Places {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Writes control characters as `\uXXXX`, which is valid both in text and in JSON. Only ESC
        // stays, for colors: event values no longer contain it here.
        let text = String::from_utf8_lossy(bytes);
        let shown = escaped_json(&text);
        if self.stderr {
            let _ = io::stderr().lock().write_all(shown.as_bytes());
        }
        if let Some(file) = &self.file {
            let _ = (&**file).write_all(shown.as_bytes());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Sink {
    type Writer = RedactingWriter<Places>;

    fn make_writer(&'w self) -> Self::Writer {
        self.redactor.writer(Places {
            stderr: self.stderr,
            file: self.file.clone(),
        })
    }
}
