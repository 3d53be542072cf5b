//! The commands of pages that no other test types: against a host, or in a folder. And the census of all pages with commands.

use std::{fs, os::unix::fs::symlink};

use super::{Home, Page, root};

/// A host with a tenant that has one conversation; `$KEY` is the tenant's.
const HOST: &str = r#"
printf '[[provider]]\nname = "offline"\nkind = "offline"\n\n' > callboard.toml
callboard keys new --tenant acme > acme.txt
tail -n 3 acme.txt >> callboard.toml
export KEY=$(sed -n 's/^key: *//p' acme.txt)
export CALLBOARD_KEY=$KEY
callboard --config callboard.toml serve 2> serve.log &
until grep -qs 'serves at' serve.log; do sleep 0.1; done
curl -s -o first.json http://127.0.0.1:8787/v1/conversations/support-42/messages -H "authorization: Bearer $KEY" \
  -H 'content-type: application/json' -d '{"content":"Hello"}'
"#;

/// The page's commands behind a host; returns what they print.
fn against_a_host(page: &str, change: impl Fn(String) -> String) -> String {
    let page = Page::read(page);
    let commands = change(page.blocks("sh").join("\n"));
    assert!(commands.contains("curl") || commands.contains("callboard "));
    let script = super::with_ports(&format!("{HOST}{commands}"), &page.ports);
    page.typed(&Home::new(), &script)
}

#[test]
fn the_request_of_the_page_on_http_is_answered() {
    let printed = against_a_host("http.md", |commands| commands);

    assert!(printed.contains("\"status\":\"completed\""), "{printed}");
}

#[test]
fn the_request_of_the_page_on_webhooks_is_accepted() {
    let printed = against_a_host("webhooks.md", |commands| commands);

    assert!(
        printed.contains("\"round_id\"") && printed.contains("\"events\""),
        "{printed}"
    );
}

