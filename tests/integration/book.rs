//! The pages of the book, typed as they stand.
//!
//! The commands of a page are its blocks of `sh`, run in order by one shell in a folder with one source file. Its blocks of `text`
//! are what it says is printed: each line must be printed, in this order, and `…` stands for anything. Blocks of `text` that begin
//! with `$ ` are commands that need what a test has not, such as a model of several gigabytes.

mod alerts;
mod figures;
mod limits;
mod operating;
mod others;
mod pictures;
mod recipes;
mod site;

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use super::cli::{Home, Ran};

/// The ports of the pages. A test takes free ones in their place, because these may be taken.
const PORTS: [&str; 8] = [
    "4318", "8443", "8787", "8788", "8900", "9000", "9080", "11434",
];

/// Longest time of a page's commands: several hosts start and stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// A page under `docs/`, with free ports in place of its own.
struct Page {
    name: String,
    text: String,
    ports: Vec<(&'static str, String)>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Page {
    fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(root().join("docs").join(name)).unwrap();
        // All are taken before any is given back, so no two are the same.
        let taken: Vec<std::net::TcpListener> = PORTS
            .iter()
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let free = taken
            .iter()
            .map(|listener| listener.local_addr().unwrap().port().to_string());
        let ports: Vec<(&str, String)> = PORTS.into_iter().zip(free).collect();
        Self {
            name: name.to_owned(),
            text: with_ports(&text, &ports),
            ports,
        }
    }

    /// The blocks in this language.
    fn blocks(&self, language: &str) -> Vec<&str> {
        let start = format!("```{language}\n");
        let rest = self.text.split(start.as_str()).skip(1);
        rest.map(|block| block.split("```").next().unwrap())
            .collect()
    }

    /// The free port that stands for one of the page's.
    fn port(&self, of: &str) -> &str {
        let found = self.ports.iter().find(|(port, _)| *port == of);
        &found.unwrap().1
    }

    /// What the page says is printed.
    fn printed(&self) -> impl Iterator<Item = &str> {
        let shown = self.blocks("text").into_iter();
        shown.filter(|block| !block.starts_with("$ "))
    }

    /// Types the commands, and compares what they print.
    fn works(&self, home: &Home) {
        let script = self.blocks("sh").join("\n");
        assert!(!script.is_empty(), "{}: no command", self.name);
        let printed = self.typed(home, &script);
        for block in self.printed() {
            if let Err(missing) = holds(&printed, block) {
                panic!(
                    "{}: not printed, or too early: {missing}\n{printed}",
                    self.name
                );
            }
        }
    }

    /// What these commands print on both streams. They must succeed.
    fn typed(&self, home: &Home, script: &str) -> String {
        let bin = Path::new(env!("CARGO_BIN_EXE_callboard")).parent().unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let head =
            "exec 2>&1\ntrap 'jobs -p | xargs -r kill 2>/dev/null; wait 2>/dev/null || true' EXIT";
        let mut shell = Command::new("timeout");
        shell
            .args(["--kill-after=5", "120", "bash", "-e", "-c"])
            .arg(format!("{head}\n{script}"))
            .current_dir(home.work())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        home.dress(&mut shell)
            .env("PATH", path)
            .env("DOCS", root().join("docs"))
            .env(
                "CALLBOARD_HOST__LISTEN",
                format!("127.0.0.1:{}", self.port("8787")),
            )
            .envs(home.variables.iter().cloned());
        let ran = Ran::within(PATIENCE, &[&self.name], shell.spawn().unwrap());
        if ran.code != Some(0) {
            let log = std::fs::read_to_string(home.work().join("serve.log")).unwrap_or_default();
            panic!("{}: {:?}\n{}\n{log}", self.name, ran.code, ran.out);
        }
        ran.out
    }
}

/// Replaces whole numbers that are ports of the pages.
fn with_ports(text: &str, ports: &[(&str, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let number = &rest[..end];
        match ports.iter().find(|(port, _)| *port == number) {
            Some((_, free)) => out.push_str(free),
            None => out.push_str(number),
        }
        rest = &rest[end..];
    }
    out + rest
}

/// Whether the lines of a block were printed in order; the first part that was not.
fn holds<'b>(printed: &str, block: &'b str) -> Result<(), &'b str> {
    let mut rest = printed;
    for part in block.lines().flat_map(|line| line.split('…')) {
        let part = part.trim();
        let (_, after) = rest.split_once(part).ok_or(part)?;
        rest = after;
    }
    Ok(())
}

#[test]
fn what_a_page_shows_must_be_printed_in_its_order() {
    assert_eq!(
        holds("one two\nthree 7 s\n", "one two\nthree … s\n"),
        Ok(())
    );
    assert_eq!(holds("two\none\n", "one\ntwo\n"), Err("two"));
    let ports = [("8787", "41234".to_owned())];
    assert_eq!(
        with_ports("127.0.0.1:8787 18787 8787s", &ports),
        "127.0.0.1:41234 18787 41234s"
    );
}
