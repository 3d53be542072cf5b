//! Operations on whole rounds: rewind, fork, and the records of rounds.

use std::{sync::Arc, time::Duration};

use super::*;
use crate::{
    chat::Message,
    ids::RoundId,
    stream::{RoundStatus, StopReason},
    testing::{Reply, ScriptedModel},
};

async fn said(conversation: &ConversationHandle) -> Vec<String> {
    conversation
        .messages()
        .await
        .unwrap()
        .iter()
        .map(Message::text)
        .collect()
}

async fn say(conversation: &ConversationHandle, text: &str) -> RoundId {
    let mut reply = conversation.send(text).await.unwrap();
    reply.outcome().await.unwrap();
    reply.round_id()
}

fn echo() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(|request, _| {
        Reply::text(format!("re: {}", request.messages.last().unwrap().text()))
    }))
}

#[tokio::test(start_paused = true)]
async fn a_rewind_takes_a_round_and_all_later_ones_back() {
    let model = echo();
    let host = host(&model).await;
    let conversation = conversation(&host);
    say(&conversation, "one").await;
    let two = say(&conversation, "two").await;
    say(&conversation, "three").await;
    let spent = conversation.state().await.unwrap().metrics;

    conversation.rewind(two).await.unwrap();

    assert_eq!(said(&conversation).await, ["one", "re: one"]);
    say(&conversation, "other").await;
    assert_eq!(
        model.last_request().unwrap().messages.len(),
        3,
        "the model never sees what was taken back"
    );
    let metrics = conversation.state().await.unwrap().metrics;
    assert_eq!(
        (metrics.api_calls, metrics.rounds),
        (spent.api_calls + 1, spent.rounds + 1),
        "what was spent stays spent"
    );
    let prompts: Vec<String> = conversation
        .rounds()
        .await
        .unwrap()
        .into_iter()
        .map(|round| round.user_message)
        .collect();
    assert_eq!(prompts, ["one", "other"]);
}

#[tokio::test(start_paused = true)]
async fn a_rewind_is_refused_while_a_round_is_open_and_of_a_round_that_is_not_there() {
    let model = Arc::new(ScriptedModel::replies([
        Reply::text("hello"),
        Reply::stall(),
    ]));
    let host = host(&model).await;
    let conversation = conversation(&host);
    let one = say(&conversation, "one").await;

    let unknown = conversation
        .rewind(RoundId::from_random([1; 16]))
        .await
        .unwrap_err();
    let reply = conversation.send("two").await.unwrap();
    let open = conversation.rewind(one).await.unwrap_err();
    let itself = conversation.rewind(reply.round_id()).await.unwrap_err();

    assert_eq!(
        [unknown.code(), open.code(), itself.code()],
        ["not_found", "round_open", "round_open"]
    );
    assert_eq!(said(&conversation).await, ["one", "hello", "two"]);
}

#[tokio::test(start_paused = true)]
async fn a_running_conversation_is_forked_at_its_last_border_and_goes_on() {
    let model = Arc::new(ScriptedModel::answering(|request, call| match call {
        1 => Reply::text("slow").after(Duration::from_secs(60)),
        _ => Reply::text(format!("re: {}", request.messages.last().unwrap().text())),
    }));
    let host = host(&model).await;
    let conversation = conversation(&host);
    say(&conversation, "one").await;
    let mut running = conversation.send("two").await.unwrap();
    model.until(|counts| counts.started == 2).await;

    let fork = conversation.fork("c-2", None).await.unwrap();
    say(&fork, "else").await;

    assert_eq!(said(&fork).await, ["one", "re: one", "else", "re: else"]);
    assert_eq!(running.outcome().await.unwrap().text, "slow");
    assert_eq!(said(&conversation).await, ["one", "re: one", "two", "slow"]);
    let rounds = fork.rounds().await.unwrap();
    let records: Vec<_> = rounds
        .iter()
        .map(|round| {
            (
                round.user_message.as_str(),
                round.conversation_id.as_str(),
                round.start,
            )
        })
        .collect();
    assert_eq!(
        records,
        [("one", "c-1", Some(0)), ("else", "c-2", Some(2))],
        "a fork keeps the rounds and says where they took place"
    );
}

