//! `tokens`.

use serde_json::json;

use super::Home;

#[test]
fn a_file_or_standard_input_gives_one_number() {
    let home = Home::new();
    std::fs::write(home.work().join("a.txt"), "hello world").unwrap();

    assert_eq!(
        home.run(&["tokens", "a.txt", "--model", "gpt-4"])
            .well()
            .out,
        "2\n"
    );
    assert_eq!(
        home.run_with_input(&["tokens", "--model", "gpt-4o"], "hello <|endoftext|>")
            .well()
            .out,
        "8\n"
    );
    assert_eq!(home.run_with_input(&["tokens"], "").well().out, "0\n");
}

#[test]
fn json_lists_the_parts_of_the_total() {
    let home = Home::new();

    let counted = home
        .run_with_input(
            &["tokens", "--model", "glm-4-plus", "--json"],
            &"hello world ".repeat(50),
        )
        .well()
        .json();

    let expected = json!({ "model": "glm-4-plus", "family": "glm", "encoding": "cl100k_base", "margin": 1.25, "estimate": 101, "total": 126 });
    assert_eq!(counted, expected);
    let usual = home.run_with_input(&["tokens", "--json"], "hello world");
    assert_eq!(usual.well().json()["model"], "claude-3-sonnet");
}

#[test]
fn lines_of_json_strings_give_a_number_each() {
    let home = Home::new();
    let lines = "\"hello world\"\n\"\"\n\n\"two\\nlines \\u6c49\"\n";

    let ran = home
        .run_with_input(&["tokens", "--lines", "--model", "gpt-4"], lines)
        .well();

    let numbers: Vec<u64> = ran.out.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!((numbers.len(), &numbers[..2]), (3, &[2, 0][..]));
    assert!(numbers[2] >= 4);
    let objects = home
        .run_with_input(&["tokens", "--lines", "--json", "--model", "gpt-4"], lines)
        .well()
        .events();
    assert_eq!(
        objects
            .iter()
            .map(|object| object["total"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        numbers
    );
}

#[test]
fn what_cannot_be_counted_is_one_line() {
    let home = Home::new();
    std::fs::write(home.work().join("bad.txt"), b"a\xFFb").unwrap();

    let gone = home.run(&["tokens", "gone.txt"]);
    assert_eq!(
        (gone.code, gone.error()),
        (Some(1), "error: gone.txt: there is no such file")
    );
    let bytes = home.run(&["tokens", "bad.txt"]);
    assert_eq!(
        (bytes.code, bytes.error()),
        (Some(1), "error: bad.txt is not UTF-8 text")
    );
    let line = home.run_with_input(
        &["tokens", "--lines", "--model", "gpt-4"],
        "\"hello world\"\n7\n",
    );
    assert_eq!((line.code, line.out.as_str()), (Some(1), "2\n"));
    assert!(
        line.error()
            .starts_with("error: line 2 of standard input is not a JSON string (hint: "),
        "{line:?}"
    );
    assert_eq!(home.run(&["tokens", ".", "--model", "gpt-4"]).code, Some(1));
}

#[test]
fn encoders_of_the_usual_file_hold_and_a_bad_one_is_warned_of() {
    let home = Home::new();
    std::fs::create_dir(home.work().join("config")).unwrap();
    let yaml = "encoders:\n  house-*: {encoding_name: o200k_base, safety_margin: 3.0}\n  other-*: {model_family: mistal}\n";
    std::fs::write(home.work().join("config/token_encoders.yaml"), yaml).unwrap();
    let run = || {
        home.run_with_input(&["tokens", "--model", "house-7b", "--json"], "hello world")
            .well()
    };

    let before = run();
    home.run(&["trust", "--yes"]).well();
    let ran = run();

    assert_eq!(
        before.json()["total"],
        json!(2),
        "a stranger's file counts after it is trusted"
    );
    assert_eq!(
        (&ran.json()["encoding"], &ran.json()["total"]),
        (&json!("o200k_base"), &json!(6))
    );
    assert!(
        ran.err.contains("Failed to load encoder config from config/token_encoders.yaml: `other-*`: unknown variant `mistal`"),
        "{ran:?}"
    );
}
