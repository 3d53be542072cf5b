//! `[prices]`: prices of models in US dollars per million tokens. A name may contain `*`. No prices
//! are built in, because they change.

use std::fmt::Write as _;

use callboard_actors::policy::{Price, Prices};
use toml::de::{DeTable, DeValue};

use super::{
    error::{ConfigError, Origin, hint, quoted},
    toml_text::in_quotes,
};

/// The section's name.
pub(super) const SECTION: &str = "prices";

const KEYS: [&str; 4] = ["input", "output", "cache_read", "cache_write"];

/// Reads every model of `[prices]`. `at` maps a byte offset to its place in the file.
pub(super) fn prices(value: &DeValue<'_>, section: &Origin, at: impl Fn(usize) -> Origin) -> Result<Vec<(String, Price)>, ConfigError> {
    let shape = "a price is a line `\"model\" = { input = 3.0, output = 15.0 }`, in US dollars per million tokens";
    let wrong = |at: Origin| ConfigError::Inconsistent { at, problem: shape.to_owned() };
    let DeValue::Table(models) = value else { return Err(wrong(section.clone())) };
    let mut found: Vec<_> = models.iter().collect();
    found.sort_by_key(|(name, _)| name.span().start);
    let read = found.into_iter().map(|(name, value)| {
        let place = at(name.span().start);
        let DeValue::Table(table) = value.get_ref() else { return Err(wrong(place)) };
        Ok((name.get_ref().to_string(), price(table, &place, &at)?))
    });
    read.collect()
}

fn price(table: &DeTable<'_>, place: &Origin, at: &impl Fn(usize) -> Origin) -> Result<Price, ConfigError> {
    let mut figures: [Option<f64>; 4] = [None; 4];
    for (name, value) in table {
        let (name, at) = (name.get_ref().as_ref(), at(name.span().start));
        let Some((_, figure)) = KEYS.iter().zip(&mut figures).find(|(key, _)| **key == name) else {
            return Err(ConfigError::Unknown {
                at,
                what: "key in [prices]".into(),
                given: quoted(name),
                hint: hint(name, KEYS.into_iter()),
            });
        };
        let text = match value.get_ref() {
            DeValue::Integer(number) => number.as_str(),
            DeValue::Float(number) => number.as_str(),
            _ => "",
        };
        let usd: Option<f64> = text.replace('_', "").parse().ok();
        let Some(usd) = usd.filter(|usd| (0.0..1_000_000.0).contains(usd)) else {
            return Err(ConfigError::BadValue { at, key: format!("{SECTION}.{name}"), problem: "must be US dollars, 0 or more".into() });
        };
        *figure = Some(usd);
    }
    let [input, output, read, write] = figures;
    let price = input
        .zip(output)
        .and_then(|(input, output)| Price::per_million(input, output)?.with_cache(read.unwrap_or(input), write.unwrap_or(input)));
    price.ok_or_else(|| ConfigError::Inconsistent { at: place.clone(), problem: "a price needs `input` and `output`".into() })
}

/// Writes the prices as TOML that can be read again.
pub(super) fn show(text: &mut String, prices: &Prices) {
    let mut names = prices.rows().peekable();
    if names.peek().is_some() {
        let _ = writeln!(text, "\n[{SECTION}]");
    }
    for (name, price) in names {
        let [input, output, read, write] =
            [price.input, price.output, price.cache_read, price.cache_write].map(|micro| micro as f64 / 1_000_000.0);
        let name = in_quotes(name);
        let _ = writeln!(text, "{name} = {{ input = {input:?}, output = {output:?}, cache_read = {read:?}, cache_write = {write:?} }}");
    }
}
