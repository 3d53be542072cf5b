//! Which model is counted how: exact names, patterns, the family's default, the fallback (REQUIREMENTS K-04 to K-13).
//!
//! Pure.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use super::{Encoder, EncoderConfig, Encoding, ModelFamily};

/// The configurations that are there without being registered, before [`FALLBACK_MARGIN`]: pattern, family, encoding, margin
/// (REQUIREMENTS K-04; `o200k` as ruled for K-06: what OpenAI's own table of models says).
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

/// The margin of a model that nothing is known of (REQUIREMENTS K-05).
pub const FALLBACK_MARGIN: f64 = 1.2;

/// Ways to count that a registry tells apart, so that a message can keep its count with the way it was counted.
const PROFILES_MAX: usize = u8::MAX as usize;

/// Which model is counted how. A host has one; what is registered holds for every later call, also for models that were counted
/// before.
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
    /// Unknown encodings that were warned of: names out of configurations, so there are few.
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

/// What a count depends on beside the text: the encoding, or which registration of a custom one, and the margin's bits.
type Profile = (Result<Encoding, u64>, u64);

/// How one model is counted.
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
    /// `floor(tokens x margin)` (REQUIREMENTS K-17).
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the floor is what is wanted, and nothing is negative")]
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
        let table = Table { configs: DEFAULTS.iter().map(default).collect(), encoders: Vec::new(), registered: 0, profiles: Vec::new() };
        Self { table: RwLock::new(table), warned: Mutex::default() }
    }
}

impl EncoderRegistry {
    /// The registry of the models that are known without being registered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces the configuration of a model's name, or of all names that fit a pattern with `*` (REQUIREMENTS K-09). Case does
    /// not matter. It is taken as it is: see [`EncoderConfig::validate`].
    pub fn register_encoder_config(&self, pattern: &str, config: EncoderConfig) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        put(&mut table.configs, pattern, Arc::new(config));
    }

    /// Adds or replaces an encoder for a name or pattern (REQUIREMENTS K-10); it wins over every encoding that a configuration names.
    /// Without a configuration of its own, the one that holds for the model keeps holding.
    ///
    /// Such an encoder is given whole texts: how it keeps long ones bounded is its own affair.
    pub fn register_custom_encoder(&self, pattern: &str, encoder: Arc<dyn Encoder>, config: Option<EncoderConfig>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.registered += 1;
        let number = table.registered;
        put(&mut table.encoders, pattern, (number, encoder));
        if let Some(config) = config {
            put(&mut table.configs, pattern, Arc::new(config));
        }
    }

    /// The configuration of a model: by exact name, by the most specific pattern, by its family's default, else the fallback
    /// (REQUIREMENTS K-07). Of a name such as `openai/gpt-4o`, what stands behind its last slash is looked up too.
    pub fn encoder_config(&self, model: &str) -> Arc<EncoderConfig> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).config(&model.to_lowercase())
    }

    pub(super) fn resolve(&self, model: &str) -> Resolved {
        let name = model.to_lowercase();
        let (config, custom) = {
            let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
            (table.config(&name), best(&table.encoders, &name).cloned())
        };
        match custom {
            Some((number, encoder)) => Resolved { config, encoder: Chosen::Custom(encoder), custom: Some(number) },
            None => {
                let encoding = Encoding::named(&config.encoding_name).unwrap_or_else(|| {
                    self.warn_once(&config.encoding_name);
                    Encoding::Cl100kBase
                });
                Resolved { config, encoder: Chosen::Table(encoding), custom: None }
            }
        }
    }

    /// A small number for this way to count, the same for the life of the registry; `None` when there are too many.
    pub(super) fn profile(&self, resolved: &Resolved) -> Option<u8> {
        let encoder = match (&resolved.encoder, resolved.custom) {
            (Chosen::Table(encoding), _) => Ok(*encoding),
            (Chosen::Custom(_), number) => Err(number?),
        };
        let profile = (encoder, resolved.config.safety_margin.to_bits());
        let number = |at: usize| u8::try_from(at + 1).ok();
        let known = |table: &Table| table.profiles.iter().position(|known| *known == profile);
        if let Some(at) = known(&self.table.read().unwrap_or_else(PoisonError::into_inner)) {
            return number(at);
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
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
        if self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned()) {
            tracing::warn!("unknown encoding {name:?}: counting with {} instead", Encoding::Cl100kBase.as_str());
        }
    }
}

impl fmt::Debug for EncoderRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_map().entries(table.configs.iter().map(|entry| (&entry.pattern, &entry.value))).finish()
    }
}

impl Table {
    fn config(&self, name: &str) -> Arc<EncoderConfig> {
        let family = ModelFamily::of(name);
        let default = || best(&self.configs, &format!("{}-", family.as_str()));
        let fallback = || Arc::new(EncoderConfig::new(family, Encoding::Cl100kBase.as_str(), FALLBACK_MARGIN));
        best(&self.configs, name).or_else(default).cloned().unwrap_or_else(fallback)
    }
}

fn put<T>(entries: &mut Vec<Entry<T>>, pattern: &str, value: T) {
    let pattern = pattern.to_lowercase();
    match entries.iter_mut().find(|entry| entry.pattern == pattern) {
        Some(entry) => entry.value = value,
        None => entries.push(Entry { pattern, value }),
    }
}

/// The value of the most specific pattern that fits a name, or what stands behind its last slash: without `*`, else with the most other characters, else with the fewest `*`
/// (REQUIREMENTS K-08). Of equals the last one wins.
fn best<'t, T>(entries: &'t [Entry<T>], name: &str) -> Option<&'t T> {
    let specificity = |pattern: &str| {
        let stars = pattern.matches('*').count();
        (stars == 0, pattern.chars().count() - stars, std::cmp::Reverse(stars))
    };
    let bare = name.rsplit_once('/').map(|(_, bare)| bare);
    let fitting = entries.iter().filter(|entry| fits(&entry.pattern, name) || bare.is_some_and(|bare| fits(&entry.pattern, bare)));
    fitting.max_by_key(|entry| specificity(&entry.pattern)).map(|entry| &entry.value)
}

/// Whether a name fits a pattern in which `*` stands for any text. Linear in the name for each `*`.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
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
