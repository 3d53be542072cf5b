//! Whether JSON means the same to everyone who reads it: to the person who approves a tool call, to
//! the schema that checks it, and to the tool.
//!
//! Pure.

use std::{borrow::Cow, collections::HashSet, fmt};

use memchr::memchr2;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// Digits that a floating-point number keeps.
const DIGITS_MAX: usize = 17;

/// Digits that every number keeps.
const DIGITS_KEPT: usize = 15;

/// Returns what in `json` one reader takes for something else than another: a field that an object
/// has twice, or a number with more digits than readers keep. `None` also for what is no JSON.
pub(crate) fn ambiguity(json: &str) -> Option<String> {
    if let Some(number) = numbers(json).find(|number| !is_kept(number)) {
        let number: String = number.chars().take(40).collect();
        return Some(format!(
            "the number {number} has more digits than are kept: send it as text"
        ));
    }
    let error = serde_json::from_str::<Plain>(json).err()?;
    error.is_data().then(|| {
        let error = error.to_string();
        let (what, _) = error.rsplit_once(" at line ").unwrap_or((&error, ""));
        what.chars().take(200).collect()
    })
}

/// Counts the values of a JSON text by what separates and opens them, without building any. Texts are
/// skipped. Of invalid JSON the count means nothing.
pub fn values_in(json: &[u8]) -> usize {
    let mut count = 0;
    let mut rest = json;
    while let Some((byte, after)) = rest.split_first() {
        rest = match byte {
            b'"' => after_text(after),
            _ => after,
        };
        count += usize::from(matches!(byte, b',' | b'[' | b'{'));
    }
    count
}

/// What follows the text that `json` is inside of.
fn after_text(mut json: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', json) {
        let is_end = json.get(at) == Some(&b'"');
        json = json
            .get(at + if is_end { 1 } else { 2 }..)
            .unwrap_or_default();
        if is_end {
            return json;
        }
    }
    &[]
}

/// The numbers of a JSON text as they are written.
fn numbers(json: &str) -> impl Iterator<Item = &str> {
    let mut in_string = false;
    let mut is_escaped = false;
    json.split(move |char: char| {
        if in_string {
            match char {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '"' => in_string = false,
                _ => {}
            }
            return true;
        }
        in_string = char == '"';
        !matches!(char, '0'..='9' | '-' | '+' | '.' | 'e' | 'E')
    })
    .filter(|token| token.starts_with(|char: char| char.is_ascii_digit() || char == '-'))
}

/// Whether a number that is read and written again is the same one.
fn is_kept(number: &str) -> bool {
    if !number.contains(['.', 'e', 'E']) {
        let is_short = number.len() <= DIGITS_KEPT;
        return is_short || number.parse::<u64>().is_ok() || number.parse::<i64>().is_ok();
    }
    let digits = number.split(['e', 'E']).next().unwrap_or_default();
    let digits = digits.trim_start_matches(['-', '0', '.']).replace('.', "");
    let significant = digits.trim_end_matches('0').len();
    let is_zero = number.parse().is_ok_and(|read: f64| read == 0.0);
    significant <= DIGITS_MAX && (significant == 0 || !is_zero)
}

/// A value without an object that has a field twice.
struct Plain;

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Read)
    }
}

struct Read;

/// The name of a field, which is borrowed unless it has escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Read {
    type Value = Plain;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Plain, E> {
        Ok(Plain)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Plain, E> {
        Ok(Plain)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Plain, E> {
        Ok(Plain)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Plain, E> {
        Ok(Plain)
    }

    fn visit_str<E>(self, _: &str) -> Result<Plain, E> {
        Ok(Plain)
    }

    fn visit_unit<E>(self) -> Result<Plain, E> {
        Ok(Plain)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Plain, A::Error> {
        while items.next_element::<Plain>()?.is_some() {}
        Ok(Plain)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Plain, A::Error> {
        let mut names = HashSet::new();
        while let Some(Name(name)) = fields.next_key::<Name<'de>>()? {
            fields.next_value::<Plain>()?;
            if names.contains(&name) {
                let name = name.escape_debug();
                return Err(Error::custom(format_args!(
                    "the field `{name}` is there twice"
                )));
            }
            names.insert(name);
        }
        Ok(Plain)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{ports::Entropy as _, testing::SeededEntropy};

    #[test]
    fn values_are_counted_outside_of_texts() {
        assert_eq!(values_in(br#"{"a,[{\\\"":[1,2,"x,y"],"b":{}}"#), 6);
        assert_eq!(values_in(br#""never closed, ["#), 0);
        assert_eq!(values_in(br#""ends in \\""#), 0);
    }

    #[test]
    fn a_field_that_is_there_twice_is_found_at_every_depth_and_under_escapes() {
        for (json, found) in [
            (r#"{"a":1,"a":1}"#, "the field `a` is there twice"),
            (r#"{"a":1,"\u0061":2}"#, "the field `a` is there twice"),
            (
                r#"{"b":[{"c":{"x":1,"x":2}}]}"#,
                "the field `x` is there twice",
            ),
        ] {
            assert_eq!(ambiguity(json).as_deref(), Some(found), "{json}");
        }
        for plain in [
            r#"{"a":1,"A":2,"b":{"a":[null,true,"a\"a"]}}"#,
            r#"{"a":"#,
            "",
        ] {
            assert_eq!(ambiguity(plain), None, "{plain}");
        }
    }

    #[test]
    fn a_number_that_readers_do_not_keep_is_found() {
        for number in [
            "18446744073709551617",
            "-9223372036854775809",
            "0.12345678901234567891",
            "12345678901234567.89e3",
            "1e-400",
        ] {
            let json = format!(r#"{{"a":["1{number}",{number}]}}"#);
            let found = ambiguity(&json).unwrap();
            assert!(
                found.starts_with(&format!("the number {number} ")),
                "{found}"
            );
        }
        for number in [
            "18446744073709551615",
            "-9223372036854775808",
            "0.1",
            "-0.0",
            "0e0",
            "1e300",
            "100000000000000000000000.0",
            "3.141592653589793",
            "0.30000000000000004",
        ] {
            assert_eq!(ambiguity(&format!("[{number}]")), None, "{number}");
        }
        let text = r#"{"a":"18446744073709551617 \" 18446744073709551617"}"#;
        assert_eq!(ambiguity(text), None);
    }

    #[test]
    fn numbers_that_a_reader_wrote_are_kept() {
        let chance = chance();
        for _ in 0..20_000 {
            let bits = u128::from_be_bytes(chance.bytes()) as u64;
            let float = f64::from_bits(bits);
            if float.is_finite() {
                let json = serde_json::to_string(&(float, bits, bits as i64)).unwrap();
                assert_eq!(ambiguity(&json), None, "{json}");
            }
        }
    }

    #[test]
    fn a_whole_number_that_is_kept_is_written_again_as_it_was() {
        let chance = chance();
        for shift in (0..128).cycle().take(20_000) {
            let number = (u128::from_be_bytes(chance.bytes()) >> shift).to_string();
            if ambiguity(&number).is_none() {
                let read: Value = serde_json::from_str(&number).unwrap();
                assert_eq!(read.to_string(), number);
            }
        }
    }

    fn chance() -> SeededEntropy {
        const SEED: u64 = 20_261_127;
        println!("seed {SEED}");
        SeededEntropy::new(SEED)
    }
}
