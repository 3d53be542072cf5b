//! Fuzz targets: the parsers that bytes of strangers reach first. The package in `fuzz/` gives them
//! to libFuzzer; the test below gives them mutated samples on every run.
//!
//! A target panics if a promise is broken. PDF files are not among them: they are read in a process
//! of their own, which may end (`sandbox`).

use callboard_actors::{
    ids::{EventId, Seq},
    journal::{Entry, StoredEntry},
};

/// A parser under test.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of its file in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// Well-formed input to start from.
    pub samples: &'static [&'static str],
    /// Parses the bytes and checks what must hold.
    pub run: fn(&[u8]),
}

const ANTHROPIC: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],",
    "\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}}\n\n",
    "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hel\"}}\n\n",
    "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"lo \\u00e9\"}}\n\n",
    "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",",
    "\"id\":\"t1\",\"name\":\"think\",\"input\":{}}}\n\n",
    "data: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",",
    "\"partial_json\":\"{\\\"thought\\\":\\\"x\\\"}\"}}\n\n",
    "data: {\"type\":\"content_block_stop\",\"index\":1}\n\n",
    "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"},\"usage\":{\"output_tokens\":2}}\n\n",
    "data: {\"type\":\"message_stop\"}\n\n",
);

const OPENAI: &str = concat!(
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hel\"},\"finish_reason\":null}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":null}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"t1\",\"type\":\"function\",",
    "\"function\":{\"name\":\"think\",\"arguments\":\"{\\\"thought\\\":\"}}]}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"\\\"x\\\"}\"}}]}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
);

const RESPONSES: &str = concat!(
    "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"reasoning\",\"id\":\"r\"}}\n\n",
    "data: {\"type\":\"response.reasoning_summary_text.delta\",\"output_index\":0,\"summary_index\":0,\"delta\":\"Hm.\"}\n\n",
    "data: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{\"type\":\"reasoning\",\"id\":\"r\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"Hm.\"}],\"encrypted_content\":\"e\"}}\n\n",
    "data: {\"type\":\"response.output_text.delta\",\"output_index\":1,\"delta\":\"Hello\"}\n\n",
    "data: {\"type\":\"response.function_call_arguments.delta\",\"output_index\":2,\"delta\":\"{}\"}\n\n",
    "data: {\"type\":\"response.output_item.done\",\"output_index\":2,\"item\":{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}}\n\n",
    "data: {\"type\":\"response.completed\",\"response\":{\"output\":[],\"usage\":{\"input_tokens\":5,\"output_tokens\":2}}}\n\n",
);

