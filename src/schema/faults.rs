//! Error messages about arguments that do not fit a schema, written for models: one line for each
//! fault, with the argument's JSON pointer, the expectation and the received value. Pure. The size
//! is bounded: values are cut to [`SHOWN_CHARS_MAX`] characters. So is the work: names are compared
//! for at most [`NAMES_COMPARED_MAX`] hints.

use std::{cell::Cell, fmt, io};

use jsonschema::{
    ValidationError,
    error::{TypeKind, ValidationErrorKind as Kind},
};
use serde_json::Value;

/// Most faults in one message. A model corrects a few at a time, and every line uses its context
/// window.
pub const FAULTS_MAX: usize = 5;

/// Characters shown of a value.
const SHOWN_CHARS_MAX: usize = 80;

/// Characters shown of a pointer or of the validator's message.
const WORDS_CHARS_MAX: usize = 200;

/// Most choices or names that are listed.
const CHOICES_MAX: usize = 20;

/// Faults that are compared to remove duplicates; further ones are only counted.
const COMPARED_MAX: usize = 100;

/// Comparisons of an unknown name with a known one in one message. One takes up to 20 µs.
const NAMES_COMPARED_MAX: usize = 1000;

/// Depth to which nested alternatives are explained.
const NESTED_MAX: u32 = 8;

/// One fault of the arguments.
#[derive(Debug, Clone, PartialEq)]
struct Fault {
    /// JSON pointer of the argument; empty for the arguments as a whole.
    place: String,
    kind: FaultKind,
}

#[derive(Debug, Clone, PartialEq)]
enum FaultKind {
    Missing,
    /// An unknown name, with a hint at the likely one.
    Unknown(String),
    Mismatch {
        expected: Vec<String>,
        /// Whether `expected` lists values rather than types.
        choices: bool,
        got: String,
    },
    Message(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.place.is_empty() {
            "the arguments".to_owned()
        } else {
            cut(&self.place, WORDS_CHARS_MAX)
        };
        match &self.kind {
            FaultKind::Missing => write!(f, "{place} is missing"),
            FaultKind::Unknown(hint) => write!(f, "{place} is unknown; {hint}"),
            FaultKind::Mismatch {
                expected,
                choices,
                got,
            } => {
                let of = if *choices && expected.len() > 1 {
                    "one of "
                } else {
                    ""
                };
                let glue = if *choices { ", " } else { " or " };
                write!(
                    f,
                    "{place}: expected {of}{}, got {got}",
                    listed(expected, glue)
                )
            }
            FaultKind::Message(words) => write!(f, "{place}: {words}"),
        }
    }
}

