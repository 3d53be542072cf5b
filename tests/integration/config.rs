//! Promises of the configuration: mistakes are one line with the place and the nearest correct
//! word; later sources win; secrets are not printed.

mod tenants;

use std::{path::Path, time::Duration};

use callboard::{
    config::{
        Approve, CommitMode, Config, ConfigError, ProviderKind, SandboxMode, Store, TOOL_NAMES,
        reference,
    },
    limits::Limits,
};
use tempfile::TempDir;

const FAKE_KEY: &str = "sk-test-not-a-real-key";

fn environment(pairs: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    let home = [("HOME", "/home/ann")];
    let all: Vec<_> = home
        .iter()
        .chain(pairs)
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    all.into_iter()
}

/// Loads `text` as the only configuration file.
fn load(text: &str, pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("callboard.toml");
    std::fs::write(&path, text).unwrap();
    Config::load(Some(&path), environment(pairs))
}

/// The error of `text`, without the folder of the file.
fn mistake(text: &str, pairs: &[(&str, &str)]) -> String {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("callboard.toml");
    std::fs::write(&path, text).unwrap();
    let error = Config::load(Some(&path), environment(pairs))
        .expect_err(text)
        .to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn a_wrong_key_or_value_names_file_line_and_the_right_one() {
    for (text, expected) in [
        (
            "[host]\ndata_dri = \"x\"\n",
            "callboard.toml:2: unknown key in [host] `data_dri`; did you mean `data_dir`?",
        ),
        (
            "[host]\n\ncolour = 1\n",
            "callboard.toml:3: unknown key in [host] `colour`; known: data_dir, durability, listen, peer_address, admin_key_sha256, connections_per_address_max, connections_max, requests_per_tenant_max, streams_per_tenant_max, body_bytes_max, tenant_answer_bytes_max, connection_answer_bytes_max, answer_bytes_max, header_s, write_pause_s, remote_attachments, cors_origins, console, mcp",
        ),
        (
            "[hots]\ndata_dir = \"x\"\n",
            "callboard.toml:1: unknown section `hots`; did you mean `host`?",
        ),
        (
            "[providers]\nname = \"x\"\n",
            "callboard.toml:1: unknown section `providers`; did you mean `provider`?",
        ),
        (
            "data_dir = \"x\"\n",
            "callboard.toml:1: unknown key at the top of the file `data_dir`; it belongs under `[host]`",
        ),
        (
            "[limits]\nidle = 3\n",
            "callboard.toml:2: unknown key in [limits] `idle`; did you mean `idle_s`?",
        ),
        (
            "[host]\ndata_dir = 7\n",
            "callboard.toml:2: `host.data_dir` must be a text in quotes, not a whole number",
        ),
        (
            "[host]\ndata_dir = \"\"\n",
            "callboard.toml:2: `host.data_dir` must not be empty",
        ),
        (
            "[host]\ndurability = \"fast\"\n",
            "callboard.toml:2: `host.durability` must be one of `sync`, `batched`, not `fast`",
        ),
        (
            "[store]\nurl = \"postgres:ann:pw@db/x\"\n",
            "callboard.toml:2: `store.url` must be `sqlite:` with a path, `postgres://USER@HOST/DATABASE`, or `memory:`",
        ),
        (
            "[store]\nurl = \"redis://ann:pw@db/x\"\n",
            "callboard.toml:2: `store.url` must be `sqlite:` with a path, `postgres://USER@HOST/DATABASE`, or `memory:`",
        ),
        (
            "[store]\nurl = \"sqlite:\"\n",
            "callboard.toml:2: `store.url` names a file that must not be empty",
        ),
        (
            "[limits]\nparallel_tools_max = 0\n",
            "callboard.toml:2: `limits.parallel_tools_max` must be 1 to 1000000000, not 0",
        ),
        (
            "[limits]\nparallel_tools_max = -1\n",
            "callboard.toml:2: `limits.parallel_tools_max` must be 1 to 1000000000, not -1",
        ),
        (
            "[limits]\nparallel_tools_max = \"4\"\n",
            "callboard.toml:2: `limits.parallel_tools_max` must be a whole number, not a text",
        ),
        (
            "[limits]\nidle_s = 0\n",
            "callboard.toml:2: `limits.idle_s` must be 0.001 to 315360000 seconds, not 0",
        ),
        (
            "[limits]\nflush_ms = -1\n",
            "callboard.toml:2: `limits.flush_ms` must be 0 to 60000 milliseconds, not `-1`",
        ),
        (
            "[limits]\nidle_s = true\n",
            "callboard.toml:2: `limits.idle_s` must be a number of seconds, not true or false",
        ),
        (
            "[tools]\nenabled = [\"think\",\n \"grep\"]\n",
            "callboard.toml:2: `tools.enabled` lists the unknown name `grep`; known: bash, create_subagent, file_edit, file_list, file_read, grep_search, memory, read_more, think, web_fetch, web_search",
        ),
        (
            "[tools]\nenabled = [\"file_raed\"]\n",
            "callboard.toml:2: `tools.enabled` lists the unknown name `file_raed`; did you mean `file_read`?",
        ),
        (
            "[sandbox]\nmode = \"off\"\n",
            "callboard.toml:2: `sandbox.mode` must be one of `auto`, `linux`, `local`, `none`, not `off`",
        ),
        (
            "sandbox = \"none\"\n",
            "callboard.toml:1: `sandbox` must be a section `[sandbox]`, not a text",
        ),
        (
            "[provider]\nkind = \"openai\"\n",
            "callboard.toml:1: providers are a list: write `[[provider]]`, with two brackets",
        ),
        (
            "provider = [1]\n",
            "callboard.toml:1: each provider is a section `[[provider]]`",
        ),
        (
            "\n[[provider]]\nmodel = \"m\"\n",
            "callboard.toml:2: this provider has neither `name` nor `kind`; kinds: `anthropic`, `openai`, `openai-responses`, `gemini`, `offline`",
        ),
        (
            "[[provider]]\nname = \"ollama\"\n",
            "callboard.toml:1: provider `ollama` has no `kind`; kinds: `anthropic`, `openai`, `openai-responses`, `gemini`, `offline`",
        ),
        (
            "[[provider]]\nkind = \"openai\"\nmodle = \"m\"\n",
            "callboard.toml:3: unknown key in [[provider]] `modle`; did you mean `model`?",
        ),
        (
            "[[provider]]\nkind = \"openai\"\nbase_url = \"localhost:1\"\n",
            "callboard.toml:3: `provider.base_url` must start with `http://` or `https://`",
        ),
        (
            "[[provider]]\nkind = \"openai\"\n[[provider]]\nname = \"openai\"\n",
            "callboard.toml:3: provider `openai` is already at callboard.toml:1",
        ),
        (
            "[host\n",
            "callboard.toml:1: not valid TOML: unclosed table, expected `]`",
        ),
        (
            "[host]\ndata_dir = \"a\"\ndata_dir = \"b\"\n",
            "callboard.toml:3: not valid TOML: duplicate key",
        ),
    ] {
        assert_eq!(mistake(text, &[]), expected, "{text}");
    }
}

#[test]
fn the_first_mistake_in_the_file_is_reported() {
    let text = "[tools]\nzzz = 1\naaa = 1\n[host]\nbbb = 1\n";

    assert!(
        mistake(text, &[]).starts_with("callboard.toml:2: unknown key in [tools] `zzz`"),
        "{}",
        mistake(text, &[])
    );
}

#[test]
fn a_wrong_variable_names_the_right_one() {
    for (name, value, expected) in [
        (
            "CALLBOARD_HOST_DATA_DIR",
            "x",
            "environment: unknown variable `CALLBOARD_HOST_DATA_DIR`; did you mean `CALLBOARD_HOST__DATA_DIR`?",
        ),
        (
            "CALLBOARD_LIMITS__IDEL_S",
            "3",
            "environment: unknown variable `CALLBOARD_LIMITS__IDEL_S`; did you mean `CALLBOARD_LIMITS__IDLE_S`?",
        ),
        (
            "CALLBOARD_COLOUR",
            "x",
            "environment: unknown variable `CALLBOARD_COLOUR`; `callboard config show` lists what can be set",
        ),
        (
            "CALLBOARD_PROVIDER__OPENAI__MODLE",
            "x",
            "environment: unknown variable `CALLBOARD_PROVIDER__OPENAI__MODLE`; did you mean `CALLBOARD_PROVIDER__OPENAI__MODEL`?",
        ),
        (
            "CALLBOARD_PROVIDER__MINE__MODEL",
            "x",
            "CALLBOARD_PROVIDER__MINE__MODEL: provider `mine` has no `kind`; kinds: `anthropic`, `openai`, `openai-responses`, `gemini`, `offline`",
        ),
        (
            "CALLBOARD_LIMITS__IDLE_S",
            "soon",
            "CALLBOARD_LIMITS__IDLE_S: `limits.idle_s` must be a number of seconds, not `soon`",
        ),
        (
            "CALLBOARD_SANDBOX__MODE",
            "a\nb",
            "CALLBOARD_SANDBOX__MODE: `sandbox.mode` must be one of `auto`, `linux`, `local`, `none`, not `a\\nb`",
        ),
    ] {
        assert_eq!(mistake("", &[(name, value)]), expected);
    }
}

#[test]
fn variables_of_others_are_left_alone() {
    // Variables that Kubernetes adds for a service named `callboard`, that our tests read, and an
    // empty one.
    let pairs = [
        ("CALLBOARD_PORT", "tcp://10.0.0.1:80"),
        ("CALLBOARD_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("CALLBOARD_SERVICE_HOST", "10.0.0.1"),
        ("CALLBOARD_CASSETTES", "somewhere"),
        ("CALLBOARD_LIMITS__IDLE_S", ""),
    ];

    assert_eq!(load("", &pairs).unwrap().limits, Limits::default());
}

#[test]
fn later_sources_win() {
    let text = "[host]\ndata_dir = \"data\"\ndurability = \"batched\"\n[limits]\nidle_s = 1\nsweep_s = 2\nflush_ms = 40\nidle_conversations_max = 7\ntool_iterations_max = 3\nstore_pause_s = 7\n";
    let mut config = load(
        text,
        &[
            ("CALLBOARD_LIMITS__SWEEP_S", "0.5"),
            ("CALLBOARD_LIMITS__TOOL_ITERATIONS_MAX", "4"),
        ],
    )
    .unwrap();

    config
        .set("limits.tool_iterations_max", "5", "--max-tool-iterations")
        .unwrap();
    config.set("sandbox.mode", "local", "--sandbox").unwrap();
    config.set("store.url", "sqlite:here.db", "--db").unwrap();
    config.set("tools.approve", "auto", "--approve").unwrap();
    config
        .set("tools.enabled", "think, bash", "--tools")
        .unwrap();

    let expected = Limits {
        idle: Duration::from_secs(1),
        sweep: Duration::from_millis(500),
        flush: Duration::from_millis(40),
        idle_conversations_max: 7,
        tool_iterations_max: 5,
        store_pause: Duration::from_secs(7),
        ..Limits::default()
    };
    assert_eq!(config.limits, expected);
    assert_eq!(
        (config.commit, config.sandbox, config.approve),
        (CommitMode::Batched, SandboxMode::Local, Some(Approve::Auto))
    );
    assert_eq!(config.store, Store::Sqlite("here.db".into()));
    assert_eq!(
        config.tools,
        Some(vec!["think".to_owned(), "bash".to_owned()])
    );
    assert!(
        config.data_dir.ends_with("data") && config.data_dir.is_absolute(),
        "relative to the file: {:?}",
        config.data_dir
    );
}

#[test]
fn a_wrong_flag_is_named() {
    let mut config = load("", &[]).unwrap();

    let value = config.set("sandbox.mode", "off", "--sandbox").unwrap_err();
    let key = config.set("sandbox.mod", "none", "--sandbox").unwrap_err();

    assert_eq!(
        value.to_string(),
        "--sandbox: `sandbox.mode` must be one of `auto`, `linux`, `local`, `none`, not `off`"
    );
    assert_eq!(
        key.to_string(),
        "--sandbox: unknown key `sandbox.mod`; did you mean `sandbox.mode`?"
    );
    assert_eq!(
        (value.code(), key.code()),
        ("config_bad_value", "config_unknown_key")
    );
    assert_eq!(config.sandbox, SandboxMode::Auto);
}

#[test]
fn without_any_file_the_defaults_hold() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().to_str().unwrap();
    let config = Config::load(None, [("HOME".to_owned(), home.to_owned())].into_iter()).unwrap();

    assert_eq!(
        config.data_dir,
        folder.path().join(".local/share/callboard")
    );
    assert_eq!(
        config.store,
        Store::Sqlite(folder.path().join(".local/share/callboard/callboard.db"))
    );
    assert_eq!(
        (config.limits.clone(), config.commit, config.sandbox),
        (Limits::default(), CommitMode::Sync, SandboxMode::Auto)
    );
    assert_eq!(
        (
            config.tools.is_none(),
            config.approve.is_none(),
            config.providers.is_empty(),
            config.files().is_empty()
        ),
        (true, true, true, true)
    );
}

#[test]
fn the_file_of_the_user_is_found_and_xdg_moves_it() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().to_str().unwrap().to_owned();
    let own = folder.path().join(".config/callboard/callboard.toml");
    let moved = folder.path().join("xdg/callboard/callboard.toml");
    for (path, idle) in [(&own, 11), (&moved, 12)] {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("[limits]\nidle_s = {idle}\n")).unwrap();
    }
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let xdg = format!("{home}/xdg");

    let by_home = Config::load(None, [pair("HOME", &home)].into_iter()).unwrap();
    let by_xdg = Config::load(
        None,
        [pair("HOME", &home), pair("XDG_CONFIG_HOME", &xdg)].into_iter(),
    )
    .unwrap();
    let by_name = Config::load(
        None,
        [
            pair("HOME", &home),
            pair("CALLBOARD_CONFIG", own.to_str().unwrap()),
        ]
        .into_iter(),
    )
    .unwrap();

    assert_eq!(
        (by_home.limits.idle.as_secs(), by_home.files()),
        (11, &[own.clone()][..])
    );
    assert_eq!(
        (by_xdg.limits.idle.as_secs(), by_xdg.files()),
        (12, &[moved][..])
    );
    assert_eq!(
        (by_name.limits.idle.as_secs(), by_name.files()),
        (11, &[own][..])
    );
}

