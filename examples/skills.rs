//! Skills: instructions that a model loads when it needs them. `cargo run --example skills`

use callboard::{EventKind, Host, skills::SkillFolder};
use callboard_actors::testing::{Reply, ScriptedModel};

const SKILL: &str = "---
name: release-notes
description: How this team writes release notes. Use it for any change log.
---
One line a change, newest first. Say what a user can now do.
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("release-notes"))?;
    std::fs::write(folder.path().join("release-notes/SKILL.md"), SKILL)?;

    // The system prompt lists names and descriptions only. The model loads the instructions with a
    // tool call, and they end with the round; a skill that a person activates stays.
    let model = ScriptedModel::replies([
        Reply::tool(
            "activate_skill",
            &serde_json::json!({"skill_name": "release-notes"}),
        ),
        Reply::text("- Rounds can be cancelled."),
    ]);
    let host = Host::builder()
        .provider(model)
        .skills(SkillFolder::open(folder.path())?)
        .build()
        .await?;

    let conversation = host.tenant("acme").conversation("release-7");
    let mut reply = conversation
        .send("Write the notes of this release.")
        .await?;
    while let Some(event) = reply.next().await {
        if let EventKind::SkillActivated { name, .. } = &event.kind {
            println!("loaded the skill {name}");
        }
    }
    println!("{}", reply.outcome().await?.text);
    Ok(())
}
