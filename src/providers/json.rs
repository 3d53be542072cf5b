//! Small JSON readers for both wires: borrowed strings, objects that keep their order, lenient
//! numbers.

use std::{borrow::Cow, fmt};

use callboard_actors::chat::RawJson;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, SeqAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::value::RawValue;

/// A string that is borrowed from the input where it has no escapes, also inside `Option` and
/// lists. Null is the empty string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Str<'a>(pub(super) Cow<'a, str>);

impl Str<'_> {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Str<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Str<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: serde::de::Error>(
                self,
                text: &'de str,
            ) -> Result<Self::Value, E> {
                Ok(Str(Cow::Borrowed(text)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Str(Cow::Owned(text.to_owned())))
            }

            fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
                Ok(Str::default())
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// The most values of a list in an answer.
pub(super) const LIST_MAX: usize = 4096;

/// The most values of a list whose values have lists themselves.
#[cfg(any(feature = "openai", feature = "gemini"))]
pub(super) const OUTER_LIST_MAX: usize = 32;

/// A list of at most `MAX` values. Reading a longer one is an
/// error as soon as it is known: an event with millions of tiny values would keep a worker busy for
/// seconds.
#[derive(Debug)]
pub(super) struct Few<T, const MAX: usize = LIST_MAX>(Vec<T>);

impl<T, const MAX: usize> Default for Few<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> std::ops::Deref for Few<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, const MAX: usize> IntoIterator for Few<T, MAX> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T, const MAX: usize>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Reader<T, MAX> {
            type Value = Few<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX} values")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    if values.len() == MAX {
                        return Err(serde::de::Error::invalid_length(MAX + 1, &self));
                    }
                    values.push(value);
                }
                Ok(Few(values))
            }
        }
        deserializer.deserialize_seq(Reader(std::marker::PhantomData))
    }
}

/// Reads the arguments of a tool call, with whether they are a JSON object. Any other text becomes
/// a JSON string: the conversation shows it to the model as an error.
pub(super) fn arguments(text: &str) -> (RawJson, bool) {
    match RawJson::arguments(text) {
        Ok(arguments) => (arguments, true),
        Err(_) => (wrong_arguments(text), false),
    }
}

/// The arguments of a call that must not run, as a JSON string.
pub(super) fn wrong_arguments(text: &str) -> RawJson {
    RawJson::of(text).unwrap_or_else(|_| RawJson::empty_object())
}

/// Reads a raw value as a string; `None` for any other kind of value.
#[cfg(any(feature = "anthropic", feature = "openai"))]
pub(super) fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    if !raw.get().starts_with('"') {
        return None;
    }
    serde_json::from_str::<Str<'_>>(raw.get())
        .ok()
        .map(|text| text.0)
}

/// Reads a number. A fraction is cut off; a negative number or a value of another kind is 0.
pub(super) fn count(raw: &RawValue) -> u64 {
    let Ok(number) = serde_json::from_str::<serde_json::Number>(raw.get()) else {
        return 0;
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from float saturates"
    )]
    number
        .as_u64()
        .or_else(|| number.as_f64().map(|float| float as u64))
        .unwrap_or(0)
}

/// The most fields of an object. Finding one looks at all, so a broken server could make it slow.
pub(super) const FIELDS_MAX: usize = 64;

/// The beginning of a word of a server that is kept until an answer ends, such as why it ended.
pub(super) fn word_of(text: &str) -> String {
    text.chars().take(WORD_CHARS_MAX).collect()
}

const WORD_CHARS_MAX: usize = 256;

/// Bytes of a report of tokens.
const USAGE_BYTES_MAX: usize = 8 * 1024;

/// An object whose fields keep their order and their text. A repeated field is kept once, with its
/// last value. An object of more than [`FIELDS_MAX`] is not read, and fields that are added beyond
/// are dropped.
#[derive(Debug, Clone, Default)]
pub(super) struct RawObject(Vec<(String, Box<RawValue>)>);

#[cfg_attr(
    not(feature = "anthropic"),
    allow(
        dead_code,
        reason = "only the Messages API merges and rewrites objects"
    )
)]
impl RawObject {
    pub(super) fn parse(raw: &RawValue) -> Option<Self> {
        serde_json::from_str(raw.get()).ok()
    }

    /// Reads what a server reports of tokens. What is longer than any such report is left out: each field
    /// is kept until the answer ends.
    pub(super) fn parse_usage(raw: &RawValue) -> Option<Self> {
        (raw.get().len() <= USAGE_BYTES_MAX)
            .then(|| Self::parse(raw))
            .flatten()
    }

    pub(super) fn field(&self, name: &str) -> Option<&RawValue> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| &**value)
    }

    pub(super) fn set(&mut self, name: &str, value: Box<RawValue>) {
        let is_full = self.is_full();
        match self.0.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None if !is_full => self.0.push((name.to_owned(), value)),
            None => {}
        }
    }

    /// Whether no other field can be added.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= FIELDS_MAX
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(key, _)| key != name);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), &**value))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies the fields of `other` that are not null into this object.
    pub(super) fn merge(&mut self, other: Self) {
        for (name, value) in other.0 {
            if value.get() != "null" {
                self.set(&name, value);
            }
        }
    }

    /// Reads the number at a path of field names; 0 if it is absent.
    pub(super) fn count_at(&self, path: &[&str]) -> u64 {
        let Some((first, rest)) = path.split_first() else {
            return 0;
        };
        let Some(value) = self.field(first) else {
            return 0;
        };
        if rest.is_empty() {
            count(value)
        } else {
            Self::parse(value).map_or(0, |inner| inner.count_at(rest))
        }
    }

    pub(super) fn to_raw(&self) -> Option<RawJson> {
        RawJson::of(self).ok()
    }
}

