//! `callboard skills`: lists, prints and checks the skills in a folder.

use std::path::PathBuf;

use callboard_actors::{
    host::ConversationHandle,
    ports::SkillSource,
    skill::{LoadLevel, Skill, SkillName},
};
use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    failure::{Done, Failure},
    terminal::{counted, err_line, out_json, out_line, sanitize},
};
use crate::{
    app::nearest,
    config::Config,
    skills::{SkillFolder, Survey},
};

pub(super) const EXAMPLE: &str = "Example:\n  callboard skills check skills";

/// Subcommands of `skills`.
#[derive(Debug, Subcommand)]
pub(super) enum SkillsCommand {
    /// List the skills that a model can activate, and those that only people can
    #[command(after_help = "Example:\n  callboard skills list --skills skills --json")]
    List(ListArgs),
    /// Show one skill: its metadata, its instructions, its files
    #[command(after_help = "Example:\n  callboard skills show csv-tables --skills skills")]
    Show(ShowArgs),
    /// Print the mistakes in a folder, one per line
    #[command(
        after_help = "Example:\n  callboard skills check skills\n\nExit 1 if a skill cannot be used."
    )]
    Check(CheckArgs),
}

/// Flags that select the folder of skills.
#[derive(Debug, Args)]
pub(super) struct SkillsArgs {
    /// Folder of skills [default: `[skills] dir` of the configuration]
    #[arg(long, value_name = "DIR")]
    skills: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `skills list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Folder of skills, as --skills
    #[arg(conflicts_with = "skills")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    skills: SkillsArgs,
}

/// Arguments of `skills show`.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Name of the skill
    name: String,
    /// Folder of skills, as --skills
    #[arg(conflicts_with = "skills")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    skills: SkillsArgs,
}

/// Arguments of `skills check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Folder of skills
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(config: &Config, command: SkillsCommand) -> Result<Done, Failure> {
    match command {
        SkillsCommand::List(args) => {
            let ListArgs { dir, skills } = args;
            list(&folder(config, dir.or(skills.skills))?, skills.json)
        }
        SkillsCommand::Show(args) => {
            show(
                &folder(config, args.dir.or(args.skills.skills))?,
                &args.name,
                args.skills.json,
            )
            .await
        }
        SkillsCommand::Check(args) => check(&open(args.dir)?, args.json),
    }
}

fn folder(config: &Config, flag: Option<PathBuf>) -> Result<SkillFolder, Failure> {
    let Some(path) = flag.or_else(|| config.skills.clone()) else {
        return Err(Failure::usage("no folder of skills is set")
            .hint("--skills DIR, or `[skills] dir` in callboard.toml"));
    };
    open(path)
}

fn open(path: PathBuf) -> Result<SkillFolder, Failure> {
    SkillFolder::open(&path)
        .map_err(|error| Failure::usage(crate::os_error::of_folder(&path, error.kind())))
}

fn survey(folder: &SkillFolder) -> Result<Survey, Failure> {
    folder.survey().map_err(|error| {
        Failure::work(format!(
            "the folder of skills cannot be read: {}",
            error.kind()
        ))
    })
}

fn list(folder: &SkillFolder, as_json: bool) -> Result<Done, Failure> {
    let survey = survey(folder)?;
    if as_json {
        let skills: Vec<_> = survey
            .skills
            .iter()
            .map(|found| &found.skill.metadata)
            .collect();
        out_json(&serde_json::to_string_pretty(&skills).unwrap_or_default());
        return Ok(Done::Well);
    }
    for found in &survey.skills {
        let Skill { metadata, .. } = &found.skill;
        let line: String = metadata
            .description
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .chars()
            .take(100)
            .collect();
        let who = if metadata.disable_model_invocation {
            " (people only)"
        } else {
            ""
        };
        out_line(&sanitize(&format!(
            "{:<24} {line}{who}",
            metadata.name.as_str()
        )));
    }
    if survey.skills.is_empty() {
        err_line("note: there are no skills here; each is a folder with a SKILL.md");
    }
    survey.broken.iter().for_each(|broken| {
        err_line(&sanitize(&format!(
            "note: {} cannot be used: {}",
            broken.folder, broken.reason
        )))
    });
    Ok(Done::Well)
}

async fn show(folder: &SkillFolder, name: &str, as_json: bool) -> Result<Done, Failure> {
    let known = survey(folder)?;
    let missing = || {
        let failure = Failure::work(format!("there is no skill `{name}`"));
        match nearest(
            name,
            known.skills.iter().map(|found| found.skill.name().as_str()),
        ) {
            Some(near) => failure.hint(format!("did you mean `{near}`?")),
            None => failure.hint("`callboard skills list` shows all skills"),
        }
    };
    let wanted = SkillName::new(name).map_err(|_| missing())?;
    let skill = folder
        .load(wanted, LoadLevel::Resources)
        .await
        .map_err(|_| missing())?;
    if as_json {
        out_json(&serde_json::to_string_pretty(&skill).unwrap_or_default());
        return Ok(Done::Well);
    }
    out_line(&sanitize(&format!(
        "{}: {}",
        skill.name(),
        skill.metadata.description
    )));
    if let Some(tools) = &skill.modifier.allowed_tools {
        out_line(&sanitize(&format!(
            "tools: {}",
            tools
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        )));
    }
    if let Some(model) = &skill.modifier.model {
        out_line(&sanitize(&format!("model: {model}")));
    }
    for resource in skill.resources.iter().flatten() {
        out_line(&sanitize(&format!(
            "file: {} ({} bytes)",
            resource.path, resource.bytes
        )));
    }
    out_line(&sanitize(&format!(
        "\n{}",
        skill.instructions.unwrap_or_default()
    )));
    Ok(Done::Well)
}

fn check(folder: &SkillFolder, as_json: bool) -> Result<Done, Failure> {
    let survey = survey(folder)?;
    if as_json {
        let skills: Vec<_> = survey
            .skills
            .iter()
            .map(|found| json!({"name": found.skill.name(), "notes": found.notes}))
            .collect();
        let broken: Vec<_> = survey
            .broken
            .iter()
            .map(|broken| json!({"folder": broken.folder, "reason": broken.reason}))
            .collect();
        out_json(
            &serde_json::to_string_pretty(&json!({"skills": skills, "broken": broken}))
                .unwrap_or_default(),
        );
    } else {
        survey
            .notes()
            .iter()
            .for_each(|note| out_line(&sanitize(note)));
        let usable = counted(survey.skills.len(), "skill");
        out_line(&format!(
            "{usable} can be used, {} cannot",
            survey.broken.len()
        ));
    }
    Ok(if survey.broken.is_empty() {
        Done::Well
    } else {
        Done::Badly
    })
}

/// The level in `/skills NAME LEVEL`.
fn level_of(text: &str) -> Result<LoadLevel, Failure> {
    text.parse::<u8>()
        .ok()
        .and_then(|level| LoadLevel::try_from(level).ok())
        .ok_or_else(|| {
            Failure::usage(format!("there is no level `{}` of a skill", sanitize(text)))
                .hint("1: its description; 2: also its instructions; 3: also the list of its files")
        })
}

/// `/skills` in a chat: lists the skills and marks active ones; `NAME` activates one, `-NAME`
/// deactivates it.
pub(super) async fn in_chat(handle: &ConversationHandle, argument: &str) -> Result<(), Failure> {
    if let Some(name) = argument.strip_prefix('-') {
        handle.deactivate_skill(name.trim()).await?;
        out_line(&format!("{} is no longer active", sanitize(name.trim())));
    } else if !argument.is_empty() {
        let (name, level) = match argument.rsplit_once(' ') {
            Some((name, level)) => (name.trim(), level_of(level)?),
            None => (argument, LoadLevel::default()),
        };
        let loaded = handle.activate_skill_at(name, level).await?;
        for message in loaded.shown() {
            out_line(&sanitize(&message.content));
        }
        out_line(&format!("It is active until /skills -{}", sanitize(name)));
    } else {
        for skill in handle.skills().await? {
            let mark = if skill.active.is_some() { '*' } else { ' ' };
            let line: String = skill
                .metadata
                .description
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .chars()
                .take(90)
                .collect();
            out_line(&sanitize(&format!(
                "{mark} {:<24} {line}",
                skill.metadata.name.as_str()
            )));
        }
    }
    Ok(())
}
