//! Fields of requests that may hold anything. What is not read of them takes no memory: a tree of
//! small values would take a hundred times its bytes.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

/// Whether a field was given that is only refused: neither `null` nor an empty list.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Given(pub(in crate::http) bool);

/// A text; any other value counts as none.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(in crate::http) struct LooseText(pub(in crate::http) Option<String>);

impl LooseText {
    pub(in crate::http) fn as_str(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// A text, a list, an object, or something else, which is skipped.
#[derive(Debug, Default)]
pub(in crate::http) enum Loose<L, O> {
    /// `null`.
    #[default]
    None,
    Text(String),
    List(Vec<L>),
    Object(O),
    Other,
}

/// An item that is skipped where lists or objects are not read.
pub(in crate::http) type Skipped = IgnoredAny;

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(given: D) -> Result<Self, D::Error> {
        Loose::<Skipped, Skipped>::deserialize(given).map(|given| match given {
            Loose::None => Self(false),
            Loose::List(items) => Self(!items.is_empty()),
            Loose::Text(_) | Loose::Object(_) | Loose::Other => Self(true),
        })
    }
}

impl<'de> Deserialize<'de> for LooseText {
    fn deserialize<D: Deserializer<'de>>(given: D) -> Result<Self, D::Error> {
        Loose::<Skipped, Skipped>::deserialize(given).map(|given| match given {
            Loose::Text(text) => Self(Some(text)),
            _ => Self(None),
        })
    }
}

impl<'de, L: Deserialize<'de>, O: Deserialize<'de>> Deserialize<'de> for Loose<L, O> {
    fn deserialize<D: Deserializer<'de>>(given: D) -> Result<Self, D::Error> {
        given.deserialize_any(LooseVisitor(std::marker::PhantomData))
    }
}

struct LooseVisitor<L, O>(std::marker::PhantomData<(L, O)>);

impl<'de, L: Deserialize<'de>, O: Deserialize<'de>> Visitor<'de> for LooseVisitor<L, O> {
    type Value = Loose<L, O>;

    fn expecting(&self, wanted: &mut fmt::Formatter<'_>) -> fmt::Result {
        wanted.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Loose::None)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Loose::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(Loose::Text(text))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Loose::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Loose::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Loose::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Loose::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Loose::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        O::deserialize(MapAccessDeserializer::new(map)).map(Loose::Object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_says_something_is_given() {
        for (value, is_given) in [
            (json!(null), false),
            (json!([]), false),
            (json!([{ "a": [1] }]), true),
            (json!({}), true),
            (json!(0), true),
            (json!(-1.5), true),
            (json!(false), true),
            (json!("x"), true),
        ] {
            let text = value.to_string();
            let given: Given = serde_json::from_str(&text).unwrap();
            assert_eq!(given, Given(is_given), "{text}");
        }
    }

    #[test]
    fn a_text_is_kept_and_anything_else_is_none() {
        let read = |text: &str| serde_json::from_str::<LooseText>(text).unwrap();

        assert_eq!(read(r#""a\nb""#).as_str(), Some("a\nb"));
        for other in ["null", "1", "[\"a\"]", "{\"a\":\"b\"}"] {
            assert_eq!(read(other), LooseText(None));
        }
    }

    #[test]
    fn what_is_not_read_takes_no_memory() {
        assert_eq!(size_of::<Skipped>(), 0);
    }
}
