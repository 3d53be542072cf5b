//! Images and PDFs on their way from the command line to each provider's request body, and back out
//! of a store.

mod reader;

use std::path::PathBuf;

use callboard_actors::testing::media::{jpeg, pdf, pdf_of, png};
use serde_json::{Value, json};

use crate::cli::Home;

impl Home {
    /// Creates a file outside of the workspace, where no tool finds it.
    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path: PathBuf = self.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn kinds(content: &Value) -> Vec<&str> {
    content
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["type"].as_str().unwrap())
        .collect()
}

#[test]
fn attachments_survive_export_and_import_and_go_to_each_provider_in_its_own_form() {
    let home = Home::new();
    // The file name is wrong on purpose: the content decides the type.
    let picture = home.file("picture.png", &jpeg(640, 480));
    let document = home.file("plan.pdf", &pdf(["The plan says seven.", "Two"]));

    let ran = home
        .run(&[
            "run",
            "--provider",
            "offline",
            "--session",
            "seen",
            "--attach",
            &document,
            "--attach",
            &picture,
            "Hello",
        ])
        .well();
    let export = home.run(&["sessions", "export", "seen"]).well();
    home.run(&["sessions", "delete", "seen"]).well();
    home.run_with_input(&["sessions", "import", "-"], &export.out)
        .well();
    let again = home.run(&["sessions", "export", "seen"]).well().json();
    let body = |args: &[&str]| {
        home.run(&[&["sessions", "request", "seen"][..], args].concat())
            .well()
            .json()
    };
    let anthropic = body(&["--provider", "anthropic"]);
    let openai = body(&["--provider", "openai", "--model", "gpt-4o"]);
    let blind = body(&["--provider", "openai", "--model", "gpt-3.5-turbo"]);
    let shown = home.run(&["sessions", "show", "seen"]).well();

    let note = "[image: 640x480 image/jpeg, not shown to this model]";
    assert!(
        ran.out.contains(note)
            && ran
                .out
                .contains("[document: \"plan.pdf\" application/pdf, not shown"),
        "{}",
        ran.out
    );
    let content = &again["messages"][0]["content"];
    assert_eq!(export.json()["messages"], again["messages"]);
    assert_eq!(export.json()["rounds"][0]["user_message"], "Hello");
    assert_eq!(kinds(content), ["document", "document", "image", "text"]);
    assert_eq!(
        (&content[0]["title"], &content[2]["source"]["media_type"]),
        (&json!("plan.pdf"), &json!("image/jpeg"))
    );
    assert!(
        content[1]["source"]["data"]
            .as_str()
            .unwrap()
            .starts_with("[page 1]\nThe plan says seven.\n[page 2]\nTwo"),
        "{}",
        content[1]
    );

    let sent = &anthropic["messages"][0]["content"];
    assert_eq!(kinds(sent), ["document", "image", "text"]);
    assert_eq!((&sent[0], &sent[1]), (&content[0], &content[2]));
    let sent = &openai["messages"][1]["content"];
    assert_eq!(kinds(sent), ["file", "image_url", "text"]);
    let data = content[0]["source"]["data"].as_str().unwrap();
    assert_eq!(
        sent[0]["file"],
        json!({"filename": "plan.pdf", "file_data": format!("data:application/pdf;base64,{data}")})
    );
    assert!(
        sent[1]["image_url"]["url"]
            .as_str()
            .unwrap()
            .starts_with("data:image/jpeg;base64,")
    );
    let sent = blind["messages"][1]["content"].as_str().unwrap();
    assert!(
        sent.starts_with("<document title=\"plan.pdf\" context=\"The text of the PDF before it, 2 pages\">\n[page 1]\nThe plan"),
        "{sent}"
    );
    assert!(
        sent.ends_with(&format!("</document>\n\n{note}\n\nHello")),
        "{sent}"
    );
    assert!(
        shown.out.contains("\nyou: [document: \"plan.pdf\" application/pdf]\nyou: [image: 640x480 image/jpeg]\nyou: Hello"),
        "{}",
        shown.out
    );
}

#[test]
fn a_file_that_cannot_be_attached_is_named_with_what_to_do_and_nothing_is_stored() {
    let home = Home::new();
    let encrypted = pdf_of(
        &[b"<< /Type /Catalog >>", b"<< /Filter /Standard >>"],
        "/Encrypt 2 0 R",
    );
    let scan = pdf_of(
        &[
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R >>",
        ],
        "",
    );
    let folder = home.work();

    for (file, code, needed) in [
        (
            home.file("notes.png", b"plain text"),
            2,
            "must be a PNG, JPEG, GIF or WebP image or a PDF (hint: a text file can be piped in",
        ),
        (home.file("empty.png", b""), 2, "is empty"),
        (home.file("cut.png", &png(3, 2)[..30]), 2, "cut short"),
        (home.file("wide.png", &png(9000, 2)), 2, "8000 pixels"),
        (home.file("secret.pdf", &encrypted), 2, "encrypted"),
        (
            home.file("long.pdf", &pdf(["x"].repeat(101))),
            2,
            "100 pages",
        ),
        (home.file("scan.pdf", &scan), 1, "holds no text"),
        (folder.to_str().unwrap().to_owned(), 2, "is a folder"),
        (
            home.path().join("absent.png").to_str().unwrap().to_owned(),
            1,
            "there is no such file",
        ),
    ] {
        let ran = home.run(&["run", "--provider", "offline", "--attach", &file, "Hello"]);

        let line = ran.error().to_owned();
        assert_eq!(ran.code, Some(code), "{line}");
        assert!(line.contains(needed), "{line}");
        assert!(line.contains(&file) || needed == "holds no text", "{line}");
    }
    let stored = home.run(&["sessions", "list", "--json"]).well();
    assert!(
        !stored.out.contains("Hello") && stored.json().as_array().is_some_and(Vec::is_empty),
        "{}",
        stored.out
    );
}

#[test]
fn chat_attaches_to_the_next_prompt_only() {
    let home = Home::new();
    let picture = home.file("a.png", &png(3, 2));

    let input = format!("/attach {picture}\nHello\nHello again\n");
    let ran = home
        .run_with_input(
            &["chat", "--provider", "offline", "--session", "talk"],
            &input,
        )
        .well();
    let exported = home.run(&["sessions", "export", "talk"]).well().json();

    assert!(
        ran.err.contains("attached to the next prompt"),
        "{}",
        ran.err
    );
    let of = |index: usize| kinds(&exported["messages"][index]["content"]).len();
    assert_eq!((of(0), of(2)), (2, 1));
}

#[test]
fn what_a_server_is_shown_can_be_configured() {
    let home = Home::new();
    let picture = home.file("a.png", &png(3, 2));
    home.run(&[
        "run",
        "--provider",
        "offline",
        "--session",
        "seen",
        "--attach",
        &picture,
        "Hello",
    ])
    .well();

    let sent = |shows: &str| {
        let text = format!(
            "[[provider]]\nname = \"local\"\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\nmodel = \"m\"\n{shows}\n"
        );
        let file = home.file("callboard.toml", text.as_bytes());
        home.run(&[
            "--config",
            &file,
            "sessions",
            "request",
            "seen",
            "--provider",
            "local",
        ])
        .well()
        .out
    };

    assert!(sent("shows = [\"images\"]").contains("data:image/png;base64,"));
    assert!(sent("").contains("[image: 3x2 image/png, not shown to this model]"));
    assert!(sent("shows = []").contains("[image: 3x2 image/png, not shown to this model]"));
}
