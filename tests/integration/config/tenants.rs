//! Promises of the configuration of a multi-tenant host: every limit is read, every mistake has its
//! line, and settings that do not fit together are refused before any tenant is served.

use callboard::config::{Config, FallbackConfig, MemoryScope, TenantSection};
use callboard_actors::{ids::TenantId, policy::Budget, tenant::Quotas};
use serde_json::json;
use tempfile::TempDir;

use super::{environment, load, mistake};

/// Hashes that belong to no key.
const ONE: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const TWO: &str = "2222222222222222222222222222222222222222222222222222222222222222";

const ALL: &str = r#"
[host]
listen = "127.0.0.1:0"
admin_key_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"

[[provider]]
name = "main"
kind = "offline"
rpm = 60
tpm = 90000
concurrency = 4
fallback = { provider = "spare", model = "rules" }

[[provider]]
name = "spare"
kind = "offline"

[[tenant]]
id = "acme"
key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111", "2222222222222222222222222222222222222222222222222222222222222222"]
weight = 3
provider = "spare"
model = "rules"
system = "One line.\nAnother \"line\"."
tools = ["think", "memory"]
approve = "auto"
skills = "skills"
skill_models = ["rules", "claude-*"]
memory = "tenant"
paused = true
budget = { tokens = 1000, usd = 1.5, wall_s = 2.5 }
conversation_budget = { tokens = 10 }

[tenant.quotas]
conversations_max = 1
turns_max = 2
prompts_max = 3
requests_per_minute = 4
tokens_per_minute = 5
artifact_bytes_max = 6
memory_bytes_max = 7
stored_bytes_max = 8
workspace_files_max = 9
workspace_bytes_max = 10

[[tenant]]
id = "zeta"
key_sha256 = "3333333333333333333333333333333333333333333333333333333333333333"
"#;

#[test]
fn every_key_of_a_tenant_is_read() {
    let config = load(ALL, &[]).unwrap();

    let acme = &config.tenants[0];
    assert_eq!(
        (acme.id.as_str(), acme.key_sha256.clone(), acme.paused),
        ("acme", vec![ONE.to_owned(), TWO.to_owned()], Some(true))
    );
    let quotas = Quotas {
        weight: 3,
        conversations_max: Some(1),
        turns_max: Some(2),
        prompts_max: Some(3),
        requests_per_minute: Some(4),
        tokens_per_minute: Some(5),
        artifact_bytes_max: Some(6),
        memory_bytes_max: Some(7),
        stored_bytes_max: Some(8),
        workspace_files_max: Some(9),
        workspace_bytes_max: Some(10),
    };
    assert_eq!(acme.quotas, quotas);
    assert_eq!(
        acme.budget,
        Budget {
            tokens: Some(1000),
            micro_usd: Some(1_500_000),
            wall_ms: Some(2500)
        }
    );
    assert_eq!(
        acme.conversation_budget,
        Budget {
            tokens: Some(10),
            ..Budget::default()
        }
    );
    assert_eq!(
        (acme.provider.as_deref(), acme.model.as_deref()),
        (Some("spare"), Some("rules"))
    );
    assert_eq!(acme.system.as_deref(), Some("One line.\nAnother \"line\"."));
    assert_eq!(
        acme.skill_models,
        Some(vec!["rules".to_owned(), "claude-*".to_owned()])
    );
    assert_eq!(
        (acme.memory, config.tenants[1].memory),
        (MemoryScope::Tenant, MemoryScope::Conversation)
    );
    assert_eq!(
        acme.tools,
        Some(vec!["think".to_owned(), "memory".to_owned()])
    );
    assert_eq!(config.tenants[1].quotas, Quotas::default());

    let main = &config.providers[0];
    assert_eq!(
        (main.rpm, main.tpm, main.concurrency),
        (Some(60), Some(90_000), Some(4))
    );
    assert_eq!(
        main.fallback,
        Some(FallbackConfig {
            provider: "spare".into(),
            model: Some("rules".into())
        })
    );
    assert_eq!(
        (config.listen().to_string(), config.admin_key_sha256.clone()),
        ("127.0.0.1:0".to_owned(), Some("0".repeat(64)))
    );
}

