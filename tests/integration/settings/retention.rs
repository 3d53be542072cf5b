//! `[artifacts]` and the quota of a tenant: how long and how many large results are kept.

use std::path::Path;

use reqwest::Method;
use serde_json::json;

use super::{Home, Key, Served, home_with};
use crate::{
    cli::wait_for,
    support::model_server::{ModelServer, Reply, anthropic_call, anthropic_text},
};

/// A host whose tenant runs two commands with 108 KB of output each.
async fn with_two_large_results(settings: &str, quotas: &str) -> (Served, Home) {
    let output = |last: u32| {
        let command = json!({"command": format!("seq 1 {last}")});
        Reply::events(anthropic_call(&format!("t{last}"), "bash", &command))
    };
    let done = Reply::events(anthropic_text("Done."));
    let model = ModelServer::start([output(20_000), output(20_001), done]).await;
    let home = home_with(&model, "");
    let key = Key::new(&home);
    std::fs::create_dir(home.path().join("of-acme")).unwrap();
    let file = home.work().join("callboard.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let more = format!(
        "[host]\ndata_dir = \"../data\"\n[sandbox]\nmode = \"local\"\n[artifacts]\n{settings}\n\
         [[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\nworkspace = \"../of-acme\"\napprove = \"auto\"\n{quotas}\n",
        key.hash
    );
    std::fs::write(file, text + &more).unwrap();
    let served = Served::start(&home, &[]);

    let prompt = Some(json!({"content": "go"}));
    let path = "/v1/conversations/c/messages";
    let answer = served.ask(Method::POST, path, &key.key, prompt).await;

    assert_eq!(answer.body["status"], "completed", "{answer:?}");
    let shown = model.requests().last().unwrap().json().to_string();
    assert_eq!(shown.matches("read_more(").count(), 2, "{shown}");
    (served, home)
}

/// Bytes of all files below a folder.
fn bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    // A file may be removed while it is counted.
    let size = |path: &Path| {
        if path.is_dir() {
            bytes(path)
        } else {
            std::fs::metadata(path).map_or(0, |file| file.len())
        }
    };
    entries.flatten().map(|entry| size(&entry.path())).sum()
}

fn kept(home: &Home) -> u64 {
    bytes(&home.path().join("data/artifacts"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_results_are_kept_by_default() {
    let (_served, home) = with_two_large_results("", "").await;

    assert!(kept(&home) > 200_000, "{}", kept(&home));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_results_expire_after_max_age_s_and_are_searched_for_every_clean_s() {
    let (_served, home) = with_two_large_results("max_age_s = 0.5\nclean_s = 0.1", "").await;

    wait_for("the end of both results", || kept(&home) < 10_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_recently_used_results_go_beyond_bytes_max() {
    let (_served, home) = with_two_large_results("bytes_max = 150000\nclean_s = 0.1", "").await;

    wait_for("the end of one result", || kept(&home) < 150_000);
    assert!(kept(&home) > 100_000, "{}", kept(&home));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_results_of_a_tenant_stay_within_the_bound_of_tenants_and_its_own_quota() {
    let of_all = with_two_large_results("tenant_bytes_max = 150000", "").await;
    let own = with_two_large_results("", "quotas = { artifact_bytes_max = 150000 }").await;

    for (_, home) in [&of_all, &own] {
        let kept = kept(home);
        assert!((100_000..150_000).contains(&kept), "{kept}");
    }
}
