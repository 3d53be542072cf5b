//! Skills in a running host: they are offered, activated, injected and deactivated, their tool
//! rules narrow the toolset, and the prompt prefix stays byte-identical across activations.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    chat::{ContentBlock, ModelRequest, is_reminder},
    memory::MemorySkills,
    skill::{LoadLevel, Skill, SkillName},
    testing::{Reply, ScriptedModel},
};

fn name(text: &str) -> SkillName {
    SkillName::new(text).unwrap()
}

fn skill(text: &str) -> Skill {
    Skill::new(
        name(text),
        format!("Does {text}."),
        format!("How to {text}."),
    )
}

fn narrow(text: &str, tools: &[&str]) -> Skill {
    let mut skill = skill(text);
    skill.modifier.allowed_tools = Some(tools.iter().map(|tool| (*tool).to_owned()).collect());
    skill
}

fn source(skills: impl IntoIterator<Item = Skill>) -> Arc<MemorySkills> {
    let source = MemorySkills::new();
    skills.into_iter().for_each(|skill| source.register(skill));
    Arc::new(source)
}

fn activate(text: &str) -> Reply {
    Reply::tool("activate_skill", &json!({ "skill_name": text }))
}

fn tools() -> [Arc<dyn Tool>; 2] {
    ["look", "change"].map(|name| probe(name, EffectClass::Pure, |_| async { Ok("ran".into()) }).0)
}

fn offered(request: &ModelRequest) -> Vec<&str> {
    request
        .tools
        .iter()
        .map(|tool| tool.name.as_str())
        .collect()
}

fn results(request: &ModelRequest) -> Vec<String> {
    let blocks = request.messages.last().unwrap().blocks();
    blocks
        .iter()
        .filter_map(|block| {
            if let ContentBlock::ToolResult(result) = block {
                Some(result.content.text().into_owned())
            } else {
                None
            }
        })
        .collect()
}

async fn say(host: &Host, text: &str) -> Vec<Arc<StreamEvent>> {
    let mut reply = conversation(host).send(text).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = reply.next().await {
        events.push(event);
    }
    events
}

