use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;

use super::*;
use crate::{
    ids::{ConversationId, Scope, TenantId},
    memory::{MemoryArtifacts, MemoryArtifactsConfig},
    ports::{ArtifactError, ArtifactMeta, ArtifactStore, BoxFuture, Cleaned},
    testing::ManualClock,
    time::Timestamp,
};

const MIB: usize = 1024 * 1024;

fn artifacts() -> Artifacts {
    let config = MemoryArtifactsConfig {
        tenant_bytes_max: 1 << 32,
        ..MemoryArtifactsConfig::default()
    };
    let store = Arc::new(MemoryArtifacts::with_config(
        Arc::new(ManualClock::at(Timestamp(1))),
        config,
    ));
    Artifacts {
        store,
        owner: Scope::new("t".try_into().unwrap(), "c".try_into().unwrap()),
    }
}

async fn kept(artifacts: &Artifacts, id: &ArtifactId) -> Bytes {
    artifacts
        .store
        .retrieve(artifacts.owner.clone(), id.clone())
        .await
        .unwrap()
}

/// A store that always fails and counts its calls.
#[derive(Default)]
struct Away(AtomicUsize);

impl Away {
    fn fail<T: Send + 'static>(&self) -> BoxFuture<'_, Result<T, ArtifactError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Err(ArtifactError::Unavailable("away".into())) })
    }
}

impl ArtifactStore for Away {
    fn store(
        &self,
        _: Scope,
        _: String,
        _: Bytes,
    ) -> BoxFuture<'_, Result<ArtifactId, ArtifactError>> {
        self.fail()
    }
    fn retrieve(&self, _: Scope, _: ArtifactId) -> BoxFuture<'_, Result<Bytes, ArtifactError>> {
        self.fail()
    }
    fn read_range(
        &self,
        _: Scope,
        _: ArtifactId,
        _: Range<u64>,
    ) -> BoxFuture<'_, Result<Bytes, ArtifactError>> {
        self.fail()
    }
    fn meta(&self, _: Scope, _: ArtifactId) -> BoxFuture<'_, Result<ArtifactMeta, ArtifactError>> {
        self.fail()
    }
    fn touch(&self, _: Scope, _: ArtifactId) -> BoxFuture<'_, Result<(), ArtifactError>> {
        self.fail()
    }
    fn release(
        &self,
        _: TenantId,
        _: Option<ConversationId>,
    ) -> BoxFuture<'_, Result<(), ArtifactError>> {
        self.fail()
    }
    fn cleanup(&self, _: Duration) -> BoxFuture<'_, Result<Cleaned, ArtifactError>> {
        self.fail()
    }
}

async fn text(
    text: impl Into<String>,
    level: OutputLevel,
    artifacts: Option<&Artifacts>,
) -> Observed {
    observe(ToolOutput::Text(text.into()), level, artifacts, "toolu_1").await
}

async fn data(value: Value, level: OutputLevel, artifacts: Option<&Artifacts>) -> Observed {
    observe(ToolOutput::Data(value), level, artifacts, "toolu_1").await
}

/// Data whose JSON text has exactly this many bytes.
fn list_of(bytes: usize) -> Value {
    json!(["x".repeat(bytes - "[\"\"]".len())])
}

#[tokio::test]
async fn text_is_never_shortened_by_level_and_thirty_kibibytes_are_not_paged() {
    let artifacts = artifacts();
    let exact = "汉".repeat(OBSERVATION_BYTES_MAX / 3);
    assert_eq!(exact.len(), OBSERVATION_BYTES_MAX);

    for level in [OutputLevel::Brief, OutputLevel::Standard, OutputLevel::Full] {
        let observed = text(exact.clone(), level, Some(&artifacts)).await;
        assert_eq!(
            observed,
            shown(exact.clone(), level, OBSERVATION_BYTES_MAX as u64)
        );
    }
}

#[tokio::test]
async fn a_longer_text_is_kept_and_its_first_page_says_how_to_go_on() {
    let artifacts = artifacts();
    let long = "汉".repeat(OBSERVATION_BYTES_MAX / 3) + "!";

    let observed = text(long.clone(), OutputLevel::Brief, Some(&artifacts)).await;

    let id = observed.artifact_id.clone().unwrap();
    assert_eq!(kept(&artifacts, &id).await, long.as_bytes());
    let (page, footer) = observed.text.rsplit_once("\n\n").unwrap();
    assert_eq!(
        page,
        std::str::from_utf8(paging::page(long.as_bytes(), 1).unwrap()).unwrap()
    );
    let expected = format!(
        "[page 1 of 2; kept {} of {} bytes; read_more(result_id=\"{id}\", page=2) shows the next]",
        page.len(),
        long.len()
    );
    assert_eq!(footer, expected);
    assert!(observed.text.len() <= OBSERVATION_BYTES_MAX);
    assert_eq!(observed.data_size_bytes, long.len() as u64);
    assert_eq!(
        (
            observed.data_hash.as_deref(),
            observed.data_summary.as_deref()
        ),
        (Some(id.hash()), Some(&*"汉".repeat(200)))
    );
}

