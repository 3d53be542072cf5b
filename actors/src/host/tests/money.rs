//! Budgets in money: each call is charged at the price of the model that answers it, and a model
//! without a price is not called under such a budget.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    chat::{ModelRequest, Usage},
    compactor::CompactionSettings,
    host::{BuildError, HOST_GATEWAY, SendError},
    memory::MemorySkills,
    model_gateway::{Fallback, GatewayConfig, ModelRetryPolicy},
    policy::{Budget, Price, Prices},
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError, SessionBackend},
    skill::{Skill, SkillName},
    stream::StopReason,
    testing::{Reply, ScriptedModel},
};

/// The model `own` costs one millionth of a dollar per token, the model `dear` a thousand times as
/// much.
fn prices() -> Prices {
    let price = |usd| Price::per_million(usd, usd).unwrap();
    Prices::default()
        .with("own", price(1.0))
        .with("dear", price(1000.0))
}

fn model() -> Arc<ScriptedModel> {
    let usage = Usage {
        input_uncached: 40,
        output: 5,
        ..Usage::default()
    };
    Arc::new(ScriptedModel::always(Reply::text("ok").usage(usage)))
}

/// Skills that each select one of these models.
fn wishing(models: &[&str]) -> Arc<MemorySkills> {
    let skills = MemorySkills::new();
    for model in models {
        let mut skill = Skill::new(
            SkillName::new(format!("wants-{model}")).unwrap(),
            "Wishes for a model.",
            "Do it well.",
        );
        skill.modifier.model = Some((*model).to_owned());
        skills.register(skill);
    }
    Arc::new(skills)
}

async fn spent(host: &Host) -> u64 {
    conversation(host)
        .state()
        .await
        .unwrap()
        .spent
        .amount
        .micro_usd
}

#[tokio::test(start_paused = true)]
async fn a_call_is_charged_the_price_of_the_model_that_a_skill_chose() {
    let model = model();
    let host = builder(&model)
        .model("own")
        .prices(prices())
        .max_tokens(10)
        .budget(Budget::default().with_usd(0.2));
    let host = host
        .shared_skills(wishing(&["dear"]))
        .skill_models(["dear".to_owned()])
        .build()
        .await
        .unwrap();
    conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!(spent(&host).await, 45);

    conversation(&host)
        .activate_skill("wants-dear")
        .await
        .unwrap();
    let dear = conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (&*model.last_request().unwrap().model, dear.stop_reason),
        ("dear", StopReason::EndTurn)
    );
    assert_eq!(spent(&host).await, 45 + 45_000);
    let mut calls = model.requests().len();
    let mut last = StopReason::EndTurn;
    for _ in 0..10 {
        last = conversation(&host)
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap()
            .stop_reason;
        if last == StopReason::Budget {
            break;
        }
        calls += 1;
    }
    assert_eq!(
        (last, model.requests().len()),
        (StopReason::Budget, calls),
        "the budget is hit by the dear model's price"
    );
    assert!(spent(&host).await <= 200_000);
}

/// A provider whose model `dear` has a small window.
struct SmallDear(Arc<ScriptedModel>);

impl LlmProvider for SmallDear {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn capabilities(&self, model: &str) -> Capabilities {
        let usual = LlmProvider::capabilities(&*self.0, model);
        Capabilities {
            context_window: if model == "dear" {
                6000
            } else {
                usual.context_window
            },
            ..usual
        }
    }

    fn stream(
        &self,
        request: ModelRequest,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        self.0.stream(request, cancel)
    }
}

#[tokio::test(start_paused = true)]
async fn the_window_is_that_of_the_model_that_a_skill_chose() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok").without_usage()));
    let host = builder(&Arc::new(SmallDear(model.clone())))
        .model("own")
        .max_tokens(1000)
        .shared_skills(wishing(&["dear"]))
        .skill_models(["dear".to_owned()])
        .build()
        .await
        .unwrap();
    let talk = conversation(&host);
    let words = "some words that fill the window ".repeat(60);
    for round in 0..15 {
        let prompt = format!("{round} {words}");
        talk.send(prompt).await.unwrap().outcome().await.unwrap();
    }
    let sent = |model: &ScriptedModel| model.last_request().unwrap().messages.wire_bytes();
    let whole = sent(&model);
    assert!(whole > 24_000, "more than the small window holds: {whole}");

    talk.activate_skill("wants-dear").await.unwrap();
    talk.send("Hi").await.unwrap().outcome().await.unwrap();

    let request = model.last_request().unwrap();
    assert_eq!(&*request.model, "dear");
    assert!(sent(&model) < 20_000, "{} of {whole}", sent(&model));
}

