//! `[prices]`: prices of models in US dollars per million tokens. A name may contain `*`. No prices
//! are built in, because they change.

use std::fmt::Write as _;

use callboard_actors::policy::{Price, Prices};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{
    error::ConfigError,
    section::{Entry, Section},
    toml_text::in_quotes,
};

/// The section's name.
pub(super) const SECTION: &str = "prices";

/// What the section looks like, as an error says it.
pub(super) const SHAPE: &str = "a price is a line `\"model\" = { input = 3.0, output = 15.0 }`, in US dollars per million tokens";

/// A line of the section.
#[derive(Deserialize)]
struct Row {
    input: Option<Usd>,
    output: Option<Usd>,
    cache_read: Option<Usd>,
    cache_write: Option<Usd>,
}

/// The keys of a row.
const KEYS: [&str; 4] = ["input", "output", "cache_read", "cache_write"];

/// US dollars, 0 or more.
struct Usd(f64);

impl<'de> Deserialize<'de> for Usd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let usd = f64::deserialize(deserializer)
            .ok()
            .filter(|usd| (0.0..1_000_000.0).contains(usd));
        usd.map(Self)
            .ok_or_else(|| D::Error::custom("must be US dollars, 0 or more"))
    }
}

/// Reads every model of `[prices]`.
pub(super) fn prices(section: &Section<'_, '_>) -> Result<Vec<(String, Price)>, ConfigError> {
    let price = |model: &Entry<'_, '_>| {
        let row = Section::of(section.file, SECTION, model, SHAPE)?;
        let price = row.read(&KEYS, |_: &Row, _| Ok(()))?.price();
        Ok((
            model.name.to_owned(),
            price.ok_or_else(|| row.inconsistent("a price needs `input` and `output`".into()))?,
        ))
    };
    section.entries().iter().map(price).collect()
}

impl Row {
    fn price(self) -> Option<Price> {
        let input = self.input?.0;
        let output = self.output?.0;
        let or_input = |usd: Option<Usd>| usd.map_or(input, |usd| usd.0);
        Price::per_million(input, output)?
            .with_cache(or_input(self.cache_read), or_input(self.cache_write))
    }
}

/// Writes the prices as TOML that can be read again.
pub(super) fn show(text: &mut String, prices: &Prices) {
    let mut names = prices.rows().peekable();
    if names.peek().is_some() {
        let _ = writeln!(text, "\n[{SECTION}]");
    }
    for (name, price) in names {
        let [input, output, read, write] = [
            price.input,
            price.output,
            price.cache_read,
            price.cache_write,
        ]
        .map(|micro| micro as f64 / 1_000_000.0);
        let name = in_quotes(name);
        let _ = writeln!(
            text,
            "{name} = {{ input = {input:?}, output = {output:?}, cache_read = {read:?}, cache_write = {write:?} }}"
        );
    }
}