#[tokio::test]
async fn small_data_is_shown_as_its_level_says_and_a_mebibyte_is_kept() {
    let artifacts = artifacts();
    for (level, expected) in [
        (OutputLevel::Brief, "Found 1 items".to_owned()),
        (OutputLevel::Full, "[\n  1\n]".to_owned()),
    ] {
        assert_eq!(
            data(json!([1]), level, Some(&artifacts)).await,
            shown(expected, level, 3)
        );
    }

    let below = data(list_of(MIB - 1), OutputLevel::Brief, Some(&artifacts)).await;
    assert_eq!(
        below,
        shown("Found 1 items".into(), OutputLevel::Brief, MIB as u64 - 1)
    );

    let exact = list_of(MIB);
    let observed = data(exact.clone(), OutputLevel::Brief, Some(&artifacts)).await;
    let id = observed.artifact_id.clone().unwrap();
    let summary = "List with 1 items. First item keys: N/A";
    assert_eq!(
        observed.text,
        format!("Found 1 items\n\n{}", stored_text(&id, summary))
    );
    assert_eq!(
        (observed.data_size_bytes, observed.data_summary.as_deref()),
        (MIB as u64, Some(summary))
    );
    assert_eq!(
        kept(&artifacts, &id).await,
        serde_json::to_vec(&exact).unwrap()
    );
    assert_eq!(
        id,
        ArtifactId::from_content(&serde_json::to_vec(&exact).unwrap()),
        "named by the JSON text"
    );
}

#[tokio::test]
async fn sizes_are_bytes_of_json_with_characters_unescaped() {
    let observed = data(json!({ "k": "汉😀" }), OutputLevel::Brief, None).await;

    assert_eq!(observed.data_size_bytes, "{\"k\":\"汉😀\"}".len() as u64);
}

#[tokio::test]
async fn full_data_is_inline_up_to_thirty_kibibytes_and_above_that_an_artifact_and_its_first_page()
{
    let artifacts = artifacts();
    let around = "[\n  \"\"\n]".len();
    let of = |bytes: usize| json!(["x".repeat(bytes - around)]);

    let exact = data(
        of(OBSERVATION_BYTES_MAX),
        OutputLevel::Full,
        Some(&artifacts),
    )
    .await;
    assert_eq!(
        (exact.text.len(), exact.artifact_id),
        (OBSERVATION_BYTES_MAX, None)
    );

    let value = of(OBSERVATION_BYTES_MAX + 1);
    let observed = data(value.clone(), OutputLevel::Full, Some(&artifacts)).await;
    let id = observed.artifact_id.clone().unwrap();
    let json = serde_json::to_vec(&value).unwrap();
    let page = std::str::from_utf8(paging::page(&json, 1).unwrap()).unwrap();
    let note = stored_text(&id, "List with 1 items. First item keys: N/A");
    let footer = paging::footer(&id, 1, page.len() as u64, json.len() as u64);
    assert_eq!(observed.text, format!("{note}\n\n{page}\n\n{footer}"));
    assert!(observed.text.len() <= OBSERVATION_BYTES_MAX);
    assert_eq!(kept(&artifacts, &id).await, json);
}

#[tokio::test]
async fn a_form_that_is_too_long_itself_is_paged_or_cut() {
    let artifacts = artifacts();
    let small = json!(["a".repeat(20_000), "b".repeat(20_000)]);

    let observed = data(small.clone(), OutputLevel::Standard, Some(&artifacts)).await;
    let id = observed.artifact_id.clone().unwrap();
    assert_eq!(
        kept(&artifacts, &id).await,
        format(&small, OutputLevel::Standard).as_bytes(),
        "the text that is paged"
    );
    assert!(
        observed.text.starts_with("Found 2 items:\n  - \"aaa")
            && observed.text.len() <= OBSERVATION_BYTES_MAX
    );
    assert_eq!(
        observed.data_size_bytes,
        serde_json::to_vec(&small).unwrap().len() as u64
    );

    let large = json!(["a".repeat(MIB), 1]);
    let observed = data(large.clone(), OutputLevel::Standard, Some(&artifacts)).await;
    let id = observed.artifact_id.clone().unwrap();
    assert_eq!(
        kept(&artifacts, &id).await,
        serde_json::to_vec(&large).unwrap()
    );
    let form = format(&large, OutputLevel::Standard).len();
    assert!(
        observed
            .text
            .contains(&format!("\n\n[kept {PAGE_BYTES} of {form} bytes; "))
    );
    assert!(
        observed
            .text
            .ends_with(&stored_text(&id, "List with 2 items. First item keys: N/A"))
    );
    assert!(observed.text.len() <= OBSERVATION_BYTES_MAX);
}

