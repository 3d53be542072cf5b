//! The settings of compaction in a running host: each test fails if its setting has no effect.

use parking_lot::Mutex;

use super::*;
use crate::{
    chat::Message,
    compactor::{CompactionSettings, CompressionMode},
    policy::{Price, Prices},
    testing::{Reply, ScriptedModel},
};

/// A compaction on request of a conversation with many rounds.
struct Compacted {
    /// The conversation's rounds that stay in the context.
    rounds: usize,
    /// The longest answers that requests for summaries allow.
    summaries: Vec<u32>,
    first: String,
    took: Duration,
}

/// Compacts a conversation with this many rounds. A summary takes three seconds.
async fn compacted(rounds: usize, settings: CompactionSettings) -> Compacted {
    compacted_with(rounds, settings, false).await
}

async fn compacted_with(rounds: usize, settings: CompactionSettings, summary: bool) -> Compacted {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let model = Arc::new(ScriptedModel::answering(move |request, _| {
        seen.lock().push(request.max_tokens);
        Reply::text("SUMMARY OF THE MATTER").after(Duration::from_secs(3))
    }));
    let price = Price::per_million(1.0, 1.0).unwrap();
    let host = builder(&model)
        .model("own")
        .prices(Prices::default().with("own", price))
        .compaction(settings)
        .build()
        .await
        .unwrap();
    let talk = (0..rounds).flat_map(|n| {
        let said = format!("{n} {}", "words of a person ".repeat(50));
        [Message::user(said.clone()), Message::assistant(said)]
    });
    conversation(&host).import(talk.collect()).await.unwrap();
    let begun = tokio::time::Instant::now();

    let note = match summary {
        false => conversation(&host).compact().await,
        true => conversation(&host).compact_with_summary().await,
    };
    assert!(note.unwrap().is_some());

    let took = begun.elapsed();
    let left = conversation(&host).messages().await.unwrap();
    let prompts = left.iter().filter(|message| {
        message
            .text()
            .starts_with(|first: char| first.is_ascii_digit())
    });
    let summaries = asked.lock().clone();
    Compacted {
        rounds: prompts.count() / 2, // A prompt and its answer.
        summaries,
        first: left[0].wire_str().to_owned(),
        took,
    }
}

fn usual() -> CompactionSettings {
    CompactionSettings::default()
}

#[tokio::test(start_paused = true)]
async fn no_model_summarizes_where_it_may_not() {
    let off = CompactionSettings {
        enable_llm_summarization: false,
        ..usual()
    };

    let off = compacted(60, off).await;

    assert_eq!(off.summaries, [0u32; 0]);
    assert!(!compacted(60, usual()).await.summaries.is_empty());
}

#[tokio::test(start_paused = true)]
async fn truncation_makes_a_summary_only_for_a_caller_that_asks_for_one() {
    let truncate = || CompactionSettings {
        strategy: CompressionMode::Truncate,
        ..usual()
    };

    let plain = compacted(60, truncate()).await;
    let asked = compacted_with(60, truncate(), true).await;

    assert!(plain.summaries.is_empty(), "{:?}", plain.summaries);
    assert!(!asked.summaries.is_empty() && asked.first.contains("SUMMARY OF THE MATTER"));
}

#[tokio::test(start_paused = true)]
async fn a_summary_is_as_long_as_the_setting_says_and_waited_for_no_longer() {
    let short = CompactionSettings {
        max_summary_tokens: 77,
        ..usual()
    };
    let hasty = CompactionSettings {
        timeout_ms: 500,
        ..usual()
    };

    let short = compacted(60, short).await;
    let hasty = compacted(60, hasty).await;

    assert!(
        short.summaries.iter().all(|most| *most == 77),
        "{:?}",
        short.summaries
    );
    assert!(short.first.contains("SUMMARY OF THE MATTER"));
    assert!(
        short.took >= Duration::from_secs(3) && hasty.took < Duration::from_secs(3),
        "{:?} {:?}",
        short.took,
        hasty.took
    );
    assert!(!hasty.first.contains("SUMMARY OF THE MATTER"));
}

#[tokio::test(start_paused = true)]
async fn summaries_of_a_tenant_cost_no_more_in_an_hour_than_the_setting_says() {
    let nothing = CompactionSettings {
        max_cost_per_hour: 0.000_001,
        ..usual()
    };

    assert_eq!(compacted(60, nothing).await.summaries, [0u32; 0]);
}

#[tokio::test(start_paused = true)]
async fn as_many_rounds_stay_whole_as_the_setting_says() {
    let keep = |rounds| CompactionSettings {
        keep_rounds: Some(rounds),
        ..usual()
    };

    let few = compacted(60, keep(3)).await;
    let many = compacted(60, keep(12)).await;

    assert_eq!((few.rounds, many.rounds), (3, 12));
}

#[tokio::test(start_paused = true)]
async fn a_compaction_on_request_keeps_ten_rounds_unless_the_setting_says_otherwise() {
    assert_eq!(compacted(60, usual()).await.rounds, 10);
}