#[test]
fn a_file_that_cannot_be_read_is_one_line() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing.toml");
    let latin = folder.path().join("latin.toml");
    std::fs::write(&latin, b"[host]\n# caf\xe9\n").unwrap();
    let deep = folder.path().join("deep.toml");
    std::fs::write(
        &deep,
        format!("x = {}{}", "[".repeat(100_000), "]".repeat(100_000)),
    )
    .unwrap();
    let long = folder.path().join("long.toml");
    std::fs::write(&long, "#".repeat(1024 * 1024 + 1)).unwrap();
    let error = |path: &Path| {
        Config::load(Some(path), environment(&[]))
            .unwrap_err()
            .to_string()
    };

    assert_eq!(
        error(&missing),
        format!(
            "{}: cannot be read: there is no such file; `callboard config init` writes a first one",
            missing.display()
        )
    );
    assert_eq!(
        error(&latin),
        format!(
            "{}:2: not valid TOML: this line is not UTF-8 text",
            latin.display()
        )
    );
    assert!(
        error(&deep).contains("deep.toml:1: not valid TOML: "),
        "{}",
        error(&deep)
    );
    assert_eq!(
        error(&long),
        format!(
            "{}: cannot be read: it is longer than 1 MiB",
            long.display()
        )
    );
    assert!(
        error(folder.path()).contains("cannot be read"),
        "a folder is no file"
    );
}

