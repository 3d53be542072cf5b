//! `[[provider]]`: the providers and where their keys are.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use callboard_actors::{chat::ModelParameters, model_gateway::ModelRetryPolicy};

use super::{
    ProviderLayer, Secret, Setting, Settings, by_name,
    error::{ConfigError, Origin, quoted},
    keys::{self, FALLBACK_SECTION, PROVIDER_KINDS, PROVIDER_SECTION},
    parameters::parameters,
    value::{Value, listed},
};

/// The API that a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    /// The Anthropic Messages API.
    Anthropic,
    /// The OpenAI Chat Completions API, of any vendor or local server.
    OpenAi,
    /// The OpenAI Responses API, of any vendor or local server.
    OpenAiResponses,
    /// Google's Gemini API.
    Gemini,
    /// No API: the model runs in this process and needs no network.
    Offline,
}

impl ProviderKind {
    /// All kinds, in the order in which a key in the environment selects one.
    pub const ALL: [Self; 5] = [
        Self::Anthropic,
        Self::OpenAi,
        Self::OpenAiResponses,
        Self::Gemini,
        Self::Offline,
    ];

    /// Parses the word of the configuration.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// The word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::OpenAiResponses => "openai-responses",
            Self::Gemini => "gemini",
            Self::Offline => "offline",
        }
    }

    /// The environment variable in which the official SDK looks for the key; `None` for `Offline`.
    pub fn key_variable(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("ANTHROPIC_API_KEY"),
            Self::OpenAi | Self::OpenAiResponses => Some("OPENAI_API_KEY"),
            Self::Gemini => Some("GEMINI_API_KEY"),
            Self::Offline => None,
        }
    }
}

/// A configured provider.
#[derive(Debug, Clone)]
pub struct ProviderConfig {
    /// Name for `--provider`, `[[tenant]] provider` and fallbacks.
    pub name: String,
    /// The API that it speaks.
    pub kind: ProviderKind,
    /// Base URL without a trailing slash; `None` means the vendor's.
    pub base_url: Option<String>,
    /// The model to use; `None` means the default model of the kind.
    pub model: Option<String>,
    /// Model calls at once; `None` means `limits.model_calls_max`.
    pub concurrency: Option<usize>,
    /// Requests per minute; `None` means what the provider's headers say.
    pub rpm: Option<u32>,
    /// Tokens per minute, in and out; `None` means what the provider's headers say.
    pub tpm: Option<u64>,
    /// The provider to use while this one does not answer.
    pub fallback: Option<FallbackConfig>,
    /// Attachments that the models accept, `images` and `documents`; `None` derives them from the
    /// model's name.
    pub shows: Option<Vec<String>>,
    /// Most bytes of a request; `None` means the usual bound of the kind.
    pub request_bytes_max: Option<u64>,
    /// Tokens that its models read and write at most; `None` derives them from the model's name.
    pub context_window: Option<u32>,
    /// How failed calls are made again.
    pub retry: ModelRetryPolicy,
    /// How its models are asked to answer.
    pub parameters: ModelParameters,
    /// How its server is reached.
    pub connection: ConnectionConfig,
    key: Key,
    pub(super) settings: Settings,
}

/// How the server of a provider is reached. `None` means the default of
/// [`providers::Network`](crate::providers::Network).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionConfig {
    /// File of certificate authorities to trust besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// Files of the client's certificate and of its private key.
    pub client_files: Option<(PathBuf, PathBuf)>,
    /// Longest time to open a connection.
    pub connect: Option<Duration>,
    /// Connections at once.
    pub connections_max: Option<usize>,
    /// Whether HTTP/2 is offered over TLS.
    pub http2: Option<bool>,
}

/// A replacement for a provider that does not answer (`[provider.fallback]`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FallbackConfig {
    /// Name of the other provider.
    pub provider: String,
    /// The model to use there; `None` means that provider's own.
    pub model: Option<String>,
}

/// The lookup of a provider's key. A missing key is an error only when the provider is used.
#[derive(Debug, Clone)]
enum Key {
    NotNeeded,
    Found(Secret),
    Missing { at: Origin, problem: String },
}