#[tokio::test(start_paused = true)]
async fn a_skill_chooses_no_model_that_the_operator_does_not_list() {
    let model = model();
    let host = builder(&model)
        .model("own")
        .prices(prices())
        .shared_skills(wishing(&["dear"]))
        .build()
        .await
        .unwrap();

    conversation(&host)
        .activate_skill("wants-dear")
        .await
        .unwrap();
    let end = conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (&*model.last_request().unwrap().model, end.stop_reason),
        ("own", StopReason::EndTurn)
    );
    let texts = model
        .last_request()
        .unwrap()
        .messages
        .iter()
        .map(|message| message.text())
        .collect::<String>();
    assert!(
        texts.contains("Do it well."),
        "the skill itself is active: {texts}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_model_without_a_price_is_not_called_where_money_is_bounded() {
    for of_tenant in [false, true] {
        let model = model();
        let money = Budget::default().with_usd(1.0);
        let host = builder(&model)
            .model("own")
            .prices(prices())
            .shared_skills(wishing(&["unpriced"]))
            .skill_models(["*".to_owned()]);
        let host = if of_tenant { host } else { host.budget(money) };
        let host = host.build().await.unwrap();
        if of_tenant {
            host.tenant("acme").set_budget(money).unwrap();
        }

        conversation(&host)
            .activate_skill("wants-unpriced")
            .await
            .unwrap();
        let end = conversation(&host)
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();

        assert_eq!(
            (end.stop_reason, model.requests().len()),
            (StopReason::Budget, 0),
            "tenant: {of_tenant}"
        );
        let message = end.error.unwrap().message;
        assert!(
            message.contains("`unpriced` has no price") && message.contains("[prices]"),
            "{message}"
        );
        conversation(&host)
            .deactivate_skill("wants-unpriced")
            .await
            .unwrap();
        assert_eq!(
            conversation(&host)
                .send("Hi")
                .await
                .unwrap()
                .outcome()
                .await
                .unwrap()
                .stop_reason,
            StopReason::EndTurn
        );
    }
}

fn down() -> Reply {
    Reply::error(ProviderError::Server {
        status: 500,
        message: "down".into(),
        retry_after: None,
    })
}

#[tokio::test(start_paused = true)]
async fn a_fallbacks_answer_is_charged_the_fallbacks_price() {
    let primary = Arc::new(ScriptedModel::always(down()));
    let second = model();
    let retry = ModelRetryPolicy {
        max_retries: 0,
        ..Default::default()
    };
    let host = builder(&primary)
        .model("own")
        .prices(prices())
        .max_tokens(10)
        .model_retry(retry)
        .build()
        .await
        .unwrap();
    let config = host.gateway_config().clone();
    host.add_gateway("second", second.clone(), config.clone())
        .unwrap();
    let to = |model: &str| GatewayConfig {
        fallback: Some(Fallback {
            gateway: "second".into(),
            model: model.into(),
        }),
        ..config.clone()
    };
    host.add_gateway(HOST_GATEWAY, primary.clone(), to("unpriced"))
        .unwrap();
    let refused = host
        .tenant("acme")
        .set_budget(Budget::default().with_usd(1.0))
        .unwrap_err();
    assert_eq!(
        refused,
        SendError::NoPrice {
            model: "unpriced".into()
        }
    );
    host.add_gateway(HOST_GATEWAY, primary, to("dear")).unwrap();
    host.tenant("acme")
        .set_budget(Budget::default().with_usd(1.0))
        .unwrap();

    conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(&*second.last_request().unwrap().model, "dear");
    assert_eq!(
        (
            spent(&host).await,
            host.tenant("acme").spent().unwrap().micro_usd
        ),
        (45_000, 45_000)
    );
}