#[test]
fn without_a_home_the_data_folder_must_be_named() {
    let nothing = || std::iter::empty::<(String, String)>();
    let named = [("CALLBOARD_HOST__DATA_DIR".to_owned(), "/data".to_owned())];

    let error = Config::load(None, nothing()).unwrap_err().to_string();

    assert_eq!(
        error,
        "environment: there is no data folder: neither HOME nor XDG_DATA_HOME is set; set CALLBOARD_HOST__DATA_DIR"
    );
    assert_eq!(
        Config::load(None, named.into_iter()).unwrap().data_dir,
        Path::new("/data")
    );
}

#[test]
fn providers_are_found_by_name_and_the_first_is_the_default() {
    let text = "[[provider]]\nname = \"local\"\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:11434/v1/\"\nmodel = \"m\"\nconcurrency = 2\n[[provider]]\nkind = \"anthropic\"\n";
    let pairs = [
        ("CALLBOARD_PROVIDER__LOCAL__MODEL", "other"),
        ("CALLBOARD_PROVIDER__OFFLINE__KIND", "offline"),
        ("ANTHROPIC_API_KEY", FAKE_KEY),
    ];
    let config = load(text, &pairs).unwrap();

    let seen: Vec<_> = config
        .providers
        .iter()
        .map(|it| {
            (
                it.name.as_str(),
                it.kind,
                it.base_url.as_deref(),
                it.model.as_deref(),
                it.concurrency,
            )
        })
        .collect();

    assert_eq!(
        seen,
        [
            (
                "local",
                ProviderKind::OpenAi,
                Some("http://127.0.0.1:11434/v1"),
                Some("other"),
                Some(2)
            ),
            ("anthropic", ProviderKind::Anthropic, None, None, None),
            ("offline", ProviderKind::Offline, None, None, None),
        ]
    );
    assert_eq!(config.choose(None).unwrap().name, "local");
    assert_eq!(
        config.choose(Some("antropic")).unwrap_err().to_string(),
        "--provider: unknown provider `antropic`; did you mean `anthropic`?"
    );
    assert_eq!(
        config
            .choose(Some("anthropic"))
            .unwrap()
            .key()
            .unwrap()
            .unwrap()
            .expose(),
        FAKE_KEY
    );
}

