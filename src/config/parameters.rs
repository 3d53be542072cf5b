//! `max_tokens`, `effort`, `thinking`, `temperature` and `stop` of a `[[provider]]` or `[[tenant]]`:
//! how its models are asked to answer.

use callboard_actors::chat::{Effort, ModelParameters};

use super::{
    Settings,
    error::{ConfigError, Origin},
    value::Value,
};

/// Reads the parameters of a section.
///
/// # Errors
/// Values that contradict one another, with the place of one of them.
pub(super) fn parameters(
    settings: &Settings,
    section: &'static str,
) -> Result<ModelParameters, ConfigError> {
    let value = |name: &'static str| settings.get(&(section, name)).map(|found| &found.value);
    let parameters = ModelParameters {
        max_tokens: match value("max_tokens") {
            Some(Value::Count(count)) => u32::try_from(*count).ok(),
            _ => None,
        },
        effort: match value("effort").and_then(Value::text) {
            Some("low") => Some(Effort::Low),
            Some("medium") => Some(Effort::Medium),
            Some("high") => Some(Effort::High),
            _ => None,
        },
        thinking: match value("thinking") {
            Some(Value::Thinking(thinking)) => Some(*thinking),
            _ => None,
        },
        temperature: match value("temperature") {
            Some(Value::Temperature(temperature)) => Some(*temperature),
            _ => None,
        },
        stop: match value("stop") {
            Some(Value::Names(texts)) => Some(texts.clone().into()),
            _ => None,
        },
    };
    match parameters.check() {
        Ok(()) => Ok(parameters),
        Err(fault) => Err(ConfigError::Inconsistent {
            at: settings
                .get(&(section, fault.field))
                .map_or(Origin::Default, |found| found.from.clone()),
            problem: fault.to_string(),
        }),
    }
}
