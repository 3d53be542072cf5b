use serde_json::json;

use super::*;

/// Counts a text as one token a character.
fn characters(text: &str) -> u64 {
    text.chars().count() as u64
}

fn image(file: &[u8]) -> u64 {
    let raw = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": STANDARD.encode(file) } });
    media_tokens("image", &RawJson::of(&raw).unwrap(), &characters).unwrap()
}

fn document(source: serde_json::Value) -> u64 {
    media_tokens(
        "document",
        &RawJson::of(&json!({ "type": "document", "source": source })).unwrap(),
        &characters,
    )
    .unwrap()
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    file.extend(width.to_be_bytes());
    file.extend(height.to_be_bytes());
    file.extend([8, 2, 0, 0, 0]);
    file.extend([0x5A; 2_000]);
    file
}

fn jpeg_file(before: usize) -> Vec<u8> {
    let mut file = vec![0xFF, 0xD8, 0xFF, 0xE1];
    file.extend(u16::try_from(before + 2).unwrap().to_be_bytes());
    file.extend(vec![0; before]);
    file.extend([0xFF, 0xFF, 0xC2, 0, 17, 8]);
    file.extend(300_u16.to_be_bytes());
    file.extend(500_u16.to_be_bytes());
    file.extend([0x5A; 1_000]);
    file
}

#[test]
fn an_image_costs_its_pixels_and_not_its_base64() {
    assert_eq!(image(&png(300, 500)), 200);
    assert_eq!(image(&png(1, 1)), 1);
    assert_eq!(image(&png(10_000, 10_000)), IMAGE_TOKENS_MAX);
    assert_eq!(image(&png(u32::MAX, u32::MAX)), IMAGE_TOKENS_MAX);
    assert_eq!(image(b"GIF89a\x2c\x01\xf4\x01\0\0\0"), 200);
    assert_eq!(image(&jpeg_file(10)), 200);
    assert_eq!(image(&jpeg_file(60_000)), 200, "behind a preview");
    assert_eq!(
        image(b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x2b\x01\0\xf3\x01\0"),
        200
    );
    assert_eq!(
        image(b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x2c\x01\xf4\x01"),
        200
    );
    let bits = (299_u32 | 499 << 14).to_le_bytes();
    assert_eq!(
        image(
            &[
                b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f".as_slice(),
                &bits,
                &[0; 8]
            ]
            .concat()
        ),
        200
    );
}

#[test]
fn an_image_of_unknown_size_costs_the_most() {
    for file in [
        &b""[..],
        b"GIF8",
        b"\x89PNG\r\n\x1a\n",
        b"\xFF\xD8\xFF",
        b"\xFF\xD8\xFF\xE1\0\0\xFF\xE1\0\0",
        b"RIFF\0\0\0\0WEBPVP9 ",
        b"no image",
    ] {
        assert_eq!(image(file), IMAGE_TOKENS_MAX, "{file:?}");
    }
    assert_eq!(image(&png(0, 5)), IMAGE_TOKENS_MAX);
    for block in [
        json!({ "type": "image" }),
        json!({ "type": "image", "source": 7 }),
        json!({ "type": "image", "source": { "type": "url", "url": "https://example.com/x.png" } }),
        json!({ "type": "image", "source": { "type": "base64", "data": "汉字汉字" } }),
        json!({ "type": "image", "source": { "type": "base64", "data": "****" } }),
    ] {
        assert_eq!(
            media_tokens("image", &RawJson::of(&block).unwrap(), &characters),
            Some(IMAGE_TOKENS_MAX),
            "{block}"
        );
    }
}

#[test]
fn any_bytes_for_an_image_end_in_a_count() {
    let mut seed = 9_u64;
    for case in 0..5_000 {
        let mut file = match case % 5 {
            0 => png(3, 4),
            1 => jpeg_file(30),
            2 => b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x2b\x01\0\xf3\x01\0".to_vec(),
            _ => vec![0xFF, 0xD8],
        };
        file.truncate(200);
        for _ in 0..60 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = (seed >> 33) as usize % file.len();
            if case % 5 > 2 {
                file.push((seed >> 40) as u8 | 0xC0)
            } else {
                file[at] = (seed >> 40) as u8
            }
        }
        assert!(image(&file) <= IMAGE_TOKENS_MAX, "case {case}");
    }
}

#[test]
fn a_document_costs_its_pages() {
    let base64 = |bytes: usize| json!({ "type": "base64", "media_type": "application/pdf", "data": "A".repeat(bytes / 3 * 4) });
    assert_eq!(document(base64(3)), PAGE_TOKENS);
    assert_eq!(document(base64(100 * 1024)), 2 * PAGE_TOKENS);
    assert_eq!(
        document(json!({ "type": "url", "url": "https://example.com/x.pdf" })),
        PAGE_TOKENS
    );
    assert_eq!(
        document(json!({ "type": "text", "media_type": "text/plain", "data": "x".repeat(300) })),
        300
    );
    assert_eq!(
        document(json!({ "type": "content", "content": "x".repeat(300) })),
        300
    );
    let blocks = json!([{ "type": "text", "text": "x".repeat(300) }, { "type": "image", "source": { "type": "url" } }]);
    assert_eq!(
        document(json!({ "type": "content", "content": blocks })),
        300 + IMAGE_TOKENS_MAX
    );
}

#[test]
fn other_blocks_are_no_media() {
    assert_eq!(
        media_tokens("redacted_thinking", &RawJson::empty_object(), &characters),
        None
    );
}