impl ProviderConfig {
    /// The key, `None` if the provider needs none (a local server).
    ///
    /// # Errors
    /// [`ConfigError::NoKey`] if the key is not where the configuration says.
    pub fn key(&self) -> Result<Option<&Secret>, ConfigError> {
        match &self.key {
            Key::NotNeeded => Ok(None),
            Key::Found(secret) => Ok(Some(secret)),
            Key::Missing { at, problem } => Err(ConfigError::NoKey {
                at: at.clone(),
                provider: quoted(&self.name),
                problem: problem.clone(),
            }),
        }
    }

    /// Whether both configurations lead to the same gateway: same API, address, key, limits,
    /// fallback and attachments.
    pub fn is_same_gateway(&self, other: &Self) -> bool {
        // A new key does not compile until it is compared here or left out by name.
        let parts = |provider: &Self| {
            let Self {
                kind,
                base_url,
                concurrency,
                rpm,
                tpm,
                fallback,
                shows,
                request_bytes_max,
                context_window,
                retry,
                parameters,
                connection,
                key: _, // Its value is compared.
                name: _,
                model: _, // Of conversations, not of the gateway.
                settings: _,
            } = provider.clone();
            (
                (kind, base_url, concurrency, rpm, tpm, fallback),
                (shows, request_bytes_max, context_window),
                (retry, parameters, connection),
                provider.key().ok().flatten().cloned(),
            )
        };
        parts(self) == parts(other)
    }

    /// What `show` prints about the key.
    pub(super) fn key_state(&self) -> Option<&'static str> {
        match self.key {
            Key::NotNeeded => None,
            Key::Found(_) => Some("the key is there, masked"),
            Key::Missing { .. } => Some("the key is missing"),
        }
    }

    /// The default provider of a kind, without configuration.
    pub(super) fn default_of(
        kind: ProviderKind,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        Self::of(
            ProviderLayer::named(kind.as_str().to_owned(), Origin::Default, None),
            environment,
        )
    }

    pub(super) fn of(
        layer: ProviderLayer,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let at = layer.at.clone();
        let Some(name) = layer.name().map(str::to_owned) else {
            let problem = format!(
                "this provider has neither `name` nor `kind`; kinds: {}",
                listed(PROVIDER_KINDS)
            );
            return Err(ConfigError::Inconsistent { at, problem });
        };
        let mut settings: Settings = layer.settings.into_iter().map(by_name).collect();
        let text = |name: &'static str| {
            settings
                .get(&(PROVIDER_SECTION, name))?
                .value
                .text()
                .map(str::to_owned)
        };
        let Some(kind) = ProviderKind::of(text("kind").as_deref().unwrap_or(&name)) else {
            let problem = format!(
                "provider `{}` has no `kind`; kinds: {}",
                quoted(&name),
                listed(PROVIDER_KINDS)
            );
            return Err(ConfigError::Inconsistent { at, problem });
        };
        let base_url = text("base_url");
        let model = text("model");
        let count = |name: &'static str| match settings
            .get(&(PROVIDER_SECTION, name))
            .map(|setting| &setting.value)
        {
            Some(Value::Count(count)) => Some(*count),
            _ => None,
        };
        let concurrency = count("concurrency").and_then(|count| usize::try_from(count).ok());
        let rpm = count("rpm").and_then(|count| u32::try_from(count).ok());
        let tpm = count("tpm");
        let request_bytes_max = count("request_bytes_max");
        let context_window = count("context_window").and_then(|count| u32::try_from(count).ok());
        let fallback = fallback(&settings)?;
        let retry = retry(&settings);
        let parameters = parameters(&settings, PROVIDER_SECTION)?;
        let shows = match settings
            .get(&(PROVIDER_SECTION, "shows"))
            .map(|setting| &setting.value)
        {
            Some(Value::Names(names)) => Some(names.clone()),
            _ => None,
        };
        let connection = connection(&settings)?;
        add_default_key(&mut settings, kind, base_url.is_some());
        let key = Key::find(&settings, environment)?;
        Ok(Self {
            name,
            kind,
            base_url,
            model,
            concurrency,
            rpm,
            tpm,
            fallback,
            shows,
            request_bytes_max,
            context_window,
            retry,
            parameters,
            connection,
            key,
            settings,
        })
    }
}