#[test]
fn without_configuration_the_keys_in_the_environment_decide() {
    for (pairs, named, expected) in [
        (&[][..], None, ProviderKind::Offline),
        (
            &[("ANTHROPIC_API_KEY", ""), ("OPENAI_API_KEY", FAKE_KEY)],
            None,
            ProviderKind::OpenAi,
        ),
        (
            &[
                ("ANTHROPIC_API_KEY", FAKE_KEY),
                ("OPENAI_API_KEY", FAKE_KEY),
            ],
            None,
            ProviderKind::Anthropic,
        ),
        (
            &[("ANTHROPIC_API_KEY", FAKE_KEY)],
            Some("openai"),
            ProviderKind::OpenAi,
        ),
        (&[("GEMINI_API_KEY", FAKE_KEY)], None, ProviderKind::Gemini),
        (
            &[("OPENAI_API_KEY", FAKE_KEY)],
            Some("openai-responses"),
            ProviderKind::OpenAiResponses,
        ),
    ] {
        assert_eq!(
            load("", pairs).unwrap().choose(named).unwrap().kind,
            expected,
            "{pairs:?}"
        );
    }
    let unset = load("", &[])
        .unwrap()
        .choose(Some("openai"))
        .unwrap()
        .key()
        .unwrap_err()
        .to_string();
    assert_eq!(
        unset,
        "provider `openai` has no key: the environment variable OPENAI_API_KEY is not set"
    );
}

