//! Several hosts on one store: which one runs a conversation.

use super::*;
use crate::{
    chat::Message,
    conversation::ConversationError,
    host::{self, SendError},
    ids::Scope,
    journal::Head,
    memory::MemorySessions,
    testing::{
        ClusterSessions, Fault, FaultPlan, FaultySessions, MemoryCluster, Reply, ScriptedModel,
    },
};

async fn host_on(sessions: &Arc<ClusterSessions>, model: &Arc<ScriptedModel>) -> Host {
    let builder = builder(model).shared_sessions(sessions.clone());
    builder.build().await.unwrap()
}

fn scope() -> Scope {
    Scope::new("acme".parse().unwrap(), "c-1".parse().unwrap())
}

async fn say(host: &Host, text: &str) -> Result<String, SendError> {
    let mut reply = conversation(host).send(text).await?;
    Ok(reply.outcome().await.unwrap().text)
}

fn elsewhere(host: &str) -> SendError {
    SendError::Conversation(ConversationError::Elsewhere { host: host.into() })
}

#[tokio::test(start_paused = true)]
async fn a_host_that_owns_a_conversation_answers_for_it_and_the_others_name_it() {
    let cluster = MemoryCluster::new();
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let one = host_on(&cluster.host(), &model).await;
    let two = host_on(&cluster.host(), &model).await;
    say(&one, "first").await.unwrap();

    let refused = say(&two, "second").await.unwrap_err();

    assert_eq!(refused, elsewhere("host-0"));
    assert_eq!(
        (refused.code(), refused.is_retryable()),
        ("owned_elsewhere", true)
    );
    until("the refused activation is gone", || two.awake() == 0).await;
    // Reads need no owner.
    assert_eq!(conversation(&two).messages().await.unwrap().len(), 2);
    say(&one, "second").await.unwrap();
    assert_eq!(model.counts().started, 2);

    one.hibernate_idle();
    until("it sleeps", || one.awake() == 0).await;
    say(&two, "third").await.unwrap();
    assert_eq!(say(&one, "fourth").await, Err(elsewhere("host-1")));
    assert_eq!(conversation(&one).messages().await.unwrap().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_drained_host_leaves_its_conversations_to_the_others() {
    let cluster = MemoryCluster::new();
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let one = host_on(&cluster.host(), &model).await;
    let two = host_on(&cluster.host(), &model).await;
    say(&one, "first").await.unwrap();

    one.shutdown(Duration::from_secs(5)).await;

    assert_eq!(say(&two, "second").await.unwrap(), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_round_of_a_silent_host_goes_on_elsewhere_and_that_host_starts_nothing_more() {
    let cluster = MemoryCluster::new();
    let (sessions, others) = (cluster.host(), cluster.host());
    let slow = Arc::new(ScriptedModel::always(
        Reply::text("too late").after(Duration::from_secs(60)),
    ));
    let model = Arc::new(ScriptedModel::always(Reply::text("taken over")));
    let one = host_on(&sessions, &slow).await;
    let two = host_on(&others, &model).await;
    let mut cut_off = conversation(&one).send("Hi").await.unwrap();
    slow.until(|counts| counts.started == 1).await;
    assert_eq!(
        two.resume_interrupted().await.unwrap(),
        0,
        "another host runs it"
    );

    sessions.expire();
    assert_eq!(two.resume_interrupted().await.unwrap(), 1);
    until("the round is over", || model.counts().finished == 1).await;

    assert!(cut_off.outcome().await.is_err());
    until("the stale activation is gone", || one.awake() == 0).await;
    let messages = conversation(&two).messages().await.unwrap();
    assert_eq!(messages.len(), 2, "one answer");
    assert_eq!(messages[1].text(), "taken over");
    assert_eq!(slow.counts().started, 1);
    let head = others.head(&scope()).await.unwrap();
    assert_eq!(say(&one, "again").await, Err(elsewhere("host-1")));
    assert_eq!(others.head(&scope()).await.unwrap(), head);
    assert_ne!(head, Head::default());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_not_sure_to_own_reads_the_head_before_it_starts_work() {
    let cluster = MemoryCluster::new();
    let sessions = cluster.host();
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let one = host_on(&sessions, &model).await;
    say(&one, "first").await.unwrap();

    sessions.expire();
    let mut reply = conversation(&one).send("second").await.unwrap();

    // No other host took the conversation, so the head says that it goes on here.
    assert_eq!(reply.outcome().await.unwrap().text, "ok");
    assert_eq!(one.figures().await.total.store_pauses, 1);
    assert_eq!(model.counts().started, 2);
}

/// Prompts to a host whose store follows `plan`, sent together, and a host beside it on the same
/// store, which then takes over what is stored and ends a round.
async fn taken_over<const N: usize>(
    plan: FaultPlan,
    prompts: [&'static str; N],
) -> (
    [Result<host::Reply, SendError>; N],
    Host,
    Arc<ScriptedModel>,
) {
    let stored = Arc::new(MemorySessions::new());
    let cut_off = Arc::new(FaultySessions::new(stored.clone(), plan));
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let slow = Reply::text("too late").after(Duration::from_secs(60));
    let slow = Arc::new(ScriptedModel::always(slow));
    let one = builder(&slow)
        .shared_sessions(cut_off.clone())
        .build()
        .await;
    let two = builder(&model).shared_sessions(stored).build().await;
    let (one, two) = (one.unwrap(), two.unwrap());

    let before = vec![Message::user("Hello"), Message::assistant("Welcome")];
    conversation(&one).import(before).await.unwrap();
    let sends = prompts.map(|text| {
        let conversation = conversation(&one);
        tokio::spawn(async move { conversation.send(text).await })
    });
    until("all are sent", || cut_off.appends() == 1 + N as u64).await;
    cut_off.release();
    while two.resume_interrupted().await.unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    until("a round is over", || model.counts().finished > 0).await;
    let sends = futures_util::future::join_all(sends).await;
    let sends: Vec<_> = sends.into_iter().map(Result::unwrap).collect();
    (sends.try_into().unwrap(), two, model)
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_was_stored_before_another_host_took_over_is_not_refused() {
    let plan = FaultPlan::new().append(2, Fault::Unknown);
    let ([send], two, model) = taken_over(plan, ["Hi"]).await;

    // It was not known whether the prompt was stored. A refusal would say that it was not, and be sent
    // to the other host, which has run it.
    assert!(send.unwrap().outcome().await.is_err());
    let messages = conversation(&two).messages().await.unwrap();
    assert_eq!(messages.len(), 4);
    assert_eq!(messages[3].text(), "ok");
    assert_eq!(model.counts().started, 1);
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_may_be_stored_when_another_host_takes_over_is_not_refused() {
    let plan = FaultPlan::new()
        .append(2, Fault::Hang)
        .append(3, Fault::Unknown)
        .append(4, Fault::Unknown);
    let ([known, found, unknown], ..) = taken_over(plan, ["Hi", "And?", "And then?"]).await;

    assert!(known.is_ok());
    // The journal shows the first entry after those that are known to be stored.
    assert!(found.is_ok());
    // `InUse` would send the prompt to the other host, which has it already.
    let error = unknown.err();
    assert_eq!(
        error,
        Some(SendError::Conversation(ConversationError::Gone))
    );
}
