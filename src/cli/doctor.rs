//! `callboard doctor`: checks the setup and prints one line per check, with advice. Changes
//! nothing, and uses the network only with `--online`.

mod database;
mod machine;
mod online;
mod store;

use std::path::{Path, PathBuf};

use callboard_actors::ports::SandboxPolicy;
use clap::Args;
use serde::Serialize;

use super::{
    failure::{Done, Failure},
    terminal::{Paint, counted, out_json, out_line},
    trust,
};
use crate::{
    config::{Config, ProviderKind, process_environment},
    sandbox::{self, Mode, PathRules, Root},
};

/// Check the setup: configuration, store, folders, sandbox, limits, clock, providers
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard doctor
  callboard --config callboard.toml doctor --online --json

Exit code 1 if a check fails; warnings do not count.")]
pub(super) struct DoctorArgs {
    /// Check that each provider answers and accepts its key; nothing is generated
    #[arg(long)]
    online: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Ok,
    Warn,
    Fail,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    name: String,
    state: State,
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    to_do: Option<String>,
}

impl Finding {
    fn ok(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: State::Ok,
            what: what.into(),
            to_do: None,
        }
    }

    fn warn(name: impl Into<String>, what: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: State::Warn,
            what: what.into(),
            to_do: Some(to_do.into()),
        }
    }

    fn fail(name: impl Into<String>, what: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: State::Fail,
            what: what.into(),
            to_do: Some(to_do.into()),
        }
    }

    fn line(&self, paint: Paint) -> String {
        let state = match self.state {
            State::Ok => paint.green("ok"),
            State::Warn => paint.bold("warn"),
            State::Fail => paint.red("fail"),
        };
        let to_do = self
            .to_do
            .as_ref()
            .map(|to_do| format!("; {to_do}"))
            .unwrap_or_default();
        format!("{state} {}: {}{to_do}", self.name, self.what)
    }
}

/// Checks the setup. With `online`, each provider is asked whether it accepts its key.
async fn findings(file: Option<&Path>, online: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    match Config::load(file, process_environment()) {
        Err(error) => findings.push(Finding::fail(
            "configuration",
            error.to_string(),
            "fix it, then run the command again",
        )),
        Ok(config) => {
            configuration(&config, &mut findings);
            findings.extend(project(&config));
            findings.extend(machine::folders(&config));
            findings.extend(machine::store_place(&config));
            findings.extend(store::findings(&config).await);
            findings.push(sandbox(&config));
            findings.extend(memory_of_commands(&config));
            findings.extend(keys_of_commands(&config));
            findings.push(machine::disk(&config));
            findings.push(machine::files(&config));
            let (mut asked, date) = if online {
                online::providers(&config).await
            } else {
                (offline(&config), None)
            };
            findings.append(&mut asked);
            findings.push(machine::clock(date));
        }
    }
    findings
}

/// The checks without the network, a line each.
pub(super) async fn lines(file: Option<&Path>) -> Vec<String> {
    let line = |finding: &Finding| finding.line(Paint::none());
    findings(file, false).await.iter().map(line).collect()
}

pub(super) async fn run(file: Option<PathBuf>, args: DoctorArgs) -> Result<Done, Failure> {
    let findings = findings(file.as_deref(), args.online).await;
    for finding in &findings {
        if args.json {
            out_json(&serde_json::to_string(finding).unwrap_or_default());
        } else {
            out_line(&finding.line(Paint::none()));
        }
    }
    Ok(
        if findings.iter().any(|finding| finding.state == State::Fail) {
            Done::Badly
        } else {
            Done::Well
        },
    )
}

fn configuration(config: &Config, findings: &mut Vec<Finding>) {
    match trust::mistakes(config).and_then(|()| config.check()) {
        Err(error) => findings.push(Finding::fail(
            "configuration",
            error.to_string(),
            "fix it, then run the command again",
        )),
        Ok(()) => {
            let files: Vec<String> = config
                .files()
                .iter()
                .map(|file| file.display().to_string())
                .collect();
            let read = if files.is_empty() {
                "only defaults and the environment".to_owned()
            } else {
                files.join(", ")
            };
            let tenants = counted(config.tenants.len(), "tenant");
            findings.push(Finding::ok(
                "configuration",
                format!("it is valid ({read}), {tenants}"),
            ));
        }
    }
    findings.extend(
        config.warnings().into_iter().map(|warning| {
            Finding::warn("configuration", warning, "change it if it is not intended")
        }),
    );
}

/// Whether each file of the current folder takes effect.
fn project(config: &Config) -> Vec<Finding> {
    let here = crate::app::instructions_of(".".as_ref(), config.trust());
    let mut findings = Vec::new();
    if let Err(error) = config.trust().entries() {
        findings.push(Finding::fail(
            "trust",
            error.to_string(),
            "remove it, then trust the files again with `callboard trust`",
        ));
    }
    for file in config.project_files().iter().chain(&here) {
        findings.push(match file.is_trusted() {
            true => Finding::ok("trust", file.line()),
            false => Finding {
                state: State::Warn,
                ..Finding::ok("trust", file.line())
            },
        });
    }
    findings
}