#[test]
fn a_key_never_goes_unasked_to_another_address() {
    let text = "[[provider]]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\n";
    let config = load(text, &[("OPENAI_API_KEY", FAKE_KEY)]).unwrap();

    assert_eq!(config.providers.first().unwrap().key(), Ok(None));
}

#[test]
fn a_missing_key_is_told_when_it_is_wanted() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, format!("{FAKE_KEY}\n")).unwrap();
    let by_file = format!("[[provider]]\nkind = \"openai\"\napi_key_file = {file:?}\n");

    let found = load(&by_file, &[]).unwrap();
    std::fs::remove_file(&file).unwrap();
    let gone = load(&by_file, &[]).unwrap();
    let unset = load(
        "[[provider]]\nkind = \"openai\"\napi_key_env = \"MY_KEY\"\n",
        &[],
    )
    .unwrap();
    let empty = load(
        "[[provider]]\nkind = \"openai\"\napi_key_env = \"MY_KEY\"\n",
        &[("MY_KEY", " ")],
    )
    .unwrap();

    assert_eq!(
        found
            .secrets()
            .iter()
            .map(|secret| secret.expose())
            .collect::<Vec<_>>(),
        [FAKE_KEY]
    );
    assert_eq!(found.check(), Ok(()));
    let failure = |config: &Config| {
        config
            .check()
            .unwrap_err()
            .to_string()
            .split_once("callboard.toml")
            .unwrap()
            .1
            .to_owned()
    };
    assert!(
        failure(&gone).starts_with(":3: provider `openai` has no key: the file cannot be read: "),
        "{}",
        failure(&gone)
    );
    assert_eq!(
        failure(&unset),
        ":3: provider `openai` has no key: the environment variable MY_KEY is not set"
    );
    assert_eq!(
        failure(&empty),
        ":3: provider `openai` has no key: the environment variable MY_KEY is empty"
    );
}

