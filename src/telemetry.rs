//! Logs, traces and metrics of the `callboard` command. Logs go to standard error and, if
//! configured, to a file: text at a terminal, JSON otherwise. One writer masks keys in all of them,
//! in panic messages too. Only the binary installs a subscriber and a panic hook; the library never
//! does.

mod sink;

use std::io::{self, IsTerminal as _};

use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt::time::SystemTime, layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::{
    config::Observability,
    observe::{
        Redactor,
        otlp::{Otlp, OtlpError},
    },
};
use sink::Sink;

/// Always part of the filter: ractor logs the start and end of each actor at `info`, and h2 each
/// connection that it ends for a flood at `warn`, and rmcp each answer that is an error, which would
/// let anyone fill the log.
const ALWAYS: &str = "ractor=warn,h2=error,rmcp=error";

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The text is neither a level nor a list of filters.
    #[error(
        "`{given}` is not a log level; use error, warn, info, debug, trace or off, or filters such as `callboard=debug` (--log, CALLBOARD_LOG)"
    )]
    BadLevel {
        /// The rejected text, without control characters, at most 60 characters.
        given: String,
    },
    /// The process already has a global subscriber.
    #[error("logging is already set up")]
    AlreadySet,
    /// The log file cannot be opened.
    #[error("the log file {file} cannot be opened: {reason}")]
    NoFile {
        /// Path of the log file.
        file: String,
        /// The error of the operating system.
        reason: String,
    },
    /// The OTLP exporter cannot be built.
    #[error(transparent)]
    Otlp(#[from] OtlpError),
}

/// The telemetry of this process. Keep it until the end, then call [`Telemetry::shutdown`].
#[derive(Debug)]
#[must_use = "dropping it ends the export"]
pub struct Telemetry {
    otlp: Option<Otlp>,
    redactor: Redactor,
}

impl Telemetry {
    /// Also exports the metrics of `host` from now on. Holds no strong reference: the host can shut
    /// down.
    pub fn observe(&self, host: &callboard_actors::Host) {
        if let Some(otlp) = &self.otlp {
            otlp.observe(host.figures_reader());
        }
    }

    /// The redactor of all sinks. Code that creates or reads a key later registers it here.
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// Exports what is still buffered, within the configured timeouts, and stops.
    pub async fn shutdown(self) {
        if let Some(otlp) = self.otlp {
            otlp.shutdown().await;
        }
    }
}

/// Starts logs, traces and metrics as `[observability]` configures them. `flag` is the value of
/// `--log`; it wins over `CALLBOARD_LOG`, which wins over `log_level`. `redactor` masks everything
/// that is written. A part that is switched off costs nothing, but a level from the flag or the
/// environment turns logs on even if `enable_logging` is false. With an `otlp_endpoint`, call this
/// inside a tokio runtime.
///
/// # Errors
/// [`TelemetryError`]; [`TelemetryError::AlreadySet`] on a second call.
pub fn init(
    flag: Option<&str>,
    config: &Observability,
    redactor: &Redactor,
) -> Result<Telemetry, TelemetryError> {
    let from_environment = std::env::var("CALLBOARD_LOG").ok();
    let filter = filter(flag, from_environment.as_deref(), config)?;
    redactor.learn(config.secrets());
    let at_terminal = io::stderr().is_terminal();
    let json = if config.is_given("log_format") {
        config.settings.log_format == "json"
    } else {
        !at_terminal
    };
    let sink = Sink::open(redactor.clone(), config)?;
    panics_are_masked(sink.clone(), json);

    let logs = filter.map(|filter| {
        let layer = tracing_subscriber::fmt::layer().with_writer(sink);
        let layer: Box<dyn Layer<Registry> + Send + Sync> = if json {
            Box::new(
                layer
                    .with_timer(SystemTime)
                    .with_ansi(false)
                    .json()
                    .flatten_event(true),
            )
        } else {
            let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            Box::new(
                layer
                    .without_time()
                    .with_target(false)
                    .with_ansi(at_terminal && !no_color)
                    .compact(),
            )
        };
        layer.with_filter(filter)
    });
    let otlp = Otlp::start(&config.settings, redactor)?;
    let spans = otlp.as_ref().and_then(Otlp::span_layer);
    let figures = otlp.as_ref().and_then(Otlp::figures_layer);
    let set = tracing_subscriber::registry()
        .with(logs)
        .with(spans)
        .with(figures)
        .try_init();
    set.map_err(|_| TelemetryError::AlreadySet)?;
    Ok(Telemetry {
        otlp,
        redactor: redactor.clone(),
    })
}

/// Masks panic messages: they can contain any value that the panicking code held.
fn panics_are_masked(sink: Sink, json: bool) {
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or("no message");
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let thread = std::thread::current()
            .name()
            .unwrap_or("unnamed")
            .to_owned();
        let line = if json {
            serde_json::json!({ "level": "ERROR", "target": "panic", "thread": thread, "place": place, "message": message }).to_string()
        } else {
            format!("thread '{thread}' panicked at {place}: {message}")
        };
        sink.line(&line);
    }));
}