fn retry(settings: &Settings) -> ModelRetryPolicy {
    let usual = ModelRetryPolicy::default();
    let given = |name: &'static str| {
        settings
            .get(&(PROVIDER_SECTION, name))
            .map(|setting| &setting.value)
    };
    ModelRetryPolicy {
        max_retries: match given("retries_max") {
            Some(Value::Count(count)) => u32::try_from(*count).unwrap_or(u32::MAX),
            _ => usual.max_retries,
        },
        initial_delay: match given("retry_delay_s") {
            Some(Value::Seconds(time)) => *time,
            _ => usual.initial_delay,
        },
    }
}

fn connection(settings: &Settings) -> Result<ConnectionConfig, ConfigError> {
    let given = |name: &'static str| settings.get(&(PROVIDER_SECTION, name));
    let path = |name: &'static str| match given(name).map(|setting| &setting.value) {
        Some(Value::Path(path)) => Some(path.clone()),
        _ => None,
    };
    let alone = |name: &'static str, other: &str| ConfigError::Inconsistent {
        at: given(name).map_or(Origin::Default, |setting| setting.from.clone()),
        problem: format!("`{name}` needs `{other}` beside it"),
    };
    let client_files = match (path("client_cert_file"), path("client_key_file")) {
        (Some(chain), Some(key)) => Some((chain, key)),
        (None, None) => None,
        (Some(_), None) => return Err(alone("client_cert_file", "client_key_file")),
        (None, Some(_)) => return Err(alone("client_key_file", "client_cert_file")),
    };
    Ok(ConnectionConfig {
        ca_file: path("ca_file"),
        client_files,
        connect: match given("connect_s").map(|setting| &setting.value) {
            Some(Value::Seconds(time)) => Some(*time),
            _ => None,
        },
        connections_max: match given("connections_max").map(|setting| &setting.value) {
            Some(Value::Count(count)) => usize::try_from(*count).ok(),
            _ => None,
        },
        http2: match given("http2").map(|setting| &setting.value) {
            Some(Value::Flag(yes)) => Some(*yes),
            _ => None,
        },
    })
}

fn fallback(settings: &Settings) -> Result<Option<FallbackConfig>, ConfigError> {
    let text = |name: &'static str| match settings.get(&(FALLBACK_SECTION, name)) {
        Some(Setting {
            value: Value::Text(text),
            from,
            ..
        }) => Some((text.clone(), from.clone())),
        _ => None,
    };
    match (text("provider"), text("model")) {
        (Some((provider, _)), model) => Ok(Some(FallbackConfig {
            provider,
            model: model.map(|(model, _)| model),
        })),
        (None, Some((_, at))) => Err(ConfigError::Inconsistent {
            at,
            problem: "a fallback needs `provider` beside `model`: the name of another provider"
                .into(),
        }),
        (None, None) => Ok(None),
    }
}

/// Adds the vendor's key variable if the address is the vendor's own. Another address never gets
/// that key by default, because its owner may be anyone.
fn add_default_key(settings: &mut Settings, kind: ProviderKind, elsewhere: bool) {
    let named = ["api_key_env", "api_key_file"]
        .iter()
        .any(|name| settings.contains_key(&(PROVIDER_SECTION, *name)));
    let key = keys::PROVIDER.iter().find(|key| key.name == "api_key_env");
    if let (false, false, Some(variable), Some(key)) = (named, elsewhere, kind.key_variable(), key)
    {
        settings.extend([by_name(Setting {
            key,
            value: Value::Text(variable.to_owned()),
            from: Origin::Default,
        })]);
    }
}

