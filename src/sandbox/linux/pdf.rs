//! Extracts the text of PDFs in a confined helper process ([`super::helper`], `pdf`). The host
//! itself never parses a PDF.
//!
//! Promises: a malicious file costs one line of error · memory, time and output of the helper are
//! bounded · dropping the future ends the helper.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use callboard_actors::{
    ids::TenantId,
    limits::{DOCUMENT_TEXT_BYTES_MAX, PDF_BYTES_MAX},
    ports::{BoxFuture, DocumentText, DocumentTextError, ExtractedText, SandboxError},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::helper::pdf::{STAGE, word};
use crate::{
    fair::{FairPlaces, Waiting},
    sandbox::{
        exec::{ASK, ASKED, Piped, PipedLaunch, Program, Spawner, call::reason, words::nonce},
        policy::PATH,
    },
};

/// Longest wall-clock time for one file. The helper's own limit is processor time.
const TIME_MAX: Duration = Duration::from_secs(40);

/// Concurrent helpers, each with up to half a gibibyte of memory. Further files wait.
const READERS_MAX: usize = 2;

/// Files that wait. Each is in memory, so a tenant with more has to come again.
const FILES_WAITING: Waiting = Waiting {
    all: 512,
    tenant: 32,
};

/// Bytes of the line before the text.
const HEAD_BYTES_MAX: usize = 128;

/// Settings of mimalloc, the allocator of the `callboard` program; others ignore them. By default it
/// takes a gibibyte at once, which the helper's bound of memory counts, and gives parts of it back
/// after a while: taking those again then fails or not, depending on how slow the machine is.
const ALLOCATOR: [(&str, &str); 2] = [
    ("MIMALLOC_ARENA_EAGER_COMMIT", "0"),
    ("MIMALLOC_PURGE_DELAY", "-1"),
];

/// Exit code of a Rust program after a panic.
const PANICKED: i32 = 101;

/// Reads the text of PDFs in a separate process. The embedding program calls
/// [`crate::sandbox::jail_main_if_asked`] first in its `main`; otherwise every file fails with
/// [`DocumentTextError::Unavailable`].
///
/// ```
/// use callboard::{Host, providers::OpenAi, sandbox::PdfText};
///
/// # let _ = || -> Result<(), Box<dyn std::error::Error>> {
/// let model = OpenAi::builder().base_url("http://127.0.0.1:11434/v1").build()?;
/// let host = Host::builder().provider(model).document_text(PdfText::new());
/// # drop(host); Ok(()) };
/// ```
#[derive(Debug, Clone)]
pub struct PdfText(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    spawner: OnceLock<Spawner>,
    helper: Option<PathBuf>,
    readers: Arc<FairPlaces>,
}

impl Default for PdfText {
    fn default() -> Self {
        Self::new()
    }
}

impl PdfText {
    /// Creates a reader that starts its own process thread with the first file.
    pub fn new() -> Self {
        Self::made(OnceLock::new(), None)
    }

    /// Creates a reader that shares a host's spawner.
    pub fn with_spawner(spawner: Spawner) -> Self {
        Self::made(OnceLock::from(spawner), None)
    }

    /// Creates a reader whose process runs `helper`, a program that calls
    /// [`crate::sandbox::jail_main_if_asked`] first in its `main`.
    pub fn with_helper(helper: PathBuf) -> Self {
        Self::made(OnceLock::new(), Some(helper))
    }

    fn made(spawner: OnceLock<Spawner>, helper: Option<PathBuf>) -> Self {
        Self(Arc::new(Inner {
            spawner,
            helper,
            readers: FairPlaces::new(READERS_MAX, FILES_WAITING),
        }))
    }
}

impl Inner {
    fn spawner(&self) -> Result<&Spawner, DocumentTextError> {
        if let Some(spawner) = self.spawner.get() {
            return Ok(spawner);
        }
        let spawner = Spawner::start().map_err(|error| unavailable(error.kind()))?;
        Ok(self.spawner.get_or_init(|| spawner))
    }

    fn program(&self) -> Result<Program, DocumentTextError> {
        if self.helper.is_none() && std::env::var_os(ASKED).is_some() {
            return Err(not_asked());
        }
        Program::new(self.helper.clone()).map_err(sandbox)
    }

