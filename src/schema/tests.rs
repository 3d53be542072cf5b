use std::time::{Duration, Instant};

use callboard_actors::tool::ToolErrorType;
use serde_json::{Map, json};

use super::*;

/// A small random generator (splitmix64); the printed seed reproduces a failure.
struct Random(u64);

impl Random {
    fn new(name: &str) -> Self {
        let now = || {
            u64::try_from(
                std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() & u128::from(u64::MAX),
            )
            .unwrap()
        };
        let seed = std::env::var("CALLBOARD_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(now);
        println!("{name}: CALLBOARD_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()].clone()
    }

    fn json(&mut self, depth: u32) -> Value {
        match self.below(if depth == 0 { 5 } else { 8 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => self.one(&[
                json!(0),
                json!(-1),
                json!(1),
                json!(1.0),
                json!(2.5),
                json!(1e300),
                json!(u64::MAX),
                json!(i64::MIN),
            ]),
            3 | 4 => self.one(&[
                json!(""),
                json!("a"),
                json!("漢字"),
                json!("#/"),
                json!("\u{0}\u{1F5FC}"),
                json!("x".repeat(300)),
            ]),
            5 => (0..self.below(4)).map(|_| self.json(depth - 1)).collect(),
            _ => Value::Object(
                (0..self.below(4))
                    .map(|_| (self.name(), self.json(depth - 1)))
                    .collect(),
            ),
        }
    }

    fn name(&mut self) -> String {
        self.one(&["a", "b", "c", "path", "a/b~c", ""]).to_owned()
    }

    /// A random value in place of a schema: mostly keywords, with values that may or may not suit
    /// them.
    fn schema(&mut self, depth: u32) -> Value {
        const WORDS: [&str; 28] = [
            "type",
            "properties",
            "required",
            "enum",
            "const",
            "items",
            "prefixItems",
            "additionalProperties",
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "if",
            "then",
            "else",
            "$ref",
            "$defs",
            "pattern",
            "patternProperties",
            "minimum",
            "maxLength",
            "uniqueItems",
            "dependentSchemas",
            "propertyNames",
            "unevaluatedProperties",
            "contains",
            "multipleOf",
            "$anchor",
        ];
        if depth == 0 {
            return self.one(&[
                json!({}),
                json!(true),
                json!(false),
                json!({ "type": "string" }),
                json!({ "$ref": "#" }),
                json!(7),
            ]);
        }
        let fields = (0..1 + self.below(4)).map(|_| {
            let word = self.one(&WORDS);
            let value = match word {
                "type" => self.one(&[
                    json!("object"),
                    json!("string"),
                    json!(["integer", "null"]),
                    json!("nothing"),
                ]),
                "$ref" => self.one(&[
                    json!("#"),
                    json!("#/$defs/a"),
                    json!("#/properties/a"),
                    json!("#x"),
                    json!("other.json"),
                    json!(1),
                ]),
                "$anchor" => json!("x"),
                "pattern" => self.one(&[
                    json!("^a+$"),
                    json!("(a*)*b"),
                    json!("^(?!x)"),
                    json!("("),
                    json!("a{1000}{1000}"),
                ]),
                "anyOf" | "oneOf" | "allOf" | "prefixItems" => (0..1 + self.below(3))
                    .map(|_| self.schema(depth - 1))
                    .collect(),
                "properties" | "$defs" | "patternProperties" | "dependentSchemas" => Value::Object(
                    (0..self.below(3))
                        .map(|_| (self.name(), self.schema(depth - 1)))
                        .collect(),
                ),
                "required" => json!([self.name()]),
                "enum" => Value::Array((0..1 + self.below(3)).map(|_| self.json(1)).collect()),
                "minimum" | "maxLength" | "multipleOf" => {
                    self.one(&[json!(1), json!(0), json!(0.1), json!("1")])
                }
                "const" => self.json(1),
                _ => self.schema(depth - 1),
            };
            (word.to_owned(), value)
        });
        Value::Object(fields.collect())
    }
}

fn compile(schema: &Value) -> Result<Arc<dyn SchemaCheck>, String> {
    JsonSchemas.compile("t", &RawJson::of(schema).unwrap())
}

/// The lines that the model reads, without the first one.
fn faults(schema: &Value, arguments: &Value) -> Vec<String> {
    match compile(schema).unwrap().check(arguments) {
        Ok(()) => Vec::new(),
        Err(error) => {
            assert_eq!(
                (error.kind, error.not_started),
                (ToolErrorType::InvalidParameters, true)
            );
            let mut lines = error.message.lines();
            assert_eq!(lines.next(), Some("the arguments of t do not fit:"));
            lines
                .map(|line| line.strip_prefix("- ").unwrap().to_owned())
                .collect()
        }
    }
}

#[test]
fn a_model_reads_which_argument_is_wrong_what_was_expected_and_what_came() {
    let schema = json!({
        "type": "object",
        "properties": {
            "path": { "type": "string", "minLength": 1 },
            "mode": { "enum": ["read", "write"] },
            "limit": { "type": ["integer", "null"], "minimum": 1 },
            "tags": { "type": "array", "items": { "type": "string", "pattern": "^[a-z]+$" }, "maxItems": 2 },
        },
        "required": ["path"],
        "additionalProperties": false,
    });
    let check = |arguments: Value, expected: &[&str]| {
        assert_eq!(faults(&schema, &arguments), expected, "{arguments}")
    };

    check(
        json!({ "path": "a", "mode": "read", "limit": null, "tags": ["x"] }),
        &[],
    );
    check(json!({}), &["/path is missing"]);
    check(
        json!({ "Path": "a" }),
        &[
            "/Path is unknown; did you mean \"path\"?",
            "/path is missing",
        ],
    );
    check(
        json!({ "path": "a", "colour": 1 }),
        &["/colour is unknown; known: limit, mode, path, tags"],
    );
    check(
        json!({ "path": 7 }),
        &["/path: expected a string, got the number 7"],
    );
    check(
        json!({ "path": "" }),
        &["/path: expected at least 1 characters, got the string \"\""],
    );
    check(
        json!({ "path": "a", "mode": "raed" }),
        &["/mode: expected one of \"read\", \"write\", got the string \"raed\""],
    );
    check(
        json!({ "path": "a", "limit": 0 }),
        &["/limit: expected at least 1, got the number 0"],
    );
    check(
        json!({ "path": "a", "limit": "9" }),
        &["/limit: expected an integer or null, got the string \"9\""],
    );
    check(
        json!({ "path": "a", "tags": ["x", "Y"] }),
        &["/tags/1: expected text that matches \"^[a-z]+$\", got the string \"Y\""],
    );
    check(
        json!({ "path": "a", "tags": ["x", "y", "z"] }),
        &["/tags: expected at most 2 items, got 3"],
    );
    check(
        json!([]),
        &["the arguments: expected an object, got the array []"],
    );
}

#[test]
fn the_alternative_that_was_most_likely_meant_is_explained() {
    let schema = json!({
        "type": "object",
        "properties": {
            "filter": { "oneOf": [
                { "type": "object", "properties": { "kind": { "const": "is" }, "name": { "type": "string" } }, "required": ["kind", "name"] },
                { "type": "object", "properties": { "kind": { "const": "all" }, "of": { "type": "array" } }, "required": ["kind", "of"] },
            ] },
            "unit": { "oneOf": [{ "const": "m", "description": "metres" }, { "const": "ft", "description": "feet" }] },
            "owner": { "anyOf": [{ "$ref": "#/$defs/Owner" }, { "type": "null" }] },
        },
        "$defs": { "Owner": { "type": "object", "properties": { "id": { "type": "integer" } }, "required": ["id"] } },
    });
    let check = |arguments: Value, expected: &[&str]| {
        assert_eq!(faults(&schema, &arguments), expected, "{arguments}")
    };

    check(
        json!({ "filter": { "kind": "all" } }),
        &["/filter/of is missing"],
    );
    check(
        json!({ "filter": { "kind": "any" } }),
        &["/filter/kind: expected one of \"is\", \"all\", got the string \"any\""],
    );
    check(
        json!({ "unit": "km" }),
        &["/unit: expected one of \"m\", \"ft\", got the string \"km\""],
    );
    check(json!({ "owner": {} }), &["/owner/id is missing"]);
    check(
        json!({ "owner": 5 }),
        &["/owner: expected an object or null, got the number 5"],
    );
}

#[test]
fn a_message_stays_short_for_any_arguments() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "additionalProperties": false });
    let huge = json!({ "n": "漢".repeat(3_000_000) });
    let many = Value::Object(
        (0..300)
            .map(|n| (format!("{n:x<300}"), json!(1)))
            .collect::<Map<_, _>>(),
    );

