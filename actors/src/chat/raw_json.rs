//! JSON text that is kept as written, because a model's tool input must be sent back byte for byte.
//!
//! Pure.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned,
    ser::SerializeStruct as _,
};
use serde_json::value::RawValue;

use crate::limits::JSON_DEPTH_MAX;

/// The name with which `serde_json` marks text that is already JSON;
/// [`tests::text_that_is_already_json_stays_as_it_is`] fails if the name changes.
const RAW: &str = "$serde_json::private::RawValue";

/// Serializes text that is already JSON with any serializer. Like `serde_json`'s `RawValue`, but
/// without validating the text.
///
/// # Errors
/// The error of the serializer.
pub(super) fn serialize<S: Serializer>(serializer: S, text: &str) -> Result<S::Ok, S::Error> {
    let mut raw = serializer.serialize_struct(RAW, 1)?;
    raw.serialize_field(RAW, text)?;
    raw.end()
}

/// One JSON value as text.
#[derive(Clone)]
pub struct RawJson(Box<RawValue>);

/// The text is not a JSON object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a JSON object: {0}")]
pub struct NotAnObject(pub String);

impl RawJson {
    /// Returns `{}`.
    pub fn empty_object() -> Self {
        Self::from_text("{}").unwrap_or_else(|_| Self(RawValue::NULL.to_owned()))
    }

    /// Checks that `text` is one JSON value, nested at most [`JSON_DEPTH_MAX`] deep.
    ///
    /// # Errors
    /// The error of `serde_json`.
    pub fn from_text(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        check_depth(&text)?;
        RawValue::from_string(text).map(Self)
    }

    /// Returns the text, without a copy.
    pub(super) fn into_text(self) -> Box<str> {
        self.0.into()
    }

    /// Like [`RawJson::from_text`], for the arguments of a tool call. An empty text means `{}`.
    ///
    /// # Errors
    /// [`NotAnObject`] with the reason of the parser.
    pub fn arguments(text: &str) -> Result<Self, NotAnObject> {
        if text.trim().is_empty() {
            return Ok(Self::empty_object());
        }
        let raw = Self::from_text(text).map_err(|error| NotAnObject(error.to_string()))?;
        if raw.is_object() {
            Ok(raw)
        } else {
            Err(NotAnObject("another kind of value".into()))
        }
    }

    /// Serializes `value`.
    ///
    /// # Errors
    /// When JSON cannot represent the value, such as a map whose keys are not strings.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Returns the text as `RawValue`, for serializers.
    pub fn as_raw(&self) -> &RawValue {
        &self.0
    }

    /// Whether the value is an object.
    pub fn is_object(&self) -> bool {
        self.as_str().trim_start().starts_with('{')
    }

    /// Deserializes the value.
    ///
    /// # Errors
    /// The error of `serde_json`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.as_str())
    }
}

/// Refuses a text that is nested more than [`JSON_DEPTH_MAX`] deep.
///
/// # Errors
/// The error that says so.
pub(super) fn check_depth(text: &str) -> Result<(), serde_json::Error> {
    match depth(text) > JSON_DEPTH_MAX {
        true => Err(serde::de::Error::custom(format_args!(
            "nested deeper than {JSON_DEPTH_MAX} levels"
        ))),
        false => Ok(()),
    }
}

/// Returns how deep arrays and objects nest in `text`, which may be invalid JSON. Linear and
/// without recursion.
fn depth(text: &str) -> usize {
    let mut now = 0usize;
    let mut most = 0usize;
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'"' => rest = after_string(rest),
            b'[' | b'{' => {
                now += 1;
                most = most.max(now);
            }
            b']' | b'}' => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// What follows a string whose first quote is read.
fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
        let is_end = rest.get(at) == Some(&b'"');
        let read = if is_end { at + 1 } else { at + 2 };
        rest = rest.get(read..).unwrap_or_default();
        if is_end {
            return rest;
        }
    }
    &[]
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RawJson {}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_an_object_and_keep_their_text() {
        assert_eq!(RawJson::arguments("").unwrap().as_str(), "{}");
        assert_eq!(
            RawJson::arguments(r#"{"b": 1,  "a":1.0}"#)
                .unwrap()
                .as_str(),
            r#"{"b": 1,  "a":1.0}"#
        );
        assert!(RawJson::arguments("[1]").is_err());
        assert!(RawJson::arguments(r#"{"a":"#).is_err());
    }

    #[test]
    fn deep_nesting_is_refused_without_recursion() {
        let text = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));

        assert!(RawJson::from_text(text).is_err());
        assert!(RawJson::from_text(r#"{"brackets in a string":"[[[[\"[["}"#).is_ok());
    }

    #[test]
    fn text_that_is_already_json_stays_as_it_is() {
        struct AlreadyJson;
        impl Serialize for AlreadyJson {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serialize(serializer, r#"{ "a" : 1.0 }"#)
            }
        }

        assert_eq!(
            serde_json::to_string(&[AlreadyJson]).unwrap(),
            r#"[{ "a" : 1.0 }]"#
        );
        assert_eq!(
            serde_json::to_value(AlreadyJson).unwrap(),
            serde_json::json!({"a": 1.0})
        );
    }
}