#[test]
fn no_secret_is_in_an_error_in_show_or_in_debug() {
    let wrong = [
        format!("[[provider]]\nkind = \"openai\"\napi_key = \"{FAKE_KEY}\"\n"),
        format!("[[provider]]\nkind = \"openai\"\napi_key_env = \"{FAKE_KEY}\"\n"),
        format!(
            "[[provider]]\nkind = \"openai\"\nbase_url = \"https://me:{FAKE_KEY}@example.com\"\n"
        ),
        format!("[store]\nurl = \"postgres:me:{FAKE_KEY}@example.com/x\"\n"),
        format!("[[provider]]\nkind = \"openai\"\napi_key_env = [\"{FAKE_KEY}\"]\n"),
        format!("[[provider]]\nkind = \"openai\"\napi_key_env = \"{FAKE_KEY}\n"),
    ];
    for text in wrong {
        let error = mistake(&text, &[]);
        assert!(
            !error.contains(FAKE_KEY) && !error.contains('\n'),
            "{error}"
        );
    }
    assert_eq!(
        mistake("[[provider]]\nkind = \"openai\"\napi_key = \"x\"\n", &[]),
        "callboard.toml:3: unknown key in [[provider]] `api_key`; keys are not stored in this file: name their environment variable with `api_key_env`, or their file with `api_key_file`"
    );

    let config = load(
        "[[provider]]\nkind = \"anthropic\"\n",
        &[("ANTHROPIC_API_KEY", FAKE_KEY)],
    )
    .unwrap();
    assert_eq!(config.secrets().len(), 1);
    assert!(
        !config.show().contains(FAKE_KEY) && config.show().contains("the key is there, masked"),
        "{}",
        config.show()
    );
    assert!(!format!("{config:?}").contains(FAKE_KEY));
}

