//! What a model reads of arguments that do not fit: a line a fault, with the argument's JSON pointer, what was expected and what
//! came. Pure. Nothing here grows with the arguments: values are shown in [`SHOWN_CHARS_MAX`] characters.

use std::{fmt, io};

use jsonschema::{
    ValidationError,
    error::{TypeKind, ValidationErrorKind as Kind},
};
use serde_json::Value;

/// Faults of one message: a model mends a few at a time, and its window is dear.
pub const FAULTS_MAX: usize = 5;

/// Characters of a value that are shown.
const SHOWN_CHARS_MAX: usize = 80;

/// Characters of a pointer, and of what the validator says, that are shown.
const WORDS_CHARS_MAX: usize = 200;

/// Choices, or names, that are shown.
const CHOICES_MAX: usize = 20;

/// Faults that are compared with one another, so that none is told twice; beyond them they are only counted.
const COMPARED_MAX: usize = 100;

/// Alternatives inside of alternatives that are looked into.
const NESTED_MAX: u32 = 8;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq)]
struct Fault {
    /// JSON pointer of the argument; empty for all of them.
    place: String,
    what: What,
}

#[derive(Debug, Clone, PartialEq)]
enum What {
    Missing,
    /// With a hint at the right name.
    Unknown(String),
    Other {
        expected: Vec<String>,
        /// Whether these are the values themselves, not their kinds.
        choices: bool,
        got: String,
    },
    Said(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.place.is_empty() { "the arguments".to_owned() } else { cut(&self.place, WORDS_CHARS_MAX) };
        match &self.what {
            What::Missing => write!(f, "{place} is missing"),
            What::Unknown(hint) => write!(f, "{place} is unknown; {hint}"),
            What::Other { expected, choices, got } => {
                let of = if *choices && expected.len() > 1 { "one of " } else { "" };
                let glue = if *choices { ", " } else { " or " };
                write!(f, "{place}: expected {of}{}, got {got}", listed(expected, glue))
            }
            What::Said(words) => write!(f, "{place}: {words}"),
        }
    }
}

/// The lines of a message: the first faults, each once, and how many there are beside them.
pub(super) fn lines<'a>(errors: impl Iterator<Item = ValidationError<'a>>, schema: &Value) -> Vec<String> {
    let (mut faults, mut more) = (Vec::new(), 0);
    for error in errors {
        for fault in of(&error, schema, 0) {
            match faults.len() < COMPARED_MAX {
                true => add(&mut faults, fault),
                false => more += 1,
            }
        }
    }
    more += faults.len().saturating_sub(FAULTS_MAX);
    let mut lines: Vec<String> = faults.iter().take(FAULTS_MAX).map(Fault::to_string).collect();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Adds a fault, unless the same is said of the same place: the choices say more than their kind.
fn add(faults: &mut Vec<Fault>, fault: Fault) {
    let same = |known: &&mut Fault| {
        known.place == fault.place
            && (known.what == fault.what || matches!((&known.what, &fault.what), (What::Other { .. }, What::Other { .. })))
    };
    match faults.iter_mut().find(same) {
        Some(known) if matches!(fault.what, What::Other { choices: true, .. }) => *known = fault,
        Some(_) => {}
        None => faults.push(fault),
    }
}

/// The faults that one error of the validator tells of.
fn of(error: &ValidationError<'_>, schema: &Value, nested: u32) -> Vec<Fault> {
    let place = error.instance_path().as_str();
    let got = || shown(error.instance());
    let fault = |what: What| vec![Fault { place: place.to_owned(), what }];
    let other = |expected: String| fault(What::Other { expected: vec![expected], choices: false, got: got() });
    let choices = |values: &[Value]| fault(What::Other { expected: values.iter().map(short).collect(), choices: true, got: got() });
    let too_many = |limit: &dyn fmt::Display| {
        let items = error.instance().as_array().map_or(0, Vec::len);
        fault(What::Said(format!("expected at most {limit} items, got {items}")))
    };
    let below = |name: &str, what: What| Fault { place: format!("{place}/{}", segment(name)), what };
    match error.kind() {
        Kind::Required { property } => vec![below(property.as_str().unwrap_or_default(), What::Missing)],
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            let known = known_names(schema, error.schema_path().as_str());
            unexpected.iter().map(|name| below(name, What::Unknown(hint(name, &known)))).collect()
        }
        Kind::Type { kind } => {
            let mut expected: Vec<String> = match kind {
                TypeKind::Single(kind) => vec![a(kind.as_str()).to_owned()],
                TypeKind::Multiple(kinds) => kinds.iter().map(|kind| a(kind.as_str()).to_owned()).collect(),
            };
            expected.sort_by_key(|kind| kind == "null"); // Last: it says that the argument may be left out.
            fault(What::Other { expected, choices: false, got: got() })
        }
        Kind::Enum { options } => match &**options {
            Value::Array(values) => choices(values),
            value => choices(std::slice::from_ref(value)),
        },
        Kind::Constant { expected_value } => choices(std::slice::from_ref(expected_value)),
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } if nested < NESTED_MAX => {
            let branches = context.iter().map(|errors| {
                let mut faults = Vec::new();
                errors.iter().flat_map(|error| of(error, schema, nested + 1)).for_each(|fault| add(&mut faults, fault));
                faults
            });
            nearest_branch(branches.collect(), place)
                .unwrap_or_else(|| fault(What::Said("fits none of the forms that are allowed".to_owned())))
        }
        Kind::OneOfMultipleValid { .. } => fault(What::Said("fits more than one of the forms that exclude each other".to_owned())),
        Kind::PropertyNames { error } => of(error, schema, nested + 1),
        Kind::FalseSchema => fault(What::Said("nothing is allowed here".to_owned())),
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
        _ => fault(What::Said(cut(&error.masked_with("this").to_string(), WORDS_CHARS_MAX))),
    }
}