/// The lines of a message: the first distinct faults, and the number of further ones.
pub(super) fn lines<'a>(
    errors: impl Iterator<Item = ValidationError<'a>>,
    schema: &Value,
) -> Vec<String> {
    let hints = Hints {
        schema,
        left: Cell::new(NAMES_COMPARED_MAX),
    };
    let mut faults = Vec::new();
    let mut more = 0;
    for error in errors {
        for fault in from_error(&error, &hints, 0) {
            match faults.len() < COMPARED_MAX {
                true => add(&mut faults, fault),
                false => more += 1,
            }
        }
    }
    more += faults.len().saturating_sub(FAULTS_MAX);
    let mut lines: Vec<String> = faults
        .iter()
        .take(FAULTS_MAX)
        .map(Fault::to_string)
        .collect();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Adds a fault unless the place already has an equal one. A fault with choices replaces one with a
/// type, as it says more.
fn add(faults: &mut Vec<Fault>, fault: Fault) {
    let same = |known: &&mut Fault| {
        known.place == fault.place
            && (known.kind == fault.kind
                || matches!(
                    (&known.kind, &fault.kind),
                    (FaultKind::Mismatch { .. }, FaultKind::Mismatch { .. })
                ))
    };
    match faults.iter_mut().find(same) {
        Some(known) if matches!(fault.kind, FaultKind::Mismatch { choices: true, .. }) => {
            *known = fault
        }
        Some(_) => {}
        None => faults.push(fault),
    }
}

/// The faults of one error of the validator.
fn from_error(error: &ValidationError<'_>, hints: &Hints<'_>, nested: u32) -> Vec<Fault> {
    let place = error.instance_path().as_str();
    let got = || shown(error.instance());
    let fault = |kind: FaultKind| {
        vec![Fault {
            place: place.to_owned(),
            kind,
        }]
    };
    let other = |expected: String| {
        fault(FaultKind::Mismatch {
            expected: vec![expected],
            choices: false,
            got: got(),
        })
    };
    let choices = |values: &[Value]| {
        // Those that are not shown are only counted.
        let shown = values.iter().take(CHOICES_MAX).map(short);
        let more = values.iter().skip(CHOICES_MAX).map(|_| String::new());
        fault(FaultKind::Mismatch {
            expected: shown.chain(more).collect(),
            choices: true,
            got: got(),
        })
    };
    let too_many = |limit: &dyn fmt::Display| {
        let items = error.instance().as_array().map_or(0, Vec::len);
        fault(FaultKind::Message(format!(
            "expected at most {limit} items, got {items}"
        )))
    };
    let below = |name: &str, kind: FaultKind| Fault {
        place: format!("{place}/{}", segment(name)),
        kind,
    };
    match error.kind() {
        Kind::Required { property } => vec![below(
            property.as_str().unwrap_or_default(),
            FaultKind::Missing,
        )],
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            let keyword = error.schema_path().as_str();
            let hint = |at: usize, name: &str| match at < FAULTS_MAX {
                true => hints.of(name, keyword),
                false => String::new(),
            };
            let unexpected = unexpected.iter().enumerate();
            unexpected
                .map(|(at, name)| below(name, FaultKind::Unknown(hint(at, name))))
                .collect()
        }
        Kind::Type { kind } => {
            let mut expected: Vec<String> = match kind {
                TypeKind::Single(kind) => vec![a(kind.as_str()).to_owned()],
                TypeKind::Multiple(kinds) => kinds
                    .iter()
                    .map(|kind| a(kind.as_str()).to_owned())
                    .collect(),
            };
            expected.sort_by_key(|kind| kind == "null"); // `null` last: it means that the argument is optional.
            fault(FaultKind::Mismatch {
                expected,
                choices: false,
                got: got(),
            })
        }
        Kind::Enum { options } => match &**options {
            Value::Array(values) => choices(values),
            value => choices(std::slice::from_ref(value)),
        },
        Kind::Constant { expected_value } => choices(std::slice::from_ref(expected_value)),
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } if nested < NESTED_MAX => {
            let branches = context.iter().map(|errors| {
                let mut faults = Vec::new();
                errors
                    .iter()
                    .flat_map(|error| from_error(error, hints, nested + 1))
                    .take(COMPARED_MAX)
                    .for_each(|fault| add(&mut faults, fault));
                faults
            });
            nearest_branch(branches.collect(), place).unwrap_or_else(|| {
                fault(FaultKind::Message(
                    "matches none of the allowed forms".to_owned(),
                ))
            })
        }
        Kind::OneOfMultipleValid { .. } => fault(FaultKind::Message(
            "matches more than one of several exclusive forms".to_owned(),
        )),
        Kind::PropertyNames { error } => from_error(error, hints, nested + 1),
        Kind::FalseSchema => fault(FaultKind::Message("no value is allowed here".to_owned())),
        Kind::Minimum { limit } => other(format!("at least {}", short(limit))),
        Kind::ExclusiveMinimum { limit } => other(format!("more than {}", short(limit))),
        Kind::Maximum { limit } => other(format!("at most {}", short(limit))),
        Kind::ExclusiveMaximum { limit } => other(format!("less than {}", short(limit))),
        Kind::MultipleOf { multiple_of } => other(format!("a multiple of {multiple_of}")),
        Kind::MinLength { limit } => other(format!("at least {limit} characters")),
        Kind::MaxLength { limit } => other(format!("at most {limit} characters")),
        Kind::MinItems { limit } => other(format!("at least {limit} items")),
        Kind::MaxItems { limit } => too_many(limit),
        Kind::AdditionalItems { limit } => too_many(limit),
        Kind::Custom { message, .. } => other(message.clone()),
        _ => fault(FaultKind::Message(cut(
            &error.masked_with("this").to_string(),
            WORDS_CHARS_MAX,
        ))),
    }
}

/// The faults of the alternative that was most likely meant. If all alternatives have a fault at
/// one place, their expectations there are merged; otherwise the best is the one whose tag matches,
/// that failed deepest, and has the fewest faults.
fn nearest_branch(branches: Vec<Vec<Fault>>, place: &str) -> Option<Vec<Fault>> {
    let wanted = |branch: &[Fault], at: &str| {
        branch.iter().find_map(|fault| match &fault.kind {
            FaultKind::Mismatch {
                expected,
                choices,
                got,
            } if fault.place == at => Some((expected.clone(), *choices, got.clone())),
            _ => None,
        })
    };
    let places: Vec<String> = branches
        .first()?
        .iter()
        .map(|fault| fault.place.clone())
        .collect();
    for at in places {
        let all: Option<Vec<_>> = branches.iter().map(|branch| wanted(branch, &at)).collect();
        if let Some(all) = all {
            let choices = all.iter().all(|(_, choices, _)| *choices);
            let got = all
                .first()
                .map(|(_, _, got)| got.clone())
                .unwrap_or_default();
            let mut expected: Vec<String> = Vec::new();
            for word in all.into_iter().flat_map(|(expected, ..)| expected) {
                if expected.len() < COMPARED_MAX && !expected.contains(&word) {
                    expected.push(word);
                }
            }
            return Some(vec![Fault {
                place: at,
                kind: FaultKind::Mismatch {
                    expected,
                    choices,
                    got,
                },
            }]);
        }
    }
    branches.into_iter().filter(|branch| !branch.is_empty()).min_by_key(|branch| {
        let other_tag =
            branch.iter().any(|fault| matches!(&fault.kind, FaultKind::Mismatch { choices: true, expected, .. } if expected.len() == 1));
        let shallow = branch.iter().any(|fault| fault.place == place);
        (other_tag, shallow, branch.len())
    })
}

