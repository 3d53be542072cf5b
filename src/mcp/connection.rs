//! One connection to a server, from handshake to close: a process with pipes, or an HTTP endpoint.
//! [`super::Server`] decides when to open and close it.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use callboard_actors::{
    chat::RawJson,
    ports::{McpError, McpResult, McpToolDefinition, Progress},
};
use parking_lot::Mutex;
use rmcp::{
    model::{
        CallToolRequest, CallToolRequestParams, ClientConfig, ClientRequest, ErrorData,
        ListToolsRequest, PaginatedRequestParams, ProtocolVersion, ServerResult,
    },
    service::{Peer, PeerRequestOptions, RequestHandle, RoleClient, RunningService, ServiceError},
    transport::{
        StreamableHttpClientTransport, common::client_side_sse::ExponentialBackoff,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    bounded::Bounded,
    config::{McpServerConfig, McpTransport, PLAIN_ENVIRONMENT, Template},
    definitions,
    guarded::{Guarded, ProgressSink, Watch},
    handshake::{Era, Refusal, shake_hands},
    http::HttpTarget,
    paced::Paced,
    resources::McpResources,
    stderr::{self, LastLine},
    stdio::{FRAME_BYTES_MAX, Fault, Stdio},
};
use crate::{
    mask::Masker,
    sandbox::{PipedLaunch, PipedProcess},
    visible::visible_line,
};

/// Concurrent calls of one server; further ones wait.
const CALLS_MAX: usize = 32;

/// Most pages of `tools/list`. A longer list is an error, since a hostile server could page
/// forever.
const PAGES_MAX: usize = 64;

/// Longest wait for a cancellation notice to be written.
const CANCEL_NOTICE_MAX: Duration = Duration::from_millis(500);

/// Grace time of a process after its input was closed; and the longest wait for its end after it
/// was killed.
const LEAVE: Duration = Duration::from_millis(500);

/// Longest wait for the exit status of a server that has closed its connection. A busy machine takes long
/// to end a process.
const STATUS_TIME: Duration = Duration::from_secs(5);
const GONE_MAX: Duration = Duration::from_millis(2500);

/// An established connection.
pub(super) struct Connection {
    server: String,
    peer: Peer<RoleClient>,
    service: tokio::sync::Mutex<Option<RunningService<RoleClient, ClientConfig>>>,
    process: Option<PipedProcess>,
    fault: Fault,
    /// Cancelled when the transport has ended.
    pub(super) ended: CancellationToken,
    pub(super) era: Era,
    pub(super) began: Instant,
    masker: Arc<Masker>,
    list_changed: Arc<AtomicBool>,
    listed: tokio::sync::Mutex<Option<Listed>>,
    calls: Arc<Semaphore>,
    call_time: Duration,
    list_time: Duration,
    /// Number of leases, and when it last changed.
    use_: Mutex<(usize, Instant)>,
}

/// The tools that a server lists, and notes about omitted ones.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) tools: Arc<[McpToolDefinition]>,
    pub(super) left_out: Arc<[String]>,
}

/// Templates with their variables substituted. The values may be secrets, so `masker` knows them.
struct Expanded {
    values: Vec<(String, String)>,
    masker: Arc<Masker>,
}

fn expand(
    templates: &BTreeMap<String, Template>,
    resources: &McpResources,
    masker: &Masker,
) -> Result<Expanded, String> {
    let mut values = Vec::new();
    for (name, template) in templates {
        match template.expand(|name| resources.variable(name)) {
            Ok(value) => values.push((name.clone(), value)),
            Err(missing) => return Err(format!("the environment variable {missing} is not set")),
        }
    }
    let secrets = values.iter().flat_map(|(_, value)| {
        // In `Bearer abc` the second word alone is the secret.
        std::iter::once(value.clone()).chain(
            value
                .split_whitespace()
                .filter(|word| word.len() >= 8)
                .map(str::to_owned),
        )
    });
    let masker = Arc::new(
        masker
            .clone()
            .and(secrets.filter(|value| value.len() >= 8).collect::<Vec<_>>()),
    );
    Ok(Expanded { values, masker })
}

impl Connection {
    /// Connects to a server and performs the handshake. `era` is the protocol it spoke last time,
    /// if known; `stderr_line` receives the last line of its standard error.
    ///
    /// A server that answered `server/discover` too late, and was therefore asked with the older
    /// handshake, is connected to once more with the newer one.
    ///
    /// # Cancel safety
    /// Dropping the future ends the started process and its connection.
    pub(super) async fn open(
        config: &McpServerConfig,
        resources: &McpResources,
        era: Option<Era>,
        stderr_line: LastLine,
    ) -> Result<Self, McpError> {
        match Box::pin(Self::open_once(config, resources, era, stderr_line.clone())).await {
            Err(Refusal {
                is_modern: true, ..
            }) if era != Some(Era::Modern) => {
                Box::pin(Self::open_once(
                    config,
                    resources,
                    Some(Era::Modern),
                    stderr_line,
                ))
                .await
            }
            opened => opened,
        }
        .map_err(|refusal| McpError::Unreachable {
            server: config.name.clone(),
            reason: refusal.reason,
        })
    }

