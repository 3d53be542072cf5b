//! Describes what a configuration file would do if it were trusted, line by line, for the person
//! who decides. Pure.
//!
//! Every key that is set appears: keys with security consequences in a line each, all others by
//! name in the last line.

use super::{
    Layer, Setting, Store,
    keys::{FALLBACK_SECTION, PROVIDER_SECTION, TENANT_SECTION},
    tokens,
    toml_text::in_quotes,
    value::Value,
    web, webhook,
};

/// Returns the lines. Values appear exactly as in the file: the caller makes invisible characters
/// visible.
pub(super) fn allows(layer: &Layer) -> Vec<String> {
    let mut lines = Vec::new();
    #[cfg(feature = "mcp")]
    lines.extend(layer.mcp.iter().flat_map(of_server));
    lines.extend(
        layer
            .providers
            .iter()
            .map(|provider| of_provider(&provider.settings)),
    );
    let mut quiet = Vec::new();
    for setting in &layer.settings {
        match of_setting(setting) {
            Some(line) => lines.push(line),
            None => quiet.push(setting.key.path()),
        }
    }
    lines.extend(
        layer
            .tenants
            .iter()
            .map(|tenant| of_tenant(&tenant.settings)),
    );
    if let Some(observability) = &layer.observability {
        match &observability.settings.otlp_endpoint {
            Some(url) => lines.push(format!("sends traces and metrics to {url}")),
            None => lines.push("configures logging".into()),
        }
    }
    if !layer.prices.is_empty() {
        lines.push("sets prices of models, from which budgets are calculated".into());
    }
    if layer.compaction.is_some() {
        quiet.push("compaction".into());
    }
    if !layer.encoders.is_empty() {
        quiet.push("tokens.encoders".into());
    }
    if !quiet.is_empty() {
        lines.push(format!("sets {}", quiet.join(", ")));
    }
    lines
}

fn of_setting(setting: &Setting) -> Option<String> {
    let value = shown(&setting.value);
    Some(
        match (setting.key.section, setting.key.name, value.as_str()) {
            ("host", "data_dir", folder) => format!("stores all data in {folder}"),
            ("skills", "models", models) => format!("lets skills choose the models {models}"),
            ("host", "listen", address) => format!("makes `serve` listen at {address}"),
            ("host", "peer_address", url) => {
                format!("lets other hosts answer for this one, at {url}")
            }
            ("host", "admin_key_sha256", _) => {
                "gives the holder of a key access to the operator's routes".into()
            }
            ("store", "url", store) => format!("keeps sessions in {store}"),
            ("tools", "approve", "auto") => "lets tools change things without approval".into(),
            ("tools", "approve", word) => format!("sets the approval of changes to `{word}`"),
            ("tools", "permission", "admin") => "lets every tool run without approval".into(),
            (web::FETCH, "allow_hosts", hosts) => {
                format!("lets web_fetch reach {hosts}, private addresses included")
            }
            (web::FETCH, "approve", "never") => "lets web_fetch run without approval".into(),
            (web::SEARCH, "base_url", url) => format!("sends searches to {url}"),
            (web::SEARCH, "api_key_env", name) => format!("sends searches with the key of {name}"),
            ("sandbox", "mode", "local") => "runs commands WITHOUT a sandbox".into(),
            ("sandbox", "mode", word) => format!("sets the sandbox to `{word}`"),
            ("sandbox", "read_only", folders) => format!("lets commands read {folders}"),
            ("sandbox", "network", hosts) => format!("lets commands reach {hosts}"),
            ("skills", "dir", folder) => {
                format!("uses the skills in {folder}, which need a separate agreement")
            }
            (webhook::SECTION, "url", url) => format!("reports the ends of rounds to {url}"),
            (webhook::SECTION, "secret_env", name) => {
                format!("signs webhooks with the secret of {name}")
            }
            (webhook::SECTION, "secret_file", path) => {
                format!("signs webhooks with the secret in {path}")
            }
            (webhook::SECTION, "allow_hosts", hosts) => {
                format!("lets webhooks reach {hosts}, private addresses included")
            }
            ("host", "cors_origins", origins) => {
                format!("lets web pages of {origins} call the API")
            }
            (tokens::SECTION, "file", path) => format!("reads token encoders from {path}"),
            _ => return None,
        },
    )
}