    let lines = faults(&schema, &huge);
    assert_eq!(
        lines,
        [format!(
            "/n: expected an integer, got the string \"{}…",
            "漢".repeat(79)
        )]
    );
    let lines = faults(&schema, &many);
    assert_eq!(
        (lines.len(), lines[FAULTS_MAX].as_str()),
        (FAULTS_MAX + 1, "and 295 more")
    );
    assert!(
        lines.iter().all(|line| line.chars().count() < 400),
        "{lines:?}"
    );
}

#[test]
fn a_reference_to_another_document_is_refused() {
    for reference in [
        "http://example.com/a.json",
        "file:///etc/passwd",
        "other.json",
        "//example.com",
        "https://json-schema.org/draft/2020-12/schema",
    ] {
        let error = compile(&json!({ "properties": { "a": { "$ref": reference } } }))
            .err()
            .unwrap();
        assert!(
            error.starts_with("/properties/a refers to ")
                && error.contains("only references inside of the schema"),
            "{error}"
        );
    }
    assert!(compile(&json!({ "$schema": "http://example.com/my-own", "type": "object" })).is_err());
    assert!(compile(&json!({ "properties": { "a": { "$ref": "#/$defs/nothing" } } })).is_err());
    assert!(
        compile(
            &json!({ "properties": { "a": { "$id": "http://example.com/", "type": "string" } } })
        )
        .is_err()
    );
    // These only look like references: a property name and a default value.
    assert!(compile(&json!({ "properties": { "$ref": { "type": "string" } }, "default": { "$ref": "http://example.com" } })).is_ok());
}

