//! `callboard config init`: writes a first `callboard.toml` with comments, for commands on a folder
//! or for a server.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use clap::Args;

use crate::{
    cli::{
        failure::Failure,
        terminal::{out, sanitize},
    },
    http::{KeyHash, new_key},
    private,
};

/// The beginning of every file.
const START: &str = "\
# Configuration of Callboard. Keys that are not here have their defaults: `callboard config show`
# prints every key with its value and its origin, and `callboard config check` finds mistakes.

";

/// Providers for which a key is in the environment, in the order of preference.
const HOSTED: &[(&str, &str)] = &[
    ("anthropic", "ANTHROPIC_API_KEY"),
    ("openai", "OPENAI_API_KEY"),
    ("gemini", "GEMINI_API_KEY"),
];

/// What stands in the file where no provider key is in the environment.
const NO_PROVIDER: &str = "\
# The model. Without a provider the rule-based `offline` model answers, which needs no key.
# [[provider]]
# name = \"main\"
# kind = \"anthropic\"                   # or \"openai\": every server with the Chat Completions API; \"openai-responses\", \"gemini\"
# api_key_env = \"ANTHROPIC_API_KEY\"    # the variable that holds the key
# base_url = \"http://127.0.0.1:11434/v1\"  # only for a server of your own
# model = \"MODEL\"

";

/// Settings of both uses.
const COMMON: &str = "\
[tools]
approve = \"ask\"                        # `ask`, `deny` or `auto`, for tools that change things

[sandbox]
mode = \"auto\"                          # commands run behind a boundary of the kernel, or not at all
# network = [\"crates.io\", \"*.crates.io\"]  # hosts that commands may reach; none by default
";

/// Write a first callboard.toml with comments
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard config init --file ~/.config/callboard/callboard.toml
  callboard config init --serve && callboard --config callboard.toml serve

Existing files are not changed. With --serve the file has a tenant, and its key is printed once.")]
pub(in crate::cli) struct InitArgs {
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "callboard.toml")]
    file: PathBuf,
    /// For `callboard serve`: adds an address and a tenant with a new key
    #[arg(long)]
    serve: bool,
}

pub(super) fn run(args: &InitArgs) -> Result<(), Failure> {
    let provider = HOSTED
        .iter()
        .find(|(_, variable)| std::env::var_os(variable).is_some_and(|key| !key.is_empty()));
    let key = args.serve.then(new_key);
    let text = text(provider.copied(), key.as_deref());
    let shown = sanitize(&args.file.display().to_string());
    write(&args.file, &text).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::usage(format!("{shown} exists already"))
            .hint("choose another one with --file, or change it by hand"),
        _ => Failure::work(format!(
            "{shown} cannot be written: {}",
            crate::os_error::words(&error)
        )),
    })?;
    out(&report(&shown, key.as_deref()));
    Ok(())
}

/// Creates the file with mode 0600, and its folder. Fails if the file exists.
fn write(file: &std::path::Path, text: &str) -> io::Result<()> {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => private::make_folder(folder)?,
        _ => {}
    }
    let mut file = private::file().create_new(true).open(file)?;
    file.write_all(text.as_bytes())
}

fn text(provider: Option<(&str, &str)>, key: Option<&str>) -> String {
    let provider = match provider {
        Some((kind, variable)) => format!(
            "[[provider]]                            # the first one is the default\n\
             name = \"main\"\n\
             kind = \"{kind}\"\n\
             api_key_env = \"{variable}\"\n\
             # model = \"MODEL\"                       # the provider's default model otherwise\n\n"
        ),
        None => NO_PROVIDER.to_owned(),
    };
    let server = key.map_or_else(String::new, |key| {
        format!(
            "\n[host]\n\
             listen = \"127.0.0.1:8787\"\n\n\
             [[tenant]]\n\
             id = \"default\"\n\
             key_sha256 = \"{}\"\n\
             # workspace = \"/srv/callboard/default\" # a folder that the tenant's models may work in\n\
             # quotas = {{ requests_per_minute = 600 }}\n",
            KeyHash::from_key(key)
        )
    });
    format!("{START}{provider}{COMMON}{server}")
}

/// What to do next.
fn report(file: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => format!(
            "{file} is written. The key of its tenant `default`, shown only once:\n\n{key}\n\n\
             Next:\n  callboard --config {file} config check\n  callboard --config {file} serve\n"
        ),
        None => format!(
            "{file} is written.\n\n\
             Next:\n  callboard --config {file} config check\n  callboard --config {file} run \"PROMPT\"\n\n\
             Without --config, a file in the current folder takes effect after `callboard trust {file}`.\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_is_written_is_a_configuration_without_a_mistake() {
        let folder = tempfile::tempdir().unwrap();
        for (number, (provider, key)) in [
            (None, None),
            (Some(("anthropic", "ANTHROPIC_API_KEY")), None),
            (Some(("openai", "OPENAI_API_KEY")), Some("cb_fake-key")),
        ]
        .into_iter()
        .enumerate()
        {
            let file = folder.path().join(format!("{number}.toml"));
            write(&file, &text(provider, key)).unwrap();
            let environment = [
                ("HOME".to_owned(), "/nowhere/home".to_owned()),
                ("ANTHROPIC_API_KEY".to_owned(), "fake-key".to_owned()),
                ("OPENAI_API_KEY".to_owned(), "fake-key".to_owned()),
            ];

            let config = Config::load(Some(&file), environment.into_iter()).unwrap();

            config.check().unwrap();
            assert_eq!(config.tenants.len(), usize::from(key.is_some()));
            assert_eq!(config.providers.len(), usize::from(provider.is_some()));
        }
    }
}