fn of_provider(settings: &[Setting]) -> String {
    let text = |name: &str| {
        let found = settings
            .iter()
            .find(|setting| setting.key.section == PROVIDER_SECTION && setting.key.name == name);
        found.map(|setting| shown(&setting.value))
    };
    let called = text("name").or_else(|| text("kind")).unwrap_or_default();
    let kind = text("kind").unwrap_or_else(|| called.clone());
    let to = match text("base_url") {
        Some(url) => url,
        None if kind == "offline" => {
            return format!(
                "adds the provider {}, which sends nothing",
                in_quotes(&called)
            );
        }
        None => format!("the default address of {kind}"),
    };
    let key = match (text("api_key_env"), text("api_key_file"), text("base_url")) {
        (Some(name), ..) => format!(" with the key of {name}"),
        (None, Some(path), _) => format!(" with the key in {path}"),
        (None, None, None) => " with its default key".to_owned(),
        (None, None, Some(_)) => String::new(),
    };
    let model = text("model")
        .map(|model| format!(", to the model {model}"))
        .unwrap_or_default();
    let fallback = settings
        .iter()
        .find(|setting| setting.key.section == FALLBACK_SECTION && setting.key.name == "provider");
    let fallback = fallback
        .map(|setting| {
            format!(
                ", and to {} while it does not answer",
                shown(&setting.value)
            )
        })
        .unwrap_or_default();
    format!("sends prompts to {to}{key}{model}{fallback}")
}

fn of_tenant(settings: &[Setting]) -> String {
    let text = |name: &str| {
        let found = settings
            .iter()
            .find(|setting| setting.key.section == TENANT_SECTION && setting.key.name == name);
        found.map(|setting| shown(&setting.value))
    };
    let mut line = format!("serves the tenant {}", text("id").unwrap_or_default());
    if let Some(folder) = text("workspace") {
        line += &format!(" over {folder}");
    }
    if text("approve").as_deref() == Some("auto") {
        line += ", whose tools change things without approval";
    }
    line
}

#[cfg(feature = "mcp")]
fn of_server(server: &crate::mcp::McpServerConfig) -> Vec<String> {
    use crate::mcp::{McpTransport, Trust};
    let mut lines = Vec::new();
    match &server.transport {
        McpTransport::Stdio {
            command,
            args,
            env,
            env_from,
            cwd,
        } => {
            let words = std::iter::once(command)
                .chain(args)
                .map(|word| plain_or_quoted(word))
                .collect::<Vec<_>>()
                .join(" ");
            let folder = cwd
                .as_ref()
                .map(|folder| format!(", in {}", folder.display()))
                .unwrap_or_default();
            lines.push(format!(
                "starts a program with your rights and no sandbox: {words}{folder}"
            ));
            let fixed = env
                .iter()
                .map(|(name, value)| format!("{name}={}", plain_or_quoted(value.text())));
            let given: Vec<String> = fixed.chain(env_from.iter().cloned()).collect();
            if !given.is_empty() {
                lines.push(format!(
                    "gives that program the variables {}",
                    given.join(" ")
                ));
            }
        }
        McpTransport::Http {
            url,
            headers,
            allow_private,
        } => {
            let private = if *allow_private {
                ", also in a private network"
            } else {
                ""
            };
            lines.push(format!("reaches the MCP server at {url}{private}"));
            if !headers.is_empty() {
                let headers: Vec<String> = headers
                    .iter()
                    .map(|(name, value)| format!("{name}: {}", value.text()))
                    .collect();
                lines.push(format!(
                    "sends that server the headers {}",
                    headers.join(", ")
                ));
            }
        }
    }
    if server.trust == Trust::Annotations {
        lines.push(format!(
            "runs tools of {} without approval if the server declares them harmless",
            server.name
        ));
    }
    lines
}