#[test]
fn an_invalid_schema_is_refused_with_its_fault() {
    let check = |schema: Value, expected: &str| {
        let error = compile(&schema).err().unwrap();
        assert!(error.contains(expected), "{schema}: {error}");
    };

    check(json!([]), "it is not a JSON object");
    check(json!(true), "it is not a JSON object");
    check(
        json!({ "type": "string" }),
        "it does not describe an object",
    );
    check(
        json!({ "type": "objekt" }),
        "it does not describe an object",
    );
    check(
        json!({ "properties": { "a": { "type": "strin" } } }),
        "/properties/a/type: ",
    );
    check(
        json!({ "properties": { "a": { "pattern": "(" } } }),
        "the pattern \"(\" is not a valid regular expression",
    );
    check(json!({ "required": "a" }), "/required: ");
    check(
        json!({ "description": "x".repeat(SCHEMA_BYTES_MAX) }),
        "at most 262144 are allowed",
    );
    let deep = (0..40).fold(
        json!({}),
        |inner, _| json!({ "properties": { "a": inner } }),
    );
    check(deep, "nested deeper than 64 levels");
}

#[test]
fn other_drafts_are_honored() {
    let tuple = |draft: &str| json!({ "$schema": draft, "properties": { "a": { "items": [{ "type": "string" }], "additionalItems": false } } });
    for draft in [
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft-07/schema",
    ] {
        let check = compile(&tuple(draft)).unwrap();
        assert!(
            check.check(&json!({ "a": ["x"] })).is_ok()
                && check.check(&json!({ "a": ["x", "y"] })).is_err(),
            "{draft}"
        );
    }
    assert!(
        compile(&tuple("https://json-schema.org/draft/2020-12/schema")).is_err(),
        "in that draft a list of items is called prefixItems"
    );
}

/// A chain of definitions in which each refers to the next one twice.
fn doubling(levels: usize, link: impl Fn(Value) -> Value) -> Value {
    let definitions = (0..levels).map(|n| {
        let next = json!({ "$ref": format!("#/$defs/d{}", n + 1) });
        (format!("d{n}"), link(next))
    });
    let mut definitions: Map<String, Value> = definitions.collect();
    definitions.insert(format!("d{levels}"), json!({ "type": "integer" }));
    json!({ "properties": { "x": { "$ref": "#/$defs/d0" } }, "$defs": definitions })
}

#[test]
fn no_schema_and_no_arguments_take_long() {
    let began = Instant::now();

    for keyword in ["anyOf", "allOf", "oneOf"] {
        let in_place = doubling(40, |next| json!({ keyword: [next, next] }));
        let loops = json!({ keyword: [{ "$ref": "#" }] });
        assert!(
            compile(&in_place).is_err() && compile(&loops).is_err(),
            "{keyword}"
        );
    }
    assert!(compile(&json!({ "$ref": "#" })).is_err());
    // Descending into the value it doubles as well, which depends on the value: the check still
    // ends quickly.
    let downwards = doubling(
        60,
        |next| json!({ "anyOf": [{ "properties": { "x": next } }, { "properties": { "x": next } }] }),
    );
    let value = (0..61).fold(json!("no integer"), |inner, _| json!({ "x": inner }));
    assert_eq!(
        faults(&downwards, &value),
        ["there are too many ways to read them; give fewer, or less nested ones"]
    );
    // Patterns: linear time, or short texts.
    for pattern in [
        "(a*)*$",
        "^(a|aa)+$",
        "(x+x+)+y",
        "^(?=(a+)+$)b",
        "(?:(?=.*x)a)*$",
        r"^(a+)\1+b",
    ] {
        let schema = json!({ "properties": { "s": { "type": "string", "pattern": pattern } } });
        let check = compile(&schema).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        for length in [30, 4000, 200_000] {
            let _ = check.check(&json!({ "s": "a".repeat(length) + "!" }));
        }
    }
    // A long list in which each item is wrong.
    let flat = json!({ "properties": { "l": { "items": { "type": "string" } } } });
    assert_eq!(faults(&flat, &json!({ "l": vec![1; 300_000] })).len(), 1);
    let items = json!({ "properties": { "l": { "uniqueItems": true } } });
    assert_eq!(
        faults(
            &items,
            &json!({ "l": (0..20_000).map(|n| json!([n % 19_999])).collect::<Vec<_>>() })
        )
        .len(),
        1
    );

    // Seconds in an unoptimized build; years without the limits.
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
}

/// `times` times the same schema for one value.
fn repeated(times: usize, schema: &Value) -> Value {
    let all = vec![json!({ "$ref": "#/$defs/one" }); times];
    json!({
        "properties": { "x": { "allOf": all }, "l": { "items": { "$ref": "#/$defs/one" } } },
        "$defs": { "one": schema },
    })
}