/// What gives commands the stronger boundary.
const STRONGER: &str = "install it (`apt install bubblewrap`), or allow user namespaces";

fn sandbox(config: &Config) -> Finding {
    let name = "sandbox";
    let mode = crate::app::sandbox_mode(config.sandbox);
    if mode == Mode::None {
        return Finding::ok(name, "commands are off (`[sandbox] mode`)");
    }
    let root = match Root::open(std::env::temp_dir(), PathRules::default()) {
        Ok(root) => std::sync::Arc::new(root),
        Err(error) => {
            return Finding::fail(
                name,
                format!("it cannot be tried: {}", error.kind()),
                "make the temporary folder writable",
            );
        }
    };
    match sandbox::detect(&root, mode) {
        Ok(found) => match (
            found.sandbox.as_ref().map(|sandbox| sandbox.policy()),
            found.note,
        ) {
            (
                Some(SandboxPolicy {
                    kind: "landlock-closed",
                    ..
                }),
                Some(note),
            ) => Finding::warn(name, note, STRONGER),
            (
                Some(SandboxPolicy {
                    kind: "landlock", ..
                }),
                _,
            ) => Finding::warn(
                name,
                "commands run behind Landlock, a weaker boundary than bubblewrap",
                STRONGER,
            ),
            (
                Some(SandboxPolicy {
                    kind,
                    boundary: true,
                    ..
                }),
                _,
            ) => match without_notices(&root) {
                Some(why) => Finding::warn(name, why, "remove what lies there"),
                None => Finding::ok(name, format!("commands run in the sandbox {kind}")),
            },
            (Some(SandboxPolicy { kind, .. }), _) => Finding::warn(
                name,
                format!("commands run without a sandbox ({kind})"),
                "install bubblewrap and choose `mode = \"linux\"`",
            ),
            (None, note) => Finding::warn(
                name,
                note.unwrap_or_else(|| "there is no sandbox".into()),
                "install bubblewrap, or do without `bash`",
            ),
        },
        Err(error) => Finding::fail(
            name,
            error.to_string(),
            "install bubblewrap, or change `[sandbox] mode`",
        ),
    }
}

/// Why commands of several processes do not know of each other.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn without_notices(root: &Root) -> Option<String> {
    sandbox::why_no_notices(root)
}

#[cfg(not(all(feature = "sandbox-linux", target_os = "linux")))]
fn without_notices(_root: &Root) -> Option<String> {
    None
}

/// How the memory of commands is limited.
fn memory_of_commands(config: &Config) -> Option<Finding> {
    if crate::app::sandbox_mode(config.sandbox) == Mode::None {
        return None;
    }
    let state = match sandbox::control_groups() {
        Ok(version) => format!(
            "the kernel limits it, with a control group for each command (cgroup v{version})"
        ),
        Err(why) => {
            format!(
                "it is only watched, because there are no control groups with which the kernel could limit it ({why}; docs/serve.md)"
            )
        }
    };
    Some(Finding::ok("memory of commands", state))
}

/// Whether commands are kept from the keyring of this session by more than the filter of system calls.
fn keys_of_commands(config: &Config) -> Option<Finding> {
    if crate::app::sandbox_mode(config.sandbox) == Mode::None {
        return None;
    }
    let state = match sandbox::session_keyrings() {
        Ok(()) => "each command has a new, empty session keyring".to_owned(),
        Err(why) => {
            format!(
                "commands have the session keyring of this host ({why}); behind a boundary the filter of system calls closes it"
            )
        }
    };
    Some(Finding::ok("keys of commands", state))
}

/// Whether each provider has its key; sends no request.
fn offline(config: &Config) -> Vec<Finding> {
    let chosen = config
        .choose(None)
        .ok()
        .filter(|_| config.providers.is_empty());
    let each = config.providers.iter().chain(chosen).map(|provider| {
        let name = format!("provider {}", provider.name);
        match provider.key() {
            Err(error) => Finding::fail(name, error.to_string(), "set it, or remove the provider"),
            Ok(_) if provider.kind == ProviderKind::Offline => {
                Finding::ok(name, "it is built into this program")
            }
            Ok(Some(_)) => Finding::ok(
                name,
                "its key is set; --online checks whether it is accepted",
            ),
            Ok(None) => Finding::ok(name, "it needs no key; --online checks whether it answers"),
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_with_a_remedy() {
        let finding = Finding::warn("store", "sessions are kept in memory", "name a file");

        assert_eq!(
            finding.line(Paint::none()),
            "warn store: sessions are kept in memory; name a file"
        );
        assert_eq!(
            Finding::ok("clock", "it is 2026").line(Paint::none()),
            "ok clock: it is 2026"
        );
    }
}