/// The faults of the alternative that was most likely meant: where all of them want something else at one place, all that they want;
/// else the one whose tag fits, that got deepest, that has the fewest.
fn nearest_branch(branches: Vec<Vec<Fault>>, place: &str) -> Option<Vec<Fault>> {
    let wanted = |branch: &[Fault], at: &str| {
        branch.iter().find_map(|fault| match &fault.what {
            What::Other { expected, choices, got } if fault.place == at => Some((expected.clone(), *choices, got.clone())),
            _ => None,
        })
    };
    let places: Vec<String> = branches.first()?.iter().map(|fault| fault.place.clone()).collect();
    for at in places {
        let all: Option<Vec<_>> = branches.iter().map(|branch| wanted(branch, &at)).collect();
        if let Some(all) = all {
            let choices = all.iter().all(|(_, choices, _)| *choices);
            let got = all.first().map(|(_, _, got)| got.clone()).unwrap_or_default();
            let mut expected: Vec<String> = Vec::new();
            for word in all.into_iter().flat_map(|(expected, ..)| expected) {
                if !expected.contains(&word) {
                    expected.push(word);
                }
            }
            return Some(vec![Fault { place: at, what: What::Other { expected, choices, got } }]);
        }
    }
    branches.into_iter().filter(|branch| !branch.is_empty()).min_by_key(|branch| {
        let other_tag =
            branch.iter().any(|fault| matches!(&fault.what, What::Other { choices: true, expected, .. } if expected.len() == 1));
        let shallow = branch.iter().any(|fault| fault.place == place);
        (other_tag, shallow, branch.len())
    })
}

/// The names that the schema knows where a keyword stands.
fn known_names(schema: &Value, keyword: &str) -> Vec<String> {
    let owner = keyword.rsplit_once('/').and_then(|(owner, _)| schema.pointer(owner));
    let properties = owner.and_then(|owner| owner.get("properties")?.as_object());
    properties.into_iter().flat_map(|names| names.keys().cloned()).collect()
}

/// Points at the name that was meant.
fn hint(given: &str, known: &[String]) -> String {
    let given: String = given.chars().take(SHOWN_CHARS_MAX).collect::<String>().to_ascii_lowercase();
    let nearest = known
        .iter()
        .filter(|name| name.len() <= SHOWN_CHARS_MAX)
        .map(|name| (strsim::damerau_levenshtein(&given, &name.to_ascii_lowercase()), name))
        .min_by_key(|(distance, _)| *distance);
    match nearest {
        // A third of the letters wrong is a slip; more is another word.
        Some((distance, name)) if distance * 3 <= name.chars().count().max(3) => {
            format!("did you mean {}?", short(&Value::from(name.as_str())))
        }
        Some(_) => format!("known: {}", listed(&known.iter().map(|name| cut(name, SHOWN_CHARS_MAX)).collect::<Vec<_>>(), ", ")),
        None => "no other name is allowed here".to_owned(),
    }
}

fn listed(words: &[String], glue: &str) -> String {
    let mut text = words.iter().take(CHOICES_MAX).map(String::as_str).collect::<Vec<_>>().join(glue);
    if let Some(more) = words.len().checked_sub(CHOICES_MAX).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// A name as a part of a JSON pointer.
fn segment(name: &str) -> String {
    cut(name, SHOWN_CHARS_MAX).replace('~', "~0").replace('/', "~1")
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

/// A value with its kind.
fn shown(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) => short(value),
        Value::Number(_) => format!("the number {}", short(value)),
        Value::String(_) => format!("the string {}", short(value)),
        Value::Array(_) => format!("the array {}", short(value)),
        Value::Object(_) => format!("the object {}", short(value)),
    }
}

/// A value's JSON, cut at [`SHOWN_CHARS_MAX`] characters; no more of it is written than is shown.
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

/// Takes the first bytes and refuses the rest.
struct Start(Vec<u8>);

impl io::Write for Start {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // One character more than is shown, so that the cut is seen; four bytes a character at most.
        let room = (SHOWN_CHARS_MAX * 4 + 4).saturating_sub(self.0.len());
        self.0.extend(bytes.iter().take(room));
        if bytes.len() > room { Err(io::ErrorKind::WriteZero.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is wrong with a schema, in a line.
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
