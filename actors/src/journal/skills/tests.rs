use super::*;
use crate::{
    chat::{RawJson, Role, ToolResultBlock, ToolResultContent, ToolUseBlock},
    ids::Epoch,
    journal::{Durable, Entry, EntryBody},
    skill::{Skill, SkillMetadata},
    time::Timestamp,
};

fn name(text: &str) -> SkillName {
    SkillName::new(text).unwrap()
}

fn id(n: u8) -> ActivationId {
    ActivationId::from_random([n; 16])
}

fn apply(state: &mut Durable, body: EntryBody) -> Result<(), String> {
    let entry = Entry {
        seq: state.head.next(),
        epoch: Epoch(1),
        at: Timestamp(5),
        body,
    };
    let stored = entry.encode();
    let entry = Entry::decode(&stored).unwrap();
    state.apply(&entry).map_err(|error| error.why)
}

fn begun() -> Durable {
    let mut state = Durable::default();
    apply(
        &mut state,
        EntryBody::LifeStarted {
            nonce: 0,
            in_order: false,
        },
    )
    .unwrap();
    state
}

fn activated(skill: &str, n: u8, by: ActivatedBy, tools: &[&str]) -> EntryBody {
    let allowed = tools.iter().map(|tool| (*tool).to_owned()).collect();
    EntryBody::SkillActivated {
        name: name(skill),
        activation_id: id(n),
        by,
        level: LoadLevel::Instructions,
        modifier: ContextModifier {
            allowed_tools: Some(allowed),
            ..ContextModifier::default()
        },
        message: Message::user(format!("how to {skill}")),
        text_digest: digest(skill.as_bytes()),
    }
}

fn index(skills: &[&str]) -> SkillIndex {
    let skills: Vec<SkillMetadata> = skills
        .iter()
        .map(|skill| Skill::new(name(skill), "d", "").metadata)
        .collect();
    SkillIndex::from_skills(&skills)
}

#[test]
fn what_is_active_is_on_the_stack_and_in_the_context_alike() {
    let mut state = begun();

    apply(
        &mut state,
        activated("a", 1, ActivatedBy::User, &["x", "y"]),
    )
    .unwrap();
    apply(&mut state, activated("b", 2, ActivatedBy::User, &["y"])).unwrap();

    assert_eq!(state.skills.stack.names(), [name("a"), name("b")]);
    assert_eq!(
        state.skills.active.keys().cloned().collect::<Vec<_>>(),
        [name("a"), name("b")]
    );
    assert_eq!(state.skills.context_modifiers().count(), 2);
    assert!(
        state
            .skills
            .narrowing()
            .is_some_and(|combined| combined.allows("y") && !combined.allows("x"))
    );
    assert_eq!(
        (state.metrics.skill_activations, state.metrics.unique_skills),
        (2, 2)
    );
    assert_eq!(
        apply(&mut state, activated("a", 3, ActivatedBy::User, &[])),
        Err("the skill is active".into())
    );
    assert_eq!(
        apply(
            &mut state,
            EntryBody::SkillDeactivated {
                name: name("a"),
                activation_id: id(1)
            }
        ),
        Err("the skill is not the one on top".into())
    );
    apply(
        &mut state,
        EntryBody::SkillDeactivated {
            name: name("b"),
            activation_id: id(2),
        },
    )
    .unwrap();
    assert_eq!(
        (state.skills.stack.depth(), state.skills.active.len()),
        (1, 1)
    );
}

#[test]
fn a_skill_used_again_counts_once_among_the_different_ones() {
    let mut state = begun();

    for n in 1..=2 {
        apply(&mut state, activated("a", n, ActivatedBy::User, &[])).unwrap();
        apply(
            &mut state,
            EntryBody::SkillDeactivated {
                name: name("a"),
                activation_id: id(n),
            },
        )
        .unwrap();
    }

    assert_eq!(
        (state.metrics.skill_activations, state.metrics.unique_skills),
        (2, 1)
    );
}