#[test]
fn the_work_of_each_keyword_counts_and_a_value_that_takes_too_much_is_refused() {
    let numbers: Vec<Value> = (0..30_000).map(Value::from).collect();
    let names: Vec<String> = (0..5_000).map(|n| format!("n{n}")).collect();
    let object = |count: usize| -> Value {
        let members = names
            .iter()
            .take(count)
            .map(|name| (name.clone(), json!(1)));
        Value::Object(members.collect())
    };
    let states = "^(?:[01]*1[01]{300})$";
    let text = json!("01".repeat(40_000));
    let all = [
        ("enum", json!({ "enum": numbers.clone() }), json!(1.5)),
        ("const", json!({ "const": numbers.clone() }), json!(numbers)),
        (
            "uniqueItems",
            json!({ "uniqueItems": true }),
            json!(numbers),
        ),
        (
            "pattern",
            json!({ "pattern": states }),
            json!("01".repeat(1_000)),
        ),
        ("maxLength", json!({ "maxLength": 1 }), text.clone()),
        (
            "contentMediaType",
            json!({ "contentMediaType": "application/json" }),
            text,
        ),
        (
            "required",
            json!({ "required": names.clone() }),
            object(5_000),
        ),
        (
            "dependentRequired",
            json!({ "dependentRequired": { "n1": names.clone() } }),
            object(5_000),
        ),
        (
            "additionalProperties",
            json!({ "additionalProperties": false }),
            object(5_000),
        ),
        (
            "patternProperties",
            json!({ "patternProperties": { "^[a-z]{20}$": {}, "^n[0-9]{20}$": {} } }),
            object(5_000),
        ),
        (
            "propertyNames",
            json!({ "propertyNames": { "pattern": "^.{20}$" } }),
            object(5_000),
        ),
        (
            "backtracking",
            json!({ "pattern": "^(?=(a+)+$)b" }),
            json!("a".repeat(1_000)),
        ),
    ];
    let too_much = ["there are too many ways to read them; give fewer, or less nested ones"];

    for (keyword, schema, value) in all {
        let once = repeated(1, &schema);
        assert_ne!(
            faults(&once, &json!({ "x": value })),
            too_much,
            "{keyword}: once"
        );
        let often = repeated(900, &schema);
        assert_eq!(
            faults(&often, &json!({ "x": value })),
            too_much,
            "{keyword}"
        );
    }
    // Of members and properties the fewer ones count.
    let properties: Map<String, Value> = object(5_000).as_object().unwrap().clone();
    let properties = properties.into_iter().map(|(name, _)| (name, json!({})));
    let properties: Map<String, Value> = properties.collect();
    let of_many = repeated(1, &json!({ "properties": properties }));
    assert_eq!(
        faults(&of_many, &json!({ "l": vec![json!({}); 20_000] })),
        [""; 0]
    );
}

#[test]
fn large_values_of_usual_schemas_are_checked() {
    let country: Vec<String> = (0..250).map(|n| format!("country {n}")).collect();
    let row = json!({
        "type": "object",
        "properties": {
            "id": { "type": "string", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}$" },
            "name": { "type": "string", "minLength": 1, "maxLength": 200 },
            "country": { "type": "string", "enum": country },
            "amount": { "type": "number", "minimum": 0 },
            "tags": { "type": "array", "items": { "type": "string" }, "uniqueItems": true },
        },
        "required": ["id", "name", "country", "amount"],
        "additionalProperties": false,
    });
    let schema = json!({ "type": "object", "properties": { "rows": { "items": row } } });
    let value = |id: &str| {
        let row = json!({
            "id": id, "name": "A name", "country": "country 249", "amount": 1.5,
            "tags": ["a", "b", "c"],
        });
        json!({ "rows": vec![row; 3_000] })
    };

    assert_eq!(faults(&schema, &value("0123abcd-0123")), [""; 0]);
    assert_eq!(faults(&schema, &value("wrong")).len(), 1);
    let arn = r"^arn:aws[a-z-]*:[a-z0-9-]+:[a-z0-9-]*:[0-9]{12}:[\w+=/,.@-]{1,512}$";
    let uuid = "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|0{8}-0{4}-0{4}-0{4}-0{12})$";
    let numbers: Vec<u32> = (0..1_000).collect();
    for (items, item, count) in [
        (
            json!({ "pattern": arn }),
            json!("arn:aws:iam::123456789012:role/a-role-of-the-service"),
            200,
        ),
        (
            json!({ "pattern": uuid }),
            json!("0b5c1f2e-7f0a-4c1d-8e2b-1234567890ab"),
            2_000,
        ),
        (
            json!({ "pattern": r"^[\w .-]{1,255}$" }),
            json!("A name of some words"),
            1_000,
        ),
        (json!({ "enum": numbers }), json!(999), 1_000),
    ] {
        let schema = json!({ "properties": { "l": { "items": items } } });
        assert_eq!(
            faults(&schema, &json!({ "l": vec![item; count] })),
            [""; 0],
            "{items}"
        );
    }
}

#[test]
fn a_long_text_is_checked_against_a_length_and_a_small_pattern() {
    let text = json!({ "type": "string", "minLength": 1, "pattern": r"\S" });
    let schema = json!({ "properties": { "content": text } });

    let long = "a line of a file\n".repeat(600_000);
    assert_eq!(faults(&schema, &json!({ "content": long })), [""; 0]);
}