#[test]
fn what_show_prints_of_tenants_means_the_same() {
    let config = load(ALL, &[]).unwrap();

    let again = load(&config.show(), &[]).unwrap();

    assert_eq!(again.tenants.len(), 2);
    for (one, other) in config.tenants.iter().zip(&again.tenants) {
        // Paths are printed absolute, so the expected folder of skills is, too.
        let mut one = one.clone();
        let mut other = other.clone();
        assert!(other.skills.is_none() || other.skills.as_ref().unwrap().is_absolute());
        (one.skills, other.skills) = (None, None);
        assert!(one.is_same_setup(&other), "{one:?}\n{other:?}");
        assert_eq!(
            (&one.key_sha256, one.paused),
            (&other.key_sha256, other.paused)
        );
    }
    assert!(config.providers[0].is_same_gateway(&again.providers[0]));
    assert_eq!(
        (config.listen(), config.admin_key_sha256),
        (again.listen(), again.admin_key_sha256)
    );
}

#[test]
fn a_mistake_about_a_tenant_names_its_line() {
    for (text, expected) in [
        (
            "[[tenant]]\nweight = 1\n",
            "callboard.toml:1: this tenant has no `id`",
        ),
        (
            "[tenant]\nid = \"a\"\n",
            "callboard.toml:1: tenants are a list: write `[[tenant]]`, with two brackets",
        ),
        (
            "[[tenants]]\nid = \"a\"\n",
            "callboard.toml:1: unknown section `tenants`; did you mean `tenant`?",
        ),
        (
            "[[tenant]]\nid = \"a\"\nwieght = 2\n",
            "callboard.toml:3: unknown key in [[tenant]] `wieght`; did you mean `weight`?",
        ),
        (
            "[[tenant]]\nid = \"a\"\nquota = {}\n",
            "callboard.toml:3: unknown key in [[tenant]] `quota`; did you mean `quotas`?",
        ),
        (
            "[[tenant]]\nid = \"a\"\nkey = \"cb_not-a-real-key\"\n",
            "callboard.toml:3: unknown key in [[tenant]] `key`; keys are not stored in this file: write the hash that `callboard keys new` prints as `key_sha256`",
        ),
        (
            "[[tenant]]\nid = \"a\"\nkey_sha256 = \"cb_not-a-real-key\"\n",
            "callboard.toml:3: `tenant.key_sha256` must be the SHA-256 of the key, 64 hexadecimal digits, not the key; `callboard keys new` makes both",
        ),
        (
            "[[tenant]]\nid = \"a\"\n[tenant.quotas]\nturn_max = 2\n",
            "callboard.toml:4: unknown key in [tenant.quotas] `turn_max`; did you mean `turns_max`?",
        ),
        (
            "[[tenant]]\nid = \"a\"\nquotas = { turns_max = 0 }\n",
            "callboard.toml:3: `tenant.quotas.turns_max` must be 1 to 1000000000, not 0",
        ),
        (
            "[[tenant]]\nid = \"a\"\nbudget = { usd = -1 }\n",
            "callboard.toml:3: `tenant.budget.usd` must be US dollars, more than 0, not `-1`",
        ),
        (
            "[[tenant]]\nid = \"a\"\npaused = \"no\"\n",
            "callboard.toml:3: `tenant.paused` must be true or false, not a text",
        ),
        (
            "[[tenant]]\nid = \"a\"\n\n[[tenant]]\nid = \"a\"\n",
            "callboard.toml:4: tenant `a` is already at callboard.toml:1",
        ),
        (
            "[[tenant]]\nid = \"a\"\nprovider = \"ofline\"\n",
            "callboard.toml:3: unknown provider `ofline`; did you mean `offline`?",
        ),
        (
            "[[provider]]\nkind = \"offline\"\nfallback = { provider = \"not-here\" }\n",
            "callboard.toml:3: unknown provider `not-here`; known: anthropic, gemini, offline, openai, openai-responses",
        ),
        (
            "[[provider]]\nkind = \"offline\"\nfallback = { provider = \"offline\" }\n",
            "callboard.toml:3: provider `offline` cannot be the fallback for itself",
        ),
        (
            "[[provider]]\nname = \"a\"\nkind = \"offline\"\nfallback = { provider = \"b\" }\n[[provider]]\nname = \"b\"\nkind = \"offline\"\nfallback = { provider = \"a\" }\n",
            "callboard.toml:4: the fallback of provider `a` leads back to it, by `b`",
        ),
        (
            "[[provider]]\nkind = \"offline\"\nfallback = { model = \"m\" }\n",
            "callboard.toml:3: a fallback needs `provider` beside `model`: the name of another provider",
        ),
        (
            "[host]\nlisten = \"8787\"\n",
            "callboard.toml:2: `host.listen` must be an IP address with a port, such as 127.0.0.1:8787, not `8787`",
        ),
    ] {
        assert_eq!(mistake(text, &[]), expected, "{text}");
    }
}

