//! A JSON serializer that writes compact JSON into memory, byte for byte what `serde_json` writes.
//! Journal entries and messages are written with it. It checks text for escapes eight bytes at a
//! time and copies text without any as a whole.

use std::fmt::{self, Display, Write as _};

use serde::{
    Serialize, Serializer,
    ser::{
        Error as _, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
        SerializeTuple, SerializeTupleStruct, SerializeTupleVariant,
    },
};
use serde_json::Error;

/// The name with which `serde_json` marks text that is already JSON;
/// [`tests::raw_json_stays_as_it_is`] fails if the name changes.
const RAW: &str = "$serde_json::private::RawValue";

/// Appends `value` to `out`.
///
/// # Errors
/// When JSON cannot represent the value (map keys other than texts, numbers and booleans) or its
/// `Serialize` fails. `out` then ends with an incomplete value.
pub(crate) fn write<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> Result<(), Error> {
    value.serialize(Writer { out, is_raw: false })
}

/// Serializes text that is already JSON with any serializer. Like `serde_json`'s `RawValue`, but
/// without validating the text.
///
/// # Errors
/// The error of the serializer.
pub(crate) fn raw<S: Serializer>(serializer: S, text: &str) -> Result<S::Ok, S::Error> {
    let mut raw = serializer.serialize_struct(RAW, 1)?;
    raw.serialize_field(RAW, text)?;
    raw.end()
}

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);

/// Whether a byte needs an escape: a quote, a backslash or a control character.
fn has_escape(bytes: [u8; 8]) -> bool {
    let word = u64::from_le_bytes(bytes);
    let zero_in = |word: u64| word.wrapping_sub(ONES) & !word;
    let below_space = word.wrapping_sub(ONES * 0x20) & !word;
    (below_space | zero_in(word ^ (ONES * 0x22)) | zero_in(word ^ (ONES * 0x5c))) & HIGHS != 0
}

fn is_escaped(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Whether no byte needs an escape. The last chunk overlaps the one before, so that no rest is left
/// to check byte by byte.
fn is_plain(bytes: &[u8]) -> bool {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        let at_an_end = has_escape(*first) | has_escape(*last);
        return !at_an_end && (bytes.len() <= 16 || !has_escape_inside(bytes));
    }
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some([a, b, c, d]), Some([e, f, g, h])) => !has_escape([*a, *b, *c, *d, *e, *f, *g, *h]),
        _ => !bytes.iter().any(|byte| is_escaped(*byte)),
    }
}

/// Checks all of a longer text except its last chunk.
fn has_escape_inside(bytes: &[u8]) -> bool {
    let (pieces, rest) = bytes.as_chunks::<32>();
    let (words, _) = rest.as_chunks::<8>();
    pieces.iter().any(|piece| {
        piece
            .iter()
            .fold(false, |found, byte| found | is_escaped(*byte))
    }) || words.iter().any(|word| has_escape(*word))
}

/// Writes a text without its quotes, with escapes.
#[cold]
fn escape(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    loop {
        let plain = rest
            .iter()
            .position(|byte| is_escaped(*byte))
            .unwrap_or(rest.len());
        let (unescaped, behind) = rest.split_at(plain);
        out.extend_from_slice(unescaped);
        let Some((byte, next)) = behind.split_first() else {
            return;
        };
        match byte {
            b'"' => out.extend_from_slice(br#"\""#),
            b'\\' => out.extend_from_slice(br"\\"),
            b'\n' => out.extend_from_slice(br"\n"),
            b'\r' => out.extend_from_slice(br"\r"),
            b'\t' => out.extend_from_slice(br"\t"),
            0x08 => out.extend_from_slice(br"\b"),
            0x0c => out.extend_from_slice(br"\f"),
            _ => {
                let digit = |half: u8| {
                    if half < 10 {
                        b'0' + half
                    } else {
                        b'a' + half - 10
                    }
                };
                out.extend_from_slice(&[
                    b'\\',
                    b'u',
                    b'0',
                    b'0',
                    digit(byte >> 4),
                    digit(byte & 0xf),
                ]);
            }
        }
        rest = next;
    }
}

fn fragment(out: &mut Vec<u8>, text: &str) {
    if is_plain(text.as_bytes()) {
        out.extend_from_slice(text.as_bytes());
    } else {
        escape(out, text);
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.reserve(text.len() + 4);
    out.push(b'"');
    fragment(out, text);
    out.push(b'"');
}

/// Writes a displayed number without allocating.
struct Digits<'a>(&'a mut Vec<u8>);

impl fmt::Write for Digits<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Writes displayed text with escapes.
struct Escaping<'a>(&'a mut Vec<u8>);

impl fmt::Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        fragment(self.0, text);
        Ok(())
    }
}

/// Appends an unsigned number in decimal.
pub(crate) fn natural(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut begin = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
        begin -= 1;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(begin..).unwrap_or_default());
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    /// Whether strings are already JSON and written as they are.
    is_raw: bool,
}