#[tokio::test(start_paused = true)]
async fn the_tokens_of_a_fallback_are_bounded_by_its_own_window() {
    let small = Capabilities {
        context_window: 3_000,
        ..LlmProvider::capabilities(&*model(), "own")
    };
    let primary = Arc::new(ScriptedModel::always(down()).capabilities(small));
    let usage = Usage {
        input_uncached: 4_000,
        output: 5,
        ..Usage::default()
    };
    let second = Arc::new(ScriptedModel::always(Reply::text("ok").usage(usage)));
    let retry = ModelRetryPolicy {
        max_retries: 0,
        ..Default::default()
    };
    let host = builder(&primary)
        .model("own")
        .prices(prices())
        .max_tokens(10)
        .model_retry(retry)
        .build()
        .await
        .unwrap();
    let config = host.gateway_config().clone();
    host.add_gateway("second", second, config.clone()).unwrap();
    let fallback = Some(Fallback {
        gateway: "second".into(),
        model: "dear".into(),
    });
    host.add_gateway(HOST_GATEWAY, primary, GatewayConfig { fallback, ..config })
        .unwrap();
    host.tenant("acme")
        .set_budget(Budget::default().with_usd(10.0))
        .unwrap();

    conversation(&host)
        .send("word ".repeat(1000))
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        spent(&host).await,
        4_005_000,
        "more than the window of the model that it stands in for"
    );
}

#[tokio::test(start_paused = true)]
async fn a_fallback_without_a_price_is_named_when_a_budget_of_money_is_set_up() {
    let model = model();
    let host = builder(&model)
        .model("own")
        .prices(prices())
        .build()
        .await
        .unwrap();
    let config = host.gateway_config().clone();
    host.add_gateway("second", model.clone(), config.clone())
        .unwrap();
    let fallback = Some(Fallback {
        gateway: "second".into(),
        model: "unpriced".into(),
    });
    host.add_gateway("first", model, GatewayConfig { fallback, ..config })
        .unwrap();
    let tenant = crate::host::TenantConfig::new()
        .gateway("first")
        .budget(Budget::default().with_usd(1.0));

    let refused = host
        .configure_tenant(&"acme".try_into().unwrap(), tenant)
        .await;

    assert!(
        matches!(&refused, Err(BuildError::NoPrice { model, .. }) if model == "unpriced"),
        "{refused:?}"
    );
}

/// A conversation of `acme` with `rounds` rounds, whose prompts and answers have `words` words.
async fn talked(host: &Host, rounds: usize, words: usize) -> ConversationHandle {
    let talk = (0..rounds).flat_map(|n| {
        let said = format!("{n} {}", "words ".repeat(words));
        [
            crate::chat::Message::user(said.clone()),
            crate::chat::Message::assistant(said),
        ]
    });
    let conversation = conversation(host);
    conversation.import(talk.collect()).await.unwrap();
    conversation
}

