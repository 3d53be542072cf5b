//! `[observability]`: what a run of the program sends to a collector and writes to its log.

use std::time::{Duration, Instant};

use super::{Home, Ran, home};
use crate::observe::collector::Collector;

fn run(settings: &str) -> (Ran, Home) {
    let home = home(&format!("[observability]\n{settings}\n"));
    let prompt = "Where is RETRY_CAP_MS?";
    let ran = home.run(&["run", "--provider", "offline", prompt]).well();
    (ran, home)
}

/// Runs a prompt and returns what the collector got. Every round is traced.
async fn collected(settings: &str) -> Collector {
    let collector = Collector::start().await;
    let endpoint = &collector.endpoint;
    run(&format!(
        "otlp_endpoint = \"{endpoint}\"\ntrace_sampling = \"always\"\n{settings}"
    ));
    collector
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_go_to_the_endpoint_with_the_configured_names_and_headers() {
    let collector = collected(
        "otlp_headers = { x-team = \"blue\" }\notlp_compression = \"none\"\nservice_name = \"shop\"\n\
         environment = \"test\"\nextra_tags = { region = \"north\" }",
    )
    .await;

    let (spans, resource) = collector.spans();
    assert!(!spans.is_empty());
    assert_eq!(
        ["service.name", "deployment.environment.name", "region"]
            .map(|name| resource[name].as_str()),
        ["shop", "test", "north"]
    );
    let headers = collector.headers("/v1/traces");
    assert_eq!(headers["x-team"], "blue");
    assert!(!headers.contains_key("content-encoding"), "{headers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_configuration_switches_off_is_not_sent() {
    let no_traces = collected("enable_tracing = false").await;
    let no_metrics = collected("enable_metrics = false").await;
    let unsampled = collected("").await;
    let never = Collector::start().await;
    run(&format!(
        "otlp_endpoint = \"{}\"\ntrace_sampling = \"never\"",
        never.endpoint
    ));

    let alone = |sampling: &str, collector: &Collector| {
        let endpoint = &collector.endpoint;
        let home = home(&format!(
            "[observability]\notlp_endpoint = \"{endpoint}\"\ntrace_sampling = \"{sampling}\"\n"
        ));
        home.run(&["tools", "call", "file_list", "{}"]).well();
    };
    let [traced, untraced] = [Collector::start().await, Collector::start().await];
    alone("always", &traced);
    alone("never", &untraced);

    let seen = |collector: &Collector| {
        (
            !collector.spans().0.is_empty(),
            !collector.metrics().is_empty(),
        )
    };
    assert_eq!(seen(&no_traces), (false, true));
    assert_eq!(seen(&no_metrics), (true, false));
    assert_eq!(seen(&unsampled), (true, true));
    assert_eq!(seen(&never), (false, true));
    assert_eq!(seen(&traced), (true, true), "a call without a round");
    assert_eq!(seen(&untraced), (false, true), "a call without a round");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_are_sent_in_batches_of_the_configured_size() {
    let one = collected("enable_metrics = false\ntrace_batch_size = 1").await;

    let spans = one.spans().0.len();
    assert!(spans > 1);
    assert_eq!(one.requests(), spans);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_sent_as_often_as_the_configuration_says() {
    let collector = Collector::start().await;
    let home = home(&format!(
        "[observability]\notlp_endpoint = \"{}\"\nmetrics_export_interval_s = 1\n",
        collector.endpoint
    ));
    let served = super::Served::start(&home, &[]);

    crate::cli::wait_for("two reports", || collector.requests() >= 2);

    drop(served);
}

/// A collector that never answers holds the end of the program as long as the configuration says:
/// by default five seconds for traces and three for metrics.
#[test]
fn a_silent_collector_is_waited_for_as_long_as_the_configuration_says() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!(
        "otlp_endpoint = \"http://{}\"",
        silent.local_addr().unwrap()
    );
    // A busy machine runs the program itself for seconds.
    let begun = Instant::now();
    run("");
    let most = begun.elapsed() * 2 + Duration::from_millis(2500);

    for settings in [
        "enable_metrics = false\ntrace_sampling = \"always\"\ntrace_export_timeout_ms = 100",
        "enable_tracing = false\nmetrics_export_timeout_ms = 100",
    ] {
        let begun = Instant::now();
        run(&format!("{endpoint}\n{settings}"));

        assert!(begun.elapsed() < most, "{settings}");
    }
}

#[test]
fn logs_have_the_configured_level_form_and_place() {
    let (none, _) = run("");
    let (text, _) = run("log_level = \"DEBUG\"\nlog_format = \"text\"");
    let (json, _) = run("log_level = \"DEBUG\"\nlog_format = \"json\"");
    let (off, _) = run("log_level = \"DEBUG\"\nenable_logging = false");
    let (_, filed) = run("log_level = \"DEBUG\"\nlog_output = [\"file\"]");

    let has_debug = |ran: &Ran| ran.err.contains("DEBUG");
    assert_eq!(
        [&none, &text, &json, &off].map(has_debug),
        [false, true, true, false]
    );
    let is_json = |ran: &Ran| ran.err.lines().any(|line| line.starts_with('{'));
    assert_eq!([&text, &json].map(is_json), [false, true]);
    let file = filed
        .path()
        .join("home/.local/share/callboard/callboard.log");
    assert!(std::fs::read_to_string(file).unwrap().contains("DEBUG"));
}
