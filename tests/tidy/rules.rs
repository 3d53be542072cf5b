//! The rows: where what must not stand, why, and what to do instead. `check` is a pure function over a path and a text.

use super::source::{Kind, Source, Token};

/// What a row looks for among words and paths.
#[derive(Clone, Copy)]
pub enum Needle {
    /// A path that begins so; a lone word only where it is imported, for a variable may be called like a crate.
    Starts(&'static str),
    /// A path that holds these segments side by side.
    Has(&'static str),
    /// A word or path whose last segment ends so.
    Ends(&'static str),
    /// `dyn` before a path with this last segment.
    Dyn(&'static str),
    /// A macro that is called.
    Call(&'static str),
}
use Needle::{Call, Dyn, Ends, Has, Starts};

pub struct Row {
    /// Globs: `*` within a name, `**` at the end for everything below.
    pub within: &'static [&'static str],
    pub except: &'static [&'static str],
    pub forbidden: &'static [Needle],
    /// Whether test code must keep to it too.
    pub in_tests: bool,
    pub reason: &'static str,
    pub fix: &'static str,
}

/// The line of a header that says that a file is logic only, and holds it to that.
const PURE: &str = "//! Pure.";

/// What every actor may import and no one of these.
const FLOOR: &[&str] = &[
    "actors/src/ports/**",
    "actors/src/chat/**",
    "actors/src/journal/**",
    "actors/src/ids.rs",
];

/// Words that say that a message or a handle of an actor is meant.
const ACTOR_MAIL: &[Needle] = &[
    Ends("Msg"),
    Has("ActorRef"),
    Has("CompactorRef"),
    Has("ConversationRef"),
    Has("MetricsCollectorRef"),
    Has("ModelGatewayRef"),
    Has("SubagentRef"),
    Has("TenantRef"),
    Has("ToolExecutorRef"),
];

const FAMILY: &str =
    "an adapter family stands alone: it knows the kernel's ports and nothing beside it";
const WIRING: &str =
    "pass what it needs as an argument or a port; src/app.rs wires families together";

pub const ROWS: &[Row] = &[
    Row {
        within: &["actors/src/**", "actors/tests/**"],
        except: &[],
        forbidden: &[
            Starts("std::fs"),
            Starts("std::net"),
            Starts("std::process"),
            Starts("std::os"),
            Starts("std::*"),
            Starts("tokio::net"),
            Starts("tokio::fs"),
            Starts("tokio::process"),
            Starts("tokio::signal"),
            Starts("tokio::*"),
            Has("TcpStream"),
            Has("TcpListener"),
            Has("UdpSocket"),
            Has("UnixStream"),
            Has("UnixListener"),
            Has("UnixDatagram"),
            Has("File::open"),
            Has("File::create"),
            Has("OpenOptions"),
            Has("Command::new"),
            Starts("reqwest"),
            Starts("hyper"),
            Starts("axum"),
            Starts("rusqlite"),
            Starts("tokio_postgres"),
            Starts("sqlx"),
            Starts("rmcp"),
            Starts("rustix"),
            Starts("clap"),
            Starts("anyhow"),
            Starts("callboard"),
        ],
        in_tests: true,
        reason: "the kernel decides and touches nothing: no socket, file, process, database or command line",
        fix: "add a verb to a port in actors/src/ports and implement it in src/",
    },
    Row {
        within: &["actors/src/**"],
        except: &[],
        forbidden: &[
            Starts("std::env"),
            Has("SystemTime"),
            Starts("std::time::Instant"),
            Starts("std::thread::spawn"),
            Starts("std::thread::sleep"),
            Starts("std::thread::Builder"),
            Starts("rand"),
            Starts("getrandom"),
            Starts("fastrand"),
            Has("new_v4"),
            Has("new_v7"),
        ],
        in_tests: false,
        reason: "in the kernel time and chance come in, so that a seed replays everything",
        fix: "wall time: ports::Clock; intervals: tokio::time; ids and jitter: ports::Entropy; settings: Limits",
    },
    Row {
        within: &["actors/src/**"],
        // The one place that names the hasher of maps, which the tests replace by a fixed one.
        except: &["actors/src/hashing.rs"],
        forbidden: &[Has("RandomState")],
        in_tests: false,
        reason: "in the kernel time and chance come in, so that a seed replays everything",
        fix: "ids and jitter: ports::Entropy",
    },
    Row {
        within: &[PURE],
        except: &[],
        forbidden: &[
            Starts("ractor"),
            Starts("tokio"),
            Starts("tokio_util"),
            Starts("futures_util"),
            Has("async"),
            Has("await"),
            Dyn("ArtifactStore"),
            Dyn("Clock"),
            Dyn("Entropy"),
            Dyn("EventStore"),
            Dyn("Hook"),
            Dyn("LlmProvider"),
            Dyn("McpClient"),
            Dyn("Sandbox"),
            Dyn("SessionBackend"),
            Dyn("Tool"),
        ],
        in_tests: false,
        reason: "this file is pure: a test calls it a million times without a runtime",
        fix: "return the effect as a value and let the actor's mod.rs perform it",
    },
    Row {
        within: FLOOR,
        except: &[],
        forbidden: &[
            Starts("ractor"),
            Starts("crate::conversation"),
            Starts("crate::host"),
            Starts("crate::tenant"),
            Starts("crate::tool_executor"),
            Starts("crate::subagent"),
            Starts("crate::compactor"),
            Starts("crate::model_gateway"),
            Starts("crate::metrics_collector"),
            Starts("tokio::spawn"),
            Starts("tokio::task"),
            Starts("tokio::runtime"),
        ],
        in_tests: true,
        reason: "ports, chat, journal and ids are the floor that actors stand on; a floor imports no actor",
        fix: "move the shared type down into the floor, or the code up into the actor",
    },
    Row {
        within: &["src/providers/**"],
        except: &[],
        forbidden: &[
            Starts("crate::storage"),
            Starts("crate::tools"),
            Starts("crate::sandbox"),
            Starts("crate::mcp"),
            Starts("crate::skills"),
            Starts("crate::http"),
            Starts("crate::cli"),
            Starts("crate::app"),
            Starts("crate::config"),
        ],
        in_tests: false,
        reason: FAMILY,
        fix: WIRING,
    },
    Row {
        within: &["src/storage/**"],
        except: &[],
        forbidden: &[
            Starts("crate::providers"),
            Starts("crate::tools"),
            Starts("crate::sandbox"),
            Starts("crate::mcp"),
            Starts("crate::skills"),
            Starts("crate::http"),
            Starts("crate::cli"),
            Starts("crate::app"),
            Starts("crate::config"),
        ],
        in_tests: false,
        reason: FAMILY,
        fix: WIRING,
    },
    Row {
        // The tools stand on the sandbox: one policy decides for every tool. Never the reverse.
        within: &[
            "src/tools/**",
            "src/sandbox/**",
            "src/mcp/**",
            "src/skills/**",
        ],
        except: &[],
        forbidden: &[
            Starts("crate::providers"),
            Starts("crate::storage"),
            Starts("crate::http"),
            Starts("crate::cli"),
            Starts("crate::app"),
            Starts("crate::config"),
        ],
        in_tests: false,
        reason: FAMILY,
        fix: WIRING,
    },
    Row {
        within: &["src/mcp/**", "src/observe/**", "src/skills/**"],
        except: &[],
        forbidden: &[Starts("crate::tools")],
        in_tests: false,
        reason: "servers, skills and telemetry stand beside the built-in tools",
        fix: "move what both need below the tools, as src/mask.rs and src/visible.rs are",
    },
    Row {
        within: &["src/mask.rs", "src/visible.rs"],
        except: &[],
        forbidden: &[Starts("crate")],
        in_tests: false,
        reason: "both are used by every room, so they need none",
        fix: "pass what it needs as an argument",
    },
    Row {
        within: &["src/web/**"],
        except: &[],
        forbidden: &[
            Starts("crate::providers"),
            Starts("crate::storage"),
            Starts("crate::tools"),
            Starts("crate::sandbox"),
            Starts("crate::mcp"),
            Starts("crate::skills"),
            Starts("crate::http"),
            Starts("crate::cli"),
            Starts("crate::app"),
            Starts("crate::config"),
        ],
        in_tests: false,
        reason: "the way to the web is below the tools and servers that go it, never above",
        fix: WIRING,
    },
    Row {
        within: &["src/http/**"],
        except: &["src/http/console/html.rs"],
        forbidden: &[Has("PreEscaped")],
        in_tests: false,
        reason: "text that is not escaped becomes a part of the page",
        fix: "write it with `html!`; only `html::trusted` takes HTML as it is",
    },
    Row {
        within: &["src/http/console/**"],
        except: &["src/http/console/markdown.rs", "src/http/console/html.rs"],
        forbidden: &[Has("trusted")],
        in_tests: false,
        reason: "text that is not escaped becomes a part of the page",
        fix: "write it with `html!`; the renderer of Markdown escapes what it writes",
    },
    Row {
        within: &["src/mock_model/**"],
        except: &[],
        forbidden: &[
            Starts("crate::providers"),
            Starts("crate::storage"),
            Starts("crate::http"),
            Starts("crate::load"),
            Starts("crate::cli"),
            Starts("crate::app"),
            Starts("crate::config"),
            Starts("crate::Host"),
        ],
        in_tests: false,
        reason: "the mock stands in for another vendor's server: code that it shares with a client proves nothing about that client",
        fix: "write the bytes of the wire here, independently of the client",
    },
    Row {
        within: &["src/sandbox/**"],
        except: &[],
        forbidden: &[
            Starts("crate::tools"),
            Starts("crate::mcp"),
            Starts("crate::skills"),
        ],
        in_tests: false,
        reason: "the sandbox is below the tools, never above",
        fix: WIRING,
    },
    Row {
        within: &[
            "src/providers/**",
            "src/storage/**",
            "src/tools/**",
            "src/sandbox/**",
            "src/mcp/**",
            "src/skills/**",
        ],
        except: &[],
        forbidden: ACTOR_MAIL,
        in_tests: false,
        reason: "adapters answer through their port; they send no mail to actors",
        fix: "return the value, call the given callback, or write to the stream that the port's verb hands over",
    },
    Row {
        within: &["src/**"],
        // An editor needs the terminal, and a reader of the clipboard the display, which the
        // spawner's processes never get.
        except: &[
            "src/sandbox/**",
            "src/cli/editor.rs",
            "src/cli/clipboard.rs",
        ],
        forbidden: &[
            Has("process::Command"),
            Starts("tokio::process"),
            Has("Command::spawn"),
        ],
        in_tests: false,
        reason: "only the spawner starts a process: it alone lives long enough and reaps",
        fix: "ask the sandbox's spawner",
    },
    Row {
        within: &["src/**", "actors/src/**"],
        except: &["src/cli/**", "src/main.rs"],
        forbidden: &[
            Call("println"),
            Call("eprintln"),
            Call("print"),
            Call("eprint"),
            Call("dbg"),
        ],
        in_tests: false,
        reason: "a library is silent: standard output and error belong to the application",
        fix: "use tracing, or return the text; only src/cli and src/main.rs print",
    },
    Row {
        within: &["src/**", "actors/src/**"],
        except: &[],
        forbidden: &[
            Has("unbounded_channel"),
            Has("mpsc::unbounded"),
            Starts("ractor::registry"),
            Starts("ractor::pg"),
        ],
        in_tests: false,
        reason: "no unbounded queue of ours, and no names or process groups of ractor",
        fix: "take a bounded channel and say in limits.rs what happens beyond; find actors through the directory",
    },
];

impl Needle {
    fn matches(self, before: Option<&Token>, token: &Token) -> bool {
        let path = token.path.as_str();
        match self {
            Self::Starts(prefix) => {
                let whole =
                    prefix.contains("::") || path.contains("::") || token.kind == Kind::Import;
                whole
                    && path
                        .strip_prefix(prefix)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            }
            Self::Call(name) => token.kind == Kind::Macro && path.rsplit("::").next() == Some(name),
            Self::Has(part) => format!("::{path}::").contains(&format!("::{part}::")),
            Self::Ends(end) => path.ends_with(end),
            Self::Dyn(port) => {
                before.is_some_and(|word| word.path == "dyn")
                    && path.rsplit("::").next() == Some(port)
            }
        }
    }
}

/// Whether a glob means a path.
pub fn glob(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix("**") {
        Some(folder) if folder.contains('*') => false,
        Some(folder) => path.starts_with(folder),
        None => {
            let wanted: Vec<_> = pattern.split('/').collect();
            let given: Vec<_> = path.split('/').collect();
            wanted.len() == given.len()
                && wanted
                    .iter()
                    .zip(given)
                    .all(|(wanted, given)| *wanted == "*" || *wanted == given)
        }
    }
}

fn applies(row: &Row, path: &str, text: &str) -> bool {
    let says = |line: &str| {
        text.lines()
            .take_while(|header| header.starts_with("//!"))
            .any(|header| header == line)
    };
    let within = |pattern: &str| {
        if pattern == PURE {
            says(PURE)
        } else {
            glob(pattern, path)
        }
    };
    row.within.iter().any(|pattern| within(pattern))
        && !row.except.iter().any(|pattern| glob(pattern, path))
}

/// Every broken rule of one Rust file: `path:line: what: why. Fix: how`.
pub fn check(path: &str, text: &str) -> Vec<String> {
    let source = Source::of(path, text);
    let tokens = source.tokens();
    let mut found = Vec::new();
    for row in ROWS.iter().filter(|row| applies(row, path, text)) {
        for (at, token) in tokens.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|at| tokens.get(at));
            let forbidden = row
                .forbidden
                .iter()
                .any(|needle| needle.matches(before, token));
            if forbidden && (row.in_tests || !source.is_test(token.line)) {
                found.push((
                    token.line,
                    format!("`{}`: {}. Fix: {}", token.path, row.reason, row.fix),
                ));
            }
        }
    }
    found.extend(super::text_rules::of_code(&source));
    found.extend(super::text_rules::of_text(&source));
    found.sort();
    found.dedup();
    found
        .into_iter()
        .map(|(line, what)| format!("{path}:{line}: {what}"))
        .collect()
}