/// A host whose model `own` has a price.
async fn compacting(model: &Arc<ScriptedModel>, settings: CompactionSettings) -> Host {
    builder(model)
        .model("own")
        .prices(prices())
        .compaction(settings)
        .build()
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_summary_is_charged_its_own_models_price_and_not_made_without_one() {
    for (summary_model, charged) in [("dear", true), ("unpriced", false)] {
        let model = model();
        let compaction = CompactionSettings {
            summary_model: Some(summary_model.into()),
            max_cost_per_hour: 100.0,
            ..CompactionSettings::default()
        };
        let host = compacting(&model, compaction).await;
        host.tenant("acme")
            .set_budget(Budget::default().with_usd(1000.0))
            .unwrap();
        talked(&host, 60, 200).await.compact().await.unwrap();

        let asked = model
            .requests()
            .iter()
            .filter(|request| &*request.model == summary_model)
            .count() as u64;
        let spent = host.tenant("acme").spent().unwrap().micro_usd;
        assert_eq!(
            (asked > 0, spent),
            (charged, asked * 45_000),
            "{summary_model}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_summary_that_is_cut_off_is_charged_as_if_it_had_ended() {
    let reported = Usage {
        input_uncached: 5000,
        output: 1,
        ..Usage::default()
    };
    for (reports, ends) in [
        (false, "delete"),
        (true, "delete"),
        (true, "reset"),
        (true, "late"),
    ] {
        let reply = Reply::text("SUMMARY");
        let reply = match reports {
            true => reply.reports_first(reported).then_stall(),
            false => reply.after(Duration::from_secs(3600)),
        };
        let model = Arc::new(ScriptedModel::always(reply));
        let settings = CompactionSettings {
            max_summary_tokens: 1000,
            ..CompactionSettings::default()
        };
        let host = compacting(&model, settings).await;
        let conversation = talked(&host, 60, 200).await;
        let asking = tokio::spawn({
            let conversation = conversation.clone();
            async move { conversation.compact_with_summary().await }
        });
        model.until(|counts| counts.started > 0).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let started = model.counts().started as u64;
        assert_eq!(model.counts().dropped, 0);

        match ends {
            "delete" => drop(conversation.delete().await.unwrap()),
            "reset" => conversation.reset().await.unwrap(),
            _ => tokio::time::sleep(Duration::from_secs(60)).await,
        }
        drop(asking);
        model
            .until(|counts| counts.started == counts.dropped + counts.finished)
            .await;

        let least = started * if reports { 5000 + 1000 } else { 1000 };
        let spent = host.tenant("acme").spent().unwrap();
        assert!(
            spent.tokens >= least && spent.micro_usd == spent.tokens,
            "{ends}, reports: {reports}: {spent:?} for {started} calls"
        );
        let figures = host.figures().await.total;
        assert_eq!(figures.cost_micro_usd, spent.micro_usd, "{ends}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_part_of_a_summary_is_sent_without_the_money_for_all() {
    let model = model();
    let host = compacting(&model, CompactionSettings::default()).await;
    let conversation = talked(&host, 400, 400).await;
    host.tenant("acme")
        .set_budget(Budget::default().with_tokens(40_000))
        .unwrap();

    conversation.compact_with_summary().await.unwrap();

    assert_eq!(model.requests().len(), 0);
    assert_eq!(host.tenant("acme").spent().unwrap().tokens, 0);
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_summaries_counts_what_their_model_costs() {
    for (summary_model, is_made) in [("own", true), ("dear", false)] {
        let model = model();
        let settings = CompactionSettings {
            summary_model: Some(summary_model.into()),
            max_cost_per_hour: 1.0,
            ..CompactionSettings::default()
        };
        let host = compacting(&model, settings).await;

        talked(&host, 60, 200)
            .await
            .compact_with_summary()
            .await
            .unwrap();

        assert_eq!(!model.requests().is_empty(), is_made, "{summary_model}");
    }
}

/// A host of this store whose model thinks much and does not end, with a budget for its tenant.
async fn thinking_on(store: &Arc<dyn SessionBackend>) -> Host {
    let thoughts = Reply::thinking("thinking ".repeat(4000)).chunks(40);
    let model = Arc::new(ScriptedModel::always(thoughts.then_stall()));
    let host = builder(&model).shared_sessions(store.clone());
    let host = host.build().await.unwrap();
    let budget = Budget::default().with_tokens(1_000_000);
    host.tenant("acme").set_budget(budget).unwrap();
    host
}

/// Tokens that the store knows of, read by another host.
async fn stored_tokens(store: &Arc<dyn SessionBackend>) -> u64 {
    let host = thinking_on(store).await;
    let _waits = host.tenant("acme").conversation("reader").send("go").await;
    host.tenant("acme").spent().unwrap().tokens
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_killed_host_cut_is_billed_when_its_conversation_is_deleted() {
    let store = store();
    let first = thinking_on(&store).await;
    let _cut = conversation(&first).send("go").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(first);
    let next = thinking_on(&store).await;

    assert!(conversation(&next).delete().await.unwrap());

    let billed = next.tenant("acme").spent().unwrap().tokens;
    assert!(billed > 1000, "{billed}");
    assert!(!conversation(&next).delete().await.unwrap());
    assert_eq!(next.tenant("acme").spent().unwrap().tokens, billed);
    next.shutdown(Duration::ZERO).await;
    assert!(stored_tokens(&store).await >= billed);
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_while_a_host_stops_is_billed_and_stored() {
    for in_order in [true, false] {
        let store = store();
        let host = thinking_on(&store).await;
        let _cut = conversation(&host).send("go").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;

        drop(conversation(&host).delete());
        match in_order {
            true => drop(host.shutdown(Duration::ZERO).await),
            false => host.close_store(Duration::from_secs(9)).await.unwrap(),
        }

        let stored = stored_tokens(&store).await;
        assert!(stored >= 9000, "{stored}");
    }
}