    async fn open_once(
        config: &McpServerConfig,
        resources: &McpResources,
        era: Option<Era>,
        stderr_line: LastLine,
    ) -> Result<Self, Refusal> {
        let unreachable = Refusal::new;
        let ended = CancellationToken::new();
        let fault = Fault::default();
        let list_changed = Arc::new(AtomicBool::new(false));
        let mut watch = Watch {
            server: config.name.as_str().into(),
            masker: resources.masker.clone(),
            list_changed: list_changed.clone(),
            // A server known to speak the newer protocol gets the whole start timeout.
            probe: if era == Some(Era::Modern) {
                config.start_timeout
            } else {
                config.probe
            },
            late: Arc::new(AtomicBool::new(false)),
            fault: fault.clone(),
        };
        let mut process = None;
        let handshake = match &config.transport {
            McpTransport::Stdio {
                command,
                args,
                env,
                env_from,
                cwd,
            } => {
                let expanded = expand(env, resources, &resources.masker).map_err(unreachable)?;
                watch.masker = expanded.masker;
                let plain = PLAIN_ENVIRONMENT
                    .iter()
                    .copied()
                    .chain(env_from.iter().map(String::as_str));
                let mut environment: BTreeMap<String, String> = plain
                    .filter_map(|name| Some((name.to_owned(), resources.variable(name)?)))
                    .collect();
                environment.extend(expanded.values);
                let launch = PipedLaunch {
                    argv: std::iter::once(command)
                        .chain(args)
                        .map(OsString::from)
                        .collect(),
                    environment: environment
                        .into_iter()
                        .map(|(name, value)| (name.into(), value.into()))
                        .collect(),
                    folder: match cwd {
                        Some(cwd) => cwd.clone(),
                        None => resources.start_folder().map_err(unreachable)?,
                    },
                };
                let started = resources.spawner.start_piped(launch).await;
                let piped = started
                    .map_err(|error| unreachable(format!("it cannot be started: {error}")))?;
                process = Some(piped.process);
                tokio::spawn(stderr::read(
                    piped.stderr,
                    watch.server.clone(),
                    watch.masker.clone(),
                    stderr_line,
                ));
                let stdio = Stdio::new(piped.stdout, piped.stdin, fault.clone());
                shake_hands(
                    Guarded::new(stdio, watch.clone(), ended.clone()),
                    config,
                    era,
                )
                .await
            }
            McpTransport::Http {
                url,
                headers,
                allow_private,
            } => {
                let expanded =
                    expand(headers, resources, &resources.masker).map_err(unreachable)?;
                watch.masker = expanded.masker;
                let url = url::Url::parse(url)
                    .map_err(|_| unreachable("its address is no URL".to_owned()))?;
                let target = HttpTarget {
                    url,
                    allow_private: *allow_private,
                };
                let client = resources.http.client(&target).map_err(unreachable)?;
                let http = over_http(client, &target, expanded.values, fault.clone())
                    .map_err(unreachable)?;
                shake_hands(
                    Guarded::new(http, watch.clone(), ended.clone()),
                    config,
                    era,
                )
                .await
            }
        };
        let service = match handshake {
            Ok(service) => service,
            Err(mut refusal) => {
                refusal.is_modern |= watch.late.load(Ordering::Acquire);
                if let Some(fault) = fault.reason() {
                    refusal.reason = fault.to_owned();
                } else if let (true, Some(process)) = (refusal.is_closed, &process)
                    && let Ok(status) = timeout(STATUS_TIME, process.ended()).await
                {
                    // A program that cannot be executed is reported only by an exit code.
                    refusal.reason = match status {
                        Some(127) => "its program was not found".to_owned(),
                        Some(126) => "its program cannot be run".to_owned(),
                        Some(code) => format!("it ended with exit code {code} before it answered"),
                        None => "it ended before it answered".to_owned(),
                    };
                }
                refusal.reason = watch.masker.mask(&refusal.reason);
                return Err(refusal);
            }
        };
        let spoken = service
            .peer_info()
            .map(|info| info.protocol_version.clone());
        if let Some(unknown) = spoken
            .as_ref()
            .filter(|spoken| !ProtocolVersion::KNOWN_VERSIONS.contains(spoken))
        {
            let known: Vec<&str> = ProtocolVersion::KNOWN_VERSIONS
                .iter()
                .map(ProtocolVersion::as_str)
                .collect();
            let unknown = visible_line(unknown.as_str(), 40);
            let known = known.join(", ");
            let reason =
                format!("it uses protocol version `{unknown}`; supported versions: {known}");
            return Err(Refusal::new(watch.masker.mask(&reason)));
        }
        let is_modern = spoken.is_some_and(|spoken| !spoken.has_initialize());
        Ok(Self {
            server: config.name.clone(),
            peer: service.peer().clone(),
            service: tokio::sync::Mutex::new(Some(service)),
            process,
            fault,
            ended,
            era: if is_modern { Era::Modern } else { Era::Legacy },
            began: Instant::now(),
            masker: watch.masker,
            list_changed,
            listed: tokio::sync::Mutex::new(None),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            call_time: config.timeout,
            list_time: config.start_timeout,
            use_: Mutex::new((0, Instant::now())),
        })
    }

