//! The cookbook: each recipe works as it stands, and shows what it prints.

use std::io::Write as _;

use super::{Home, Page, root};
use crate::postgres::server;

macro_rules! recipes {
    ($($test:ident: $file:literal,)*) => {
        $(#[test]
        fn $test() {
            Page::read(concat!("cookbook/", $file, ".md")).works(&Home::new());
        })*
        /// The recipes that are nothing but commands.
        const TYPED: &[&str] = &[$($file),*];
    };
}

recipes! {
    a_ci_job_asks_a_model_as_its_recipe_says: "ci",
    a_round_goes_on_after_a_crash_as_its_recipe_says: "resume",
    tenants_have_quotas_as_their_recipe_says: "tenants",
    an_mcp_server_is_used_with_approvals_as_its_recipe_says: "mcp-approvals",
    a_table_is_fanned_out_and_retried_as_its_recipe_says: "fanout-csv",
    an_answer_is_a_value_as_its_recipe_says: "structured-output",
    a_webhook_is_received_as_its_recipe_says: "webhook",
    a_tenant_has_a_budget_in_dollars_as_its_recipe_says: "dollars",
    a_second_provider_answers_as_its_recipe_says: "fallback",
    a_call_is_approved_over_http_as_its_recipe_says: "approve",
    notes_are_kept_for_a_conversation_as_their_recipe_says: "memory",
    two_prompts_are_measured_as_their_recipe_says: "evals",
    a_collector_gets_traces_as_its_recipe_says: "otlp",
    a_skill_is_taught_as_its_recipe_says: "skill",
    a_client_runs_a_tool_as_its_recipe_says: "client-tool",
}

/// Recipes whose tests prepare something, or whose blocks of Rust `src/lib.rs` has compiled.
const OTHERS: &[&str] = &["axum", "local-model", "openai-sdk", "own-tool", "two-hosts"];

fn skipped(test: &str, reason: &str) {
    writeln!(&mut std::io::stderr(), "SKIPPED: {test}: {reason}").unwrap();
}

#[test]
fn a_local_model_is_asked_as_its_recipe_says() {
    let page = Page::read("cookbook/local-model.md");
    let home = Home::new();
    let mock = format!(
        "callboard mock-model --listen 127.0.0.1:{} --chunks 1 --text 'Good evening.' > mock.txt &\nuntil grep -qs http mock.txt; do sleep 0.1; done\n",
        page.port("11434")
    );

    let printed = page.typed(&home, &(mock + &page.blocks("sh").join("\n")));

    for block in page.printed() {
        assert_eq!(super::holds(&printed, block), Ok(()), "{printed}");
    }
}

#[test]
fn openais_client_asks_a_host_as_its_recipe_says() {
    let target = std::env::var("CALLBOARD_CLIENTS").unwrap_or_else(|_| "target/clients".into());
    let modules = root().join(target).join("python");
    if !modules.join("openai").is_dir() {
        let name = "openais_client_asks_a_host_as_its_recipe_says";
        return skipped(name, "the Python package `openai` is not in target/clients");
    }
    let mut home = Home::new();
    home.variables
        .push(("PYTHONPATH", modules.display().to_string()));

    Page::read("cookbook/openai-sdk.md").works(&home);
}

#[test]
fn two_hosts_share_a_database_as_their_recipe_says() {
    let Some(server) = server::own_server("two_hosts_share_a_database_as_their_recipe_says") else {
        return;
    };
    let mut home = Home::new();
    home.variables.push(("DATABASE_URL", server.url()));

    Page::read("cookbook/two-hosts.md").works(&home);
}

#[test]
fn every_recipe_is_tested_and_can_be_found() {
    let mut files: Vec<String> = std::fs::read_dir(root().join("docs/cookbook"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let mut tested: Vec<String> = TYPED
        .iter()
        .chain(OTHERS)
        .map(|name| format!("{name}.md"))
        .collect();
    tested.sort();

    assert_eq!(files, tested);
    let lib = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    for file in files {
        let recipe = std::fs::read_to_string(root().join("docs/cookbook").join(&file)).unwrap();
        for part in ["\nYou get ", "\n**What can go wrong**\n"] {
            assert!(recipe.contains(part), "{file} lacks: {}", part.trim());
        }
        if recipe.contains("```rust") {
            assert!(
                lib.contains(&format!("docs/cookbook/{file}")),
                "{file}: nothing compiles its Rust"
            );
        }
        for list in ["SUMMARY.md", "llms.txt", "cookbook.md"] {
            let page = std::fs::read_to_string(root().join("docs").join(list)).unwrap();
            assert!(
                page.contains(&format!("](cookbook/{file})")),
                "{list}: {file}"
            );
        }
    }
}