#[test]
fn a_key_belongs_to_one_tenant() {
    let twice = format!(
        "[[tenant]]\nid = \"a\"\nkey_sha256 = \"{ONE}\"\n[[tenant]]\nid = \"b\"\nkey_sha256 = \"{ONE}\"\n"
    );
    let operators = format!(
        "[host]\nadmin_key_sha256 = \"{ONE}\"\n[[tenant]]\nid = \"a\"\nkey_sha256 = \"{ONE}\"\n"
    );

    assert_eq!(
        mistake(&twice, &[]),
        "callboard.toml:6: a key of tenant `b` is a key of tenant `a` already; each needs its own"
    );
    assert_eq!(
        mistake(&operators, &[]),
        "callboard.toml:5: a key of tenant `a` is a key of the operator already; each needs its own"
    );
}

/// The result of `check` for a file next to a folder `work`, without the path of the folder.
fn checked(text: &str) -> String {
    let folder = TempDir::new().unwrap();
    std::fs::create_dir_all(folder.path().join("work/data")).unwrap();
    let path = folder.path().join("callboard.toml");
    std::fs::write(&path, text).unwrap();
    let config = Config::load(Some(&path), environment(&[])).unwrap();
    let report = config
        .check()
        .map_or_else(|error| error.to_string(), |()| config.warnings().join("\n"));
    report
        .replace(
            &format!("{}/", folder.path().canonicalize().unwrap().display()),
            "",
        )
        .replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn what_a_host_would_stumble_over_is_refused_before() {
    for (text, expected) in [
        (
            "[host]\nlisten = \"0.0.0.0:8787\"\n",
            "callboard.toml:2: 0.0.0.0:8787 can be reached from other machines, and there is no [[tenant]]; add one (`callboard keys new --tenant ID` prints it), or listen at 127.0.0.1",
        ),
        (
            "[host]\npeer_address = \"http://10.0.0.5:8787\"\n[[tenant]]\nid = \"a\"\n",
            "callboard.toml:2: several hosts share a PostgreSQL database; set `[store] url` to one",
        ),
        (
            "[host]\npeer_address = \"http://10.0.0.5:8787\"\n[store]\nurl = \"postgres://cb@127.0.0.1/cb\"\n",
            "callboard.toml:2: several hosts serve the same tenants; add them as [[tenant]] to the configuration of each host",
        ),
        (
            "[host]\ndata_dir = \"work/data\"\n[[tenant]]\nid = \"a\"\nworkspace = \"work\"\n",
            "callboard.toml:5: the data folder lies inside the workspace of tenant `a`, where its tools could read it",
        ),
        (
            "[host]\ndata_dir = \"work\"\n[[tenant]]\nid = \"a\"\nworkspace = \"work/data\"\n",
            "callboard.toml:5: the workspace of tenant `a` lies inside the data folder",
        ),
        (
            "[store]\nurl = \"sqlite:work/all.db\"\n[[tenant]]\nid = \"a\"\nworkspace = \"work\"\n",
            "callboard.toml:5: the session store lies inside the workspace of tenant `a`, where its tools could read it",
        ),
        (
            "[store]\nurl = \"sqlite:work/missing/../new/all.db\"\n[[tenant]]\nid = \"a\"\nworkspace = \"work/data/..\"\n",
            "callboard.toml:5: the session store lies inside the workspace of tenant `a`, where its tools could read it",
        ),
        (
            "[[tenant]]\nid = \"a\"\nworkspace = \"nowhere\"\n",
            "callboard.toml:3: the workspace of tenant `a` is not a folder: nowhere",
        ),
        (
            "[[tenant]]\nid = \"a\"\ntools = [\"think\", \"bash\"]\n",
            "callboard.toml:3: the tool `bash` of tenant `a` needs a `workspace`",
        ),
        (
            "[[provider]]\nname = \"x\"\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\n[[tenant]]\nid = \"a\"\nbudget = { usd = 1 }\n",
            "callboard.toml:6: the budget of tenant `a` needs a price for the model `m` in [prices]",
        ),
        (
            "[[tenant]]\nid = \"a\"\nworkspace = \"work\"\nkey_sha256 = \"1111111111111111111111111111111111111111111111111111111111111111\"\n\
             [[tenant]]\nid = \"b\"\nworkspace = \"work/.\"\n",
            "the tenants `a`, `b` share the workspace work: each sees the files of the others\ntenant `b` has no `key_sha256`: no caller can use it until the operator adds a key",
        ),
    ] {
        assert_eq!(checked(text), expected, "{text}");
    }
}

#[test]
fn a_tenant_in_json_has_the_keys_of_the_file_and_its_mistakes_a_pointer() {
    let id = TenantId::new("acme").unwrap();
    let read = |json: serde_json::Value| TenantSection::from_json(&id, &json);

    let given = json!({"weight": 2, "quotas": {"turns_max": 4, "prompts_max": null}, "system": "a\nb", "model": null, "paused": false});
    let tenant = read(given).unwrap();

    assert_eq!(
        (
            tenant.quotas.weight,
            tenant.quotas.turns_max,
            tenant.quotas.prompts_max
        ),
        (2, Some(4), None)
    );
    assert_eq!(
        (tenant.system.as_deref(), tenant.model, tenant.paused),
        (Some("a\nb"), None, Some(false))
    );
    for (json, pointer, expected) in [
        (
            json!({"wieght": 2}),
            Some("/wieght"),
            "unknown key in [[tenant]] `wieght`; did you mean `weight`?",
        ),
        (
            json!({"quotas": {"turns_max": -1}}),
            Some("/quotas/turns_max"),
            "`tenant.quotas.turns_max` must be 1 to 1000000000, not -1",
        ),
        (
            json!({"quotas": {"x": 1}}),
            Some("/quotas/x"),
            "unknown key in [tenant.quotas] `x`; known: ",
        ),
        (
            json!({"workspace": "here"}),
            None,
            "`workspace`, `skills` and `webhook.secret_file` must be absolute paths",
        ),
        (
            json!({"id": "other"}),
            None,
            "`id` differs from the tenant that is named",
        ),
        (json!([1]), None, "a tenant is an object"),
    ] {
        let error = read(json.clone()).expect_err(&json.to_string());
        assert_eq!(error.pointer().as_deref(), pointer, "{json}");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
