//! Logs of the binary: to standard error, text at a terminal, JSON otherwise. The library installs no subscriber (DESIGN §9).

use std::io::{self, IsTerminal as _};

use callboard_actors::policy::ObservabilityConfig;
use tracing_subscriber::{EnvFilter, fmt::time::SystemTime};

use crate::observe::Redactor;

/// What is logged when nobody says otherwise: trouble only, standard error belongs to the progress of the work.
const DEFAULT_LEVEL: &str = "warn";

/// Always added: ractor logs each actor's start and end.
const ALWAYS: &str = "ractor=warn";

/// Why logging was not set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// Neither a level nor a list of filters.
    #[error(
        "`{given}` is no log level; use error, warn, info, debug, trace or off, or filters such as `callboard=debug` (--log, CALLBOARD_LOG)"
    )]
    BadLevel {
        /// As it was written.
        given: String,
    },
    /// The process has a subscriber already.
    #[error("logging is set up already")]
    AlreadySet,
}

/// What this process tells of itself: keep it to the end, then [`Telemetry::shutdown`].
#[derive(Debug)]
#[must_use = "dropping it ends the export"]
pub struct Telemetry {}

impl Telemetry {
    /// Exports the figures of a host too, from now on.
    pub fn observe(&self, _host: &callboard_actors::Host) {}

    /// Sends what is not sent yet, within the time-outs of the configuration, and ends.
    pub async fn shutdown(self) {}
}

/// Logs, traces and metrics of this process from now on, as `[observability]` says; `flag` is `--log` and wins over `CALLBOARD_LOG`,
/// which wins over `log_level`. Whatever goes out is masked by `redactor`.
///
/// # Errors
/// [`TelemetryError::BadLevel`], or [`TelemetryError::AlreadySet`] on a second call.
pub fn init(flag: Option<&str>, _config: &ObservabilityConfig, _redactor: &Redactor) -> Result<Telemetry, TelemetryError> {
    let level = flag;
    let from_environment = std::env::var("CALLBOARD_LOG").ok();
    let filter = filter(level, from_environment.as_deref())?;
    let at_terminal = io::stderr().is_terminal();
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());

    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let set = if at_terminal {
        subscriber.without_time().with_target(false).with_ansi(!no_color).compact().try_init()
    } else {
        subscriber.with_timer(SystemTime).with_ansi(false).json().flatten_event(true).try_init()
    };
    set.map_err(|_| TelemetryError::AlreadySet).map(|()| Telemetry {})
}

/// The filter for what a flag and the environment say. A word alone is a level of everything.
fn filter(flag: Option<&str>, environment: Option<&str>) -> Result<EnvFilter, TelemetryError> {
    let given = [flag, environment].into_iter().flatten().map(str::trim).find(|text| !text.is_empty()).unwrap_or(DEFAULT_LEVEL);
    let bad = || TelemetryError::BadLevel { given: given.chars().filter(|c| !c.is_control()).take(60).collect() };
    // A bare word that is no level would be taken for the name of a crate, and log nothing.
    let is_word = !given.contains(['=', ',']);
    if is_word && given.parse::<tracing_subscriber::filter::LevelFilter>().is_err() {
        return Err(bad());
    }
    // Ours first: an explicit `ractor=debug` of the user is more recent and wins.
    EnvFilter::builder().parse(format!("{ALWAYS},{given}")).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(flag: Option<&str>, environment: Option<&str>) -> String {
        let mut parts: Vec<String> = match filter(flag, environment) {
            Ok(filter) => filter.to_string().split(',').map(str::to_owned).collect(),
            Err(error) => vec![error.to_string()],
        };
        parts.sort();
        parts.join(",")
    }

    #[test]
    fn the_flag_wins_over_the_environment_and_ractor_stays_quiet() {
        assert_eq!(shown(None, None), "ractor=warn,warn");
        assert_eq!(shown(None, Some("debug")), "debug,ractor=warn");
        assert_eq!(shown(Some("info"), Some("debug")), "info,ractor=warn");
        assert_eq!(shown(Some("warn,callboard=trace"), None), "callboard=trace,ractor=warn,warn");
        assert_eq!(shown(Some("ractor=debug"), None), "ractor=debug");
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        let expected = "`loud` is no log level; use error, warn, info, debug, trace or off, or filters such as `callboard=debug` (--log, CALLBOARD_LOG)";

        assert_eq!(shown(Some("loud"), None), expected);
    }
}