#[tokio::test(start_paused = true)]
async fn a_skill_narrows_the_tools_of_its_own_conversation_only() {
    let model = ScriptedModel::answering(|request, call| {
        let first = request.messages.iter().next().unwrap().text();
        match (first.as_str(), call) {
            ("narrow", 0) => activate("pdf"),
            ("narrow", _) => Reply::stall(),
            _ => Reply::text("done"),
        }
    });
    let model = Arc::new(model);
    let host = builder(&model)
        .tools(tools())
        .shared_skills(source([narrow("pdf", &["look"])]));
    let host = host.build().await.unwrap();
    let of = |name: &str| host.tenant("acme").conversation(name.to_owned());
    let _narrowed = of("one").send("narrow").await.unwrap();
    model.until(|counts| counts.started == 2).await;

    let mut reply = of("two").send("other").await.unwrap();
    reply.outcome().await.unwrap();

    let requests = model.requests();
    let has_change = |at: usize| offered(&requests[at]).contains(&"change");
    assert_eq!([0, 1, 2].map(has_change), [true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn an_activated_skill_speaks_behind_the_results_and_narrows_the_tools() {
    let calls = [
        activate("pdf"),
        Reply::tool("change", &json!({})).and_tool("look", &json!({})),
        Reply::text("done"),
        Reply::text("again"),
    ];
    let model = Arc::new(ScriptedModel::replies(calls));
    let host = builder(&model)
        .system("Be kind.")
        .tools(tools())
        .shared_skills(source([narrow("pdf", &["look", "other"]), skill("zip")]));
    let host = host.build().await.unwrap();

    let events = say(&host, "go").await;
    say(&host, "more").await;

    let requests = model.requests();
    let system = requests[0].system.as_deref().unwrap();
    assert!(
        system.starts_with("Be kind.\n\n")
            && system.ends_with("- pdf: Does pdf.\n- zip: Does zip."),
        "{system}"
    );
    assert!(
        !system.contains("How to"),
        "all skills appear with level 1 only"
    );
    assert_eq!(
        offered(&requests[0]),
        [
            "look",
            "change",
            "recall",
            "activate_skill",
            "skill_resource"
        ]
    );
    let last = requests[1].messages.last().unwrap().blocks();
    assert!(matches!(&last[0], ContentBlock::ToolResult(result) if !result.is_error));
    let said = last[1].as_text().unwrap();
    assert!(
        last.len() == 2 && is_reminder(said) && said.contains("How to pdf."),
        "{last:?}"
    );
    assert_eq!(
        offered(&requests[1]),
        ["look", "activate_skill", "skill_resource"]
    );
    let ran = results(&requests[2]);
    assert!(
        ran[0].contains("PERMISSION_DENIED") && ran[0].contains("pdf") && ran[1] == "ran",
        "{ran:?}"
    );
    assert_eq!(
        offered(&requests[3]),
        offered(&requests[0]),
        "a skill completes with its round"
    );
    assert!(
        requests
            .iter()
            .all(|request| request.system == requests[0].system),
        "the system prompt stays byte for byte"
    );
    assert!(kinds(&events).contains(&"skill_activated"));
    let state = conversation(&host).state().await.unwrap();
    assert_eq!(
        (state.metrics.skill_activations, state.skills.stack.depth()),
        (1, 0)
    );
    assert_eq!(host.figures().await.total.skill_activations, 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_become_active_is_a_result_with_the_exact_words() {
    let calls = ["a", "a", "b", "c", "d", "unknown", "hidden"]
        .map(activate)
        .into_iter()
        .chain([Reply::text("done")]);
    let model = Arc::new(ScriptedModel::replies(calls));
    let mut hidden = skill("hidden");
    hidden.metadata.disable_model_invocation = true;
    let skills = source(["a", "b", "c", "d"].map(skill).into_iter().chain([hidden]));
    let host = builder(&model).shared_skills(skills).build().await.unwrap();

    say(&host, "go").await;

    let requests = model.requests();
    let answers: Vec<String> = requests[1..]
        .iter()
        .map(|request| results(request).concat())
        .collect();
    assert!(
        answers[1].contains("Error Message: Circular dependency detected: a → a\n"),
        "{}",
        answers[1]
    );
    assert!(
        answers[4]
            .contains("Maximum skill activation depth (3) exceeded. Current stack: a → b → c"),
        "{}",
        answers[4]
    );
    assert!(
        answers[5]
            .contains("there is no skill named \"unknown\"; the skills are: a, b, c, d, hidden"),
        "{}",
        answers[5]
    );
    assert!(
        answers[6].contains("the skill hidden is for people to activate, not for models"),
        "{}",
        answers[6]
    );
    assert!(!requests[0].system.as_deref().unwrap().contains("hidden"));
}

#[tokio::test(start_paused = true)]
async fn a_person_activates_until_it_is_ended_and_another_model_answers_meanwhile() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let mut other = skill("other");
    other.metadata.disable_model_invocation = true;
    other.modifier.model = Some("big".into());
    let host = builder(&model)
        .shared_skills(source([other, skill("b")]))
        .skill_models(["bi*".to_owned()])
        .build()
        .await
        .unwrap();
    let talk = conversation(&host);

    talk.activate_skill("other").await.unwrap();
    talk.activate_skill("b").await.unwrap();
    let twice = talk.activate_skill("other").await.unwrap_err().to_string();
    let missing = talk.activate_skill("unknown").await.unwrap_err();
    say(&host, "one").await;
    say(&host, "two").await;
    let active: Vec<bool> = talk
        .skills()
        .await
        .unwrap()
        .iter()
        .map(|skill| skill.active.is_some())
        .collect();
    talk.deactivate_skill("other").await.unwrap();
    say(&host, "three").await;

    let models: Vec<String> = model
        .requests()
        .iter()
        .map(|request| request.model.to_string())
        .collect();
    assert_eq!((models[0].as_str(), models[1].as_str()), ("big", "big"));
    assert_ne!(models[2], "big");
    assert_eq!(twice, "Circular dependency detected: other → b → other");
    assert_eq!(
        (missing.code(), active),
        ("skill_refused", vec![true, true])
    );
    let state = talk.state().await.unwrap();
    assert_eq!(
        state.skills.stack.depth(),
        0,
        "what was activated on top of it ends with it"
    );
    assert!(talk.deactivate_skill("other").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_person_chooses_how_much_of_a_skill_is_loaded() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = builder(&model)
        .shared_skills(source([skill("short"), skill("long")]))
        .build()
        .await
        .unwrap();
    let talk = conversation(&host);

    let short = talk
        .activate_skill_at("short", LoadLevel::Metadata)
        .await
        .unwrap();
    let long = talk
        .activate_skill_at("long", LoadLevel::Resources)
        .await
        .unwrap();
    say(&host, "go").await;

    assert_eq!(
        (short.level, long.level),
        (LoadLevel::Metadata, LoadLevel::Resources)
    );
    let request = &model.requests()[0];
    let read: String = request
        .messages
        .iter()
        .map(|message| message.wire_str().to_owned())
        .collect();
    assert!(read.contains("The skill short is active") && !read.contains("How to short."));
    assert!(read.contains("How to long."));
    let shown: Vec<&str> = long
        .shown()
        .map(|message| message.content.as_str())
        .collect();
    assert_eq!(shown, ["The skill long is active: Does long."]);
}

#[tokio::test(start_paused = true)]
async fn the_text_of_a_skill_that_is_used_again_is_not_repeated() {
    let calls = [
        activate("a"),
        Reply::text("x"),
        activate("a"),
        Reply::text("y"),
    ];
    let model = Arc::new(ScriptedModel::replies(calls));
    let host = builder(&model)
        .shared_skills(source([skill("a")]))
        .build()
        .await
        .unwrap();

    say(&host, "one").await;
    say(&host, "two").await;

    let request = model.last_request().unwrap();
    let texts = request.messages.iter().flat_map(|message| message.blocks());
    let said = texts
        .filter(|block| {
            block
                .as_text()
                .is_some_and(|text| text.contains("How to a."))
        })
        .count();
    assert_eq!(said, 1);
    assert!(!results(&request)[0].contains("Error"), "it was used again");
    assert_eq!(
        conversation(&host)
            .state()
            .await
            .unwrap()
            .metrics
            .unique_skills,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_changed_folder_is_announced_and_the_system_prompt_stays_across_lives() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let skills = source([skill("a")]);
    let sessions = store();
    let first = builder(&model)
        .shared_sessions(sessions.clone())
        .shared_skills(skills.clone())
        .build()
        .await
        .unwrap();
    say(&first, "one").await;

    skills.register(skill("b"));
    tokio::time::sleep(Duration::from_secs(3)).await;
    say(&first, "two").await;
    drop(first); // A shutdown would close the store that both share.
    // Another seed: with the same seed, the rounds of both hosts would have the same ids.
    let second = HostBuilder::new(
        ManualClock::at(Timestamp(1_795_300_009_000)),
        SeededEntropy::new(8),
        |host| host,
    );
    let second = second
        .shared_provider(model.clone())
        .shared_sessions(sessions)
        .shared_skills(skills)
        .build()
        .await
        .unwrap();
    say(&second, "three").await;

    let requests = model.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.system == requests[0].system)
    );
    assert!(!requests[2].system.as_deref().unwrap().contains("- b:"));
    let reminders = |request: &ModelRequest| {
        request
            .messages
            .iter()
            .filter(|message| is_reminder(&message.text()))
            .count()
    };
    assert_eq!(
        requests.iter().map(reminders).collect::<Vec<_>>(),
        [0, 1, 1],
        "a change is announced once"
    );
    let reminder = requests[1]
        .messages
        .iter()
        .find(|message| is_reminder(&message.text()))
        .unwrap()
        .text();
    assert!(
        reminder.contains("- a: Does a.\n- b: Does b."),
        "{reminder}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_visible_skill_nothing_of_skills_is_offered() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let mut hidden = skill("hidden");
    hidden.metadata.disable_model_invocation = true;
    let host = builder(&model)
        .system("S")
        .tools(tools())
        .shared_skills(source([hidden]))
        .build()
        .await
        .unwrap();

    say(&host, "one").await;

    let request = model.last_request().unwrap();
    assert_eq!(
        (request.system.as_deref(), offered(&request)),
        (Some("S"), vec!["look", "change", "recall"])
    );
}

#[tokio::test(start_paused = true)]
async fn a_file_of_a_skill_is_read_on_demand() {
    let calls = Reply::tool("skill_resource", &json!({ "skill_name": "a" }))
        .and_tool(
            "skill_resource",
            &json!({ "skill_name": "a", "path": "references/x.md" }),
        )
        .and_tool(
            "skill_resource",
            &json!({ "skill_name": "a", "path": "../b" }),
        );
    let model = Arc::new(ScriptedModel::replies([calls, Reply::text("done")]));
    let skills = MemorySkills::new();
    skills.register_with(
        skill("a"),
        [("references/x.md".to_owned(), "deep".to_owned())],
    );
    let host = builder(&model).skills(skills).build().await.unwrap();

    say(&host, "go").await;

    let read = results(&model.last_request().unwrap());
    assert_eq!(read[..2], ["references/x.md (4 bytes)", "deep"]);
    assert!(read[2].contains("NOT_FOUND"), "{}", read[2]);
}