/// Returns a word of a command line, in quotes if a reader could not see where it ends.
#[cfg(feature = "mcp")]
fn plain_or_quoted(word: &str) -> String {
    let plain = !word.is_empty()
        && word
            .chars()
            .all(|c| c.is_ascii_graphic() && c != '"' && c != '\\');
    if plain {
        word.to_owned()
    } else {
        format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// The JSON of a number or a word, without quotation marks.
fn plain_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value)
        .unwrap_or_default()
        .trim_matches('"')
        .to_owned()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Path(path) | Value::Store(Store::Sqlite(path)) => path.display().to_string(),
        Value::Store(Store::Postgres(address)) => address.shown(),
        Value::Store(Store::Memory) => "memory".into(),
        Value::Names(names) if names.is_empty() => "nothing".into(),
        Value::Names(names) => names.join(", "),
        Value::Patterns(hosts) => hosts
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
        Value::Paths(folders) => folders
            .iter()
            .map(|folder| folder.display().to_string())
            .collect::<Vec<_>>()
            .join(", "),
        Value::Address(address) => address.to_string(),
        Value::Count(count) => count.to_string(),
        Value::Seconds(time) => time.as_secs_f64().to_string(),
        Value::MicroUsd(micro) => micro.to_string(),
        Value::Flag(yes) => yes.to_string(),
        Value::Thinking(thinking) => plain_json(thinking),
        Value::Temperature(temperature) => plain_json(temperature),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::file::parse, *};

    fn lines(text: &str) -> Vec<String> {
        allows(&parse("callboard.toml".as_ref(), text, None).unwrap())
    }

    #[test]
    fn what_needs_thought_is_named_with_its_values() {
        let text = "[[mcp]]\nname = \"fmt\"\ncommand = \"sh\"\nargs = [\"-c\", \"id > PWNED\"]\nenv = { A = \"${SECRET}\" }\n\
             [[mcp]]\nname = \"far\"\nurl = \"http://127.0.0.1:9/\"\nallow_private = true\nheaders = { X = \"${ANY}\" }\ntrust = \"annotations\"\n\
             [[provider]]\nkind = \"anthropic\"\nbase_url = \"http://127.0.0.1:9911\"\napi_key_env = \"ANTHROPIC_API_KEY\"\n\
             [tools]\napprove = \"auto\"\n[sandbox]\nmode = \"local\"\n[limits]\nidle_s = 3\n\
             [observability]\notlp_endpoint = \"http://127.0.0.1:4318\"\n[host]\ndata_dir = \"data\"\n";

        assert_eq!(
            lines(text),
            [
                "starts a program with your rights and no sandbox: sh -c \"id > PWNED\"",
                "gives that program the variables A=${SECRET}",
                "reaches the MCP server at http://127.0.0.1:9/, also in a private network",
                "sends that server the headers X: ${ANY}",
                "runs tools of far without approval if the server declares them harmless",
                "sends prompts to http://127.0.0.1:9911 with the key of ANTHROPIC_API_KEY",
                "lets tools change things without approval",
                "runs commands WITHOUT a sandbox",
                "stores all data in data",
                "sends traces and metrics to http://127.0.0.1:4318",
                "sets limits.idle_s",
            ]
        );
    }

    #[test]
    fn no_key_is_passed_over_in_silence() {
        assert_eq!(lines(""), Vec::<String>::new());
        assert_eq!(
            lines("[tools]\nenabled = [\"think\"]\n"),
            ["sets tools.enabled"]
        );
        assert_eq!(
            lines("[compaction]\nkeep_rounds = 3\n"),
            ["sets compaction"]
        );
        assert_eq!(
            lines("[[tenant]]\nid = \"acme\"\napprove = \"auto\"\n"),
            ["serves the tenant acme, whose tools change things without approval"]
        );
    }
}