impl<'a> Writer<'a> {
    fn displayed(self, number: impl Display) -> Result<(), Error> {
        write!(Digits(self.out), "{number}").map_err(Error::custom)
    }

    fn list(self) -> Items<'a> {
        self.out.push(b'[');
        Items {
            out: self.out,
            is_first: true,
            close: b"]",
        }
    }

    fn object(self, close: &'static [u8]) -> Fields<'a> {
        self.out.push(b'{');
        Fields {
            out: self.out,
            is_first: true,
            close,
        }
    }

    /// Writes `{"variant":`.
    fn tagged(self, variant: &'static str) -> Self {
        self.out.push(b'{');
        string(self.out, variant);
        self.out.push(b':');
        self
    }
}

impl<'a> Serializer for Writer<'a> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Items<'a>;
    type SerializeTupleStruct = Items<'a>;
    type SerializeTupleVariant = Items<'a>;
    type SerializeMap = Fields<'a>;
    type SerializeStruct = Struct<'a>;
    type SerializeStructVariant = Struct<'a>;

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.out
            .extend_from_slice(if value { b"true" } else { b"false" });
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), Error> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), Error> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), Error> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), Error> {
        if value < 0 {
            self.out.push(b'-');
        }
        natural(self.out, value.unsigned_abs());
        Ok(())
    }

    fn serialize_i128(self, value: i128) -> Result<(), Error> {
        self.displayed(value)
    }

    fn serialize_u8(self, value: u8) -> Result<(), Error> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), Error> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), Error> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Error> {
        natural(self.out, value);
        Ok(())
    }

    fn serialize_u128(self, value: u128) -> Result<(), Error> {
        self.displayed(value)
    }

    fn serialize_f32(self, value: f32) -> Result<(), Error> {
        serde_json::to_writer(self.out, &value)
    }

    fn serialize_f64(self, value: f64) -> Result<(), Error> {
        serde_json::to_writer(self.out, &value)
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Error> {
        if self.is_raw {
            self.out.extend_from_slice(value.as_bytes());
        } else {
            string(self.out, value);
        }
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Error> {
        self.collect_seq(value)
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.out.extend_from_slice(b"null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        let this = self.tagged(variant);
        write(this.out, value)?;
        this.out.push(b'}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a>, Error> {
        Ok(self.list())
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'a>, Error> {
        Ok(self.list())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'a>, Error> {
        Ok(self.list())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'a>, Error> {
        Ok(Items {
            close: b"]}",
            ..self.tagged(variant).list()
        })
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Fields<'a>, Error> {
        Ok(self.object(b"}"))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Struct<'a>, Error> {
        Ok(if name == RAW {
            Struct::Raw(self.out)
        } else {
            Struct::Fields(self.object(b"}"))
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Struct<'a>, Error> {
        Ok(Struct::Fields(self.tagged(variant).object(b"}}")))
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<(), Error> {
        self.out.push(b'"');
        write!(Escaping(self.out), "{value}").map_err(Error::custom)?;
        self.out.push(b'"');
        Ok(())
    }
}

/// An array that is being written.
struct Items<'a> {
    out: &'a mut Vec<u8>,
    is_first: bool,
    close: &'static [u8],
}

impl Items<'_> {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(b',');
        }
        write(self.out, value)
    }

    fn close(self) {
        self.out.extend_from_slice(self.close);
    }
}

impl SerializeSeq for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeTuple for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeTupleStruct for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeTupleVariant for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

/// An object that is being written.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    is_first: bool,
    close: &'static [u8],
}

impl Fields<'_> {
    fn separate(&mut self) {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(b',');
        }
    }

    fn field<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), Error> {
        self.separate();
        string(self.out, key);
        self.out.push(b':');
        write(self.out, value)
    }

    fn close(self) {
        self.out.extend_from_slice(self.close);
    }
}

