//! Minimal images and PDFs of a given size, for tests of attachments.

/// A PNG of this size without picture data.
pub fn png(width: u32, height: u32) -> Vec<u8> {
    padded_png(width, height, 8)
}

/// A PNG of this size with this many zero bytes in place of picture data.
pub fn padded_png(width: u32, height: u32, bytes: usize) -> Vec<u8> {
    let chunk =
        |name: &[u8], body: &[u8]| [&size(body).to_be_bytes(), name, body, &[0; 4]].concat();
    let head = [
        &width.to_be_bytes()[..],
        &height.to_be_bytes(),
        &[8, 2, 0, 0, 0],
    ]
    .concat();
    [
        &b"\x89PNG\r\n\x1a\n"[..],
        &chunk(b"IHDR", &head),
        &chunk(b"IDAT", &vec![0; bytes]),
        &chunk(b"IEND", &[]),
    ]
    .concat()
}

/// A JPEG of this size, after a preview that has a separate end marker.
pub fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let preview = [&[0xff, 0xe1, 0, 8][..], &[0xff, 0xd8, 1, 2, 0xff, 0xd9]].concat();
    let frame = [
        &[0xff, 0xc0, 0, 11, 8][..],
        &height.to_be_bytes(),
        &width.to_be_bytes(),
        &[1, 1, 0x11, 0],
    ]
    .concat();
    let scan = [0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0, 1, 2, 3, 4, 0xff, 0xd9];
    [&[0xff, 0xd8][..], &preview, &frame, &scan].concat()
}

/// A GIF of this size.
pub fn gif(width: u16, height: u16) -> Vec<u8> {
    let picture = [0x2c, 0, 0, 0, 0, 1, 0, 1, 0, 0, 2, 1, 0x44, 0, 0x3b];
    [
        &b"GIF89a"[..],
        &width.to_le_bytes(),
        &height.to_le_bytes(),
        &[0, 0, 0],
        &picture,
    ]
    .concat()
}

/// A WebP of this size.
pub fn webp(width: u16, height: u16) -> Vec<u8> {
    let picture = [
        &[0, 0, 0, 0x9d, 1, 0x2a][..],
        &width.to_le_bytes(),
        &height.to_le_bytes(),
        &[0; 4],
    ]
    .concat();
    let chunk = [&b"WEBPVP8 "[..], &size(&picture).to_le_bytes(), &picture].concat();
    [&b"RIFF"[..], &size(&chunk).to_le_bytes(), &chunk].concat()
}

/// A PDF with one page per text. Parentheses and backslashes are not escaped.
pub fn pdf<S: AsRef<str>>(pages: impl IntoIterator<Item = S>) -> Vec<u8> {
    let texts: Vec<S> = pages.into_iter().collect();
    let kids: Vec<String> = (0..texts.len())
        .map(|page| format!("{} 0 R", 4 + 2 * page))
        .collect();
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!(
            "<< /Type /Pages /Kids [{}] /Count {} >>",
            kids.join(" "),
            kids.len()
        ),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
            .to_owned(),
    ];
    for (page, text) in texts.iter().enumerate() {
        let content = format!("BT /F1 12 Tf 72 720 Td ({}) Tj ET", text.as_ref());
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> /Contents {} 0 R >>",
            5 + 2 * page
        ));
        objects.push(format!(
            "<< /Length {} >>\nstream\n{content}\nendstream",
            content.len()
        ));
    }
    pdf_of(
        &objects.iter().map(String::as_bytes).collect::<Vec<_>>(),
        "",
    )
}

/// A PDF of these objects, numbered from 1; the first is the catalog. `trailer` is inserted into
/// the trailer.
pub fn pdf_of(objects: &[&[u8]], trailer: &str) -> Vec<u8> {
    let mut file = b"%PDF-1.7\n".to_vec();
    let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for (object, number) in objects.iter().zip(1..) {
        table.push_str(&format!("{:010} 00000 n \n", file.len()));
        file.extend(
            [
                format!("{number} 0 obj\n").as_bytes(),
                object,
                b"\nendobj\n",
            ]
            .concat(),
        );
    }
    let start = file.len();
    let end = format!(
        "{table}trailer\n<< /Size {} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n",
        objects.len() + 1
    );
    file.extend(end.as_bytes());
    file
}

fn size(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