/// Resolves the log filter from flag, environment and configuration, in this order; `None` if logs
/// are switched off. A single word is a level for all targets.
fn filter(
    flag: Option<&str>,
    environment: Option<&str>,
    config: &Observability,
) -> Result<Option<EnvFilter>, TelemetryError> {
    let asked = [flag, environment]
        .into_iter()
        .flatten()
        .map(str::trim)
        .find(|text| !text.is_empty());
    let given = match asked {
        Some(asked) => asked,
        None if !config.settings.enable_logging => return Ok(None),
        None => level(&config.settings.log_level),
    };
    let bad = || TelemetryError::BadLevel {
        given: given.chars().filter(|c| !c.is_control()).take(60).collect(),
    };
    // `EnvFilter` takes a bare word that is not a level for the name of a crate, and would log
    // nothing.
    let is_word = !given.contains(['=', ',']);
    if is_word
        && given
            .parse::<tracing_subscriber::filter::LevelFilter>()
            .is_err()
    {
        return Err(bad());
    }
    // Our filter comes first, so that an explicit `ractor=debug` of the user overrides it.
    EnvFilter::builder()
        .parse(format!("{ALWAYS},{given}"))
        .map(Some)
        .map_err(|_| bad())
}

/// Maps a `log_level` of the configuration to a level of `tracing`.
fn level(name: &str) -> &'static str {
    match name.to_ascii_uppercase().as_str() {
        "DEBUG" => "debug",
        "INFO" => "info",
        "ERROR" | "CRITICAL" => "error",
        _ => "warn",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(change: impl FnOnce(&mut Observability)) -> Observability {
        let mut config = Observability::default();
        change(&mut config);
        config
    }

    fn shown_of(flag: Option<&str>, environment: Option<&str>, config: &Observability) -> String {
        let mut parts: Vec<String> = match filter(flag, environment, config) {
            Ok(Some(filter)) => filter.to_string().split(',').map(str::to_owned).collect(),
            Ok(None) => vec!["nothing".into()],
            Err(error) => vec![error.to_string()],
        };
        parts.sort();
        parts.join(",")
    }

    fn shown(flag: Option<&str>, environment: Option<&str>) -> String {
        shown_of(flag, environment, &Observability::default())
    }

    #[test]
    fn the_flag_wins_over_the_environment_and_ractor_stays_quiet() {
        assert_eq!(shown(None, None), "h2=error,ractor=warn,rmcp=error,warn");
        assert_eq!(
            shown(None, Some("debug")),
            "debug,h2=error,ractor=warn,rmcp=error"
        );
        assert_eq!(
            shown(Some("info"), Some("debug")),
            "h2=error,info,ractor=warn,rmcp=error"
        );
        assert_eq!(
            shown(Some("warn,callboard=trace"), None),
            "callboard=trace,h2=error,ractor=warn,rmcp=error,warn"
        );
        assert_eq!(
            shown(Some("ractor=debug"), None),
            "h2=error,ractor=debug,rmcp=error"
        );
    }

    #[test]
    fn the_configured_level_holds_until_a_flag_or_variable_changes_it() {
        let critical = configured(|config| config.settings.log_level = "critical".into());
        let off = configured(|config| config.settings.enable_logging = false);

        assert_eq!(
            shown_of(None, None, &critical),
            "error,h2=error,ractor=warn,rmcp=error"
        );
        assert_eq!(
            shown_of(Some("info"), None, &critical),
            "h2=error,info,ractor=warn,rmcp=error"
        );
        assert_eq!(
            (
                shown_of(None, None, &off),
                shown_of(None, Some("info"), &off)
            ),
            (
                "nothing".into(),
                "h2=error,info,ractor=warn,rmcp=error".into()
            )
        );
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        let expected = "`loud` is not a log level; use error, warn, info, debug, trace or off, or filters such as `callboard=debug` (--log, CALLBOARD_LOG)";

        assert_eq!(shown(Some("loud"), None), expected);
    }

    const KEY: &str = "plain-word-key-not-real";

    /// Installs the panic hook and panics if its parent process asks for it. The hook is
    /// process-wide, so the test runs itself in a child process.
    #[test]
    fn a_panic_is_written_without_keys() {
        if let Ok(format) = std::env::var("CALLBOARD_TEST_PANIC") {
            let sink = Sink::open(Redactor::new([KEY]), &Observability::default()).unwrap();
            panics_are_masked(sink, format == "json");
            std::thread::spawn(|| panic!("lost {}", KEY))
                .join()
                .unwrap_err();
            return;
        }
        for format in ["text", "json"] {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let child = child.args([
                "--exact",
                "telemetry::tests::a_panic_is_written_without_keys",
                "--nocapture",
            ]);
            let output = child.env("CALLBOARD_TEST_PANIC", format).output().unwrap();

            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                output.status.success() && text.contains("lost [masked:1]") && !text.contains(KEY),
                "{format}: {text}"
            );
            let line = text.lines().find(|line| line.contains("lost")).unwrap();
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(line).is_ok(),
                format == "json",
                "{line}"
            );
        }
    }

    #[test]
    fn a_log_line_holds_no_character_that_a_terminal_obeys_or_hides() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("callboard.log");
        let config = configured(|config| {
            config.settings.log_output = vec!["file".into()];
            config.log_file = Some(path.clone());
        });

        Sink::open(Redactor::default(), &config)
            .unwrap()
            .line("{\"said\":\"\u{202e}a\u{9b}2J\u{200b}\u{e0041} ü\"}");

        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "{\"said\":\"\\u202ea\\u009b2J\\u200b\\udb40\\udc41 ü\"}\n"
        );
    }

    #[test]
    fn a_log_file_is_appended_to_and_holds_no_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/callboard.log");
        let config = configured(|config| {
            config.settings.log_output = vec!["file".into()];
            config.log_file = Some(path.clone());
        });

        for n in 1..=2 {
            Sink::open(Redactor::new([KEY]), &config)
                .unwrap()
                .line(&format!("{n} {KEY}"));
        }

        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "1 [masked:1]\n2 [masked:1]\n"
        );
    }
}