#[test]
fn patterns_with_very_many_states_at_one_place_end_in_time() {
    let slow = json!({ "pattern": "[01]*1[01]{700}(?:2|[01])|9" });
    let schema = json!({ "properties": { "l": { "items": slow } } });
    let mut random = Random::new("patterns");
    let text: String = (0..2_000).map(|_| random.one(&["0", "1"])).collect();
    let began = Instant::now();

    let lines = faults(&schema, &json!({ "l": vec![text; 200] }));

    assert!(
        lines.len() <= 1 && began.elapsed() < Duration::from_secs(20),
        "{lines:?}"
    );
}

#[test]
fn divisions_of_large_numbers_by_fractions_count_as_what_they_take() {
    let all = |of: Value| {
        let each = |nth: usize| json!({ "multipleOf": of.clone(), "title": format!("{nth}") });
        json!({ "items": { "allOf": (0..300).map(each).collect::<Vec<_>>() } })
    };
    let numbers = |number: &str| -> Value {
        serde_json::from_str(&format!("[{}]", vec![number; 100].join(","))).unwrap()
    };
    let began = Instant::now();

    let lines = faults(
        &all(json!(0.000_123_456_789_012_345_67)),
        &numbers("1.234567890123456e307"),
    );

    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(faults(&all(json!(2)), &numbers("4")), [""; 0]);
    let price = json!({ "items": { "multipleOf": 0.01 } });
    let prices: Vec<f64> = (0..1000).map(|n| f64::from(n) / 100.0).collect();
    assert!(faults(&price, &json!(prices)).len() < 1000, "it is checked");
}

#[test]
fn hints_are_given_while_they_are_cheap() {
    let names = (0..5_000).map(|n| format!("{n}{}", "a".repeat(35)));
    let properties: Map<String, Value> = names.map(|name| (name, json!({}))).collect();
    let closed = json!({ "properties": properties, "additionalProperties": false });
    let unknown: Map<String, Value> = (0..2_000)
        .map(|n| (format!("{}{n}", "b".repeat(35)), json!(1)))
        .collect();

    let lines = faults(&closed, &Value::Object(unknown));

    assert_eq!(lines.len(), FAULTS_MAX + 1);
    assert!(
        lines[0].contains("known: ") && lines[0].contains("and 4980 more"),
        "{}",
        lines[0]
    );
    // Alternatives with very many options each.
    let options = |from: i64| json!({ "enum": (from..from + 20_000).collect::<Vec<_>>() });
    let either = json!({ "properties": { "x": { "anyOf": [options(0), options(30_000)] } } });
    let lines = faults(&either, &json!({ "x": -1 }));
    assert!(
        lines[0].starts_with("/x: expected one of 0, 1, 2"),
        "{lines:?}"
    );
}

#[test]
fn a_schema_whose_patterns_are_large_is_refused() {
    let pattern = |nth: usize| json!({ "pattern": format!("^(?:[01]*1[01]{{700}}{nth})$") });
    let all = |count: usize| json!({ "allOf": (0..count).map(pattern).collect::<Vec<_>>() });

    assert!(compile(&all(3)).is_ok());
    let error = compile(&all(100)).err().unwrap();
    assert!(error.contains("states"), "{error}");
}

/// A schema whose reference leads to the first of a list of schemas in a place of their own, each of which
/// refers to the next.
fn chained(one: impl Fn(usize, &str) -> Value, to: impl Fn(usize) -> String) -> Value {
    let list: Vec<Value> = (0..1_000)
        .map(|n| one(n, &to(n + 1)))
        .chain([json!({ "items": { "$ref": to(0) } })])
        .collect();
    json!({ "properties": { "x": { "$ref": to(0) } }, "elsewhere": list })
}

#[test]
fn references_that_a_validator_might_resolve_in_another_way_are_refused() {
    let negated = |_: usize, to: &str| json!({ "not": { "not": { "$ref": to } } });
    let deep = chained(negated, |n| format!("#/elsewhere/{n}"));
    let padded = chained(negated, |n| format!("#/elsewhere/0{n}"));
    let mut named = chained(
        |n, to| json!({ "id": format!("#e{n}"), "not": { "not": { "$ref": to } } }),
        |n| format!("#e{n}"),
    );
    named["$schema"] = json!("http://json-schema.org/draft-04/schema#");
    let inner = json!({
        "properties": { "x": { "$ref": "#/elsewhere/0" } },
        "elsewhere": [{ "$id": "http://a/", "type": "string" }],
    });
    let twice = json!({
        "$ref": "#a",
        "$defs": { "a": { "$anchor": "a" }, "b": { "$anchor": "a", "not": {} } },
    });

    for (schema, fault) in [
        (deep, "more than 16"),
        (padded, "which is not in the schema"),
        (named, "$id inside"),
        (inner, "$id inside"),
        (twice, "is there twice"),
        (
            json!({ "$ref": "#/$defs/none" }),
            "which is not in the schema",
        ),
    ] {
        let error = compile(&schema).err().unwrap();
        assert!(error.contains(fault), "{error}");
    }
    // Lists of schemas in any place count, and may be referred to.
    let near = json!({ "properties": { "x": { "$ref": "#/a/b/0" } }, "a": { "b": [{ "type": "string" }] } });
    assert_eq!(faults(&near, &json!({ "x": 1 })).len(), 1);
}