#[test]
fn what_show_prints_can_be_read_again_and_says_where_values_are_from() {
    let text = "[limits]\nidle_s = 0.25\n[tools]\nenabled = [\"think\"]\n[[provider]]\nname = \"a \\\"quoted\\\" name\"\nkind = \"openai\"\nconcurrency = 3\n";
    let mut config = load(text, &[("CALLBOARD_HOST__DATA_DIR", "/data \\ \"x\"")]).unwrap();
    config.set("sandbox.mode", "none", "--sandbox").unwrap();

    let shown = config.show();
    let again = load(&shown, &[]).unwrap();

    assert!(
        shown.contains("data_dir = \"/data \\\\ \\\"x\\\"\"  # CALLBOARD_HOST__DATA_DIR\n"),
        "{shown}"
    );
    assert!(
        shown.contains("mode = \"none\"  # --sandbox\n")
            && shown.contains("sweep_s = 60  # default\n"),
        "{shown}"
    );
    assert!(shown.contains("callboard.toml:2\n"), "{shown}");
    assert_eq!(
        (
            again.data_dir.clone(),
            again.store.clone(),
            again.limits.clone()
        ),
        (
            config.data_dir.clone(),
            config.store.clone(),
            config.limits.clone()
        )
    );
    assert_eq!(
        (again.tools.clone(), again.sandbox, again.approve),
        (config.tools.clone(), config.sandbox, config.approve)
    );
    let of = |config: &Config| {
        config
            .providers
            .iter()
            .map(|it| (it.name.clone(), it.kind, it.concurrency))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(&again), of(&config));
}

#[test]
fn hosts_and_limits_of_commands_are_read_and_a_wrong_one_names_its_line() {
    for (text, expected) in [
        (
            "[sandbox]\nnetwork = [\"crates.io\",\n \"https://example.org/\"]\n",
            "callboard.toml:2: `sandbox.network` must list hosts such as `example.org`, `*.example.org`, `example.org:8443` or an IP address, not `https://example.org/`",
        ),
        (
            "[sandbox]\nnetwork = \"crates.io\"\n",
            "callboard.toml:2: `sandbox.network` must be a list of hosts, not a text",
        ),
        (
            "[sandbox]\nprocesses = 0\n",
            "callboard.toml:2: `sandbox.processes` must be 1 to 4194304, not 0",
        ),
    ] {
        assert_eq!(mistake(text, &[]), expected, "{text}");
    }

    let text = "[sandbox]\nnetwork = [\"Crates.io\", \"*.example.org:8443\"]\nmemory_bytes = 1048576\nprocesses = 64\nfiles = 5000\n";
    let config = load(text, &[("CALLBOARD_SANDBOX__CPU_SECONDS", "7")]).unwrap();
    let shown = config.show();

    assert_eq!(
        config
            .network
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["crates.io", "*.example.org:8443"]
    );
    let limits = &config.exec_limits;
    assert_eq!(
        (
            limits.memory_bytes,
            limits.processes,
            limits.cpu_seconds,
            limits.file_bytes
        ),
        (1 << 20, 64, 7, 1 << 30)
    );
    assert_eq!(limits.files, 5000);
    assert!(
        shown.contains("network = [\"crates.io\", \"*.example.org:8443\"]  # ")
            && shown.contains("\nfile_bytes = 1073741824  # default\n"),
        "{shown}"
    );
}

#[test]
fn the_documentation_lists_every_key_and_its_example_is_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_to_string(root.join("docs/configuration.md")).unwrap();
    let examples: Vec<&str> = docs
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();

    assert!(
        docs.contains(&reference()),
        "docs/configuration.md: replace the table of keys by this one:\n{}",
        reference()
    );
    assert!(!examples.is_empty());
    for example in examples {
        load(example, &[]).unwrap();
    }
    assert!(TOOL_NAMES.iter().all(|name| docs.contains(name)));
}

