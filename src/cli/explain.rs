//! `callboard explain`: what an error code means and what to do. The texts are those of
//! `docs/errors.md`, so the page and the command cannot differ.

use clap::Args;

use super::{
    failure::{Done, Failure},
    terminal::out_data,
};

const PAGE: &str = include_str!("../../docs/errors.md");

/// Explain an error code: what it means and what to do; without CODE list all codes
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  callboard explain provider_auth\n\nOver HTTP the code of an error is its `code`; the result of a tool has `error_code`."
)]
pub(super) struct ExplainArgs {
    /// The code, such as `context_too_large` or `IN_DOUBT`
    code: Option<String>,
}

/// One code of the page.
struct Entry {
    code: &'static str,
    /// The section of the page: which part of the program reports the code.
    section: &'static str,
    /// Meaning and advice, in paragraphs.
    text: &'static str,
}

pub(super) fn run(args: &ExplainArgs) -> Result<Done, Failure> {
    let text = match &args.code {
        Some(code) => explained(code)?,
        None => list(),
    };
    out_data(&text);
    Ok(Done::Well)
}

fn explained(code: &str) -> Result<String, Failure> {
    match entries().find(|entry| entry.code.eq_ignore_ascii_case(code)) {
        Some(entry) => Ok(format!(
            "{} ({})\n\n{}\n",
            entry.code,
            entry.section.to_lowercase(),
            entry.text
        )),
        None => Err(Failure::usage(format!("there is no error code `{code}`")).hint(nearest(code))),
    }
}

/// Advice for a code that the page does not have.
fn nearest(code: &str) -> String {
    let nearest = crate::app::nearest(code, entries().map(|entry| entry.code));
    let is_near = |name: &String| {
        let apart = strsim::damerau_levenshtein(&code.to_lowercase(), &name.to_lowercase());
        apart * 2 <= name.chars().count()
    };
    match nearest.filter(is_near) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "`callboard explain` lists all codes".to_owned(),
    }
}

/// All codes by section, each with the first sentence of its meaning.
fn list() -> String {
    let width = entries()
        .map(|entry| entry.code.len())
        .max()
        .unwrap_or_default();
    let mut text = String::new();
    let mut section = "";
    for entry in entries() {
        if entry.section != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            section = entry.section;
            text.push_str(&format!("{gap}{section}\n"));
        }
        let sentence = entry.text.split_inclusive(". ").next().unwrap_or_default();
        let sentence = sentence.lines().next().unwrap_or_default().trim_end();
        text.push_str(&format!("  {:width$}  {sentence}\n", entry.code));
    }
    text
}

/// The entries of the page, in its order. A heading of level 3 that is one word in backticks begins
/// an entry.
fn entries() -> impl Iterator<Item = Entry> {
    PAGE.split("\n## ").skip(1).flat_map(|part| {
        let section = part.lines().next().unwrap_or_default();
        part.split("\n### `").skip(1).filter_map(move |entry| {
            let (code, text) = entry.split_once("`\n")?;
            Some(Entry {
                code,
                section,
                text: text.trim(),
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_explained_with_what_to_do() {
        let text = explained("provider_auth").unwrap_or_default();

        assert!(
            text.starts_with("provider_auth (model providers)\n\nThe provider refused the key.")
        );
        assert!(text.contains("What to do: check `ANTHROPIC_API_KEY`"));
    }

    #[test]
    fn a_misspelled_code_gets_the_nearest_one() {
        let failure = |code| explained(code).err().map(|failure| format!("{failure:?}"));

        assert!(
            failure("provider_aut")
                .is_some_and(|text| text.contains("did you mean `provider_auth`?"))
        );
        for other in ["xyz", "foo"] {
            assert!(failure(other).is_some_and(|text| text.contains("lists all codes")));
        }
    }

    #[test]
    fn every_entry_says_what_to_do_and_stands_once() {
        let mut codes: Vec<&str> = entries().map(|entry| entry.code).collect();
        let total = codes.len();
        codes.sort_unstable();
        codes.dedup();

        assert_eq!(codes.len(), total);
        for entry in entries() {
            assert!(entry.text.contains("\n\nWhat to do: "), "{}", entry.code);
        }
    }
}
