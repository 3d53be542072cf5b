//! The PDF reader: a separate stage that reads a file from standard input and writes its text to
//! standard output. The input is untrusted, so before reading the first byte the stage drops
//! everything except its memory, its three streams and a little time.
//!
//! Its seccomp filter is an allow-list: the stage can open, create, find and change no file, reach
//! no socket or process, and start no process. The filter needs neither Landlock nor privileges, so
//! it works on every Linux.

use std::io::{Read, Write};

use callboard_actors::limits::{DOCUMENT_TEXT_BYTES_MAX, PDF_BYTES_MAX, PDF_PAGES_MAX};
use lopdf::{Document, Error, LoadOptions};
use rustix::process::{Resource, Rlimit, Signal};

use crate::sandbox::linux::filter;

pub(in crate::sandbox) const STAGE: &str = "pdf";

/// Bytes of memory: the file, its objects and the content of one page at a time.
const MEMORY_BYTES: u64 = 512 * 1024 * 1024;

/// Seconds of processor time. A page takes milliseconds.
const CPU_SECONDS: u64 = 20;

/// Bytes that one stream of the file may decompress to. A small file may claim gigabytes.
const STREAM_BYTES_MAX: usize = 32 * 1024 * 1024;

/// First line of the answer: the nonce, then `pages N` or one of these words.
pub(in crate::sandbox) mod word {
    pub(in crate::sandbox) const PAGES: &str = "pages";
    pub(in crate::sandbox) const BROKEN: &str = "broken";
    pub(in crate::sandbox) const ENCRYPTED: &str = "encrypted";
    pub(in crate::sandbox) const TOO_MANY_PAGES: &str = "too-many-pages";
    pub(in crate::sandbox) const NO_TEXT: &str = "no-text";
    pub(in crate::sandbox) const BOUNDS: &str = "bounds";
}

/// Reads one PDF. A file that crashes the parser ends this process, and the host sees that there is
/// no answer.
pub(super) fn run(nonce: &str) -> Result<i32, String> {
    std::panic::set_hook(Box::new(|_| {}));
    confine()?;
    let failed = |error: std::io::Error| error.kind().to_string();
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(PDF_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let answer = match text_of(&bytes) {
        Ok((pages, text)) => format!("{nonce} {} {pages}\n{text}", word::PAGES),
        Err(why) => format!("{nonce} {why}\n"),
    };
    std::io::stdout()
        .lock()
        .write_all(answer.as_bytes())
        .map_err(failed)?;
    Ok(0)
}

fn confine() -> Result<(), String> {
    let said = |error: rustix::io::Errno| format!("limits: {error}");
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Cpu, CPU_SECONDS),
        (Resource::Data, MEMORY_BYTES),
        (Resource::Fsize, 0),
        (Resource::Memlock, 0),
    ] {
        let most = rustix::process::getrlimit(resource)
            .maximum
            .map_or(most, |maximum| maximum.min(most));
        rustix::process::setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )
        .map_err(said)?;
    }
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(said)?;
    rustix::thread::set_no_new_privs(true).map_err(said)?;
    filter::install_for_parser()
}

/// Returns the number of pages and their text.
fn text_of(bytes: &[u8]) -> Result<(usize, String), &'static str> {
    let options = LoadOptions {
        max_decompressed_size: Some(STREAM_BYTES_MAX),
        ..LoadOptions::default()
    };
    let document =
        Document::load_mem_with_options(bytes, options).map_err(|error| reason(&error))?;
    if document.is_encrypted() || document.was_encrypted() {
        return Err(word::ENCRYPTED);
    }
    let pages = document.get_pages();
    match pages.len() {
        0 => return Err(word::BROKEN),
        count if count > PDF_PAGES_MAX => return Err(word::TOO_MANY_PAGES),
        _ => {}
    }
    let mut text = String::new();
    let mut failure = None;
    let mut says_something = false;
    for number in pages.keys() {
        text.push_str(&format!("[page {number}]\n"));
        for piece in document.extract_text_chunks_with_limit(&[*number], STREAM_BYTES_MAX) {
            match piece {
                Ok(piece) => {
                    says_something |= !piece.trim().is_empty();
                    text.push_str(&piece);
                }
                Err(error) => failure = Some(reason(&error)),
            }
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        if text.len() > DOCUMENT_TEXT_BYTES_MAX {
            let end = format!("\n[the text is cut on page {number} of {}]", pages.len());
            text.truncate(
                text.floor_char_boundary(DOCUMENT_TEXT_BYTES_MAX.saturating_sub(end.len())),
            );
            text.push_str(&end);
            break;
        }
    }
    if says_something {
        Ok((pages.len(), text))
    } else {
        Err(failure.unwrap_or(word::NO_TEXT))
    }
}

fn reason(error: &Error) -> &'static str {
    match error {
        Error::Decryption(_) | Error::InvalidPassword | Error::UnsupportedSecurityHandler(_) => {
            word::ENCRYPTED
        }
        Error::Decompress(lopdf::DecompressError::MemoryLimitExceeded { .. }) => word::BOUNDS,
        _ => word::BROKEN,
    }
}