/// Reports of tokens that are read when they come; of later ones every 16th. Reading one takes
/// longer than a piece of text does, and a server may send thousands.
const READ_AT_ONCE_MAX: u32 = 16;

/// What a server reports of the tokens of one answer. Most report once or twice, some with every piece.
#[derive(Debug, Default)]
pub(super) struct UsageReports {
    read: Option<RawObject>,
    count: u32,
    /// The last report, if it is not read.
    unread: Option<Box<RawValue>>,
    merges: bool,
}

impl UsageReports {
    /// Each report adds to those before, in place of replacing them.
    #[cfg(feature = "anthropic")]
    pub(super) fn merging() -> Self {
        Self {
            merges: true,
            ..Self::default()
        }
    }

    /// Takes a report; returns what is reported so far if it is read now.
    pub(super) fn take(&mut self, raw: &RawValue) -> Option<&RawObject> {
        if raw.get().len() > USAGE_BYTES_MAX {
            return None;
        }
        self.count = self.count.saturating_add(1);
        if self.count > READ_AT_ONCE_MAX && !self.count.is_multiple_of(READ_AT_ONCE_MAX) {
            self.unread = Some(raw.to_owned());
            return None;
        }
        self.unread = None;
        self.add(RawObject::parse(raw)?);
        self.read.as_ref()
    }

    /// What is reported by the end of the answer.
    pub(super) fn last(&mut self) -> Option<&RawObject> {
        let unread = self.unread.take();
        if let Some(usage) = unread.and_then(|raw| RawObject::parse(&raw)) {
            self.add(usage);
        }
        self.read.as_ref()
    }

    fn add(&mut self, usage: RawObject) {
        if self.merges {
            self.read.get_or_insert_default().merge(usage);
        } else {
            self.read = Some(usage);
        }
    }
}

impl Serialize for RawObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = RawObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of at most {FIELDS_MAX} fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut object = RawObject::default();
                let mut fields = 0;
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    fields += 1;
                    if fields > FIELDS_MAX {
                        return Err(serde::de::Error::invalid_length(fields, &self));
                    }
                    object.set(&name, value);
                }
                Ok(object)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_keep_order_and_text_and_merge_what_is_not_null() {
        let mut object: RawObject = serde_json::from_str(r#"{"b": 1.0, "a":{"x": 3}}"#).unwrap();

        object.merge(serde_json::from_str(r#"{"a":null,"b":2,"c":[ ]}"#).unwrap());

        assert_eq!(
            object.to_raw().unwrap().as_str(),
            r#"{"b":2,"a":{"x": 3},"c":[ ]}"#
        );
        assert_eq!(object.count_at(&["a", "x"]), 3);
    }

    #[test]
    fn figures_that_are_none_are_zero() {
        for (text, expected) in [
            ("12", 12),
            ("12.9", 12),
            ("-4", 0),
            ("\"7\"", 0),
            ("null", 0),
            ("1e300", u64::MAX),
        ] {
            assert_eq!(
                count(&RawValue::from_string(text.to_owned()).unwrap()),
                expected,
                "{text}"
            );
        }
    }

    /// Both are kept until an answer ends, which a server can delay.
    #[test]
    fn of_what_is_kept_beside_an_answer_only_so_much_is_read() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let long = format!(
            r#"{{"input_tokens":1,"note":"{}"}}"#,
            "x".repeat(USAGE_BYTES_MAX)
        );

        assert!(RawObject::parse_usage(&raw(&long)).is_none());
        let usual = RawObject::parse_usage(&raw(r#"{"input_tokens":7}"#)).unwrap();
        assert_eq!(usual.count_at(&["input_tokens"]), 7);
        assert!(UsageReports::default().take(&raw(&long)).is_none());
        assert_eq!(word_of("end_turn"), "end_turn");
        assert_eq!(word_of(&"é".repeat(10_000)).chars().count(), WORD_CHARS_MAX);
    }
    #[test]
    fn of_many_reports_of_tokens_some_are_read_and_the_last_one_in_the_end() {
        let mut reports = UsageReports::default();

        let read = (1..=100).filter(|count| {
            let raw = RawValue::from_string(format!(r#"{{"output":{count}}}"#)).unwrap();
            let read = reports.take(&raw).map(|usage| usage.count_at(&["output"]));
            assert!(read.is_none_or(|output| output == *count));
            read.is_some()
        });

        assert_eq!(read.count(), 16 + 5);
        assert_eq!(reports.last().unwrap().count_at(&["output"]), 100);
    }
    #[cfg(feature = "anthropic")]
    #[test]
    fn reports_that_add_to_each_other_keep_what_is_not_null() {
        let mut reports = UsageReports::merging();

        for text in [
            r#"{"input":null,"output":1}"#,
            r#"{"input":7,"output":null}"#,
        ] {
            reports.take(&RawValue::from_string(text.to_owned()).unwrap());
        }

        let all = reports.last().unwrap().to_raw().unwrap();
        assert_eq!(all.as_str(), r#"{"output":1,"input":7}"#);
    }
}
