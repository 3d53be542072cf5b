//! `/model` of a chat: the models to choose from, and the flags that go on with another one.

use super::{failure::Failure, flags::HostFlags, terminal::sanitize};
use crate::config::Config;

/// The providers that can be used, one line each; the current one is marked.
pub(super) fn choices(config: &Config, provider: &str, model: &str) -> Vec<String> {
    let mut lines: Vec<String> = config
        .usable()
        .map(|usable| {
            let is_current = usable.name == provider;
            let shown = match &usable.model {
                _ if is_current => model,
                Some(model) => model,
                None => "its default model",
            };
            let mark = if is_current { '*' } else { ' ' };
            format!("{mark} {}  {}", sanitize(&usable.name), sanitize(shown))
        })
        .collect();
    lines.push("/model NAME goes on with another model, /model PROVIDER or PROVIDER/NAME with another provider".to_owned());
    lines
}

/// The flags for what `/model` was given: a model, a provider, or both. What begins with no
/// provider's name is a model of the current provider, such as `meta/llama-4`.
pub(super) fn chosen(config: &Config, flags: &HostFlags, text: &str) -> Result<HostFlags, Failure> {
    let is_provider = |name: &str| config.choose(Some(name)).is_ok();
    let (provider, model) = match text.split_once('/') {
        Some((provider, model)) if is_provider(provider) => (Some(provider), Some(model)),
        None if is_provider(text) => (Some(text), None),
        _ => (None, Some(text)),
    };
    if model.is_some_and(str::is_empty) || text.contains(char::is_whitespace) {
        return Err(Failure::usage("which model?").hint("/model lists the providers"));
    }
    let mut flags = flags.clone();
    flags.model = model.map(str::to_owned);
    if let Some(provider) = provider {
        if flags.provider.as_deref() != Some(provider) {
            flags.base_url = None; // It is the address of the other provider.
        }
        flags.provider = Some(provider.to_owned());
    }
    Ok(flags)
}
