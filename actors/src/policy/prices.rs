//! Prices of models, from configuration only, and the cost of a call in millionths of a US dollar.
//!
//! Pure.

use super::budget::micro_usd;
use crate::chat::Usage;

/// The number of tokens that a price is quoted for.
const TOKENS: u128 = 1_000_000;

/// The price of a model. Each figure is in millionths of a US dollar per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// Input that was neither read from nor written to the provider's cache.
    pub input: u64,
    /// Input read from the provider's cache.
    pub cache_read: u64,
    /// Input written to the provider's cache.
    pub cache_write: u64,
    /// Tokens that the model writes.
    pub output: u64,
}

impl Price {
    /// A price in US dollars per million tokens. Cached input costs the same as other input until
    /// [`Price::with_cache`] sets it. `None` for a negative number or NaN.
    pub fn per_million(input_usd: f64, output_usd: f64) -> Option<Self> {
        let input = micro_usd(input_usd)?;
        let output = micro_usd(output_usd)?;
        Some(Self {
            input,
            cache_read: input,
            cache_write: input,
            output,
        })
    }

    /// Sets the price of cached input, in US dollars per million tokens.
    pub fn with_cache(self, read_usd: f64, write_usd: f64) -> Option<Self> {
        Some(Self {
            cache_read: micro_usd(read_usd)?,
            cache_write: micro_usd(write_usd)?,
            ..self
        })
    }

    /// The cost of a call, in millionths of a US dollar, rounded up.
    pub(crate) fn cost(&self, usage: &Usage) -> u64 {
        let figures = [
            (usage.input_uncached, self.input),
            (usage.cache_read, self.cache_read),
            (usage.cache_write, self.cache_write),
            (usage.output, self.output),
        ];
        let parts = figures.map(|(tokens, price)| u128::from(tokens) * u128::from(price));
        let sum = parts.into_iter().fold(0, u128::saturating_add);
        u64::try_from(sum.div_ceil(TOKENS)).unwrap_or(u64::MAX)
    }
}

/// Prices by model name. A name may contain `*` for any text; the longest matching name wins.
///
/// ```
/// use callboard_actors::policy::{Price, Prices};
///
/// let price = Price::per_million(3.0, 15.0).unwrap();
/// let prices = Prices::default().with("claude-sonnet-*", price);
/// assert_eq!(prices.get("claude-sonnet-4-5"), Some(&price));
/// assert_eq!(prices.get("gpt-5"), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prices(Vec<(String, Price)>);

impl Prices {
    /// Adds a price, or replaces the one of that name.
    #[must_use]
    pub fn with(mut self, model: impl Into<String>, price: Price) -> Self {
        let model = model.into();
        self.0.retain(|(known, _)| *known != model);
        self.0.push((model, price));
        self
    }

    /// Names and prices, in insertion order.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &Price)> {
        self.0.iter().map(|(name, price)| (name.as_str(), price))
    }

    /// The names, in insertion order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// The price of a model: the exact name first, else the longest matching pattern.
    pub fn get(&self, model: &str) -> Option<&Price> {
        let fitting = self
            .0
            .iter()
            .filter(|(name, _)| name == model || fits(name, model));
        fitting
            .max_by_key(|(name, _)| (name == model, name.len()))
            .map(|(_, price)| price)
    }

    /// The configured name most similar to `model`, for an error message about a missing price.
    pub fn nearest(&self, model: &str) -> Option<&str> {
        self.names().min_by_key(|name| distance(name, model))
    }
}

/// Whether one of these names matches the model; a name may contain `*` for any text.
pub(crate) fn names_model<T: AsRef<str>>(names: &[T], model: &str) -> bool {
    names
        .iter()
        .map(AsRef::as_ref)
        .any(|name| name == model || fits(name, model))
}

/// Whether a pattern with `*` matches a model name.
fn fits(pattern: &str, model: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| model.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    let mut rest = rest;
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        rest = after;
    }
    rest.ends_with(last)
}

/// The edit distance (Levenshtein) between two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (place, letter) in a.chars().enumerate() {
        let mut diagonal = place;
        let mut left = place + 1;
        let mut next = Vec::with_capacity(row.len());
        next.push(left);
        for (above, other) in row.iter().skip(1).zip(&b) {
            let cost = (diagonal + usize::from(letter != *other))
                .min(above + 1)
                .min(left + 1);
            diagonal = *above;
            left = cost;
            next.push(cost);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_the_sum_of_its_classes_rounded_up() {
        let price = Price::per_million(3.0, 15.0)
            .and_then(|price| price.with_cache(0.3, 3.75))
            .unwrap();
        let usage = |input_uncached, cache_read, cache_write, output| Usage {
            input_uncached,
            cache_read,
            cache_write,
            output,
        };

        assert_eq!(
            price.cost(&usage(1_000_000, 1_000_000, 1_000_000, 1_000_000)),
            3_000_000 + 300_000 + 3_750_000 + 15_000_000
        );
        assert_eq!(
            price.cost(&usage(0, 1, 0, 0)),
            1,
            "a third of a millionth is one"
        );
        assert_eq!(price.cost(&usage(0, 0, 0, 0)), 0);
        assert_eq!(
            price.cost(&usage(u64::MAX, u64::MAX, u64::MAX, u64::MAX)),
            u64::MAX
        );
        assert_eq!(
            [
                Price::per_million(-1.0, 1.0),
                Price::per_million(1.0, f64::NAN)
            ],
            [None, None]
        );
    }

    #[test]
    fn the_longest_name_that_fits_is_the_price() {
        let price = |usd: f64| Price::per_million(usd, usd).unwrap();
        let prices = Prices::default()
            .with("*", price(1.0))
            .with("claude-*", price(2.0))
            .with("claude-*-4-*", price(3.0));
        let prices = prices
            .with("claude-opus-4-5", price(4.0))
            .with("claude-opus-4-5", price(5.0));
        let of = |model: &str| prices.get(model).map(|price| price.input / 1_000_000);

        assert_eq!(
            ["gpt-5", "claude-2", "claude-sonnet-4-5", "claude-opus-4-5"].map(of),
            [Some(1), Some(2), Some(3), Some(5)]
        );
        assert_eq!(
            Prices::default()
                .with("gpt-*-mini", price(1.0))
                .get("gpt-5-mini-x"),
            None
        );
        assert_eq!(prices.nearest("claude-opus-4-6"), Some("claude-opus-4-5"));
        assert_eq!(
            (
                distance("kitten", "sitting"),
                distance("", "ab"),
                distance("same", "same")
            ),
            (3, 2, 0)
        );
    }
}