#[test]
fn a_reference_leads_a_validator_to_the_schema_that_was_measured() {
    // Anchors, drafts and names in places where no schema is applied.
    let of_content = json!({
        "properties": { "a": { "$ref": "#e" } },
        "$defs": { "e": { "$anchor": "e", "type": "string" } },
        "contentSchema": { "$anchor": "e", "type": "integer" },
    });
    let of_draft4 = json!({
        "properties": { "a": {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "items": {
                "id": "http://b.example/q",
                "definitions": { "e": { "type": "integer" } },
                "allOf": [{ "$ref": "#/definitions/e" }],
            },
        } },
        "definitions": { "e": { "type": "string" } },
    });
    let recursive = json!({
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "type": "object",
        "properties": { "a": { "$recursiveRef": "#/$defs/e" } },
        "$defs": { "e": { "type": "string" } },
    });

    assert_eq!(faults(&of_content, &json!({ "a": "text" })), [""; 0]);
    assert_eq!(faults(&of_content, &json!({ "a": 1 })).len(), 1);
    assert_eq!(faults(&of_draft4, &json!({ "a": ["text"] })), [""; 0]);
    assert_eq!(faults(&of_draft4, &json!({ "a": [1] })).len(), 1);
    assert_eq!(faults(&recursive, &json!({ "a": { "a": {} } })), [""; 0]);
    assert_eq!(faults(&recursive, &json!({ "a": "text" })).len(), 1);
}

#[test]
fn names_and_drafts_inside_of_a_schema_are_refused_or_ignored_wherever_they_are() {
    for place in ["contentSchema", "x"] {
        for outer in ["a", "enum", "default"] {
            let inner = json!({ "$id": "json-schema:///", "$defs": { "e": { "type": "string" } } });
            let schema = json!({ "properties": { (outer): { (place): inner } } });
            let error = compile(&schema).err().unwrap();
            assert!(
                error.contains("$id inside") || error.contains("has an $id"),
                "{error}"
            );
        }
    }
    // The draft 4 has another word for it.
    let named = json!({
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": { "a": { "$ref": "#/contentSchema" } },
        "contentSchema": { "allOf": [{ "id": "http://b.example/q", "allOf": [{ "$ref": "#/x" }] }] },
        "x": {},
    });
    assert!(compile(&named).err().unwrap().contains("$id inside"));
    // A part that a library wrote as a schema of its own.
    let part = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": { "b": { "type": "integer" } },
        "required": ["b"],
    });
    let schema = json!({ "type": "object", "properties": { "a": part } });
    assert_eq!(faults(&schema, &json!({ "a": { "b": 1 } })), [""; 0]);
    assert_eq!(faults(&schema, &json!({ "a": {} })).len(), 1);
    // Values are no schemas.
    let value = json!({ "$schema": "x", "$id": "y" });
    let schema = json!({ "properties": { "a": { "const": value, "default": value } } });
    assert_eq!(faults(&schema, &json!({ "a": value })), [""; 0]);
    assert_eq!(faults(&schema, &json!({ "a": {} })).len(), 1);
}

#[test]
fn references_by_any_spelling_are_followed() {
    let schema = json!({
        "properties": {
            "a": { "$ref": "#/$defs/Page%3CItem%3E" },
            "b": { "$ref": "#/%24defs/a~1b" },
            "c": { "$ref": "#node" },
            "d": { "$dynamicRef": "#node" },
            "e": { "$ref": "#/$defs/Seite%20%C3%A4" },
        },
        "$defs": {
            "Page<Item>": { "type": "integer" },
            "a/b": { "type": "integer" },
            "tree": { "$dynamicAnchor": "node", "type": "integer" },
            "Seite ä": { "type": "integer" },
        },
    });

    for name in ["a", "b", "c", "d", "e"] {
        assert_eq!(faults(&schema, &json!({ (name): 1 })), [""; 0], "{name}");
        assert_eq!(faults(&schema, &json!({ (name): "1" })).len(), 1, "{name}");
    }
}

