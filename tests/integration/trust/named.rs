//! Files that the user names to Callboard and that lie in the workspace: no tool writes what the next
//! start reads, and no tool reads a key.

use std::{fs, path::Path};

use serde_json::json;

use crate::cli::{Home, Ran};

const KEY: &str = "not-a-real-key-0123456789abcdef";

/// Calls a tool, with flags and variables.
fn call(home: &Home, tool: &str, input: &serde_json::Value, flags: &[&str]) -> Ran {
    let input = input.to_string();
    let args = [&["tools", "call", tool, &input, "--approve", "auto"], flags].concat();
    let mut command = home.command_in(&home.work(), &args);
    Ran::of(&args, command.spawn().unwrap())
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Whether commands can run here; prints a note if not.
fn has_commands(home: &Home, test: &str) -> bool {
    use std::io::Write as _;
    let has = home.run(&["tools", "show", "bash"]).code == Some(0);
    if !has {
        writeln!(&mut std::io::stderr(), "SKIPPED: {test}: no sandbox").unwrap();
    }
    has
}

#[test]
fn no_tool_writes_a_file_that_the_next_start_reads() {
    let test = "no_tool_writes_a_file_that_the_next_start_reads";
    let has_commands = has_commands(&Home::new(), test);
    let config = "[observability]\nlog_level = \"INFO\"\n";
    let servers = r#"{"mcpServers": {}}"#;
    // How it is named, the file, what it holds, flags.
    let cases: [(&str, &str, &str, &[&str]); 6] = [
        (
            "flag",
            "tools/servers.json",
            servers,
            &["--mcp", "tools/servers.json"],
        ),
        (
            "flag",
            "conf/agent.toml",
            config,
            &["--config", "conf/agent.toml"],
        ),
        ("variable", "conf/agent.toml", config, &[]),
        ("link", "conf/agent.toml", config, &[]),
        ("dangling link", "conf/agent.toml", "", &[]),
        ("certificate", "conf/ca.crt", "", &[]),
    ];
    for (how, file, holds, flags) in cases {
        for tool in ["bash", "file_edit"] {
            let mut home = Home::new();
            let path = home.work().join(file);
            let user = home.path().join("home/.config/callboard/callboard.toml");
            if how == "dangling link" {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
            } else {
                write(&path, holds);
            }
            match how {
                "variable" => home
                    .variables
                    .push(("CALLBOARD_CONFIG", path.display().to_string())),
                "link" | "dangling link" => {
                    fs::create_dir_all(user.parent().unwrap()).unwrap();
                    std::os::unix::fs::symlink(&path, &user).unwrap();
                }
                "certificate" => write(
                    &user,
                    &format!(
                        "[[provider]]\nkind = \"openai\"\nbase_url = \"https://localhost:1\"\nca_file = {path:?}\n"
                    ),
                ),
                _ => {}
            }
            let input = match tool {
                "bash" if !has_commands => continue,
                "bash" => {
                    json!({"command": format!("echo evil > {file}; mv conf tools other; mkdir -p conf tools; echo evil > {file}")})
                }
                _ => json!({"path": file, "old_text": holds, "new_text": "evil"}),
            };

            let ran = call(&home, tool, &input, flags);

            assert!(!ran.err.contains("error:"), "the tool ran: {ran:?}");
            let now = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(now, holds, "{how} {file} {tool}: {ran:?}");
        }
    }
}

#[test]
fn no_tool_writes_what_python_reads_in_place_of_its_own_modules() {
    let test = "no_tool_writes_what_python_reads_in_place_of_its_own_modules";
    let home = Home::new();
    let mark = home.path().join("mark");
    let evil = format!("open({mark:?}, 'w')\n");
    // The server stands for any: its imports are what matters.
    let script = home.work().join("tools/server.py");
    write(&script, "import json, helper\n");
    let servers = home.path().join("servers.json");
    let server = json!({"command": "python3", "args": [script]});
    write(
        &servers,
        &json!({"mcpServers": {"one": server}}).to_string(),
    );
    let flags = ["--mcp", servers.to_str().unwrap()];

    let file = "tools/json.py";
    let edit = json!({"path": file, "old_text": "", "new_text": evil});
    let refused = call(&home, "file_edit", &edit, &flags);
    assert!(!home.work().join(file).exists(), "{refused:?}");
    if has_commands(&home, test) {
        let command = format!(
            "cat > {file} <<'END'\n{evil}END\nmkdir tools/json; cp {file} tools/json/__init__.py; echo > tools/helper.py"
        );
        let ran = call(&home, "bash", &json!({"command": command}), &flags);
        assert!(home.work().join("tools/helper.py").exists(), "{ran:?}");
    }

    let listed = home.run(&["tools", "list", flags[0], flags[1]]);

    assert!(!mark.exists(), "{listed:?}");
}

#[test]
fn no_tool_reads_a_key_or_stored_data_that_lie_in_the_workspace() {
    let test = "no_tool_reads_a_key_or_stored_data_that_lie_in_the_workspace";
    let home = Home::new();
    let work = home.work();
    write(&work.join("keys/one"), KEY);
    write(&work.join("var/data/artifacts/x"), KEY);
    write(
        &home.path().join("home/.config/callboard/callboard.toml"),
        &format!(
            "[host]\ndata_dir = {:?}\n[[provider]]\nkind = \"openai\"\nbase_url = \"http://localhost:1\"\napi_key_file = {:?}\n",
            work.join("var/data"),
            work.join("keys/one"),
        ),
    );
    for file in ["keys/one", "var/data/artifacts/x"] {
        let read = call(&home, "file_read", &json!({"path": file}), &[]);
        assert_ne!(read.code, Some(0), "{read:?}");
        if !has_commands(&home, test) {
            continue;
        }
        let command = format!("base64 -w0 {file}; rev {file}; echo evil > {file}");
        let ran = call(&home, "bash", &json!({"command": command}), &[]);

        let reversed: String = KEY.chars().rev().collect();
        assert!(
            !ran.out.contains("bm90LWEtcmVhbC") && !ran.out.contains(&reversed),
            "{ran:?}"
        );
        assert_eq!(fs::read_to_string(work.join(file)).unwrap(), KEY, "{ran:?}");
    }
}

#[test]
fn no_tool_writes_a_file_that_the_home_folder_links_to() {
    let test = "no_tool_writes_a_file_that_the_home_folder_links_to";
    let home = Home::new();
    let files = [
        (".bashrc", "bashrc"),
        (".hgrc", "hgrc"),
        (".ssh/config", "ssh_config"),
        (".config/fish/config.fish", "fish.cfg"),
        (".config/systemd/user/x.service", "x.service"),
    ];
    for (link, file) in files {
        let link = home.path().join("home").join(link);
        write(&home.work().join(file), "mine");
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(home.work().join(file), link).unwrap();
    }
    let commands = has_commands(&home, test);
    for (link, file) in files {
        let edit = json!({"path": file, "old_text": "mine", "new_text": "evil"});
        let edited = call(&home, "file_edit", &edit, &[]);
        assert_ne!(edited.code, Some(0), "{link}: {edited:?}");
        if commands {
            let command =
                json!({"command": format!("echo evil > {file}; echo evil > x; mv x {file}")});
            call(&home, "bash", &command, &[]);
        }

        let now = fs::read_to_string(home.work().join(file)).unwrap();
        assert_eq!(now, "mine", "{link}");
    }
}

#[test]
fn no_tool_writes_the_program_of_a_server() {
    let home = Home::new();
    write(&home.work().join("tools/server.py"), "pass");
    let servers = json!({"mcpServers": {"x": {"command": "python3", "args": ["tools/server.py"]}}});
    write(&home.work().join("servers.json"), &servers.to_string());

    let edit = json!({"path": "tools/server.py", "old_text": "pass", "new_text": "evil"});
    let flags = ["--mcp", "servers.json"];
    let edited = call(&home, "file_edit", &edit, &flags);

    let now = fs::read_to_string(home.work().join("tools/server.py")).unwrap();
    assert_eq!(now, "pass", "{edited:?}");
}
