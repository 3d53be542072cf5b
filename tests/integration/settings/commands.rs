//! `[sandbox]`: what commands may use and reach.

use std::{io::Write as _, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};

use super::{Home, call, home};
use crate::support::model_server::{ModelServer, Reply};

fn bash(home: &Home, command: &str) -> Value {
    let arguments = json!({"command": command, "timeout_ms": 20_000});
    call(home, "bash", &arguments).json()
}

fn sandbox(text: &str) -> Home {
    home(&format!("[tools]\napprove = \"auto\"\n[sandbox]\n{text}\n"))
}

/// Whether this machine holds commands; if not, says that the test is skipped.
fn holds(test: &str) -> bool {
    let holds = Home::new().run(&["tools", "show", "bash"]).code == Some(0);
    if !holds {
        writeln!(&mut std::io::stderr(), "SKIPPED: {test}: no sandbox").unwrap();
    }
    holds
}

#[test]
fn commands_run_without_a_sandbox_or_not_at_all_where_the_mode_says_so() {
    let local = sandbox("mode = \"local\"");
    let none = sandbox("mode = \"none\"");
    let outside = local.path().join("outside");
    std::fs::write(&outside, "seen").unwrap();

    let read = bash(&local, &format!("cat {}", outside.display()));
    let refused = bash(&none, "true");

    assert_eq!(read["observation"], "seen");
    assert_eq!(refused["error_code"], "NOT_FOUND");
}

#[test]
fn commands_are_stopped_at_the_configured_bounds() {
    if !holds("commands_are_stopped_at_the_configured_bounds") {
        return;
    }
    for (bound, command, says) in [
        (
            "memory_bytes = 67108864",
            "head -c 300000000 /dev/zero | tail | wc -c",
            "",
        ),
        (
            "processes = 8",
            "for i in $(seq 30); do sleep 5 & done; wait; echo all",
            "more than 8 processes",
        ),
        ("cpu_seconds = 1", "while :; do :; done", "exit status 137"),
        (
            "file_bytes = 10000",
            "head -c 50000 /dev/zero > f; stat -c %s f",
            "",
        ),
        (
            "files = 20",
            "[ $(stat -f -c %c .) = 0 ] && echo 'more than 20 new files, on a disk that counts none' || { for i in $(seq 3000); do : > f$i; done; sleep 15; }",
            "more than 20 new files",
        ),
    ] {
        let seen = bash(&sandbox(bound), command)["observation"].to_string();

        assert!(seen.contains(says), "{bound}: {seen}");
        assert!(
            !seen.starts_with("\"300000000") && !seen.starts_with("\"50000"),
            "{bound}: {seen}"
        );
    }
}

#[test]
fn commands_can_read_the_configured_folders() {
    if !holds("commands_can_read_the_configured_folders") {
        return;
    }
    let home = sandbox("read_only = [\"../shared\"]");
    let shared = home.path().join("shared");
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::write(shared.join("data"), "shared").unwrap();

    let read = bash(&home, &format!("cat {}/data", shared.display()));

    assert_eq!(read["observation"], "shared");
}

#[test]
fn toolchains_of_the_home_folder_are_left_out_where_the_configuration_says_so() {
    if !holds("toolchains_of_the_home_folder_are_left_out_where_the_configuration_says_so") {
        return;
    }
    let run = |text: &str| {
        let mut home = sandbox(text);
        let programs = home.path().join("home/.local/bin");
        std::fs::create_dir_all(&programs).unwrap();
        let program = programs.join("hello-tool");
        std::fs::write(&program, "#!/bin/sh\necho from-home\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::var("PATH").unwrap();
        home.variables
            .push(("PATH", format!("{path}:{}", programs.display())));
        bash(&home, "hello-tool")["observation"].to_string()
    };

    assert!(run("").contains("from-home"));
    assert!(run("toolchains = false").contains("command not found"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_reach_the_configured_hosts() {
    if !holds("commands_reach_the_configured_hosts") {
        return;
    }
    let shown = Home::new().run(&["tools", "show", "bash"]).well().out;
    if shown.contains("Landlock") {
        writeln!(
            &mut std::io::stderr(),
            "SKIPPED: commands_reach_the_configured_hosts: no bubblewrap"
        )
        .unwrap();
        return;
    }
    let server = ModelServer::start([Reply::status(200).send("reached")]).await;
    let address = server.url().replace("http://", "");
    let ask = format!(
        "exec 3<>/dev/tcp/127.0.0.1/3128 && printf 'GET http://{address}/ HTTP/1.1\\r\\nhost: {address}\\r\\nconnection: close\\r\\n\\r\\n' >&3 && timeout 10 cat <&3"
    );

    let listed = bash(&sandbox(&format!("network = [\"{address}\"]")), &ask);
    let unlisted = bash(&sandbox(""), &ask);

    assert!(
        listed["observation"].to_string().contains("reached"),
        "{listed}"
    );
    assert!(
        !unlisted["observation"].to_string().contains("reached"),
        "{unlisted}"
    );
}
