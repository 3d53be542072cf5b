//! `callboard tokens`: counts the tokens of a text for a model. Uses no network.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::PathBuf,
};

use callboard_actors::tokens::TokenCounter;
use clap::Args;
use serde_json::json;

use super::{
    failure::{Done, Failure},
    terminal::{out, out_line},
};
use crate::{config::Config, named_file, visible::escaped_json};

/// Size of a buffered write to standard output, in bytes.
const WRITE_BYTES: usize = 64 * 1024;

/// Count the tokens of a text for a model
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard tokens README.md --model gpt-4o
  git diff | callboard tokens --model claude-sonnet-4-5 --json
  callboard tokens prompts.jsonl --lines --model gpt-4

`total` is the estimate times the model's margin, rounded down; [tokens] in the configuration sets the margin of each model.")]
pub(super) struct TokensArgs {
    /// The text; standard input if absent or `-`
    file: Option<PathBuf>,
    /// The model whose tokens are counted
    #[arg(long, value_name = "M", default_value = "claude-3-sonnet")]
    model: String,
    /// Each line is a JSON string; prints one number per line
    #[arg(long)]
    lines: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(config: &Config, args: &TokensArgs) -> Result<Done, Failure> {
    let file = args.file.as_ref().filter(|file| file.as_os_str() != "-");
    let name = file.map_or_else(
        || "standard input".to_owned(),
        |file| file.display().to_string(),
    );
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => Failure::work(format!("{name} is not UTF-8 text")),
        _ => Failure::work(crate::os_error::of_file(&name, &error)),
    };
    let mut input: Box<dyn BufRead> = match file {
        Some(file) => Box::new(BufReader::new(named_file::open(file).map_err(failed)?)),
        None => Box::new(io::stdin().lock()),
    };
    let counter = TokenCounter::new(config.tokens.registry());
    if !args.lines {
        let mut text = String::new();
        input.read_to_string(&mut text).map_err(failed)?;
        out_line(&counted(&counter, args, &text));
        return Ok(Done::Well);
    }
    let mut written = String::new();
    for (index, line) in input.lines().enumerate() {
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str::<String>(&line) {
            Ok(text) => written += &counted(&counter, args, &text),
            Err(_) => {
                out(&written);
                let failure =
                    Failure::work(format!("line {} of {name} is not a JSON string", index + 1));
                return Err(failure.hint("each line must be a text in double quotes; without --lines the whole file is one text"));
            }
        }
        written.push('\n');
        if written.len() >= WRITE_BYTES {
            out(&std::mem::take(&mut written));
        }
    }
    out(&written);
    Ok(Done::Well)
}

/// Formats the count of one text.
fn counted(counter: &TokenCounter, args: &TokensArgs, text: &str) -> String {
    let total = counter.count_text(&args.model, text);
    if !args.json {
        return total.to_string();
    }
    let info = counter.model_info(&args.model);
    let counted = json!({
        "model": info.model,
        "family": info.model_family,
        "encoding": info.encoding_name,
        "margin": info.safety_margin,
        "estimate": counter.count_without_margin(&args.model, text),
        "total": total,
    });
    escaped_json(&counted.to_string()).into_owned()
}