    async fn extract(
        &self,
        tenant: &TenantId,
        pdf: Bytes,
    ) -> Result<ExtractedText, DocumentTextError> {
        if pdf.len() > PDF_BYTES_MAX {
            return Err(DocumentTextError::Bounds);
        }
        let too_many = |_| unavailable("too many documents wait to be read");
        let place = self.readers.acquire(Some(tenant.clone()));
        let _place = place.await.map_err(too_many)?;
        let nonce = nonce().map_err(sandbox)?;
        let program = self.program()?;
        let piped = self
            .spawner()?
            .start_carrying(launch(&program, &nonce), program.carried())
            .await
            .map_err(sandbox)?;
        let (answer, status) = tokio::time::timeout(TIME_MAX, converse(piped, &pdf))
            .await
            .map_err(|_| DocumentTextError::Bounds)?;
        match status {
            Some(0) => read_answer(&answer, &nonce),
            Some(PANICKED) => Err(DocumentTextError::Broken),
            Some(_) => Err(not_asked()),
            None => Err(DocumentTextError::Bounds), // killed by one of its limits
        }
    }
}

fn launch(program: &Program, nonce: &str) -> PipedLaunch {
    let argv = vec![program.path(), ASK.into(), STAGE.into(), nonce.into()];
    let environment = [("PATH", PATH), (ASKED, "1")]
        .into_iter()
        .chain(ALLOCATOR)
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    PipedLaunch {
        argv,
        environment: environment.collect(),
        folder: PathBuf::from("/"),
    }
}

/// Sends the file and returns the answer and the exit code.
async fn converse(piped: Piped, pdf: &[u8]) -> (Vec<u8>, Option<i32>) {
    let Piped {
        mut stdin,
        stdout,
        mut stderr,
        process,
    } = piped;
    let give = async {
        // The write fails if the reader ended early.
        let _ = stdin.write_all(pdf).await;
        drop(stdin);
    };
    let mut answer = Vec::new();
    let take = async {
        let mut stdout = stdout.take((HEAD_BYTES_MAX + DOCUMENT_TEXT_BYTES_MAX) as u64);
        let _ = stdout.read_to_end(&mut answer).await;
        drop(stdout);
    };
    let listen = async {
        let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
    };
    tokio::join!(give, take, listen);
    let status = process.ended().await;
    (answer, status)
}

fn read_answer(answer: &[u8], nonce: &str) -> Result<ExtractedText, DocumentTextError> {
    let answer = String::from_utf8_lossy(answer);
    let (head, text) = answer.split_once('\n').unwrap_or((&answer, ""));
    let said = head.strip_prefix(nonce).ok_or_else(not_asked)?.trim();
    if let Some(pages) = said
        .strip_prefix(word::PAGES)
        .and_then(|pages| pages.trim().parse().ok())
    {
        // The answer may come from a process that the file took over, so it is treated as plain
        // text.
        let text = text
            .chars()
            .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
            .collect::<String>();
        return Ok(ExtractedText {
            text: text.trim_end().to_owned(),
            pages,
        });
    }
    Err(match said {
        word::ENCRYPTED => DocumentTextError::Encrypted,
        word::TOO_MANY_PAGES => DocumentTextError::TooManyPages,
        word::NO_TEXT => DocumentTextError::NoText,
        word::BOUNDS => DocumentTextError::Bounds,
        _ => DocumentTextError::Broken,
    })
}

fn unavailable(why: impl std::fmt::Display) -> DocumentTextError {
    DocumentTextError::Unavailable(why.to_string())
}

fn not_asked() -> DocumentTextError {
    unavailable(
        "the process that reads them does not work; this program's main must ask jail_main_if_asked first",
    )
}

fn sandbox(error: SandboxError) -> DocumentTextError {
    unavailable(reason(&error))
}

impl DocumentText for PdfText {
    fn extract<'a>(
        &'a self,
        tenant: &'a TenantId,
        pdf: Bytes,
    ) -> BoxFuture<'a, Result<ExtractedText, DocumentTextError>> {
        Box::pin(self.0.extract(tenant, pdf))
    }
}