    /// The negotiated version of the protocol.
    pub(super) fn version(&self) -> String {
        self.peer
            .peer_info()
            .map(|info| info.protocol_version.to_string())
            .unwrap_or_default()
    }

    /// Masks secrets, including those of this server's configuration.
    pub(super) fn masker(&self) -> Arc<Masker> {
        self.masker.clone()
    }

    /// Whether the transport has ended.
    pub(super) fn is_over(&self) -> bool {
        self.ended.is_cancelled() || self.peer.is_transport_closed()
    }

    /// Whether the server announced a change of its tools since they were last read.
    pub(super) fn list_changed(&self) -> bool {
        self.list_changed.load(Ordering::Acquire)
    }

    fn failed(&self, reason: impl Into<String>) -> McpError {
        let reason = self
            .fault
            .reason()
            .map_or_else(|| reason.into(), str::to_owned);
        McpError::Failed {
            server: self.server.clone(),
            reason,
        }
    }

    /// The server's tools; read once, and again after the server announced a change.
    pub(super) async fn list(&self) -> Result<Listed, McpError> {
        let mut listed = self.listed.lock().await;
        if let Some(known) = listed.as_ref().filter(|_| !self.list_changed()) {
            return Ok(known.clone());
        }
        // Cleared before reading: a change announced during the read must trigger another one.
        self.list_changed.store(false, Ordering::Release);
        let read = timeout(self.list_time, self.read_list()).await;
        let read = read.unwrap_or_else(|_| {
            Err(McpError::TimedOut {
                server: self.server.clone(),
                after: self.list_time,
            })
        });
        match read {
            Ok(read) => Ok(listed.insert(read).clone()),
            Err(error) => {
                self.list_changed.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    async fn read_list(&self) -> Result<Listed, McpError> {
        let mut tools = definitions::ToolList::new(self.masker.clone());
        let mut cursor = None;
        for page in 0.. {
            if page == PAGES_MAX {
                return Err(
                    self.failed(format!("its list of tools has more than {PAGES_MAX} pages"))
                );
            }
            let request = match cursor.take() {
                None => ListToolsRequest::default(),
                cursor => ListToolsRequest::with_param(
                    PaginatedRequestParams::default().with_cursor(cursor),
                ),
            };
            let mut handle = self.send(ClientRequest::ListToolsRequest(request)).await?;
            let answer = (&mut handle.rx)
                .await
                .map_err(|_| self.failed("it ended"))?;
            match answer.map_err(|error| self.error(error))? {
                ServerResult::ListToolsResult(list) => {
                    cursor = list.next_cursor;
                    // A worker that compiles a thousand schemas serves no other tenant meanwhile.
                    let convert = move || {
                        let goes_on = tools.take(list.tools);
                        (tools, goes_on)
                    };
                    let converted = tokio::task::spawn_blocking(convert).await;
                    let goes_on;
                    (tools, goes_on) =
                        converted.map_err(|_| self.failed("its list of tools was not read"))?;
                    if !goes_on {
                        break;
                    }
                }
                _ => {
                    return Err(self.failed("it answered `tools/list` with another kind of result"));
                }
            }
            if cursor.is_none() {
                break;
            }
        }
        let (tools, left_out) = tools.end();
        Ok(Listed {
            tools,
            left_out: left_out.into(),
        })
    }

    async fn send(&self, request: ClientRequest) -> Result<RequestHandle<RoleClient>, McpError> {
        let sent = self
            .peer
            .send_request_with_option(request, PeerRequestOptions::no_options())
            .await;
        // The request was not written, so the call cannot have started.
        sent.map_err(|_| McpError::Unreachable {
            server: self.server.clone(),
            reason: self.fault.reason().unwrap_or("it ended").to_owned(),
        })
    }

    /// Calls a tool. When `stop` is cancelled the server is notified, and its answer is not
    /// awaited.
    pub(super) async fn call(
        &self,
        tool: String,
        arguments: RawJson,
        progress: Progress,
        stop: CancellationToken,
    ) -> Result<McpResult, McpError> {
        let refused = |message: String| McpError::Refused {
            server: self.server.clone(),
            code: -32602,
            message,
        };
        let arguments = arguments
            .parse()
            .map_err(|error| refused(format!("the arguments are {error}")))?;
        let _permit = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(McpError::Cancelled),
            permit = self.calls.acquire() => permit,
        };
        let mut request =
            CallToolRequest::new(CallToolRequestParams::new(tool).with_arguments(arguments));
        request.extensions.insert(ProgressSink(progress));
        let mut handle = self.send(ClientRequest::CallToolRequest(request)).await?;
        // Callers from the kernel have their own timeout and grace time; this one protects other
        // callers.
        let after = self.call_time + callboard_actors::limits::CANCEL_GRACE;
        let answer = tokio::select! {
            biased;
            answer = &mut handle.rx => answer,
            () = stop.cancelled() => {
                let _ = timeout(CANCEL_NOTICE_MAX, handle.cancel(Some("the caller stopped waiting".to_owned()))).await;
                return Err(McpError::Cancelled);
            }
            () = tokio::time::sleep(after) => {
                let _ = timeout(CANCEL_NOTICE_MAX, handle.cancel(Some("the call timed out".to_owned()))).await;
                return Err(McpError::TimedOut { server: self.server.clone(), after });
            }
        };
        match answer.map_err(|_| self.failed("it ended while it worked"))?.map_err(|error| self.error(error))? {
            ServerResult::CallToolResult(result) => Ok(definitions::result(result)),
            ServerResult::InputRequiredResult(_) => {
                Err(refused("it asks the user for more (elicitation or sampling), which this client does not offer".to_owned()))
            }
            ServerResult::CreateTaskResult(_) => Err(self.failed("it answered with a task, which was not requested")),
            _ => Err(self.failed("its answer is not a tool result")),
        }
    }

    fn error(&self, error: ServiceError) -> McpError {
        match error {
            ServiceError::McpError(ErrorData { code, message, .. }) => McpError::Refused {
                server: self.server.clone(),
                code: i64::from(code.0),
                message: self.masker.mask(&visible_line(&message, 500)),
            },
            ServiceError::TransportSend(_) => self.failed("it could not be written to"),
            ServiceError::TransportClosed => self.failed("it ended while it worked"),
            ServiceError::UnexpectedResponse => self.failed("its answer is not valid MCP"),
            _ => self.failed("the connection failed"),
        }
    }

    /// Marks the connection as used. It cannot be closed as idle until the lease is dropped.
    pub(super) fn lease(self: &Arc<Self>) -> Lease {
        self.used(|count| count + 1);
        Lease(self.clone())
    }

    fn used(&self, change: impl Fn(usize) -> usize) {
        let mut used = self.use_.lock();
        *used = (change(used.0), Instant::now());
    }

    /// When the last lease was dropped; `None` while one exists.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let (users, since) = *self.use_.lock();
        (users == 0).then_some(since)
    }

    /// Closes the connection: the process's input is closed, and after a grace time of half a
    /// second its process group is killed.
    pub(super) async fn close(&self) {
        let service = self.service.lock().await.take();
        if let Some(mut service) = service {
            let _ = service.close_with_timeout(GONE_MAX).await;
        }
        if let Some(process) = &self.process {
            process.end(LEAVE);
            let _ = timeout(GONE_MAX, process.ended()).await;
        }
    }
}

/// A use of the connection. While one exists, the connection is not idle.
pub(super) struct Lease(Arc<Connection>);

impl std::ops::Deref for Lease {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.used(|count| count.saturating_sub(1));
    }
}

fn over_http(
    client: reqwest::Client,
    target: &HttpTarget,
    headers: Vec<(String, String)>,
    fault: Fault,
) -> Result<StreamableHttpClientTransport<Paced<Bounded>>, String> {
    use reqwest::header::{HeaderName, HeaderValue};
    let mut custom = HashMap::new();
    for (name, value) in headers {
        let wrong = |_| format!("its header {name} cannot be sent");
        let key = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("its header {name} cannot be sent"))?;
        let mut value = HeaderValue::from_str(&value).map_err(wrong)?;
        value.set_sensitive(true);
        custom.insert(key, value);
    }
    let mut config =
        StreamableHttpClientTransportConfig::with_uri(target.url.as_str()).custom_headers(custom);
    config = config.max_sse_event_size(FRAME_BYTES_MAX);
    let mut retries = ExponentialBackoff::default();
    (retries.max_times, retries.max_delay) = (Some(3), Some(Duration::from_secs(5)));
    config.retry_config = Arc::new(retries);
    let client = Bounded::new(client, fault);
    let client = client.map_err(|_| "no thread can be started for its connections".to_owned())?;
    let client = Paced::new(client);
    Ok(StreamableHttpClientTransport::with_client(client, config))
}
