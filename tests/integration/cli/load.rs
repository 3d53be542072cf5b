//! `mock-model` and `load`.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command},
};

use serde_json::Value;

use super::{Home, Ran, kill};

/// A mock server in a separate process.
struct Mock {
    child: Child,
    url: String,
}

impl Mock {
    fn start(home: &Home, args: &[&str]) -> Self {
        let all: Vec<&str> = ["mock-model"].iter().chain(args).copied().collect();
        let mut child = home.command(&all).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Self {
            child,
            url: line.trim().to_owned(),
        }
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(home: &Home, args: &[&str]) -> Value {
    let all: Vec<&str> = ["load", "--json"].iter().chain(args).copied().collect();
    let ran = home.run(&all);
    let report = ran.json();
    let expected = i32::from(report["served"] == 0);
    assert_eq!(ran.code, Some(expected), "{ran:?}");
    report
}

/// Checks that the report counts no lost, mismatched or repeated answer.
#[track_caller]
fn sound(report: &Value) {
    for what in ["lost", "mismatched", "repeated"] {
        assert_eq!(report["checks"][what], 0, "{report}");
    }
}

#[test]
fn a_mock_prints_its_address_and_answers_both_wires_there() {
    let home = Home::new();
    let mock = Mock::start(&home, &["--chunks", "3"]);
    for (provider, url) in [
        ("anthropic", mock.url.clone()),
        ("openai", format!("{}/v1", mock.url)),
    ] {
        let args = [
            "run",
            "--provider",
            provider,
            "--base-url",
            &url,
            "--no-tools",
            "--model",
            "m",
            "load-7 hello",
        ];
        let mut command = home.command(&args);
        command
            .env("ANTHROPIC_API_KEY", "sk-test-not-a-real-key")
            .env("OPENAI_API_KEY", "sk-test-not-a-real-key");

        let ran = Ran::of(&args, command.spawn().unwrap()).well();

        assert_eq!(ran.out, "load-7 wordwordword\n", "{provider}");
    }
}

#[test]
fn a_mock_serves_https_to_clients_that_trust_its_certificate() {
    let home = Home::new();
    let mock = Mock::start(
        &home,
        &[
            "--tls",
            "--h2",
            "--streams",
            "2",
            "--write-per",
            "event",
            "--chunks",
            "3",
            "--ca-out",
            "ca.pem",
        ],
    );
    assert!(mock.url.starts_with("https://127.0.0.1:"), "{}", mock.url);
    let run = [
        "run",
        "--provider",
        "anthropic",
        "--base-url",
        &mock.url,
        "--no-tools",
        "--model",
        "m",
        "load-7 hello",
    ];
    let mut command = home.command(&run);
    command
        .env("ANTHROPIC_API_KEY", "sk-test-not-a-real-key")
        .env("SSL_CERT_FILE", home.work().join("ca.pem"));

    let ran = Ran::of(&run, command.spawn().unwrap()).well();

    assert_eq!(ran.out, "load-7 wordwordword\n");
    // The mock is no host: it answers 404, but only to a client that accepts its certificate.
    let target = [
        "--target",
        &mock.url,
        "--key",
        "k",
        "--conversations",
        "1",
        "--turns",
        "1",
    ];
    let report = load(&home, &[&target[..], &["--ca", "ca.pem"]].concat());
    assert_eq!(report["errors"], serde_json::json!({ "http_404": 1 }));
    let report = load(&home, &target);
    assert_eq!(report["errors"], serde_json::json!({ "connection": 1 }));
}

/// `http2 = false` makes every call its own connection, also with a server that offers HTTP/2.
#[test]
fn a_mock_behind_tls_serves_providers_with_http2_and_without() {
    for (http2, streams_max) in [(false, 1), (true, 4)] {
        let home = Home::new();
        let args = [
            "--tls",
            "--h2",
            "--ca-out",
            "ca.pem",
            "--latency-ms",
            "1000",
        ];
        let mock = Mock::start(&home, &args);
        let config = format!(
            "[[provider]]\nname = \"main\"\nkind = \"openai\"\nbase_url = \"{}/v1\"\nmodel = \"m\"\nca_file = \"ca.pem\"\nhttp2 = {http2}\n",
            mock.url
        );
        std::fs::write(home.work().join("callboard.toml"), config).unwrap();
        std::fs::write(home.work().join("lines.txt"), "a\nb\nc\nd\n").unwrap();

        let fan_out = ["fanout", "--no-tools", "Do {}.", "--over", "lines.txt"];
        let ran = home.run(&fan_out).well();

        assert!(ran.err.contains("4 tasks: 4 done, 0 failed"), "{ran:?}");
        let ca_pem = std::fs::read_to_string(home.work().join("ca.pem")).unwrap();
        let client = crate::support::https::client(&ca_pem, &["http/1.1"]);
        let stats = async {
            let answer = client.get(format!("{}/stats", mock.url)).send();
            answer.await.unwrap().text().await.unwrap()
        };
        let stats = tokio::runtime::Runtime::new().unwrap().block_on(stats);
        let stats: Value = serde_json::from_str(&stats).unwrap();
        assert_eq!(stats["connections"]["streams_max"], streams_max, "{stats}");
    }
}

#[test]
fn a_mock_presents_the_certificate_that_it_is_given() {
    let home = Home::new();
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    for (name, pem) in [
        ("cert.pem", own.cert.pem()),
        ("key.pem", own.signing_key.serialize_pem()),
    ] {
        std::fs::write(home.work().join(name), pem).unwrap();
    }
    let mock = Mock::start(
        &home,
        &["--tls", "--cert", "cert.pem", "--cert-key", "key.pem"],
    );
    let target = ["--target", &mock.url, "--key", "k", "--turns", "1"];

    let report = load(
        &home,
        &[&target[..], &["--ca", "cert.pem", "--conversations", "1"]].concat(),
    );

    assert_eq!(report["errors"], serde_json::json!({ "http_404": 1 }));
}

#[test]
fn a_mock_that_is_asked_to_end_ends_well() {
    let home = Home::new();
    let mut mock = Mock::start(&home, &["--json"]);
    let printed: Value = serde_json::from_str(&mock.url).unwrap();
    assert!(
        printed["url"]
            .as_str()
            .unwrap()
            .starts_with("http://127.0.0.1:"),
        "{printed}"
    );

    kill(mock.child.id(), "TERM");

    assert_eq!(mock.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_run_reports_its_figures_and_equal_tenants_fare_equally() {
    let home = Home::new();

    let what = [
        "--tenants",
        "4",
        "--tools-per-turn",
        "1",
        "--chunks",
        "16",
        "--chunk-delay-ms",
        "3",
        "--cancel-rate",
        "0.1",
    ];
    let report = load(
        &home,
        &[&["--duration", "2", "--svg", "load.svg"], &what[..]].concat(),
    );

    sound(&report);
    assert_eq!(
        (report["shape"].as_str(), report["loop"].as_str()),
        (Some("turns"), Some("closed"))
    );
    assert!(report["served"].as_u64().unwrap() > 100, "{report}");
    assert!(report["interrupted"].as_u64().unwrap() > 0, "{report}");
    assert!(report["fairness"].as_f64().unwrap() > 0.98, "{report}");
    assert_eq!(
        (&report["checks"]["unmarked"], &report["errors"]),
        (&Value::from(0), &serde_json::json!({})),
        "{report}"
    );
    for figure in [
        "seconds",
        "offered",
        "turns_per_second",
        "cpu_us_per_turn",
        "resident_before",
        "resident_after",
        "tokens",
    ] {
        assert!(report[figure].as_f64().unwrap() > 0.0, "{figure}: {report}");
    }
    for latencies in ["latency_ms", "first_text_ms", "cancel_ms"] {
        let [p50, p99, max] =
            ["p50", "p99", "max"].map(|name| report[latencies][name].as_f64().unwrap());
        assert!(
            p50 > 0.0 && p50 <= p99 && p99 <= max,
            "{latencies}: {report}"
        );
    }
    let served: u64 = report["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|second| second[0].as_u64().unwrap())
        .sum();
    assert_eq!(
        served,
        report["served"].as_u64().unwrap() + report["interrupted"].as_u64().unwrap()
    );
    let svg = std::fs::read_to_string(home.work().join("load.svg")).unwrap();
    well_formed(&svg);
    for word in [
        "Throughput",
        "Latency of a turn",
        "99 %",
        "turns/s",
        "seconds after the warm-up",
        "part of the turns",
        "ms",
        "served",
    ] {
        assert!(svg.contains(word), "{word}: {svg}");
    }
}

/// Checks that tags are closed in order and no text holds a bare special character: the subset of
/// XML that our plots use.
#[track_caller]
fn well_formed(svg: &str) {
    let mut open = Vec::new();
    for piece in svg.trim().split('<').skip(1) {
        let (tag, text) = piece
            .split_once('>')
            .unwrap_or_else(|| panic!("a tag without an end: {piece}"));
        assert!(
            !text.contains('>') && tag.matches('"').count() % 2 == 0,
            "{piece}"
        );
        let bare = text.split('&').skip(1).find(|rest| {
            !["amp;", "lt;", "gt;", "quot;"]
                .iter()
                .any(|name| rest.starts_with(name))
        });
        assert_eq!(bare, None, "{piece}");
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{piece}");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
}

#[test]
fn a_model_that_cannot_keep_up_shows_in_the_latency_of_an_open_loop() {
    let home = Home::new();
    // 8 calls of 50 ms at once allow 160 turns per second; 400 are due.
    let slow = [
        "--model-latency-ms",
        "50",
        "--model-concurrency",
        "8",
        "--duration",
        "1",
    ];

    let closed = load(&home, &[&slow[..], &["--conversations", "8"]].concat());
    let open = load(
        &home,
        &[&slow[..], &["--conversations", "100", "--rate", "400"]].concat(),
    );

    sound(&open);
    assert_eq!(
        (&open["loop"], &open["offered"], &open["served"]),
        (&"open".into(), &400.into(), &400.into()),
        "{open}"
    );
    let p99 = |report: &Value| report["latency_ms"]["p99"].as_f64().unwrap();
    // The last turn waits until all before it are served: 2.5 s after the first was due, 1.5 s
    // after it was due itself.
    assert!(p99(&open) > 1_000.0, "{open}");
    assert!(p99(&closed) < 800.0, "{closed}");
    assert!(
        open["turns_per_second"].as_f64().unwrap() <= 161.0,
        "{open}"
    );
}

#[test]
fn turns_that_are_never_answered_count_with_all_the_time_they_were_waited_for() {
    let home = Home::new();

    let report = load(
        &home,
        &[
            "--model-latency-ms",
            "60000",
            "--duration",
            "0.5",
            "--rate",
            "20",
            "--drain",
            "1",
        ],
    );

    assert_eq!(
        (&report["unfinished"], &report["errors"]["unfinished"]),
        (&10.into(), &10.into()),
        "{report}"
    );
    assert!(
        report["latency_ms"]["p50"].as_f64().unwrap() >= 1_000.0,
        "{report}"
    );
    assert_eq!(report["served_of_offered"], 0.0);
}

#[test]
fn faults_are_reported_by_their_codes_and_lose_nothing() {
    let home = Home::new();
    let args = [
        "load",
        "--json",
        "--fault-rate",
        "0.3",
        "--tools-per-turn",
        "1",
        "--conversations",
        "32",
        "--turns",
        "2",
        "--seed",
        "3",
    ];

    let ran = home.run(&args).well();

    let report = ran.json();
    sound(&report);
    assert!(
        report["served"].as_u64().unwrap() > 0 && report["failed"].as_u64().unwrap() > 0,
        "{report}"
    );
    let codes: Vec<&String> = report["errors"].as_object().unwrap().keys().collect();
    assert!(
        codes.iter().any(|code| code.starts_with("provider_")),
        "{codes:?}"
    );
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
}

#[test]
fn tenants_beside_a_flood_are_compared_with_themselves_alone() {
    let home = Home::new();
    let small = [
        "--tenants",
        "4",
        "--flood",
        "10",
        "--model-latency-ms",
        "20",
        "--model-concurrency",
        "8",
        "--duration",
        "1",
    ];

    let report = load(
        &home,
        &[&["--shape", "noisy", "--conversations", "80"], &small[..]].concat(),
    );

    sound(&report);
    let noisy = &report["noisy"];
    assert_eq!(
        (&report["errors"], &noisy["alone"]["errors"]),
        (&serde_json::json!({}), &serde_json::json!({})),
        "{report}"
    );
    assert!(
        noisy["p99_ratio"].as_f64().unwrap() > 0.0 && noisy["served_ratio"].as_f64().unwrap() > 0.0,
        "{report}"
    );
    // 8 calls of 20 ms allow 400 turns per second. Half of them suffices for three tenants; the
    // flooder gets ten times a tenant's 67.
    assert_eq!(
        (&noisy["alone"]["offered"], &report["offered"]),
        (&200.into(), &200.into()),
        "{report}"
    );
    assert_eq!(noisy["flooder"]["offered"], 667, "{report}");
}

#[test]
fn memory_per_conversation_and_growth_of_turns_are_reported() {
    let home = Home::new();

    let idle = load(&home, &["--shape", "idle", "--conversations", "500"]);
    let long = load(
        &home,
        &["--shape", "long", "--conversations", "2", "--turns", "40"],
    );

    sound(&idle);
    assert_eq!(
        (&idle["served"], &idle["idle"]["conversations"]),
        (&500.into(), &500.into()),
        "{idle}"
    );
    assert!(
        idle["idle"]["idle_bytes"].as_f64().unwrap() > 1_000.0,
        "{idle}"
    );
    assert!(idle["idle"]["asleep_bytes"].is_f64(), "{idle}");
    sound(&long);
    assert_eq!(
        (&long["served"], &long["long"]["turns_a_part"]),
        (&80.into(), &4.into()),
        "{long}"
    );
    assert!(
        long["long"]["first_p50_ms"].as_f64().unwrap() > 0.0
            && long["long"]["last_p50_ms"].as_f64().unwrap() > 0.0,
        "{long}"
    );
}

#[test]
fn a_real_wire_is_loaded_through_the_mock_and_answers_are_distinguished() {
    let home = Home::new();
    let mock = Mock::start(
        &home,
        &["--tool-calls", "1", "--tool-input", "{\"argument\":\"x\"}"],
    );
    for (provider, url) in [
        ("anthropic", mock.url.clone()),
        ("openai", format!("{}/v1", mock.url)),
    ] {
        let wire = [
            "--provider",
            provider,
            "--base-url",
            &url,
            "--conversations",
            "8",
            "--turns",
            "3",
            "--tools-per-turn",
            "1",
        ];

        let report = load(&home, &wire);

        sound(&report);
        assert_eq!(
            (&report["served"], &report["checks"]["unmarked"]),
            (&24.into(), &0.into()),
            "{provider}: {report}"
        );
    }
}

#[test]
fn what_cannot_be_run_is_one_line() {
    let home = Home::new();
    for (args, expected) in [
        (
            &["load", "--fault-rate", "2"][..],
            "error: --fault-rate must be between 0 and 1",
        ),
        (
            &["load", "--base-url", "http://x"],
            "error: --base-url needs --provider anthropic or openai",
        ),
        (
            &["load", "--shape", "noisy", "--tenants", "1"],
            "error: noisy needs two tenants or more",
        ),
        (&["load", "--shape", "fan"], "error: invalid value 'fan'"),
        (
            &["load", "--shape", "fanout", "--rate", "5"],
            "error: --rate cannot be combined with --shape fanout",
        ),
        (
            &["load", "--ephemeral"],
            "error: --subagents must be at least 1, and --ephemeral needs --shape fanout",
        ),
        (
            &["load", "--conversations", "0"],
            "error: --conversations must be at least 1",
        ),
        (
            &["load", "--provider", "anthropic"],
            "error: ANTHROPIC_API_KEY is not set",
        ),
        (
            &["mock-model", "--faults", "418"],
            "error: invalid value '418'",
        ),
        (
            &["mock-model", "--tool-input", "[]"],
            "error: the tool input must be a JSON object",
        ),
        (
            &[
                "mock-model",
                "--tls",
                "--cert",
                "none.pem",
                "--cert-key",
                "none.pem",
            ],
            "error: --cert: none.pem: there is no such file",
        ),
        (
            &[
                "mock-model",
                "--tls",
                "--cert",
                "src/retry.rs",
                "--cert-key",
                "src/retry.rs",
            ],
            "error: the certificate is not in PEM",
        ),
        (
            &[
                "load",
                "--target",
                "https://127.0.0.1:1",
                "--key",
                "k",
                "--ca",
                "none.pem",
            ],
            "error: --ca: none.pem: there is no such file",
        ),
        (
            &["mock-model", "--h2"],
            "error: the following required arguments were not provided",
        ),
    ] {
        let ran = home.run(args);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.error().starts_with(expected), "{ran:?}");
    }
}

#[test]
fn a_fan_out_is_measured_beside_the_time_of_its_model() {
    let home = Home::new();

    let args = [
        "--shape",
        "fanout",
        "--subagents",
        "50",
        "--turns",
        "3",
        "--model-latency-ms",
        "50",
        "--tools-per-turn",
        "1",
        "--seed",
        "3",
    ];
    // Both runs mostly wait for their model.
    let faults = ["load", "--json", "--fault-rate", "0.3", "--ephemeral"];
    let (well, faulty) = std::thread::scope(|scope| {
        let well = scope.spawn(|| load(&home, &args));
        let faulty = home.run(&[&faults[..], &args].concat()).json();
        (well.join().unwrap(), faulty)
    });

    sound(&well);
    sound(&faulty);
    let fan_out = &well["fan_out"];
    assert_eq!(
        (
            well["offered"].as_u64(),
            well["served"].as_u64(),
            fan_out["wall_ms"]["count"].as_u64()
        ),
        (Some(150), Some(150), Some(3))
    );
    assert_eq!(fan_out["model_ms"], 100.0);
    assert!(
        fan_out["wall_ms"]["p50"].as_f64().unwrap() >= 100.0
            && fan_out["cpu_ms"].as_f64().unwrap() > 0.0,
        "{fan_out}"
    );
    assert!(
        well["first_text_ms"]["p50"].as_f64().unwrap() >= 50.0,
        "{well}"
    );
    assert_eq!(
        (
            faulty["offered"].as_u64(),
            faulty["fan_out"]["ephemeral"].as_bool()
        ),
        (Some(150), Some(true))
    );
}

#[test]
fn every_command_of_the_page_on_load_works() {
    let home = Home::new();
    let mock = Mock::start(
        &home,
        &["--tool-calls", "1", "--tool-input", "{\"argument\":\"x\"}"],
    );
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/load.md")).unwrap();
    let blocks = page
        .split("```sh\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap());
    let commands: Vec<&str> = blocks.flat_map(str::lines).collect();
    assert!(commands.len() >= 9, "{commands:?}");
    for line in commands {
        // A command that would keep running is started for its first line only.
        let line = match line.strip_suffix(" &") {
            Some(line) => format!("({line} & echo $! > pid; sleep 0.5; kill $(cat pid))"),
            None => line.to_owned(),
        };
        let ours = line.replace(
            "callboard ",
            &format!("{} ", env!("CARGO_BIN_EXE_callboard")),
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &ours]).current_dir(home.work());

        let output = home
            .dress(&mut shell)
            .env("MOCK", &mock.url)
            .output()
            .unwrap();

        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && !text.is_empty(),
            "{line}\n{text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn a_load_of_which_nothing_was_served_fails() {
    let home = Home::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);

    let ran = home.run(&["load", "--target", &target, "--key", "x", "--duration", "1"]);

    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("no turn was served"), "{ran:?}");
}