#[test]
fn the_web_tools_have_sections_of_their_own() {
    let text = "[tools]\napprove = \"ask\"\n[tools.web_fetch]\nallow_hosts = [\"wiki.corp.example\", \"10.0.0.0/8\"]\napprove = \"never\"\n";
    let key = [("TAVILY_API_KEY", "tvly-not-a-real-key")];

    let config = load(text, &key).unwrap();
    assert_eq!(
        (
            config.web.allow_hosts.clone(),
            config.web.fetch_without_asking
        ),
        (vec!["wiki.corp.example".into(), "10.0.0.0/8".into()], true)
    );
    assert_eq!(
        config
            .secrets()
            .iter()
            .map(|key| key.expose())
            .collect::<Vec<_>>(),
        ["tvly-not-a-real-key"]
    );
    assert!(
        !config.show().contains("tvly-not-a-real-key")
            && !format!("{config:?}").contains("tvly-not-a-real-key")
    );
    assert_eq!(load(&config.show(), &key).unwrap().web, config.web);

    let hosts = load(
        "",
        &[(
            "CALLBOARD_TOOLS__WEB_FETCH__ALLOW_HOSTS",
            "a.example, 127.0.0.1",
        )],
    )
    .unwrap()
    .web
    .allow_hosts;
    assert_eq!(hosts, ["a.example", "127.0.0.1"]);

    // Tavily's key goes to another address only if the configuration names the key for it.
    let elsewhere = "[tools.web_search]\nbase_url = \"https://proxy.example\"\n";
    assert_eq!(load(elsewhere, &key).unwrap().web.key, None);
    assert!(
        load(
            &format!("{elsewhere}api_key_env = \"TAVILY_API_KEY\"\n"),
            &key
        )
        .unwrap()
        .web
        .key
        .is_some()
    );

    for (text, expected) in [
        (
            "[tools.web_search]\nengine = \"searxng\"\n",
            "callboard.toml:2: engine `searxng` needs `base_url` beside it",
        ),
        (
            "[tools.web_search]\nengin = \"x\"\n",
            "callboard.toml:2: unknown key in [tools.web_search] `engin`; did you mean `engine`?",
        ),
        (
            "[tools.web_fetch]\nallow_hosts = [\"http://x\"]\n",
            "callboard.toml:2: `tools.web_fetch.allow_hosts` must list host names, `*.domains`, IP addresses or ranges such as 10.0.0.0/8, not `http://x`",
        ),
    ] {
        assert_eq!(mistake(text, &[]), expected);
    }
}

#[test]
fn no_text_makes_the_reader_panic() {
    let seed = std::env::var("CALLBOARD_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0x5eed_u64);
    println!("CALLBOARD_SEED={seed}");
    let mut state = seed;
    let mut next = |bound: usize| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    };
    let parts = [
        "[host]\n",
        "[[provider]]\n",
        "[limits]\n",
        "data_dir",
        " = ",
        "\"",
        "'",
        "\n",
        "name",
        "kind = \"openai\"\n",
        "idle_s",
        "0x1F",
        "-1",
        "1e9",
        "nan",
        "[",
        "]",
        "{",
        "}",
        ",",
        "é",
        "\u{0}",
        "#",
        "enabled",
        ".",
        "1979-05-27",
        "9999999999999999999999",
        "\\u0000",
        "\"\"\"",
    ];
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("callboard.toml");
    let mut accepted = 0;
    for _ in 0..3000 {
        let text: String = (0..next(12)).map(|_| parts[next(parts.len())]).collect();
        std::fs::write(&path, &text).unwrap();

        match Config::load(Some(&path), environment(&[])) {
            Ok(config) => accepted += usize::from(!config.show().is_empty()),
            Err(error) => assert!(!error.to_string().contains('\n'), "{text:?}: {error}"),
        }
    }
    assert!(accepted > 0 && accepted < 3000);
}