#[tokio::test(start_paused = true)]
async fn a_fork_at_a_round_is_the_conversation_as_that_round_left_it() {
    let model = echo();
    let host = host(&model).await;
    let conversation = conversation(&host);
    let one = say(&conversation, "one").await;
    let two = say(&conversation, "two").await;
    say(&conversation, "three").await;

    let first = conversation.fork("at-one", Some(one)).await.unwrap();
    conversation.rewind(two).await.unwrap();
    let second = conversation.fork("at-two", Some(two)).await.unwrap();

    assert_eq!(said(&first).await, ["one", "re: one"]);
    assert_eq!(
        said(&second).await,
        ["one", "re: one", "two", "re: two"],
        "a fork undoes a rewind"
    );
}

#[tokio::test(start_paused = true)]
async fn a_fork_does_not_overwrite_and_does_not_wake() {
    let model = echo();
    let store = store();
    let before = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    say(&conversation(&before), "one").await;
    say(&before.tenant("acme").conversation("taken"), "mine").await;
    drop(before);
    let host = builder(&model)
        .shared_sessions(store)
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    let its_only = conversation.state().await.unwrap().epoch;

    let taken = conversation
        .fork("taken", None)
        .await
        .map(drop)
        .unwrap_err();
    let unknown = conversation
        .fork("c-3", Some(RoundId::from_random([1; 16])))
        .await
        .map(drop)
        .unwrap_err();
    let nothing = host
        .tenant("acme")
        .conversation("unknown")
        .fork("c-4", None)
        .await
        .map(drop)
        .unwrap_err();
    let wrong = conversation.fork("../c", None).await.map(drop).unwrap_err();
    conversation.fork("c-5", None).await.unwrap();

    let codes = [taken.code(), unknown.code(), nothing.code(), wrong.code()];
    assert_eq!(
        codes,
        [
            "conversation_exists",
            "not_found",
            "not_found",
            "invalid_id"
        ]
    );
    assert_eq!(
        said(&host.tenant("acme").conversation("taken")).await,
        ["mine", "re: mine"]
    );
    let life = conversation.state().await.unwrap().epoch;
    assert_eq!(life, its_only, "the source was read and not woken");
    let elsewhere = host
        .tenant("other")
        .conversation("c-1")
        .fork("c-6", None)
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(
        elsewhere.code(),
        "not_found",
        "another tenant's conversation is not there"
    );
}

#[tokio::test(start_paused = true)]
async fn a_round_records_its_usage_and_its_end() {
    let model = Arc::new(ScriptedModel::replies([
        Reply::thinking("let me see")
            .and_text("hello")
            .after(Duration::from_millis(250)),
        Reply::error(crate::ports::ProviderError::Overloaded),
    ]));
    let host = host(&model).await;
    let conversation = conversation(&host);
    say(&conversation, "one").await;
    let _ = conversation
        .send("two")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap_err();

    let rounds = conversation.rounds().await.unwrap();

    let records: Vec<_> = rounds
        .iter()
        .map(|round| {
            (
                round.status,
                round.stop_reason,
                round.model_calls,
                round.final_answer.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        records,
        [
            (
                RoundStatus::Completed,
                Some(StopReason::EndTurn),
                1,
                Some("hello")
            ),
            (RoundStatus::Error, Some(StopReason::Error), 1, None)
        ],
        "a provider call that fails makes the round an error"
    );
    assert_eq!(rounds[0].thoughts, ["let me see"]);
    assert!(
        rounds[0].tokens_used > 0
            && rounds[0].tokens_used == rounds[0].usage.input() + rounds[0].usage.output,
        "the tokens are those of the round's calls"
    );
    let metrics = conversation.state().await.unwrap().metrics;
    assert_eq!(
        (metrics.api_calls, metrics.usage),
        (2, rounds[0].usage.plus(&rounds[1].usage)),
        "calls that failed count too"
    );
    assert_eq!(
        (metrics.total_input_tokens, metrics.total_output_tokens),
        (metrics.usage.input(), metrics.usage.output)
    );
    assert!(metrics.total_input_tokens > 0 && metrics.total_output_tokens > 0);
}

#[tokio::test(start_paused = true)]
async fn an_imported_history_has_rounds_that_can_be_taken_back() {
    let model = echo();
    let host = host(&model).await;
    let conversation = conversation(&host);
    let messages = ["a", "b"]
        .map(|text| [Message::user(text), Message::assistant("yes")])
        .concat();
    conversation.import(messages).await.unwrap();

    let rounds = conversation.rounds().await.unwrap();
    conversation.rewind(rounds[1].round_id).await.unwrap();

    assert_eq!(
        rounds
            .iter()
            .map(|round| (round.user_message.as_str(), round.start))
            .collect::<Vec<_>>(),
        [("a", Some(0)), ("b", Some(2))]
    );
    assert_eq!(said(&conversation).await, ["a", "yes"]);
}
