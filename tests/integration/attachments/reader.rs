//! The PDF reader: a process without access to files and network, tested with hostile files.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use callboard::{
    ids::TenantId,
    limits::{DOCUMENT_TEXT_BYTES_MAX, PDF_BYTES_MAX},
    ports::{DocumentText, DocumentTextError, ExtractedText},
    sandbox::PdfText,
};
use callboard_actors::testing::media::{pdf, pdf_of};
use futures_util::FutureExt as _;

use crate::{
    cli::wait_for,
    support::{SplitMix, seed},
};

/// Longest time that a hostile file may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn reader() -> PdfText {
    PdfText::with_helper(env!("CARGO_BIN_EXE_callboard").into())
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

async fn read(file: impl Into<Bytes>) -> Result<ExtractedText, DocumentTextError> {
    let began = Instant::now();
    let read = reader().extract(&tenant("acme"), file.into()).await;
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    read
}

/// Returns a PDF whose one page has this content stream.
fn with_content(filter: &str, content: &[u8]) -> Vec<u8> {
    let stream = [
        format!("<< {filter} /Length {} >>\nstream\n", content.len()).as_bytes(),
        content,
        b"\nendstream",
    ]
    .concat();
    pdf_of(
        &[
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Resources << /Font << /F1 5 0 R >> >> /Contents 4 0 R >>",
            &stream,
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        ],
        "",
    )
}

