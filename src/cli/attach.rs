//! Reads files for a prompt: `--attach` and `/attach`. The type follows from the content, never
//! from the name.

use std::{io::Read, path::Path};

use callboard_actors::{
    chat::{Attachment, AttachmentError},
    limits::PDF_BYTES_MAX,
};

use super::{failure::Failure, terminal::sanitize};
use crate::{named_file, os_error};

/// Reads files as attachments, in order. Blocks.
pub(super) fn read<'f>(
    files: impl IntoIterator<Item = &'f std::path::PathBuf>,
) -> Result<Vec<Attachment>, Failure> {
    files.into_iter().map(|file| read_one(file)).collect()
}

fn read_one(file: &Path) -> Result<Attachment, Failure> {
    let shown = sanitize(&file.display().to_string());
    let failed = |error: std::io::Error| Failure::work(os_error::of_file(&shown, &error));
    let opened = named_file::open(file).map_err(failed)?;
    if opened.metadata().map_err(failed)?.is_dir() {
        return Err(Failure::usage(format!("{shown} is a folder"))
            .hint("attach the files in it one by one"));
    }
    let mut bytes = Vec::new();
    // Reading one byte more than the largest attachment allows detects a file that is too large.
    opened
        .take(PDF_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let name = file
        .file_name()
        .map(|name| sanitize(&name.to_string_lossy()))
        .unwrap_or_default();
    Ok(of_bytes(&bytes, &shown)?.title(name))
}

/// The attachment that bytes are; `shown` names where they come from.
pub(super) fn of_bytes(bytes: &[u8], shown: &str) -> Result<Attachment, Failure> {
    Attachment::sniffed(bytes).map_err(|error| {
        let failure = Failure::usage(format!("{shown} cannot be attached: {error}"));
        match hint(&error) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })
}

fn hint(error: &AttachmentError) -> Option<&'static str> {
    Some(match error {
        AttachmentError::Empty => "is it the right file?",
        AttachmentError::Unsupported => {
            "a text file can be piped in, or read by the model when it is in the workspace"
        }
        AttachmentError::Cut { .. } => "does it open in other programs? copy it again",
        AttachmentError::TooLarge { .. } | AttachmentError::TooManyPixels { .. } => {
            "save it in a smaller size"
        }
        AttachmentError::TooManyPages => "attach only a part of it",
        AttachmentError::Encrypted => "save it without its password",
        _ => return None,
    })
}
