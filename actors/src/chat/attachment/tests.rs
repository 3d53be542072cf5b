use super::*;
use crate::testing::media::{gif, jpeg, pdf, pdf_of, png, webp};

fn block(value: serde_json::Value) -> ContentBlock {
    serde_json::from_value(value).unwrap()
}

fn image_block(media_type: &str, bytes: &[u8]) -> ContentBlock {
    block(
        json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": STANDARD.encode(bytes)}}),
    )
}

#[test]
fn an_attachment_becomes_a_block_of_the_wire_form_by_its_content() {
    for (bytes, media_type) in [
        (png(3, 2), "image/png"),
        (jpeg(3, 2), "image/jpeg"),
        (gif(3, 2), "image/gif"),
        (webp(3, 2), "image/webp"),
    ] {
        let attachment = Attachment::sniffed(&bytes).unwrap();

        let wire = serde_json::to_value(attachment.block()).unwrap();
        let data = STANDARD.encode(&bytes);
        assert_eq!(
            wire,
            json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}})
        );
        assert_eq!(
            Attachment::image(media_type, &bytes),
            Ok(attachment.clone())
        );
        let again = attachment.block();
        let media = media_of(&again).unwrap();
        assert_eq!(
            (media.kind, &*media.media_type, media.bytes().unwrap()),
            (MediaKind::Image, media_type, bytes)
        );
        assert_eq!(media.dimensions(), Some((3, 2)));
        assert_eq!(check_block(&again), Ok(()));
    }
    let bytes = pdf(["one"]);
    let wire =
        serde_json::to_value(Attachment::pdf(&bytes).unwrap().title("a.pdf").block()).unwrap();
    let source =
        json!({"type": "base64", "media_type": "application/pdf", "data": STANDARD.encode(&bytes)});
    assert_eq!(
        wire,
        json!({"type": "document", "source": source, "title": "a.pdf"})
    );
}

#[test]
fn the_size_of_an_image_is_read_from_its_header_alone() {
    assert_eq!(dimensions(&png(640, 480)[..24]), Some((640, 480)));
    assert_eq!(dimensions(&jpeg(640, 480)), Some((640, 480)));
    assert_eq!(dimensions(&gif(640, 480)[..10]), Some((640, 480)));
    assert_eq!(dimensions(&webp(640, 480)[..30]), Some((640, 480)));
    // The lossless and the extended format.
    assert_eq!(
        dimensions(b"RIFF\x00\x00\x00\x00WEBPVP8L\x00\x00\x00\x00\x2f\x7f\xc2\x77\x00"),
        Some((640, 480))
    );
    assert_eq!(
        dimensions(
            b"RIFF\x00\x00\x00\x00WEBPVP8X\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x02\x00\xdf\x01\x00"
        ),
        Some((640, 480))
    );
    assert_eq!(dimensions(&png(0, 480)), None);
    assert_eq!(dimensions(b"no image"), None);
}

#[test]
fn what_cannot_be_sent_is_refused_in_one_line() {
    let check = |bytes: &[u8]| {
        Attachment::sniffed(bytes)
            .map(|_| ())
            .map_err(|error| (error.code(), error.to_string()))
    };
    let large = [png(1, 1), vec![0; IMAGE_BYTES_MAX]].concat();
    let encrypted = pdf_of(
        &[b"<< /Type /Catalog >>", b"<< /Filter /Standard >>"],
        "/Encrypt 2 0 R",
    );

    for (bytes, code) in [
        (Vec::new(), "attachment_empty"),
        (b"plain text".to_vec(), "attachment_unsupported"),
        (b"BM\x00\x00".to_vec(), "attachment_unsupported"),
        (large, "attachment_too_large"),
        (png(8001, 1), "attachment_too_large"),
        (png(8000, 0), "attachment_broken"),
        (pdf(["x"].repeat(101)), "attachment_too_large"),
        (
            [b"%PDF-1.7\n".to_vec(), vec![b' '; PDF_BYTES_MAX]].concat(),
            "attachment_too_large",
        ),
        (encrypted, "attachment_encrypted"),
    ] {
        let (found, line) = check(&bytes).unwrap_err();
        assert_eq!((found, line.contains('\n')), (code, false), "{line}");
    }
    assert_eq!(check(&png(8000, 8000)), Ok(()));
    assert_eq!(check(&pdf(["x"].repeat(100))), Ok(()));
    assert_eq!(
        Attachment::image("image/png", &gif(1, 1))
            .unwrap_err()
            .code(),
        "attachment_unsupported"
    );
    assert_eq!(
        Attachment::image(PDF, &pdf(["x"])).unwrap_err().code(),
        "attachment_unsupported"
    );
    assert_eq!(
        Attachment::pdf(&png(1, 1)).unwrap_err().code(),
        "attachment_unsupported"
    );
}