/// A gibibyte of spaces, deflated.
fn bomb() -> Vec<u8> {
    let piece = vec![b' '; 16 << 20];
    let mut deflated = Vec::with_capacity(1 << 20);
    let mut compress = flate2::Compress::new(flate2::Compression::best(), false);
    compress
        .compress_vec(&piece, &mut deflated, flate2::FlushCompress::Full)
        .unwrap();
    assert_eq!(compress.total_in(), 16 << 20);
    [&[0x78, 0x9c][..], &deflated.repeat(64)].concat()
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn text_comes_page_by_page_and_the_same_file_gives_the_same_text() {
    let file = pdf(["Seven apples.", "Eight pears."]);

    let first = read(file.clone()).await.unwrap();
    let again = read(file).await.unwrap();

    assert_eq!(
        first,
        ExtractedText {
            text: "[page 1]\nSeven apples.\n[page 2]\nEight pears.".into(),
            pages: 2
        }
    );
    assert_eq!(first, again);
}

#[tokio::test]
async fn a_file_without_text_with_a_password_or_of_another_kind_has_its_error() {
    let encrypted = pdf_of(
        &[
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [] /Count 0 >>",
            b"<< /Filter /Standard /V 1 /R 2 /O (01234567890123456789012345678901) /U (01234567890123456789012345678901) /P -4 >>",
        ],
        "/Encrypt 3 0 R /ID [(0123456789012345) (0123456789012345)]",
    );

    assert_eq!(read(pdf([" "])).await, Err(DocumentTextError::NoText));
    assert_eq!(read(encrypted).await, Err(DocumentTextError::Encrypted));
    assert_eq!(
        read(pdf(["x"].repeat(101))).await,
        Err(DocumentTextError::TooManyPages)
    );
    assert_eq!(read(&b"no PDF"[..]).await, Err(DocumentTextError::Broken));
    assert_eq!(read(Bytes::new()).await, Err(DocumentTextError::Broken));
    assert_eq!(
        read(vec![b' '; PDF_BYTES_MAX + 1]).await,
        Err(DocumentTextError::Bounds)
    );
}

#[tokio::test]
async fn a_stream_that_unfolds_to_gigabytes_is_refused_within_bounds() {
    let once = with_content("/Filter /FlateDecode", &bomb());
    let twice = with_content("/Filter [/FlateDecode /FlateDecode]", &deflated(&bomb()));

    for file in [once, twice] {
        assert!(file.len() < 2 << 20, "{}", file.len());
        let refused = read(file).await;
        assert_eq!(refused, Err(DocumentTextError::Bounds));
    }
}

#[tokio::test]
async fn deep_nesting_and_loops_of_references_end() {
    let deep = |open: &str, close: &str| {
        with_content(
            "",
            format!("{}{} Tj", open.repeat(300_000), close.repeat(300_000)).as_bytes(),
        )
    };
    let nested = [
        b"<< /Type /Catalog /Pages 2 0 R /X ".as_slice(),
        &b"[".repeat(500_000),
        &b"]".repeat(500_000),
        b" >>",
    ]
    .concat();
    let looped = pdf_of(
        &[
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 /Parent 2 0 R >>",
        ],
        "",
    );

    for file in [
        deep("[", "]"),
        deep("(", ")"),
        deep("<<", ">>"),
        pdf_of(&[&nested], ""),
        looped,
    ] {
        let refused = read(file).await;
        assert!(refused.is_err(), "{refused:?}");
    }
}

#[tokio::test]
async fn a_long_text_is_cut_with_an_account_of_it() {
    let page = "word ".repeat(20_000);

    let text = read(pdf([
        &page, &page, &page, &page, &page, &page, &page, &page, &page, &page, &page, &page,
    ]))
    .await
    .unwrap();

    assert!(
        text.text.len() <= DOCUMENT_TEXT_BYTES_MAX,
        "{}",
        text.text.len()
    );
    assert!(
        text.text.ends_with("[the text is cut on page 11 of 12]"),
        "{}",
        &text.text[text.text.len() - 80..]
    );
}

#[tokio::test]
async fn files_cut_or_changed_anywhere_are_an_answer() {
    let mut random = SplitMix(seed("files_cut_or_changed_anywhere_are_an_answer"));
    let whole = pdf(["Seven apples.", "Eight pears."]);
    let reader = reader();
    let files = (0..24).map(|_| {
        let mut file = whole.clone();
        if random.below(3) == 0 {
            file.truncate(random.below(file.len()));
        }
        for _ in 0..random.below(12) {
            let at = random.below(file.len());
            if let Some(byte) = file.get_mut(at) {
                *byte = [0, 0xff, b'(', b'<', b'[', b'9', b' ', b'R'][random.below(8)];
            }
        }
        file
    });

    for file in files {
        let answer = reader.extract(&tenant("acme"), file.clone().into()).await;
        let unfit = matches!(
            answer,
            Err(DocumentTextError::Unavailable(_) | DocumentTextError::Absent)
        );
        assert!(!unfit, "{answer:?}: {}", String::from_utf8_lossy(&file));
    }
}

/// A page whose text is shown a million times; reading it takes many seconds.
fn slow() -> Vec<u8> {
    let shown = concat!("BT /F", "1 9 Tf (x) Tj ET ").repeat(300_000);
    let mut deflated = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    deflated.write_all(shown.as_bytes()).unwrap();
    with_content("/Filter /FlateDecode", &deflated.finish().unwrap())
}

#[tokio::test]
async fn slow_files_of_one_tenant_keep_no_other_tenants_file_waiting() {
    let reader = reader();
    let (acme, zeta) = (tenant("acme"), tenant("zeta"));
    let file = slow();
    let mut slow: Vec<_> = (0..8)
        .map(|_| reader.extract(&acme, file.clone().into()))
        .collect();
    let mut all_slow = std::pin::pin!(futures_util::future::select_all(slow.iter_mut()));
    let mut small = reader.extract(&zeta, pdf(["small"]).into());

    // The slow ones begin first.
    assert!((&mut all_slow).now_or_never().is_none());
    tokio::select! {
        biased;
        read = &mut small => assert!(read.unwrap().text.contains("small")),
        _ = all_slow => panic!("a slow file was read before the small one"),
    }
}

#[tokio::test]
async fn a_program_that_is_no_helper_reads_nothing() {
    for program in ["/bin/false", "/bin/echo", "/nonexistent"] {
        let refused = PdfText::with_helper(program.into())
            .extract(&tenant("acme"), pdf(["x"]).into())
            .await;

        assert!(
            matches!(refused, Err(DocumentTextError::Unavailable(_))),
            "{program}: {refused:?}"
        );
    }
}

/// The restrictions are in force before the first byte is read.
#[test]
fn a_reader_is_confined_before_it_is_given_anything() {
    let helper = env!("CARGO_BIN_EXE_callboard");
    let mut child = Command::new(helper)
        .args(["__jail", "pdf", "n0nce"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let of = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();

    wait_for("the filter", || of("status").contains("Seccomp:\t2"));
    let status = of("status");
    let limits = of("limits");
    child.stdin.take().unwrap().write_all(&pdf(["x"])).unwrap();
    let ended = child.wait_with_output().unwrap();

    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let limit = |name: &str| {
        limits
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(
        limit("Max data size").contains(&(512 * 1024 * 1024).to_string()),
        "{limits}"
    );
    assert!(limit("Max cpu time").contains(&"20".to_owned()), "{limits}");
    assert!(limit("Max file size").contains(&"0".to_owned()), "{limits}");
    assert_eq!(
        String::from_utf8(ended.stdout).unwrap(),
        "n0nce pages 1\n[page 1]\nx\n"
    );
}
