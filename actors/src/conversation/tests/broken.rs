//! Invalid message lists, as other programs and crashes leave them. The repaired list is valid and
//! keeps every text that a user wrote.

use super::{
    Rng, Seed,
    rounds::{ask, marks_hold, reload},
};
use crate::testing::TestSize;
use crate::{
    chat::{
        ContentBlock, History, Message, RawJson, Role, ToolResultBlock, ToolResultContent,
        ToolUseBlock,
    },
    conversation::{
        Command,
        round::{Effect, Input},
    },
    ids::WaiterId,
    journal::Durable,
};

/// Lists in the gate; a quarter in a usual run, 20 times as many in a long one.
const LISTS: u64 = 5_000;

fn id(rng: &mut Rng) -> String {
    format!("t{}", rng.below(4))
}

fn message(rng: &mut Rng, number: usize) -> Message {
    let role = if rng.percent(50) {
        Role::User
    } else {
        Role::Assistant
    };
    let mut blocks = Vec::new();
    for part in 0..1 + rng.below(4) {
        let text = ContentBlock::text(format!("said {number}.{part}"));
        blocks.push(match role {
            Role::User if rng.percent(50) => ContentBlock::ToolResult(ToolResultBlock {
                tool_use_id: id(rng),
                content: if rng.percent(50) {
                    ToolResultContent::Text(format!("result {number}.{part}"))
                } else {
                    ToolResultContent::Blocks(
                        RawJson::from_text(
                            r#"[{"type":"text","text":"r"},{"type":"image","source":{}}]"#,
                        )
                        .unwrap(),
                    )
                },
                is_error: rng.percent(20),
            }),
            Role::Assistant if rng.percent(50) => ContentBlock::ToolUse(ToolUseBlock {
                id: id(rng),
                name: "f".into(),
                input: RawJson::empty_object(),
            }),
            Role::User | Role::Assistant | Role::System if rng.percent(5) => ContentBlock::Other {
                kind: "image".into(),
                raw: RawJson::from_text(r#"{"type":"image","source":{"type":"base64","data":""}}"#)
                    .unwrap(),
            },
            Role::User | Role::Assistant | Role::System => text,
        });
    }
    Message::new(role, &blocks).unwrap()
}

/// The texts of one role, in order.
fn texts<'a>(messages: impl IntoIterator<Item = &'a Message>, role: Role) -> Vec<String> {
    let of = |message: &'a Message| {
        message
            .blocks()
            .into_iter()
            .filter_map(|block| block.as_text().map(str::to_owned))
    };
    let said = messages
        .into_iter()
        .filter(|message| message.role() == role)
        .flat_map(of);
    said.filter(|text| text.starts_with("said ")).collect()
}

#[test]
fn no_broken_list_loses_what_was_said_or_stays_broken() {
    let count = TestSize::pick(LISTS / 4, LISTS, LISTS * 20);
    let mut mended = 0;
    for seed in 0..count {
        let _seed = Seed(seed);
        let mut rng = Rng::new(seed ^ 0xb0ce);
        let list: Vec<Message> = (0..rng.below(9))
            .map(|number| message(&mut rng, number))
            .collect();

        let (history, repairs) = History::repair(list.iter().cloned());

        mended += u64::from(!repairs.is_empty());
        let messages = history.messages();
        assert_eq!(messages.first_fault(), None);
        for role in [Role::User, Role::Assistant] {
            assert_eq!(
                texts(messages.iter(), role),
                texts(&list, role),
                "all that was said is there, in order"
            );
        }
        assert!(repairs.iter().all(|repair| repair.index < list.len()));
        assert_eq!(
            repairs.is_empty(),
            messages.iter().eq(&list),
            "each change is reported"
        );
        assert_eq!(
            History::repair(messages.iter().cloned()),
            (history.clone(), vec![]),
            "what is mended stays as it is"
        );

        // As a conversation: import the list, reload it, and rewind it to each of its rounds.
        let waiter = WaiterId(1);
        let input = Input::Command {
            command: Command::Import {
                messages: messages.iter().cloned().collect(),
                rounds: vec![],
            },
            waiter,
        };
        let (stored, state, effects) = ask(&Durable::default(), input);
        assert_eq!(effects, [Effect::Answer { waiter }]);
        marks_hold(&state);
        for mark in state.rounds.as_slice() {
            let (_, rewound, _) = ask(
                &state,
                Input::Command {
                    command: Command::Rewind { round_id: mark.id },
                    waiter,
                },
            );
            assert_eq!(
                (
                    rewound.history.messages().first_fault(),
                    rewound.history.messages().len()
                ),
                (None, mark.start as usize)
            );
        }
        reload(stored, &state);
    }
    assert!(mended > count / 2, "{mended} of {count} lists were broken");
}