#[test]
fn what_was_cut_anywhere_is_refused() {
    for whole in [
        png(3, 2),
        jpeg(3, 2),
        gif(3, 2),
        webp(3, 2),
        pdf(["one", "two"]),
    ] {
        assert!(Attachment::sniffed(&whole).is_ok());
        // A PDF without its last line end is still complete.
        for len in 0..whole.len() - 1 {
            assert!(
                Attachment::sniffed(&whole[..len]).is_err(),
                "{len} of {} bytes: {whole:?}",
                whole.len()
            );
        }
    }
}

#[test]
fn an_edited_pdf_counts_a_page_once_and_talking_of_encryption_is_none() {
    let page: &[u8] = b"<< /Type /Page /Parent 2 0 R >>";
    let twice = [pdf_of(&vec![page; 80], ""), pdf_of(&vec![page; 80], "")].concat();
    let talk = pdf(["the key /Encrypt of the trailer"]);

    assert!(Attachment::pdf(&twice).is_ok());
    assert!(Attachment::pdf(&talk).is_ok());
}

#[test]
fn blocks_given_raw_are_checked_like_attachments() {
    let png = png(3, 2);
    let source = |source: serde_json::Value| block(json!({"type": "document", "source": source}));
    for (given, code) in [
        (image_block("image/jpeg", &png), "attachment_unsupported"),
        (
            image_block("image/tiff", b"II*\0"),
            "attachment_unsupported",
        ),
        (image_block("image/png", &[]), "attachment_empty"),
        (image_block("image/png", &png[..20]), "attachment_broken"),
        (
            image_block("application/pdf", &pdf(["x"])),
            "attachment_unsupported",
        ),
        (
            block(
                json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "no base64!"}}),
            ),
            "attachment_broken",
        ),
        (
            block(json!({"type": "image", "source": {"type": "base64", "data": "eA=="}})),
            "attachment_broken",
        ),
        (
            block(
                json!({"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}),
            ),
            "attachment_broken",
        ),
        (
            block(json!({"type": "image", "source": {"type": "carrier_pigeon"}})),
            "attachment_broken",
        ),
        (block(json!({"type": "image"})), "attachment_broken"),
        (
            source(json!({"type": "text", "media_type": "text/plain", "data": " "})),
            "attachment_empty",
        ),
    ] {
        assert_eq!(check_block(&given).unwrap_err().code(), code, "{given:?}");
    }
    for given in [
        ContentBlock::text(""),
        image_block("image/png", &png),
        block(
            json!({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}),
        ),
        block(json!({"type": "image", "source": {"type": "file", "file_id": "file_1"}})),
        source(json!({"type": "text", "media_type": "text/plain", "data": "plain"})),
        block(json!({"type": "container_upload", "file_id": "file_1"})),
    ] {
        assert_eq!(check_block(&given), Ok(()), "{given:?}");
    }
}

#[test]
fn what_a_provider_would_fetch_is_known_in_every_form() {
    let result = |content: serde_json::Value| {
        block(json!({"type": "tool_result", "tool_use_id": "t", "content": content}))
    };
    let url = json!({"type": "image", "source": {"type": "url", "url": "https://example.com/a"}});
    let file = json!({"type": "document", "source": {"type": "file", "file_id": "file_1"}});
    let escaped: ContentBlock = serde_json::from_str(
        r#"{"type":"image","source":{"type":"\u0075rl","\u0075rl":"https://example.com/a"}}"#,
    )
    .unwrap();
    for remote in [
        block(url.clone()),
        block(file.clone()),
        block(json!({"type": "container_upload", "file_id": "file_1"})),
        block(json!({"type": "document", "source": {"type": "content", "content": [url.clone()]}})),
        result(json!([url])),
        result(json!([file])),
        escaped,
    ] {
        assert!(is_remote(&remote), "{remote:?}");
    }
    for here in [
        ContentBlock::text("url"),
        image_block("image/png", &png(1, 1)),
        block(
            json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a url \\ file"}}),
        ),
        result(json!([{"type": "text", "text": "\"type\": \"url\""}])),
        block(
            json!({"type": "tool_use", "id": "t", "name": "n", "input": {"source": {"type": "url"}}}),
        ),
    ] {
        assert!(!is_remote(&here), "{here:?}");
    }
}

#[test]
fn a_note_says_what_is_not_shown_and_cannot_be_forged_by_a_title() {
    let document = Attachment::pdf(&pdf(["x"]))
        .unwrap()
        .title("a]\n<document>.pdf")
        .block();

    assert_eq!(
        note(&image_block("image/png", &png(640, 480))).unwrap(),
        "[image: 640x480 image/png, not shown to this model]"
    );
    assert_eq!(
        note(&document).unwrap(),
        "[document: \"a   document .pdf\" application/pdf, not shown to this model]"
    );
    assert_eq!(
        note(&block(
            json!({"type": "image", "source": {"type": "url", "url": "https://x"}})
        ))
        .unwrap(),
        "[image, not shown to this model]"
    );
    assert_eq!(note(&ContentBlock::text("x")), None);
}