#[test]
fn large_answers_and_patterns_that_are_usual_are_checked() {
    let kind = |n: usize| {
        json!({
            "type": "object",
            "properties": {
                "kind": { "const": format!("k{n}"), "type": "string" },
                "id": { "type": "string" },
                "a": { "type": "integer" },
                "b": { "type": "boolean" },
                "c": { "type": "string" },
                "d": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
            },
            "required": ["kind", "id", "a", "b", "c", "d"],
            "additionalProperties": false,
        })
    };
    let kinds: Map<String, Value> = (0..30).map(|n| (format!("K{n}"), kind(n))).collect();
    let any: Vec<Value> = (0..30)
        .map(|n| json!({ "$ref": format!("#/$defs/K{n}") }))
        .collect();
    let schema = json!({
        "properties": { "rows": { "items": { "oneOf": any } } },
        "$defs": kinds,
    });
    let row = json!({ "kind": "k7", "id": "x", "a": 1, "b": true, "c": "hello", "d": null });
    assert_eq!(faults(&schema, &json!({ "rows": vec![row; 500] })), [""; 0]);

    for (pattern, text, times) in [
        (
            r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[A-Za-z\d@$!%*?&]{8,64}$",
            "Abcdef12345xyz",
            1,
        ),
        (r"^[\p{L} ]{1,20}$", "Abcdef xyz", 1),
        (r"^.{1,500}$", "Abcdef xyz", 1),
        (
            r"^arn:aws[a-z-]*:[a-z0-9-]{1,63}:[a-z0-9-]{0,63}:\d{12}:[a-zA-Z0-9/_.-]{1,1024}$",
            "arn:aws:lambda:eu-central-1:123456789012:function/my-function",
            1_000,
        ),
    ] {
        let schema = json!({ "properties": { "rows": { "items": { "pattern": pattern } } } });
        assert_eq!(
            faults(&schema, &json!({ "rows": vec![text; times] })),
            [""; 0],
            "{pattern}"
        );
        assert_eq!(
            faults(&schema, &json!({ "rows": ["\u{1}\n"] })).len(),
            1,
            "{pattern}"
        );
    }
}

#[test]
fn patterns_that_look_around_are_bounded_together_and_compiled_once_for_all_places() {
    let of = |pattern: &dyn Fn(usize) -> String| {
        let all = (0..200).map(|n| (format!("p{n}"), json!({ "pattern": pattern(n) })));
        json!({ "properties": all.collect::<Map<String, Value>>() })
    };
    let different = of(&|n| format!(r"^(?!b)a{n}\w{{10}}$"));
    assert!(compile(&different).err().unwrap().contains("states"));

    let same = of(&|_| r"^(?!b)a\w{10}$".to_owned());
    assert_eq!(faults(&same, &json!({ "p7": "abcdefghijk" })), [""; 0]);
    assert_eq!(faults(&same, &json!({ "p7": "bbcdefghijk" })).len(), 1);
    let mails = of(&|n| format!(r"^(?!\.)(?!.*\.\.)[a-z0-9_'+.-]*@m{n}\.[a-z]{{2,}}$"));
    assert_eq!(faults(&mails, &json!({ "p7": "a@m7.de" })), [""; 0]);
}

#[test]
fn a_schema_with_very_long_names_that_lead_to_it_is_refused() {
    let schema = json!({ "properties": { "n".repeat(5_000): { "type": "string" } } });
    assert!(compile(&schema).err().unwrap().contains("4096 bytes"));
}

#[test]
fn a_schema_that_looks_through_very_many_for_what_is_not_evaluated_is_refused() {
    let many: Vec<Value> = (0..480)
        .map(|n| json!({ "title": n.to_string() }))
        .collect();
    let looking = |count: usize| {
        let one = json!({ "unevaluatedProperties": false, "$ref": "#/$defs/b" });
        let all = (0..count).map(|n| (format!("p{n}"), one.clone()));
        json!({
            "properties": all.collect::<Map<String, Value>>(),
            "$defs": { "b": { "allOf": many } },
        })
    };

    assert!(compile(&looking(4)).is_ok());
    let error = compile(&looking(1_000)).err().unwrap();
    assert!(error.contains("unevaluatedProperties"), "{error}");
}

#[test]
fn the_deepest_allowed_value_fits_a_small_stack() {
    // The longest allowed chain of schemas, 16, at every level of the value, hence 25 levels.
    let chain = (0..14).fold(
        json!({ "properties": { "x": { "$ref": "#" } } }),
        |inner, _| json!({ "allOf": [inner] }),
    );
    let value = (0..25).fold(json!(1), |inner, _| json!({ "x": inner }));
    let deeper = json!({ "x": value });

    // The size of a runtime worker's stack.
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
    let lines = thread.spawn(move || {
        let mut schema = chain;
        schema["type"] = json!("object");
        [faults(&schema, &value), faults(&schema, &deeper)]
    });

    let expected = [
        "/x".repeat(25) + ": expected an object, got the number 1",
        "they are nested deeper than 25 levels".to_owned(),
    ];
    assert_eq!(lines.unwrap().join().unwrap().concat(), expected);
    let too_deep = (0..64).fold(json!(1), |inner, _| json!({ "x": inner }));
    assert_eq!(
        faults(&json!({}), &json!({ "a": too_deep })),
        ["they are nested deeper than 64 levels"]
    );
}