/// Suggestions for unknown names, as long as there is work left.
struct Hints<'a> {
    schema: &'a Value,
    left: Cell<usize>,
}

impl Hints<'_> {
    /// Suggests the name that was probably meant at the object to which a keyword applies.
    fn of(&self, given: &str, keyword: &str) -> String {
        let owner = keyword
            .rsplit_once('/')
            .and_then(|(owner, _)| self.schema.pointer(owner));
        let known = owner.and_then(|owner| owner.get("properties")?.as_object());
        let Some(known) = known.filter(|known| !known.is_empty()) else {
            return "no other name is allowed here".to_owned();
        };
        let nearest = match self.left.get().checked_sub(known.len()) {
            Some(left) => {
                self.left.set(left);
                nearest_name(given, known.keys())
            }
            None => None,
        };
        match nearest {
            Some(name) => format!("did you mean {}?", short(&Value::from(name))),
            None => {
                let names: Vec<String> = known
                    .keys()
                    .take(CHOICES_MAX)
                    .map(|name| cut(name, SHOWN_CHARS_MAX))
                    .chain(known.keys().skip(CHOICES_MAX).map(|_| String::new()))
                    .collect();
                format!("known: {}", listed(&names, ", "))
            }
        }
    }
}

/// The name that is next to the given one. Up to a third of the letters wrong counts as a typo.
fn nearest_name<'a>(given: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a str> {
    let given: String = given
        .chars()
        .take(SHOWN_CHARS_MAX)
        .collect::<String>()
        .to_ascii_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(&given, &name.to_ascii_lowercase());
    known
        .filter(|name| name.len() <= SHOWN_CHARS_MAX)
        .map(|name| (distance(name), name.as_str()))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, name)| distance * 3 <= name.chars().count().max(3))
        .map(|(_, name)| name)
}

fn listed(words: &[String], glue: &str) -> String {
    let mut text = words
        .iter()
        .take(CHOICES_MAX)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(glue);
    if let Some(more) = words
        .len()
        .checked_sub(CHOICES_MAX)
        .filter(|more| *more > 0)
    {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// A name as a segment of a JSON pointer.
fn segment(name: &str) -> String {
    cut(name, SHOWN_CHARS_MAX)
        .replace('~', "~0")
        .replace('/', "~1")
}

fn a(kind: &str) -> &str {
    match kind {
        "array" => "an array",
        "boolean" => "a boolean",
        "integer" => "an integer",
        "number" => "a number",
        "object" => "an object",
        "string" => "a string",
        other => other,
    }
}

/// A value with its type.
fn shown(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) => short(value),
        Value::Number(_) => format!("the number {}", short(value)),
        Value::String(_) => format!("the string {}", short(value)),
        Value::Array(_) => format!("the array {}", short(value)),
        Value::Object(_) => format!("the object {}", short(value)),
    }
}

/// A value's JSON, cut to [`SHOWN_CHARS_MAX`] characters; the rest is never serialized.
pub(super) fn short(value: &Value) -> String {
    let mut start = Start(Vec::new());
    let _ = serde_json::to_writer(&mut start, value);
    cut(&String::from_utf8_lossy(&start.0), SHOWN_CHARS_MAX)
}

fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
    }
}

/// A writer that keeps the first bytes and then fails.
struct Start(Vec<u8>);

impl io::Write for Start {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Room for one character more than is shown, so that `cut` notices; a character has at most
        // four bytes.
        let room = (SHOWN_CHARS_MAX * 4 + 4).saturating_sub(self.0.len());
        self.0.extend(bytes.iter().take(room));
        if bytes.len() > room {
            Err(io::ErrorKind::WriteZero.into())
        } else {
            Ok(bytes.len())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Describes what is wrong with a schema, in one line.
pub(super) fn of_schema(error: &ValidationError<'_>) -> String {
    let words = match error.kind() {
        Kind::Custom { message, .. } => cut(message, WORDS_CHARS_MAX),
        _ => cut(&error.masked_with("this").to_string(), WORDS_CHARS_MAX),
    };
    match error.instance_path().as_str() {
        "" => words,
        place => format!("{}: {words}", cut(place, WORDS_CHARS_MAX)),
    }
}