#[test]
fn the_commands_of_the_page_on_serving_ask_a_running_host() {
    let printed = against_a_host("serve.md", |commands| {
        let url = "CALLBOARD_SERVER=http://127.0.0.1:8787";
        commands
            .replace("CALLBOARD_SERVER=https://calls.example", url)
            .replace("CALLBOARD_KEY=cb_…", "CALLBOARD_KEY=$KEY")
            + "\ncat support-42.json\n"
    });

    for part in ["support-42", "you: Hello", "tokens", "callboard.session"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[test]
fn the_program_of_the_page_on_clients_prints_an_answer() {
    let page = Page::read("clients.md");
    let program = page.blocks("python").concat();
    let sources = root().join("clients/python/src");
    let script = super::with_ports(
        &format!(
            "{HOST}PYTHONPATH={} python3 - <<'EOT'\nimport os\nkey = os.environ['KEY']\n{program}EOT\n",
            sources.display()
        ),
        &page.ports,
    );

    let printed = page.typed(&Home::new(), &script);

    assert!(printed.contains("offline model"), "{printed}");
}

#[test]
fn a_history_is_brought_along_as_the_page_on_migrating_says() {
    let page = Page::read("migrating.md");
    let script = page.blocks("bash").join("\n");
    // The model of the page needs a key.
    let script = script.replace("callboard run ", "callboard run --provider offline ");

    let printed = page.typed(&Home::new(), &script);

    assert!(printed.contains("\"messages\":2"), "{printed}");
    assert!(printed.contains("Which order was it?"), "{printed}");
}

#[test]
fn the_commands_of_the_page_on_evaluations_work() {
    let page = Page::read("evals.md");
    let home = Home::new();
    fs::create_dir(home.work().join("examples")).unwrap();
    symlink(
        root().join("examples/evals"),
        home.work().join("examples/evals"),
    )
    .unwrap();
    // One trial of one task: five of thirteen take minutes. `tests/integration/evals.rs` has the solvers try all.
    let script = page
        .blocks("sh")
        .join("\n")
        .replace(" --solve", "")
        .replace(
            "--trials 5",
            "--trials 1 --provider offline --task t01_fix_syntax_error",
        );

    let printed = page.typed(&home, &script);

    for part in ["run base", "run terse", "B = terse", "\"run\""] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(home.work().join("compare.html").exists());
}

/// Pages with configurations; `tests/integration/config.rs` reads those of `configuration.md`.
const CONFIGURATIONS: &[&str] = &["postgres.md", "providers.md", "serve.md", "webhooks.md"];

#[test]
fn every_configuration_of_a_page_is_accepted() {
    let mut home = Home::new();
    for (name, value) in [
        ("ANTHROPIC_API_KEY", "sk-not-a-real-key"),
        ("OPENAI_API_KEY", "sk-not-a-real-key"),
        ("GEMINI_API_KEY", "not-a-real-key"),
        ("HOOK_SECRET", SECRET),
    ] {
        home.variables.push((name, value.to_owned()));
    }
    fs::write(home.work().join("acme-hook"), SECRET).unwrap();
    let mut script = String::new();
    let mut count = 0;
    for name in CONFIGURATIONS {
        let page = Page::read(name);
        for block in page.blocks("toml") {
            count += 1;
            let file = format!("{count}.toml");
            let hash = format!("key_sha256 = \"{}\"", "0b14d501".repeat(8));
            let block = block
                .replace("key_sha256 = \"…\"", &hash)
                .replace("/etc/callboard/acme-hook", "acme-hook");
            // The page on several hosts leaves the tenants to another one.
            let tenant = match block.contains("[[tenant]]") {
                true => String::new(),
                false => format!("\n[[tenant]]\nid = \"acme\"\n{hash}\n"),
            };
            let block = block + &tenant;
            fs::write(home.work().join(&file), block).unwrap();
            script += &format!("callboard --config {file} config check\n");
        }
    }

    let printed = Page::read("serve.md").typed(&home, &script);

    assert!(count >= 5);
    assert_eq!(
        printed.matches("the configuration is valid").count(),
        count,
        "{printed}"
    );
}

/// A secret of webhooks that is no secret.
const SECRET: &str = "whsec_bm90LWEtcmVhbC1zZWNyZXQtbm90LWEtcmVhbC1zZWM=";

/// Each page with commands of `sh` or `bash`, and the test that types them.
const CENSUS: &[(&str, &str)] = &[
    ("evals.md", "the_commands_of_the_page_on_evaluations_work"),
    ("fanout.md", "every_command_of_the_page_on_fan_out_works"),
    ("http.md", "the_request_of_the_page_on_http_is_answered"),
    ("load.md", "every_command_of_the_page_on_load_works"),
    ("mcp.md", "every_configuration_of_the_page_reaches_a_server"),
    (
        "migrating.md",
        "a_history_is_brought_along_as_the_page_on_migrating_says",
    ),
    ("operate.md", "every_command_of_the_page_on_operating_works"),
    (
        "quickstart.md",
        "every_command_of_the_first_five_minutes_works",
    ),
    (
        "serve.md",
        "the_commands_of_the_page_on_serving_ask_a_running_host",
    ),
    (
        "webhooks.md",
        "the_request_of_the_page_on_webhooks_is_accepted",
    ),
];

/// The sources of the integration tests.
fn sources(folder: &std::path::Path, found: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            *found += &fs::read_to_string(path).unwrap();
        }
    }
}

#[test]
fn every_page_with_commands_has_a_test_that_types_them() {
    let mut found: Vec<String> = Vec::new();
    let mut configured: Vec<String> = Vec::new();
    for page in fs::read_dir(root().join("docs")).unwrap() {
        let path = page.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            let text = fs::read_to_string(path).unwrap();
            if text.contains("\n```toml\n") {
                configured.push(name.clone());
            }
            if text.contains("\n```sh\n") || text.contains("\n```bash\n") {
                found.push(name);
            }
        }
    }
    found.sort();
    configured.sort();
    assert_eq!(configured, [&["configuration.md"], CONFIGURATIONS].concat());
    let listed: Vec<&str> = CENSUS.iter().map(|(page, _)| *page).collect();
    assert_eq!(
        found, listed,
        "write a test for the page, and its name into CENSUS"
    );

    let mut tests = String::new();
    sources(&root().join("tests/integration"), &mut tests);
    for (page, test) in CENSUS {
        assert!(tests.contains(&format!("fn {test}(")), "{page}: {test}");
    }
}