const GEMINI: &str = concat!(
    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"Hm.\",\"thought\":true}],\"role\":\"model\"}}]}\r\n\r\n",
    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"Hello\"}]}}],\"usageMetadata\":{\"promptTokenCount\":5}}\n\n",
    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{\"name\":\"f\",\"args\":{}},\"thoughtSignature\":\"s\"}]}}]}\n\n",
    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"\",\"thoughtSignature\":\"t\"}]},\"finishReason\":\"STOP\"}]}\n\n",
);

const CONFIG: &str = r#"
[host]
data_dir = "~/callboard"
durability = "sync"

[[provider]]
name = "local"
kind = "openai"
base_url = "http://127.0.0.1:11434/v1"
model = "qwen3"
concurrency = 2

[tools]
enabled = ["bash", "think"]
approve = "ask"

[limits]
tool_iterations_max = 25

[[tenant]]
id = "acme"
weight = 2
"#;

const SKILL: &str = "---\nname: tables\ndescription: Reads tables.\nallowed-tools: file_read think\n\
                     model: gpt-x\nmetadata:\n  version: \"1\"\ncapabilities: [a, b]\n---\n# Tables\nText.\n";

const PAGE: &str = "<!doctype html><html><head><title>A &amp; B</title><meta charset=utf-8></head><body>\
                    <h1>Head</h1><p>One <b>bold</b> <a href=/x>link</a></p><ul><li>a<li>b</ul><script>x()</script>\
                    <table><tr><th>k<td>v</table><pre>code</pre></body></html>";

/// All targets.
pub const TARGETS: [Target; 15] = [
    Target {
        name: "sse",
        samples: &[
            "id: 1\nevent: a\ndata: b\ndata: c\n\n: comment\r\ndata:d\r\n\r\n",
            ANTHROPIC,
        ],
        run: crate::providers::fuzz_sse,
    },
    Target {
        name: "anthropic",
        samples: &[ANTHROPIC],
        run: crate::providers::fuzz_anthropic,
    },
    Target {
        name: "openai",
        samples: &[OPENAI],
        run: crate::providers::fuzz_openai,
    },
    Target {
        name: "responses",
        samples: &[RESPONSES],
        run: crate::providers::fuzz_responses,
    },
    Target {
        name: "gemini",
        samples: &[GEMINI],
        run: crate::providers::fuzz_gemini,
    },
    Target {
        name: "http_framing",
        samples: &[
            "5\r\nhello\r\n0\r\n\r\n",
            "A;x=y\r\n0123456789\r\n0\r\nTrailer: a\r\n\r\n",
        ],
        run: crate::providers::fuzz_framing,
    },
    Target {
        name: "journal_entry",
        samples: &[
            r#"{"v":1,"epoch":1,"at":1795406421696,"kind":"life_started","body":{"nonce":7602050215253197219}}"#,
            r#"{"v":1,"epoch":1,"at":9,"kind":"prompt_accepted","body":{"prompt_id":"916517f1-bc7a-48c8-86d2-c7491c3b3af3","round_id":"53ec3ebb-b80a-453f-bd24-16076907cba8","message":{"role":"user","content":[{"type":"text","text":"Hello"}]}}}"#,
            r#"{"v":1,"epoch":1,"at":9,"kind":"assistant","body":{"step":1,"message":{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"t","name":"think","input":{"thought":"x"}}]},"stop":"tool_use","raw_stop":"tool_use","usage":{"input_uncached":234,"cache_read":233,"cache_write":0,"output":7},"cost_micro_usd":481,"partial":false}}"#,
            r#"{"v":1,"epoch":1,"at":9,"kind":"tool_finished","body":{"call":0,"tool_call_id":"call_4_0","name":"think","outcome":{"observation":"Noted.","data_size_bytes":6,"duration_ms":0,"retry_count":0}}}"#,
            r#"{"v":1,"epoch":1,"at":9,"kind":"approval_asked","body":{"call":0,"tool_call_id":"c","name":"bash","resolved_input":{"command": "echo hi"},"reason":"it changes","expires_at":1795492823870,"pattern":"bash:echo hi"}}"#,
            r#"{"v":1,"epoch":1,"at":9,"kind":"round_finished","body":{"stop_reason":"end_turn","latency_ms":12}}"#,
        ],
        run: journal_entry,
    },
    Target {
        name: "config",
        samples: &[CONFIG],
        run: crate::config::fuzz,
    },
    Target {
        name: "front_matter",
        samples: &[SKILL],
        run: crate::skills::fuzz,
    },
    Target {
        name: "eval_task",
        samples: &[
            "version = \"1.0\"\n[metadata]\ndifficulty = \"easy\"\ntags = [\"a\"]\n[agent]\ntimeout_sec = 5\n[verifier]\ntimeout_sec = 1.5\n",
            r#"{"id":"a","prompt":"p","expected":"x","files":{"a/b":"c"},"timeout_sec":3,"tags":["t"]}"#,
            r#"{"id":"a","prompt":"p","grader":{"type":"json","path":"/a/0","expected":[1,{"b":null}]}}"#,
            r#"{"id":"a","prompt":"p","expected":"^[0-9]+$","grader":"regex"}"#,
        ],
        run: crate::evals::task::fuzz,
    },
    Target {
        name: "mcp_frame",
        samples: &[
            r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","inputSchema":{"type":"object"}}]}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":2}}"#,
            r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32601,"message":"no"}}"#,
        ],
        run: crate::mcp::fuzz,
    },
    Target {
        name: "http_body",
        samples: &[
            r#"{"content":"hello","on_busy":"queue","stream":true,"deadline_ms":1000}"#,
            r#"{"content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}"#,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"b"}]}],"pinned":["c"]}"#,
            r#"{"model":"default","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"stream":true}"#,
        ],
        run: crate::http::fuzz,
    },
    Target {
        name: "last_event_id",
        samples: &[
            "1.2.3",
            "0.0.0",
            "18446744073709551615.18446744073709551615.4294967295",
        ],
        run: last_event_id,
    },
    Target {
        name: "page",
        samples: &[PAGE],
        run: crate::tools::fuzz_page,
    },
    Target {
        name: "shell_words",
        samples: &[
            "ls -la src | grep 'a b' | wc -l",
            "git log --oneline -n 5 && cat \"README.md\"",
            "find . -name '*.rs' -type f",
            "wc src/main.rs 2>/dev/null | sort >/dev/null 2>&1",
        ],
        run: crate::tools::fuzz_shell,
    },
];

