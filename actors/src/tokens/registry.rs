//! Maps models to encodings and margins: by exact name, by pattern, by the family's default, else
//! by a fallback.
//!
//! Pure.

use std::{collections::BTreeSet, fmt, sync::Arc};

use parking_lot::{Mutex, RwLock};

use super::{Encoder, EncoderConfig, Encoding, ModelFamily};

/// The built-in configurations: pattern, family, encoding, margin. The `o200k` entries follow
/// OpenAI's own table of models.
const DEFAULTS: &[(&str, ModelFamily, Encoding, f64)] = &[
    ("claude-*", ModelFamily::Claude, Encoding::Cl100kBase, 1.15),
    ("gpt-*", ModelFamily::Gpt, Encoding::Cl100kBase, 1.0),
    ("gemini-*", ModelFamily::Gemini, Encoding::Cl100kBase, 1.2),
    ("glm-*", ModelFamily::Glm, Encoding::Cl100kBase, 1.25),
    ("qwen-*", ModelFamily::Qwen, Encoding::Cl100kBase, 1.2),
    ("gpt-4o*", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("chatgpt-4o*", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("ft:gpt-4o*", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("gpt-4.1*", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("gpt-4.5*", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("gpt-5*", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("gpt-oss*", ModelFamily::Gpt, Encoding::O200kHarmony, 1.0),
    ("o1", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("o1-*", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("o3", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("o3-*", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("o4", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
    ("o4-*", ModelFamily::Gpt, Encoding::O200kBase, 1.0),
];

/// The margin of a model without a matching configuration.
pub(crate) const FALLBACK_MARGIN: f64 = 1.2;

/// Most combinations of encoding and margin that get a number, so that messages can cache their
/// counts by it.
const PROFILES_MAX: usize = u8::MAX as usize;

/// Which encoding and margin a model uses. A host has one registry. A registration applies to every
/// later call, also for models that were counted before.
///
/// ```
/// use callboard_actors::tokens::{EncoderConfig, EncoderRegistry, ModelFamily};
///
/// let registry = EncoderRegistry::default();
/// registry.register_encoder_config("house-*", EncoderConfig::new(ModelFamily::Custom, "o200k_base", 1.1));
/// assert_eq!(registry.encoder_config("House-7b").safety_margin, 1.1);
/// assert_eq!(registry.encoder_config("claude-opus-4").safety_margin, 1.15);
/// ```
pub struct EncoderRegistry {
    table: RwLock<Table>,
    /// Unknown encodings that were logged. The names come from configurations, so there are few.
    warned: Mutex<BTreeSet<String>>,
}

struct Table {
    configs: Vec<Entry<Arc<EncoderConfig>>>,
    encoders: Vec<Entry<(u64, Arc<dyn Encoder>)>>,
    registered: u64,
    profiles: Vec<Profile>,
}

struct Entry<T> {
    /// In lower case.
    pattern: String,
    value: T,
}

/// What a count depends on besides the text: the encoding, or the number of a custom encoder's
/// registration, and the bits of the margin.
type Profile = (Result<Encoding, u64>, u64);

/// How the tokens of one model are counted.
#[derive(Clone)]
pub(super) struct Resolved {
    pub(super) config: Arc<EncoderConfig>,
    pub(super) encoder: Chosen,
    custom: Option<u64>,
}

/// The encoder of a model.
#[derive(Clone)]
pub(super) enum Chosen {
    Table(Encoding),
    Custom(Arc<dyn Encoder>),
}

impl Chosen {
    pub(super) fn encoder(&self) -> &dyn Encoder {
        match self {
            Self::Table(encoding) => encoding,
            Self::Custom(encoder) => &**encoder,
        }
    }
}

impl Resolved {
    /// `floor(tokens x margin)`.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the floor is what is wanted, and nothing is negative"
    )]
    pub(super) fn count(&self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        (self.encoder.encoder().count_tokens(text) as f64 * self.config.safety_margin) as u64
    }
}

impl Default for EncoderRegistry {
    fn default() -> Self {
        let default = |(pattern, family, encoding, margin): &(&str, _, Encoding, _)| Entry {
            pattern: (*pattern).to_owned(),
            value: Arc::new(EncoderConfig::new(*family, encoding.as_str(), *margin)),
        };
        let table = Table {
            configs: DEFAULTS.iter().map(default).collect(),
            encoders: Vec::new(),
            registered: 0,
            profiles: Vec::new(),
        };
        Self {
            table: RwLock::new(table),
            warned: Mutex::default(),
        }
    }
}

impl EncoderRegistry {
    /// A registry with the built-in configurations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces the configuration of a model name, or of all names that match a pattern
    /// with `*`. Case is ignored. The configuration is not validated; see
    /// its `validate`.
    pub fn register_encoder_config(&self, pattern: &str, config: EncoderConfig) {
        let mut table = self.table.write();
        put(&mut table.configs, pattern, Arc::new(config));
    }

    /// Adds or replaces an encoder for a name or pattern. It takes precedence over the encoding of
    /// any configuration. Without `config`, the model keeps its current configuration.
    ///
    /// A custom encoder receives whole texts and must itself bound the time that it spends on long
    /// ones.
    pub fn register_custom_encoder(
        &self,
        pattern: &str,
        encoder: Arc<dyn Encoder>,
        config: Option<EncoderConfig>,
    ) {
        let mut table = self.table.write();
        table.registered += 1;
        let number = table.registered;
        put(&mut table.encoders, pattern, (number, encoder));
        if let Some(config) = config {
            put(&mut table.configs, pattern, Arc::new(config));
        }
    }

    /// The configuration of a model: by exact name, by the most specific pattern, by its family's
    /// default, else the fallback. For a name such as `openai/gpt-4o`, the part after the last
    /// slash is matched too.
    pub fn encoder_config(&self, model: &str) -> Arc<EncoderConfig> {
        self.table.read().config(&model.to_lowercase())
    }

    pub(super) fn resolve(&self, model: &str) -> Resolved {
        let name = model.to_lowercase();
        let (config, custom) = {
            let table = self.table.read();
            (table.config(&name), best(&table.encoders, &name).cloned())
        };
        match custom {
            Some((number, encoder)) => Resolved {
                config,
                encoder: Chosen::Custom(encoder),
                custom: Some(number),
            },
            None => {
                let encoding = Encoding::named(&config.encoding_name).unwrap_or_else(|| {
                    self.warn_once(&config.encoding_name);
                    Encoding::Cl100kBase
                });
                Resolved {
                    config,
                    encoder: Chosen::Table(encoding),
                    custom: None,
                }
            }
        }
    }

    /// A small number that identifies this encoding and margin for as long as the registry exists;
    /// `None` when all numbers are used.
    pub(super) fn profile(&self, resolved: &Resolved) -> Option<u8> {
        let encoder = match (&resolved.encoder, resolved.custom) {
            (Chosen::Table(encoding), _) => Ok(*encoding),
            (Chosen::Custom(_), number) => Err(number?),
        };
        let profile = (encoder, resolved.config.safety_margin.to_bits());
        let number = |at: usize| u8::try_from(at + 1).ok();
        let known = |table: &Table| table.profiles.iter().position(|known| *known == profile);
        if let Some(at) = known(&self.table.read()) {
            return number(at);
        }
        let mut table = self.table.write();
        match known(&table) {
            Some(at) => number(at),
            None if table.profiles.len() >= PROFILES_MAX => None,
            None => {
                table.profiles.push(profile);
                number(table.profiles.len() - 1)
            }
        }
    }

    fn warn_once(&self, name: &str) {
        if self.warned.lock().insert(name.to_owned()) {
            tracing::warn!(
                "unknown encoding {name:?}: counting with {} instead",
                Encoding::Cl100kBase.as_str()
            );
        }
    }
}

impl fmt::Debug for EncoderRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table.read();
        f.debug_map()
            .entries(
                table
                    .configs
                    .iter()
                    .map(|entry| (&entry.pattern, &entry.value)),
            )
            .finish()
    }
}

impl Table {
    fn config(&self, name: &str) -> Arc<EncoderConfig> {
        let family = ModelFamily::from_model(name);
        let default = || best(&self.configs, &format!("{}-", family.as_str()));
        let fallback = || {
            Arc::new(EncoderConfig::new(
                family,
                Encoding::Cl100kBase.as_str(),
                FALLBACK_MARGIN,
            ))
        };
        best(&self.configs, name)
            .or_else(default)
            .cloned()
            .unwrap_or_else(fallback)
    }
}

fn put<T>(entries: &mut Vec<Entry<T>>, pattern: &str, value: T) {
    let pattern = pattern.to_lowercase();
    match entries.iter_mut().find(|entry| entry.pattern == pattern) {
        Some(entry) => entry.value = value,
        None => entries.push(Entry { pattern, value }),
    }
}

/// The value of the most specific pattern that matches a name, or the part after its last slash. A
/// pattern without `*` is most specific, then one with more other characters, then one with fewer
/// `*`. Among equals the last one wins.
fn best<'t, T>(entries: &'t [Entry<T>], name: &str) -> Option<&'t T> {
    let specificity = |pattern: &str| {
        let stars = pattern.matches('*').count();
        (
            stars == 0,
            pattern.chars().count() - stars,
            std::cmp::Reverse(stars),
        )
    };
    let bare = name.rsplit_once('/').map(|(_, bare)| bare);
    let fitting = entries.iter().filter(|entry| {
        fits(&entry.pattern, name) || bare.is_some_and(|bare| fits(&entry.pattern, bare))
    });
    fitting
        .max_by_key(|entry| specificity(&entry.pattern))
        .map(|entry| &entry.value)
}

/// Whether a name matches a pattern in which `*` stands for any text. Takes linear time in the name
/// for each `*`.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests;