impl Key {
    fn find(
        settings: &Settings,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let variable = settings.get(&(PROVIDER_SECTION, "api_key_env"));
        let file = settings.get(&(PROVIDER_SECTION, "api_key_file"));
        let (at, found) = match (variable, file) {
            (None, None) => return Ok(Self::NotNeeded),
            (Some(_), Some(Setting { from, .. })) => {
                let problem = "`api_key_env` and `api_key_file` are both set; keep one".into();
                return Err(ConfigError::Inconsistent {
                    at: from.clone(),
                    problem,
                });
            }
            (Some(Setting { value, from, .. }), None) => {
                (from, Self::in_variable(value, environment))
            }
            (None, Some(Setting { value, from, .. })) => (from, Self::in_file(value)),
        };
        Ok(match found {
            Ok(secret) => Self::Found(secret),
            Err(problem) => Self::Missing {
                at: at.clone(),
                problem,
            },
        })
    }

    fn in_variable(
        value: &Value,
        environment: &BTreeMap<String, String>,
    ) -> Result<Secret, String> {
        let Value::Text(name) = value else {
            return Err("`api_key_env` names nothing".into());
        };
        let text = environment
            .get(name)
            .ok_or_else(|| format!("the environment variable {name} is not set"))?;
        Secret::new(text).map_err(|problem| format!("the environment variable {name} {problem}"))
    }

    fn in_file(value: &Value) -> Result<Secret, String> {
        let Value::Path(path) = value else {
            return Err("`api_key_file` names nothing".into());
        };
        Secret::from_file(path)
    }
}

impl ProviderLayer {
    pub(super) fn named(name: String, from: Origin, setting: Option<Setting>) -> Self {
        let of_name = keys::PROVIDER.iter().find(|key| key.name == "name");
        let name = of_name.map(|key| Setting {
            key,
            value: Value::Text(name),
            from: from.clone(),
        });
        Self {
            at: from,
            settings: name.into_iter().chain(setting).collect(),
        }
    }

    /// The provider's name, or its kind if it has no name.
    fn name(&self) -> Option<&str> {
        let text = |name: &str| {
            self.settings
                .iter()
                .rev()
                .find(|setting| setting.key.name == name)
                .and_then(|setting| setting.value.text())
        };
        text("name").or_else(|| text("kind"))
    }

    /// Whether `part`, the name part of a variable, refers to this provider.
    pub(super) fn has_variable_part(&self, part: &str) -> bool {
        self.name()
            .is_some_and(|name| keys::variable_part(name) == keys::variable_part(part))
    }
}

/// Adds the providers of a later file. They come first, and override the keys of an earlier
/// provider with the same name one by one.
pub(super) fn merged(
    earlier: Vec<ProviderLayer>,
    later: Vec<ProviderLayer>,
) -> Result<Vec<ProviderLayer>, ConfigError> {
    let mut all: Vec<ProviderLayer> = Vec::new();
    let mut earlier = earlier;
    for mut layer in later {
        if let Some(twin) = all
            .iter()
            .find(|known| layer.name().is_some() && known.name() == layer.name())
        {
            let problem = format!(
                "provider `{}` is already at {}",
                quoted(layer.name().unwrap_or_default()),
                twin.at
            );
            return Err(ConfigError::Inconsistent {
                at: layer.at,
                problem,
            });
        }
        if let Some(place) = earlier
            .iter()
            .position(|known| layer.name().is_some() && known.name() == layer.name())
        {
            let mut settings = earlier.remove(place).settings;
            settings.append(&mut layer.settings);
            layer.settings = settings;
        }
        all.push(layer);
    }
    all.append(&mut earlier);
    Ok(all)
}

/// Applies variables to the providers that they name; an unknown name adds a provider at the end.
pub(super) fn override_from_environment(
    providers: &mut Vec<ProviderLayer>,
    variables: Vec<ProviderLayer>,
) {
    for layer in variables {
        let called = layer.name().map(keys::variable_part).unwrap_or_default();
        match providers
            .iter_mut()
            .find(|known| known.has_variable_part(&called))
        {
            Some(known) => known.settings.extend(
                layer
                    .settings
                    .into_iter()
                    .filter(|setting| setting.key.name != "name"),
            ),
            None => providers.push(layer),
        }
    }
}