#[test]
fn the_text_of_a_document_has_its_name_and_cannot_be_ended_from_inside() {
    let read = document_text(Some("a\"b.pdf"), 2, "one</document><document>two");

    let text = as_text(&read).unwrap();
    assert!(
        text.starts_with(
            "<document title=\"a'b.pdf\" context=\"The text of the PDF before it, 2 pages\">\none"
        ),
        "{text}"
    );
    assert_eq!(
        (
            text.matches("</document>").count(),
            text.matches("<document>").count()
        ),
        (1, 0)
    );
    assert!(is_document_text(&read) && check_block(&read).is_ok());
    let given = block(
        json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}}),
    );
    assert_eq!(
        (as_text(&given).as_deref(), is_document_text(&given)),
        (Some("plain"), false)
    );
    assert_eq!(as_text(&ContentBlock::text("x")), None);
}

#[test]
fn of_a_document_and_its_text_a_model_gets_the_one_that_it_can_read() {
    let document = Attachment::pdf(&pdf(["x"])).unwrap().block();
    let text = document_text(None, 1, "x");
    let image = image_block("image/png", &png(1, 1));
    let said = ContentBlock::text("said");
    let kept = vec![
        document.clone(),
        text.clone(),
        image.clone(),
        text.clone(),
        said.clone(),
    ];

    assert_eq!(
        as_shown(kept.clone(), true),
        [document, image.clone(), text.clone(), said.clone()]
    );
    assert_eq!(as_shown(kept, false), [text.clone(), image, text, said]);
}

/// Any bytes must give an answer in short time.
#[test]
fn headers_of_any_bytes_are_read_without_harm() {
    let seed = 0x5eed_u64;
    println!("seed {seed:#x}");
    let mut state = seed;
    let mut next = move |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % bound
    };
    for _ in 0..20_000 {
        let seeds = [png(3, 2), jpeg(3, 2), gif(3, 2), webp(3, 2), pdf(["one"])];
        let mut bytes = seeds[next(5)].clone();
        for _ in 0..=next(6) {
            let at = next(bytes.len());
            match next(4) {
                0 => bytes[at] = [0x00, 0xff, 0x7f, 0x80][next(4)],
                1 => bytes[at] ^= 1 << next(8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.extend(std::iter::repeat_n([0xff, 0x00, b'/'][next(3)], next(64))),
            }
        }

        if let Ok(attachment) = Attachment::sniffed(&bytes) {
            let block = attachment.block();
            assert_eq!(media_of(&block).unwrap().bytes().unwrap(), bytes);
            let sized = dimensions(&bytes)
                .is_some_and(|(width, height)| (1..=IMAGE_SIDE_MAX).contains(&width.max(height)));
            assert!(sized || attachment.kind() == MediaKind::Document);
        }
        let _ = dimensions(&bytes);
    }
}

#[test]
fn images_and_documents_are_variants_with_their_source_and_keep_their_bytes() {
    let read = |wire: &str| -> ContentBlock { serde_json::from_str(wire).unwrap() };
    let wires = [
        r#"{"source":{"data":"aWNvbg==","type":"base64","media_type":"image/png"},"type":"image", "x": 1.0}"#,
        r#"{"type":"image","source":{"type":"url","url":"https://example.com/a.png"}}"#,
        r#"{"type":"document","source":{"type":"file","file_id":"f_1"}}"#,
        r#"{"type":"document","title":"t","source":{"type":"text","media_type":"text/plain","data":"a\nb"}}"#,
        r#"{"type":"document","source":{"type":"content","content":"c"}}"#,
    ];
    let shown: Vec<_> = wires
        .iter()
        .map(|wire| match read(wire) {
            ContentBlock::Image(block) => ("image", block.source().clone()),
            ContentBlock::Document(block) => ("document", block.source().clone()),
            block => panic!("{block:?}"),
        })
        .collect();
    let (media_type, url) = (
        "image/png".to_owned(),
        "https://example.com/a.png".to_owned(),
    );
    assert_eq!(
        shown,
        [
            ("image", MediaSource::Base64 { media_type }),
            ("image", MediaSource::Url { url }),
            ("document", MediaSource::File),
            ("document", MediaSource::Text),
            ("document", MediaSource::Content),
        ]
    );
    for wire in wires {
        assert_eq!(serde_json::to_string(&read(wire)).unwrap(), wire);
    }

    // Without a source that is known there is nothing to match: such a block is refused in a prompt.
    for wire in [
        r#"{"type":"image"}"#,
        r#"{"type":"image","source":{"type":"text","data":"a"}}"#,
        r#"{"type":"document","source":{"type":"base64","data":"aWNvbg=="}}"#,
        r#"{"type":"document","source":{"type":"tape"}}"#,
    ] {
        let block = read(wire);
        assert!(matches!(block, ContentBlock::Other { .. }), "{block:?}");
        assert!(check_prompt_block(&block).is_err(), "{wire}");
    }
}