#[test]
fn required_type_and_enum_agree_with_a_small_model() {
    let mut random = Random::new("required_type_and_enum_agree_with_a_small_model");
    let kinds = [
        "string", "integer", "number", "boolean", "null", "array", "object",
    ];
    let is = |kind: &str, value: &Value| match kind {
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    for _ in 0..2000 {
        let names = ["a", "b", "c"];
        let fields: Vec<(&str, &str, Option<Vec<Value>>, bool)> = names
            .iter()
            .map(|name| {
                let choices =
                    (random.below(3) == 0).then(|| (0..3).map(|_| random.json(1)).collect());
                (*name, random.one(&kinds), choices, random.below(2) == 0)
            })
            .collect();
        let mut schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
        for (name, kind, choices, required) in &fields {
            schema["properties"][name] = json!({ "type": kind });
            if let Some(choices) = choices {
                let mut different: Vec<Value> = Vec::new();
                choices.iter().for_each(|choice| {
                    if !different.contains(choice) {
                        different.push(choice.clone());
                    }
                });
                schema["properties"][name]["enum"] = Value::Array(different);
            }
            if *required {
                schema["required"].as_array_mut().unwrap().push(json!(name));
            }
        }
        let mut arguments = Map::new();
        for name in ["a", "b", "c", "d"] {
            if random.below(4) > 0 && (name != "d" || random.below(4) == 0) {
                arguments.insert(name.to_owned(), random.json(1));
            }
        }

        let fits = !arguments.contains_key("d")
            && fields.iter().all(
                |(name, kind, choices, required)| match arguments.get(*name) {
                    None => !required,
                    // JSON Schema compares numbers by value, `Value` by their written form.
                    Some(value) => {
                        let equal = |choice: &Value| {
                            choice == value
                                || choice
                                    .as_f64()
                                    .zip(value.as_f64())
                                    .is_some_and(|(a, b)| a == b)
                        };
                        is(kind, value)
                            && choices
                                .as_ref()
                                .is_none_or(|choices| choices.iter().any(equal))
                    }
                },
            );
        let arguments = Value::Object(arguments);
        let judged = compile(&schema).unwrap().check(&arguments);

        assert_eq!(judged.is_ok(), fits, "{schema}\n{arguments}\n{judged:?}");
    }
}

#[test]
fn no_json_makes_it_panic() {
    let mut random = Random::new("no_json_makes_it_panic");
    let rounds = if callboard_actors::testing::TestSize::is_long() {
        200_000
    } else {
        3000
    };
    let mut compiled = 0;
    for _ in 0..rounds {
        let mut schema = random.schema(3);
        if let Value::Object(fields) = &mut schema {
            fields.remove("type");
        }
        let Ok(check) = compile(&schema) else {
            continue;
        };
        compiled += 1;
        for _ in 0..4 {
            let arguments = random.json(4);
            if let Err(error) = check.check(&arguments) {
                assert!(
                    error.message.len() < 8000,
                    "{schema}\n{arguments}\n{}",
                    error.message
                );
            }
        }
    }
    assert!(
        compiled > rounds / 20,
        "only {compiled} of {rounds} schemas compiled"
    );
}

#[test]
fn a_schema_of_a_rust_type_compiles_and_accepts_what_serde_accepts() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its schema matters")]
    struct Args {
        count: u64,
        #[serde(default)]
        small: Option<i8>,
        #[schemars(range(min = 0.0, max = 1.0))]
        ratio: Option<f32>,
        kind: Option<Kind>,
        tree: Option<Box<Tree>>,
    }
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[allow(dead_code, reason = "only its schema matters")]
    enum Kind {
        /// Documented.
        First,
        Second(u32),
    }
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    #[allow(dead_code, reason = "only its schema matters")]
    struct Tree {
        left: Option<Box<Tree>>,
        right: Option<Box<Tree>>,
    }
    let schema = RawJson::of(&schemars::schema_for!(Args)).unwrap();
    let check = JsonSchemas.compile("t", &schema).unwrap();

    for (arguments, fits) in [
        (json!({ "count": 1 }), true),
        (
            json!({ "count": u64::MAX, "small": -128, "ratio": 0.5, "kind": "first" }),
            true,
        ),
        (
            json!({ "count": 1, "kind": { "second": 2 }, "tree": { "left": { "right": {} } } }),
            true,
        ),
        (json!({ "count": -1 }), false),
        (json!({ "count": 1, "small": 300 }), false),
        (json!({ "count": 1, "kind": "third" }), false),
        (
            json!({ "count": 1, "tree": { "left": { "right": 1 } } }),
            false,
        ),
    ] {
        let judged = check.check(&arguments);
        assert_eq!(judged.is_ok(), fits, "{arguments}: {judged:?}");
        assert_eq!(
            serde_json::from_value::<Args>(arguments.clone()).is_ok(),
            fits,
            "{arguments}"
        );
    }
}

#[tokio::test]
async fn a_host_checks_schemas_unless_configured_otherwise() {
    use callboard_actors::{
        conversation::ToolsetError,
        host::BuildError,
        ports::FnTool,
        testing::{Reply, ScriptedModel},
    };

    let schema = json!({ "properties": { "a": { "$ref": "http://example.com/a.json" } } });
    let tool = Arc::new(FnTool::raw(
        "t",
        "Has a schema from elsewhere.",
        &schema,
        |_, _| async { Ok("") },
        None,
    ));
    let host = crate::Host::builder()
        .provider(ScriptedModel::always(Reply::text("Hello.")))
        .tool(tool);

    let error = host.build().await.err().unwrap();

    assert!(
        matches!(&error, BuildError::Tools(ToolsetError::BadSchema { name, .. }) if name == "t"),
        "{error}"
    );
}