#[tokio::test]
async fn without_a_store_or_with_one_that_fails_nothing_fails_and_the_account_is_exact() {
    let away = Arc::new(Away::default());
    let failing = Artifacts {
        store: away.clone(),
        owner: Scope::new("t".try_into().unwrap(), "c".try_into().unwrap()),
    };
    for artifacts in [None, Some(&failing)] {
        let long = "😀".repeat(OBSERVATION_BYTES_MAX / 4) + "!";
        let observed = text(long.clone(), OutputLevel::Full, artifacts).await;
        let (kept, account) = observed.text.rsplit_once("\n\n").unwrap();
        assert!(long.starts_with(kept) && kept.len() as u64 == PAGE_BYTES);
        assert_eq!(
            account,
            format!(
                "[kept {} of {} bytes; ask for a smaller part to see the rest]",
                kept.len(),
                long.len()
            )
        );
        assert_eq!(
            (observed.artifact_id, observed.data_size_bytes),
            (None, long.len() as u64)
        );

        let value = list_of(2 * MIB);
        let brief = data(value.clone(), OutputLevel::Brief, artifacts).await;
        assert_eq!(
            brief,
            shown("Found 1 items".into(), OutputLevel::Brief, 2 * MIB as u64)
        );
        let full = data(value.clone(), OutputLevel::Full, artifacts).await;
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let (kept, account) = full.text.rsplit_once("\n\n").unwrap();
        assert!(pretty.starts_with(kept));
        assert_eq!(
            account,
            format!(
                "[kept {PAGE_BYTES} of {} bytes; ask for a smaller part to see the rest]",
                pretty.len()
            )
        );
        let small = data(json!([1]), OutputLevel::Full, artifacts).await;
        assert_eq!(small.text, "[\n  1\n]");
        let standard = data(
            json!(["a".repeat(2 * MIB)]),
            OutputLevel::Standard,
            artifacts,
        )
        .await;
        assert!(
            standard
                .text
                .ends_with("ask for a smaller part to see the rest]")
                && standard.text.len() <= OBSERVATION_BYTES_MAX
        );
    }
    assert_eq!(
        away.0.load(Ordering::Relaxed),
        4,
        "what is shown whole is not stored"
    );
}

#[tokio::test]
async fn of_a_text_above_the_bound_of_an_artifact_as_much_is_kept_as_fits_with_an_exact_account() {
    let artifacts = artifacts();
    let total = ARTIFACT_BYTES_MAX + 3;
    let huge = "汉".repeat(total / 3) + &"!".repeat(total % 3);

    let observed = text(huge.clone(), OutputLevel::Standard, Some(&artifacts)).await;

    let content = kept(&artifacts, &observed.artifact_id.unwrap()).await;
    assert!(content.len() <= ARTIFACT_BYTES_MAX);
    let content = std::str::from_utf8(&content).unwrap();
    let (kept, note) = content.rsplit_once('\n').unwrap();
    assert!(huge.starts_with(kept));
    let account = format!(
        "[kept {} of {total} bytes; the rest was too long to keep]",
        kept.len()
    );
    assert_eq!(note, account);
    assert!(
        observed
            .text
            .contains(&format!("\n\n{account}\n[page 1 of ")),
        "the first page has it too"
    );
    assert!(observed.text.len() <= OBSERVATION_BYTES_MAX);
    assert_eq!(observed.data_size_bytes, total as u64);

    let observed = data(
        json!(["x".repeat(ARTIFACT_BYTES_MAX)]),
        OutputLevel::Brief,
        Some(&artifacts),
    )
    .await;
    assert_eq!(observed.data_size_bytes, ARTIFACT_BYTES_MAX as u64 + 4);
    assert!(observed.artifact_id.is_some());
}

#[tokio::test]
async fn an_observation_becomes_a_result() {
    let artifacts = artifacts();
    let value = list_of(MIB);

    let result: ToolExecutionResult = observe(
        ToolOutput::Data(value.clone()),
        OutputLevel::Brief,
        Some(&artifacts),
        "toolu_1",
    )
    .await
    .into();

    let id = ArtifactId::from_content(&serde_json::to_vec(&value).unwrap());
    let meta = artifacts
        .store
        .meta(artifacts.owner.clone(), id.clone())
        .await
        .unwrap();
    assert_eq!(meta.tool_call_id, "toolu_1");
    assert_eq!(
        (
            result.success(),
            result.output_level,
            result.data_size_bytes
        ),
        (true, OutputLevel::Brief, MIB as u64)
    );
    assert_eq!(
        (result.artifact_id.as_deref(), result.data_hash.as_deref()),
        (Some(id.as_str()), Some(id.hash()))
    );
    assert!(result.observation.contains(id.as_str()) && result.data_summary.is_some());
}
