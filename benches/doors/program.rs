//! The host and its model, each a process of its own.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use sha2::{Digest, Sha256};

use super::phases::word_after;

/// The key of a tenant without a webhook, and of one with.
pub(crate) const KEYS: [&str; 2] = ["cb_not-a-real-key", "cb_not-a-real-key-hooked"];

const SECRET: &str = "whsec_bm90IGEgcmVhbCBzZWNyZXQsIG9ubHkgZm9yIGEgYmVuY2g=";

/// Running programs. Dropping it ends them.
pub(crate) struct Programs {
    model: Child,
    host: Child,
    pub(crate) url: String,
    _folder: tempfile::TempDir,
}

impl Programs {
    /// Starts both. Calls at the end of a round go to `hooks`.
    pub(crate) fn start(hooks: &str) -> Self {
        // In the build folder, because temporary folders are often in memory.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let listen = ["--listen", "127.0.0.1:0"];
        let (model, url) = started(
            program()
                .arg("mock-model")
                .args(listen)
                .args(["--chunks", "64"]),
        );
        let config = folder.path().join("callboard.toml");
        std::fs::write(&config, configuration(folder.path(), &url, hooks)).unwrap();
        let (host, url) = started(
            program()
                .arg("serve")
                .args(listen)
                .arg("--config")
                .arg(&config)
                .env("BENCH_HOOK", SECRET),
        );
        Self {
            model,
            host,
            url,
            _folder: folder,
        }
    }

    /// CPU time of the host so far, in microseconds. The kernel counts it in 10 ms.
    pub(crate) fn cpu_us(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.host.id())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let ticks = fields.split_whitespace().skip(11).take(2);
        ticks.map(|ticks| ticks.parse::<f64>().unwrap() * 1e4).sum()
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for child in [&mut self.host, &mut self.model] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn program() -> Command {
    let usual = || env!("CARGO_BIN_EXE_callboard").to_owned();
    Command::new(word_after("--program").unwrap_or_else(usual))
}

/// The process, and its address: the model writes it to its output, the host to its log.
fn started(command: &mut Command) -> (Child, String) {
    let (output, log) = std::io::pipe()
        .map(|(read, write)| (BufReader::new(read), write))
        .unwrap();
    let child = command
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    command.stdout(Stdio::null()).stderr(Stdio::null()); // This process does not write to the pipe.
    let mut lines = output.lines().map_while(Result::ok);
    let url = lines.find_map(|line| line.find("http://").map(|at| line[at..].trim().to_owned()));
    let url = url.expect("the program says its address");
    std::thread::spawn(move || lines.for_each(drop)); // The process never waits to write.
    (child, url)
}

fn configuration(folder: &Path, model: &str, hooks: &str) -> String {
    let [key, hooked] = KEYS.map(|key| {
        let digest = Sha256::digest(key.as_bytes());
        digest
            .iter()
            .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
    });
    let folder = folder.join("data");
    format!(
        r#"
        [host]
        data_dir = "{}"
        [webhook]
        allow_hosts = ["127.0.0.1"]
        [[provider]]
        name = "mock"
        kind = "openai"
        base_url = "{model}/v1"
        model = "m"
        [[tenant]]
        id = "plain"
        key_sha256 = "{key}"
        tools = []
        [[tenant]]
        id = "hooked"
        key_sha256 = "{hooked}"
        tools = []
        [tenant.webhook]
        url = "{hooks}"
        secret_env = "BENCH_HOOK"
        "#,
        folder.display()
    )
}