/// Fills a window of 8000 tokens until the history was compacted twice, and for `more` rounds after
/// that. Summaries come from `summary`. Returns the host, its model, the first message of the history
/// each round, and the slowest round.
async fn filled(
    more: usize,
    summary: impl Fn(usize) -> Reply + Send + Sync + 'static,
) -> (Host, Arc<ScriptedModel>, Vec<String>, Duration) {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let model = ScriptedModel::answering(move |request, _| {
        if request.tools.is_empty() && request.system.is_none() && request.messages.len() == 1 {
            return summary(asked.fetch_add(1, Ordering::SeqCst));
        }
        Reply::text("fine ".repeat(60)).after(Duration::from_millis(10))
    });
    let capabilities = crate::ports::Capabilities {
        context_window: 8000,
        output_max: 500,
        ..LlmProvider::capabilities(&model, "m")
    };
    let model = Arc::new(model.capabilities(capabilities));
    let settings = CompactionSettings {
        max_cost_per_hour: 100.0,
        ..usual()
    };
    let built = builder(&model).system("s").compaction(settings).build();
    let host = built.await.unwrap();
    let (mut firsts, mut slowest, mut left) = (Vec::new(), Duration::ZERO, more);
    for round in 0..400 {
        let began = tokio::time::Instant::now();
        let prompt = format!("{round} {}", "words of a person ".repeat(12));
        let mut reply = conversation(&host).send(prompt).await.unwrap();
        reply.outcome().await.unwrap();
        slowest = slowest.max(began.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await; // Time for the summaries.
        let first = conversation(&host).messages().await.unwrap().swap_remove(0);
        firsts.push(first.wire_str().to_owned());
        if host.figures().await.total.compactions >= 2 {
            if left == 0 {
                return (host, model, firsts, slowest);
            }
            left -= 1;
        }
    }
    panic!("never compacted twice");
}

#[tokio::test(start_paused = true)]
async fn a_summary_that_fails_is_counted_and_the_summary_by_rules_stays() {
    let (host, _, firsts, slowest) = filled(0, |_| {
        Reply::error(crate::ports::ProviderError::Auth {
            message: "no".into(),
        })
    })
    .await;

    let counted = host.figures().await.total;
    assert!(
        counted.summaries == 0 && counted.summaries_failed >= 1,
        "{counted:?}"
    );
    let first = firsts.last().unwrap();
    assert!(
        first.contains("## Previous Context Summary") && !first.contains("### Summary"),
        "{first}"
    );
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

#[tokio::test(start_paused = true)]
async fn summaries_that_panic_leave_their_places_to_later_ones() {
    let log = Log::start();
    let (host, _, firsts, _) = filled(150, |n| match n {
        0..4 => Reply::panic(),
        _ => Reply::text("BACKGROUND SUMMARY"),
    })
    .await;

    let counted = host.figures().await.total;
    assert!(
        counted.summaries_failed >= 3 && counted.summaries >= 1,
        "{counted:?}"
    );
    assert!(
        firsts
            .iter()
            .any(|first| first.contains("BACKGROUND SUMMARY"))
    );
    assert!(log.text().contains("a background summary panicked"));
}

#[tokio::test(start_paused = true)]
async fn a_summary_is_kept_as_long_as_the_setting_says() {
    let settings = CompactionSettings {
        summary_cache_ttl: 1,
        ..usual()
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("SUMMARY")));
    let built = builder(&model).compaction(settings).build();
    let host = built.await.unwrap();
    let talk = (0..60).flat_map(|n| {
        let said = format!("{n} {}", "words of a person ".repeat(50));
        [Message::user(said.clone()), Message::assistant(said)]
    });
    conversation(&host).import(talk.collect()).await.unwrap();
    conversation(&host).compact().await.unwrap();
    let compactor = &host.0.resolver.compactor;
    let scope = conversation(&host).scope().unwrap();

    tokio::time::advance(Duration::from_secs(3590)).await;
    assert!(!compactor.look(&scope).await.is_empty());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert!(compactor.look(&scope).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_the_summary_that_is_being_written() {
    let (host, model, _, _) = filled(0, |_| {
        Reply::text("SUMMARY").after(Duration::from_secs(3600))
    })
    .await;
    let before = model.counts();
    assert!(
        before.started > before.finished + before.dropped,
        "a summary is being written: {before:?}"
    );
    let began = tokio::time::Instant::now();

    host.shutdown(Duration::from_secs(10)).await;
    model
        .until(|counts| counts.started == counts.finished + counts.dropped)
        .await;

    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(host.figures().await.total.summaries, 0);
}

/// The window has room for 7500 tokens; the prompts fill it slowly.
#[tokio::test(start_paused = true)]
async fn a_context_is_compacted_from_the_trigger_down_to_the_target() {
    let sizes = async |trigger: f64, target: f64| {
        let model = ScriptedModel::always(Reply::text("Certainly. ".repeat(12)));
        let capabilities = crate::ports::Capabilities {
            context_window: 8000,
            output_max: 500,
            ..crate::ports::LlmProvider::capabilities(&model, "m")
        };
        let model = Arc::new(model.capabilities(capabilities));
        let settings = CompactionSettings {
            enable_llm_summarization: false,
            trigger,
            target,
            ..usual()
        };
        let host = builder(&model).compaction(settings).build().await.unwrap();
        for round in 0..200 {
            let prompt = format!("{round} {}", "say more of the matter ".repeat(20));
            let mut reply = conversation(&host).send(prompt).await.unwrap();
            while let Some(event) = reply.next().await {
                if let EventKind::Compaction {
                    before_tokens,
                    after_tokens,
                    ..
                } = event.kind
                {
                    return (before_tokens, after_tokens);
                }
            }
        }
        panic!("never compacted");
    };

    let (late, _) = sizes(0.8, 0.5).await;
    let (early, half) = sizes(0.6, 0.5).await;
    let (_, little) = sizes(0.6, 0.3).await;

    assert!(late > 6000 && early < 5400, "{late} {early}");
    assert!(half > 2400 && little <= 2400, "{half} {little}");
}