impl SerializeMap for Fields<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.separate();
        let begin = self.out.len();
        write(self.out, key)?;
        match self.out.get(begin) {
            Some(b'"') => {}
            Some(b'0'..=b'9' | b'-' | b't' | b'f') => {
                self.out.insert(begin, b'"');
                self.out.push(b'"');
            }
            _ => return Err(Error::custom("key must be a string")),
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.out.push(b':');
        write(self.out, value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

/// A struct that is being written, or text that is already JSON.
enum Struct<'a> {
    Fields(Fields<'a>),
    Raw(&'a mut Vec<u8>),
}

impl Struct<'_> {
    fn field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        match self {
            Self::Fields(fields) => fields.field(key, value),
            Self::Raw(out) => value.serialize(Writer { out, is_raw: true }),
        }
    }

    fn close(self) {
        match self {
            Self::Fields(fields) => fields.close(),
            Self::Raw(_) => {}
        }
    }
}

impl SerializeStruct for Struct<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.field(key, value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeStructVariant for Struct<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.field(key, value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;
    use crate::{chat::RawJson, ports::Entropy, testing::SeededEntropy};

    fn written<T: Serialize + ?Sized>(value: &T) -> String {
        let mut out = Vec::new();
        write(&mut out, value).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[derive(Serialize)]
    enum Kind {
        Unit,
        Newtype(i8),
        Tuple(u8, char),
        Struct { a: Option<f64>, b: () },
    }

    #[derive(Serialize)]
    struct Pair(i128, bool);

    #[derive(Serialize)]
    struct Mixed<'a> {
        kinds: Vec<Kind>,
        pair: Pair,
        by_number: BTreeMap<i64, f32>,
        by_bool: BTreeMap<bool, Option<()>>,
        #[serde(flatten)]
        flat: BTreeMap<&'a str, u128>,
        bytes: &'a [u8],
        tuple: (u64, &'a str),
        raw: RawJson,
    }

    fn text(random: &impl Fn() -> usize) -> String {
        let marks = [
            '"', '\\', '\n', '\u{0}', '\u{1f}', ' ', 'a', 'z', '\u{7f}', 'é', '汉', '🦀',
            '\u{2028}',
        ];
        let plainness = random() % 30 + 1;
        (0..random() % 60)
            .map(|_| {
                if random().is_multiple_of(plainness) {
                    marks[random() % marks.len()]
                } else {
                    'x'
                }
            })
            .collect()
    }

    fn value(random: &impl Fn() -> usize, depth: usize) -> Value {
        match random() % if depth == 0 { 5 } else { 7 } {
            0 => Value::Null,
            1 => Value::from(random().is_multiple_of(2)),
            2 => Value::from(random() as i64 - (1 << 54)),
            3 => Value::from(f64::from_bits((random() as u64).wrapping_mul(257))),
            4 => Value::from(text(random)),
            5 => (0..random() % 6)
                .map(|_| value(random, depth - 1))
                .collect(),
            _ => (0..random() % 6)
                .map(|_| (text(random), value(random, depth - 1)))
                .collect(),
        }
    }

    #[test]
    fn any_value_is_written_as_serde_json_writes_it() {
        for seed in 0..300 {
            let chance = SeededEntropy::new(seed);
            let random = || usize::from_le_bytes(chance.bytes()[..8].try_into().unwrap()) >> 8;

            let value = value(&random, 4);

            assert_eq!(
                written(&value),
                serde_json::to_string(&value).unwrap(),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn every_byte_at_every_place_of_a_word_is_escaped_as_by_serde_json() {
        for byte in 0..=0x7fu8 {
            for (length, place) in
                (1..=19).flat_map(|length| (0..length).map(move |place| (length, place)))
            {
                let text: String = (0..length)
                    .map(|at| if at == place { char::from(byte) } else { 'x' })
                    .collect();

                assert_eq!(
                    written(&text),
                    serde_json::to_string(&text).unwrap(),
                    "{byte} at {place} of {length}"
                );
            }
        }
    }

    #[test]
    fn every_form_of_serde_is_written_as_serde_json_writes_it() {
        let mixed = Mixed {
            kinds: vec![
                Kind::Unit,
                Kind::Newtype(-128),
                Kind::Tuple(255, '"'),
                Kind::Struct {
                    a: Some(0.1),
                    b: (),
                },
            ],
            pair: Pair(i128::MIN, true),
            by_number: [(-1, 1.5), (i64::MIN, f32::NAN)].into(),
            by_bool: [(true, None)].into(),
            flat: [("flat\n", u128::MAX)].into(),
            bytes: &[0, 9, 10, 255],
            tuple: (u64::MAX, "汉 \u{7f}"),
            raw: RawJson::from_text(r#" { "a" : [ 1.50 ] } "#).unwrap(),
        };

        assert_eq!(written(&mixed), serde_json::to_string(&mixed).unwrap());
        assert_eq!(
            written(&format_args!("a{}\"{}", 1, '\u{1}')),
            serde_json::to_string(&format_args!("a{}\"{}", 1, '\u{1}')).unwrap()
        );
    }

    struct ByHand;

    impl Serialize for ByHand {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            raw(serializer, "{ }")
        }
    }

    #[test]
    fn raw_json_stays_as_it_is() {
        let raw = RawJson::from_text(r#"{ "a" : 1.0 }"#).unwrap();

        assert_eq!(written(&[&raw]), r#"[{ "a" : 1.0 }]"#);
        assert_eq!(serde_json::to_string(&ByHand).unwrap(), "{ }");
        assert_eq!(
            (written(&ByHand), serde_json::to_value(ByHand).unwrap()),
            ("{ }".to_owned(), serde_json::json!({}))
        );
    }

    #[test]
    fn a_map_whose_keys_are_no_texts_is_refused() {
        let by_list: BTreeMap<Vec<u8>, u8> = [(vec![1], 1)].into();

        assert!(write(&mut Vec::new(), &by_list).is_err());
    }
}