/// A stored entry that can be read is written as it was read. An empty one was erased, and is
/// written by the store alone.
fn journal_entry(data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let stored = StoredEntry {
        seq: Seq(7),
        bytes: data.to_vec().into(),
    };
    if let Ok(entry) = Entry::decode(&stored) {
        let again = entry.encode();
        assert_eq!(Entry::decode(&again), Ok(entry));
    }
}

/// An event id that can be read is written as it was read, but for leading zeros.
fn last_event_id(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(id) = text.parse::<EventId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
}

/// Runs the target of this name.
///
/// # Panics
/// If there is none, and if a promise is broken.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    assert!(target.is_some(), "no target is called {name}");
    if let Some(target) = target {
        (target.run)(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::testing::{SplitMix, seed};

    /// Bytes that mean something to one of the parsers.
    const TOKENS: [&[u8]; 24] = [
        b"\n",
        b"\r\n",
        b"\r",
        b"\n\n",
        b"data:",
        b"{",
        b"}",
        b"[",
        b"\"",
        b"\\",
        b"\\u0000",
        b"\xff",
        b"\xc3",
        b"\0",
        b"99999999999999999999",
        b"-1",
        b"1e999",
        b"null",
        b": ",
        b"---",
        b"<",
        b"&#x0;",
        b"\xef\xbb\xbf",
        b"'",
    ];

    fn mutated(samples: &[&str], random: &mut SplitMix) -> Vec<u8> {
        let mut bytes = samples[random.below(samples.len())].as_bytes().to_vec();
        for _ in 0..=random.below(5) {
            let at = random.below(bytes.len() + 1);
            let end = (at + random.below(40)).min(bytes.len());
            match random.below(6) {
                0 => bytes.truncate(at),
                1 => drop(bytes.drain(at..end)),
                2 => {
                    let again = bytes[at..end].to_vec();
                    let times = 1 + random.below(4);
                    bytes.splice(at..at, again.repeat(times));
                }
                3 => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << random.below(8);
                    }
                }
                4 => {
                    let other = samples[random.below(samples.len())].as_bytes();
                    let from = random.below(other.len());
                    bytes.splice(at..end, other[from..].iter().copied());
                }
                _ => {
                    let token = TOKENS[random.below(TOKENS.len())];
                    bytes.splice(at..end, token.iter().copied());
                }
            }
        }
        bytes
    }

    #[test]
    fn no_parser_breaks_on_mutated_input() {
        let seed = seed("fuzzing");
        let mut random = SplitMix(seed);
        let rounds = callboard_actors::testing::TestSize::pick(500, 1_500, 200_000);
        for target in TARGETS {
            for sample in target.samples {
                (target.run)(sample.as_bytes());
            }
            for round in 0..rounds {
                let bytes = mutated(target.samples, &mut random);
                let ran = std::panic::catch_unwind(|| (target.run)(&bytes));
                assert!(
                    ran.is_ok(),
                    "{}, seed {seed}, round {round}: {:?}",
                    target.name,
                    String::from_utf8_lossy(&bytes)
                );
            }
        }
    }

    #[test]
    fn each_target_has_a_file_for_the_fuzzer() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        // The fuzzer's package is not in the published crate, which has this file.
        if root.join("Cargo.toml.orig").exists() {
            return;
        }
        let folder = root.join("fuzz/fuzz_targets");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| {
                file.unwrap()
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        files.sort();
        let mut names = TARGETS.map(|target| target.name.to_owned());
        names.sort();
        assert_eq!(files, names);
    }

    #[test]
    fn the_samples_are_accepted() {
        let entry = |text: &str| {
            let bytes = text.as_bytes().to_vec().into();
            Entry::decode(&StoredEntry { seq: Seq(7), bytes })
        };
        let samples = TARGETS
            .iter()
            .find(|target| target.name == "journal_entry")
            .unwrap()
            .samples;
        for sample in samples {
            assert!(entry(sample).is_ok(), "{sample}: {:?}", entry(sample));
        }
    }
}
