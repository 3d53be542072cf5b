//! The rows of a fan-out: lines, JSON lines or CSV, and the template that they fill.

use std::path::Path;

use clap::ValueEnum;
use serde_json::{Map, Value};

use super::failure::Failure;

/// The placeholder for the whole line.
pub(super) const PLACE: &str = "{}";

/// How a file of rows is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Input {
    /// Each line is a row
    Lines,
    /// Each line is a JSON object
    Jsonl,
    /// Comma-separated values; the first row has the names of the columns
    Csv,
}

impl Input {
    /// The form of a file, by the end of its name.
    pub(super) fn of(file: &Path) -> Self {
        let end = file.extension().and_then(|end| end.to_str());
        match end.map(str::to_ascii_lowercase).as_deref() {
            Some("jsonl" | "ndjson") => Self::Jsonl,
            Some("csv") => Self::Csv,
            _ => Self::Lines,
        }
    }

    /// Reads the rows of a file. Blank lines are skipped.
    ///
    /// # Errors
    /// A line that is no JSON object, or a row that is no CSV, with its number.
    pub(super) fn rows(self, text: &str) -> Result<Vec<Row>, Failure> {
        let lines = || text.lines().map(str::trim_end).enumerate();
        let full = |(_, line): &(usize, &str)| !line.trim().is_empty();
        match self {
            Self::Lines => Ok(lines()
                .filter(full)
                .map(|(_, line)| Row {
                    line: line.to_owned(),
                    fields: Map::new(),
                })
                .collect()),
            Self::Jsonl => lines()
                .filter(full)
                .map(|(at, line)| match serde_json::from_str(line) {
                    Ok(Value::Object(fields)) => Ok(Row {
                        line: line.to_owned(),
                        fields,
                    }),
                    Ok(_) => Err(Failure::usage(format!("line {} is no JSON object", at + 1))),
                    Err(error) => Err(Failure::usage(format!(
                        "line {} is no JSON: {error}",
                        at + 1
                    ))),
                })
                .collect(),
            Self::Csv => csv_rows(text),
        }
    }
}

fn csv_rows(text: &str) -> Result<Vec<Row>, Failure> {
    let wrong = |error: csv::Error| Failure::usage(format!("this is no CSV: {error}"));
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names = reader.headers().map_err(wrong)?.clone();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(wrong)?;
        let fields: Map<String, Value> = names
            .iter()
            .zip(&record)
            .map(|(name, value)| (name.trim().to_owned(), Value::from(value)))
            .collect();
        rows.push(Row {
            line: Value::Object(fields.clone()).to_string(),
            fields,
        });
    }
    Ok(rows)
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// The row as one line; of CSV, as JSON.
    pub(super) line: String,
    /// The fields of a JSON object, or the columns; empty for a plain line.
    pub(super) fields: Map<String, Value>,
}

impl Row {
    /// Fills a template: `{}` is the line, `{NAME}` a field. Braces around other words stay, unless
    /// the row has fields: then the word must be one of them.
    ///
    /// # Errors
    /// The name of a field that the row does not have.
    pub(super) fn fill(&self, template: &str) -> Result<String, Failure> {
        let mut filled = String::with_capacity(template.len() + self.line.len());
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            filled.push_str(before);
            let word = after.split_once('}').filter(|(word, _)| is_name(word));
            match word {
                Some(("", behind)) => {
                    filled.push_str(&self.line);
                    rest = behind;
                }
                Some((name, behind)) if !self.fields.is_empty() => {
                    filled.push_str(&self.field(name)?);
                    rest = behind;
                }
                _ => {
                    filled.push('{');
                    rest = after;
                }
            }
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn field(&self, name: &str) -> Result<String, Failure> {
        match self.fields.get(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(value) => Ok(value.to_string()),
            None => {
                let known: Vec<&str> = self.fields.keys().map(String::as_str).collect();
                Err(
                    Failure::usage(format!("a row has no field `{name}` for the template"))
                        .hint(format!("its fields: {}", known.join(", "))),
                )
            }
        }
    }
}

/// Whether a word between braces can name a field.
fn is_name(word: &str) -> bool {
    word.chars()
        .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' '))
}

/// Whether a template has a place for a row.
pub(super) fn has_place(template: &str, input: Input) -> bool {
    let named = || {
        template
            .split('{')
            .skip(1)
            .any(|part| part.split_once('}').is_some_and(|(word, _)| is_name(word)))
    };
    template.contains(PLACE) || (input != Input::Lines && named())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_fields_fill_their_names_and_lines_only_the_line() {
        let fill = |input: Input, text: &str, template: &str| -> Vec<String> {
            let rows = input.rows(text).unwrap();
            rows.iter().map(|row| row.fill(template).unwrap()).collect()
        };

        assert_eq!(
            fill(
                Input::Csv,
                "name,city\n\"Ann, B\",Oslo\nC,\"a\nb\"\n",
                "{name} in {city}?"
            ),
            ["Ann, B in Oslo?", "C in a\nb?"]
        );
        assert_eq!(
            fill(Input::Jsonl, "{\"q\":\"why\",\"n\":3}\n\n", "{q} {n} {}"),
            ["why 3 {\"q\":\"why\",\"n\":3}"]
        );
        assert_eq!(
            fill(Input::Lines, "a\n \nb\n", "{} {name} fn() {x; y}"),
            ["a {name} fn() {x; y}", "b {name} fn() {x; y}"]
        );
    }

    #[test]
    fn a_missing_field_and_a_broken_line_are_named() {
        let rows = Input::Jsonl.rows("{\"q\":1}").unwrap();
        let missing = rows[0].fill("{who}").unwrap_err();
        assert!(
            missing
                .text(crate::cli::terminal::Paint::plain())
                .contains("no field `who`")
        );
        assert!(Input::Jsonl.rows("{}\n[1]").is_err());
        assert!(Input::Csv.rows("a,b\n1\n").is_err());
    }
}