#[test]
fn a_later_list_waits_for_the_compaction() {
    let mut state = begun();
    apply(
        &mut state,
        EntryBody::SkillsOffered {
            index: index(&["a"]),
            message: None,
        },
    )
    .unwrap();
    apply(&mut state, activated("a", 1, ActivatedBy::User, &[])).unwrap();

    apply(
        &mut state,
        EntryBody::SkillsOffered {
            index: index(&["a", "b"]),
            message: Some(Message::user("now b too")),
        },
    )
    .unwrap();

    assert_eq!(
        state.skills.offered,
        Some(index(&["a"])),
        "the system prompt stays as it is"
    );
    assert_eq!(state.skills.latest(), Some(&index(&["a", "b"])));
    assert_eq!(
        state
            .history
            .messages()
            .last()
            .map(Message::text)
            .as_deref(),
        Some("now b too")
    );
    let again = refresh_at_compaction(&mut state.skills);
    assert_eq!(
        (state.skills.offered.clone(), state.skills.announced.clone()),
        (Some(index(&["a", "b"])), None)
    );
    assert_eq!(
        again.iter().map(Message::text).collect::<Vec<_>>(),
        ["how to a"],
        "what an active skill says is said again"
    );
}

#[test]
fn a_compaction_forgets_what_ended_skills_said() {
    let mut state = begun();
    apply(&mut state, activated("a", 1, ActivatedBy::User, &[])).unwrap();
    apply(
        &mut state,
        EntryBody::SkillDeactivated {
            name: name("a"),
            activation_id: id(1),
        },
    )
    .unwrap();
    assert!(state.skills.has_shown(&name("a"), "a") && !state.skills.has_shown(&name("a"), "b"));

    refresh_at_compaction(&mut state.skills);

    assert!(!state.skills.has_shown(&name("a"), "a"));
}

#[test]
fn a_reset_and_an_import_leave_no_skill_active() {
    for last in [
        EntryBody::Reset {},
        EntryBody::Imported {
            messages: Vec::new(),
            rounds: Vec::new(),
        },
    ] {
        let mut state = begun();
        apply(&mut state, activated("a", 1, ActivatedBy::User, &[])).unwrap();

        apply(&mut state, last).unwrap();

        assert!(
            state.skills.active.is_empty()
                && state.skills.stack.depth() == 0
                && state.skills.shown.is_empty()
        );
    }
}

#[test]
fn a_snapshot_keeps_the_skills_and_one_without_them_is_read() {
    let mut state = begun();
    apply(&mut state, activated("a", 1, ActivatedBy::User, &["x"])).unwrap();

    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<Durable>(&text).unwrap(), state);

    let mut old: serde_json::Value = serde_json::to_value(begun()).unwrap();
    old.as_object_mut().unwrap().remove("skills");
    assert_eq!(
        serde_json::from_str::<Durable>(&old.to_string()).unwrap(),
        begun()
    );
}

#[test]
fn activations_are_counted_by_blocks_and_failed_ones_are_none() {
    let call = |id: &str, tool: &str| {
        ContentBlock::ToolUse(ToolUseBlock {
            id: id.into(),
            name: tool.into(),
            input: RawJson::empty_object(),
        })
    };
    let result = |id: &str, is_error| ToolResultBlock {
        tool_use_id: id.into(),
        content: ToolResultContent::Text("activate_skill".into()),
        is_error,
    };
    let calls = Message::new(
        Role::Assistant,
        &[
            call("1", ACTIVATE_SKILL),
            call("2", ACTIVATE_SKILL),
            call("3", "bash"),
        ],
    )
    .unwrap();
    let results = Message::tool_results(
        [result("1", false), result("2", true), result("3", false)],
        [],
    );

    assert_eq!(
        skill_activations([&Message::user("activate_skill"), &calls, &results]),
        1
    );
    assert_eq!(skill_activations([&calls]), 0, "an open call is none yet");
}
