//! `callboard serve`: runs the HTTP host until a signal ends it.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use callboard_actors::policy::HostShare;
use clap::Args;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::{oneshot, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::{
    failure::{Done, Failure},
    run::seconds,
    signals::{Hangups, Signals},
    terminal::{Paint, Terminals, counted, err_line, out_line, sanitize},
};
use crate::{
    app::{Serving, Sessions, Single, TenantOperator, serving},
    config::{Config, ConfigError, HttpLimits, OwnTenant, process_environment},
    http::{self, HttpBounds, HttpConfig, Reloaded, Served},
    storage::ServingLease,
    telemetry::Telemetry,
    webhooks,
};

/// Added to the grace period for the host's own time limit, so that this program's limit always
/// expires first.
const BEYOND_GRACE: Duration = Duration::from_secs(60);

/// Time limit for the answers to clients whose rounds stay open.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Time limit for the store to write pending entries.
const STORE_CLOSE_MAX: Duration = Duration::from_secs(10);

/// Serve many tenants over HTTP until a signal
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard serve --workspace .
  callboard --config callboard.toml serve --listen 127.0.0.1:8787
  kill -HUP PID     # reload the configuration
  kill -TERM PID    # finish open rounds, then exit

Without configuration it serves one tenant, `default`, at 127.0.0.1:8787; its key is printed once on standard output.")]
pub(super) struct ServeArgs {
    /// Address and port, instead of `[host] listen` [default: 127.0.0.1:8787]; port 0 selects a
    /// free port
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Folder that the tools of the tenant `default` work in; only without configured tenants
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Provider of the tenant `default`; only without configured tenants
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Model of the tenant `default`; only without configured tenants
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Seconds that open rounds have to finish after SIGTERM or Ctrl-C; the next start resumes
    /// those that are still open
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "30")]
    grace: Duration,
    /// If another host serves the PostgreSQL database, wait for its end and take over
    #[arg(long)]
    standby: bool,
}

/// The flags about the tenant of a host without configured tenants.
fn own_tenant(args: &ServeArgs) -> Result<OwnTenant, Failure> {
    let workspace = args.workspace.as_ref().map(|folder| {
        folder
            .canonicalize()
            .map_err(|error| Failure::usage(sanitize(&crate::os_error::workspace(folder, &error))))
    });
    Ok(OwnTenant {
        workspace: workspace.transpose()?,
        provider: args.provider.clone(),
        model: args.model.clone(),
    })
}

pub(super) async fn run(
    file: Option<PathBuf>,
    args: ServeArgs,
    telemetry: &Telemetry,
) -> Result<Done, Failure> {
    // From here on, signals no longer end the process by default.
    let mut signals = Signals::listen();
    let mut hangups = Hangups::listen();
    let listen = args.listen.clone();
    let own = own_tenant(&args)?;
    let has_workspace = own.workspace.is_some();
    let redactor = telemetry.redactor().clone();
    let read = move || -> Result<Config, ConfigError> {
        let mut config = Config::load(file.as_deref(), process_environment())?;
        // Without the untrusted file, `serve` would start with different settings and fewer tenants
        // than its user expects.
        config.require_trust()?;
        // Register the keys before the configuration is used, so that no log line can show a new
        // key.
        redactor.learn(config.masked_texts());
        if let Some(listen) = &listen {
            config.set("host.listen", listen, "--listen")?;
        }
        config.own_tenant = own.clone();
        Ok(config)
    };
    let config = read()?;
    if !config.tenants.is_empty() && config.own_tenant != OwnTenant::default() {
        return Err(Failure::usage(
            "--workspace, --provider and --model are for a host without configured tenants",
        )
        .hint("set `workspace`, `provider` and `model` in its [[tenant]]"));
    }
    let bounds = bounds(&config.http);
    let console = config.http.console.unwrap_or(true);
    let mcp = config.http.mcp.unwrap_or(true);
    let cors_origins = config.http.cors_origins.clone();
    let eval_results = config.eval_results();
    let address = config.listen();
    let figures = config.observability.settings.enable_metrics;
    super::trust::note(&config);
    let starting = serving(
        config,
        Box::new(read),
        telemetry.redactor().clone(),
        args.standby,
    );
    let serving = tokio::select! {
        serving = starting => serving?,
        // Only a host that waits for another one stops before it serves.
        () = signals.next(), if args.standby => return Ok(Done::Interrupted),
    };
    telemetry.observe(&serving.host);
    let listener = listener_at(address).map_err(|error| cannot_listen(address, &error))?;
    let bound = listener.local_addr().unwrap_or(address);
    if matches!(serving.single, Some(Single::Made { .. })) {
        // Before the key is shown, so that a key that was shown works after a crash, and after all
        // that can fail, so that the next start does not take a key that was never shown for known.
        serving.operator.store().await?;
    }
    report(&serving, bound, console).await;
    if let Some(single) = &serving.single {
        first_steps(single, bound, has_workspace);
    }

    let Serving {
        host,
        operator,
        left_behind,
        stop_mark,
        mut lease,
        peers,
        sessions,
        ..
    } = serving;
    // When the grace period ends, this function exits without closing open rounds: they stay open
    // in the journal, and the next start resumes them. The host's own drain would close them as
    // interrupted.
    let drain_within = args.grace.saturating_add(BEYOND_GRACE);
    let leaving = CancellationToken::new();
    let mut http = HttpConfig::new(operator.keys().clone())
        .bounds(bounds)
        .operator(Arc::new(operator.clone()))
        .drain_within(drain_within)
        .leaving(leaving.clone())
        .metrics(figures)
        .console(console)
        .mcp(mcp)
        .cors_origins(cors_origins)
        .peers(peers)
        .redactor(telemetry.redactor().clone());
    http.eval_results = Some(eval_results);
    let (end, ended) = oneshot::channel::<()>();
    let sharing = lease.as_ref().map(|lease| {
        let mut share = lease.share();
        host.share_limits(*share.borrow_and_update()); // Before the first request.
        tokio::spawn(keep_share(host.clone(), share))
    });
    let mut server = tokio::spawn(http::serve(listener, host.clone(), http, async {
        drop(ended.await)
    }));
    let resume = tokio::spawn(resume(
        host.clone(),
        operator.clone(),
        sessions,
        left_behind,
    ));
    let delivering = tokio::spawn(webhooks::deliver(host.clone(), operator.webhooks().clone()));
    let follower = operator.clone();
    let following = tokio::spawn(async move { follower.follow().await });

    // `end` is `Some` until the shutdown starts. The first request to stop (a signal or the operator's
    // route) sends it to the server and starts the grace period `cut`; a second signal, or the end of
    // the grace period, leaves with rounds open. The branches are biased towards the server, so that
    // a drain that finishes together with the grace period counts as finished.
    let mut end = Some(end);
    let mut cut: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(std::future::pending());
    let done = loop {
        let stop = tokio::select! {
            biased;
            served = &mut server => match served {
                Ok(served) => {
                    let active = counted(served.conversations, "active conversation");
                    err_line(&format!("stopped after {:.1} s; {active}", served.took.as_secs_f64()));
                    break Ok(Done::Well);
                }
                Err(error) => break Err(Failure::work(format!("the HTTP host failed: {error}"))),
            },
            () = &mut cut => {
                err_line("the grace period is over: the next start resumes open rounds");
                break leave(&host, &leaving, &mut server, Done::Well, &stop_mark).await;
            }
            () = lost(&mut lease) => {
                break Err(Failure::work(
                    "this host did not reach the database for 12 s, and another one took over",
                ));
            }
            () = signals.next() => true,
            () = operator.drained(), if end.is_some() => true,
            () = hangups.next() => false,
        };
        match (stop, end.take()) {
            (true, Some(end)) => {
                err_line(&format!(
                    "stopping: open rounds have {} s to finish; another signal stops at once",
                    args.grace.as_secs_f64()
                ));
                resume.abort();
                let _ = end.send(()); // Fails if the operator's route has already started the shutdown.
                cut = Box::pin(tokio::time::sleep(args.grace));
            }
            (true, None) => {
                err_line("stopped at once: the next start resumes open rounds");
                break leave(&host, &leaving, &mut server, Done::Interrupted, &stop_mark).await;
            }
            (false, still) => {
                end = still;
                reload(&operator).await;
            }
        }
    };
    resume.abort();
    following.abort();
    delivering.abort();
    if let Some(sharing) = sharing {
        sharing.abort();
    }
    if let Some(lease) = lease {
        lease.release().await;
    }
    done
}

/// Waits until another host has taken over; for ever where there is none.
async fn lost(lease: &mut Option<ServingLease>) {
    match lease {
        Some(lease) => lease.lost().await,
        None => std::future::pending().await,
    }
}

/// Keeps to this host's part of the limits while other hosts come and go.
async fn keep_share(host: crate::Host, mut share: watch::Receiver<HostShare>) {
    while share.changed().await.is_ok() {
        let now = *share.borrow_and_update();
        host.share_limits(now);
        let hosts = counted(u64::from(now.hosts), "host");
        err_line(&format!("limits are divided between {hosts}"));
    }
}

/// Exits with open rounds: answers whoever waits for one, closes connections, writes everything
/// acknowledged to disk, and leaves a mark, so that the next start does not count a crash. Tool
/// processes end with this process.
async fn leave(
    host: &crate::Host,
    leaving: &CancellationToken,
    server: &mut JoinHandle<Served>,
    done: Done,
    stop_mark: &Path,
) -> Result<Done, Failure> {
    leaving.cancel();
    if tokio::time::timeout(ANSWERS_WITHIN, &mut *server)
        .await
        .is_err()
    {
        server.abort();
    }
    host.close_store(STORE_CLOSE_MAX).await?;
    // Without the mark, the open rounds count this stop as a crash.
    if let Err(error) = crate::private::file()
        .create(true)
        .truncate(true)
        .open(stop_mark)
    {
        tracing::warn!(%error, "the mark of an orderly stop was not written");
    }
    Ok(done)
}

/// The configured bounds; the others keep their defaults.
fn bounds(limits: &HttpLimits) -> HttpBounds {
    let default = HttpBounds::default();
    HttpBounds {
        connections_max: limits.connections_max.unwrap_or(default.connections_max),
        connections_per_address_max: limits.connections_per_address_max,
        requests_per_tenant_max: limits
            .requests_per_tenant_max
            .unwrap_or(default.requests_per_tenant_max),
        streams_per_tenant_max: limits
            .streams_per_tenant_max
            .unwrap_or(default.streams_per_tenant_max),
        body_bytes_max: limits.body_bytes_max.unwrap_or(default.body_bytes_max),
        tenant_answer_bytes_max: limits
            .tenant_answer_bytes_max
            .unwrap_or(default.tenant_answer_bytes_max),
        connection_answer_bytes_max: limits
            .connection_answer_bytes_max
            .unwrap_or(default.connection_answer_bytes_max),
        answer_bytes_max: limits.answer_bytes_max.unwrap_or(default.answer_bytes_max),
        header_within: limits.header_within.unwrap_or(default.header_within),
        write_pause_max: limits.write_pause_max.unwrap_or(default.write_pause_max),
        remote_attachments: limits
            .remote_attachments
            .unwrap_or(default.remote_attachments),
        ..default
    }
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Failure {
    let failure = Failure::work(format!("cannot listen at {address}: {}", error.kind()));
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            failure.hint("another program has this port; choose one with --listen")
        }
        _ => failure.hint("choose another address with --listen"),
    }
}

/// Reports the address, tenants, provider and store, then notes and a generated key.
async fn report(serving: &Serving, bound: SocketAddr, console: bool) {
    let paint = Paint::stderr();
    let tenants = counted(serving.operator.tenants().await.len(), "tenant");
    let store = serving.store.clone().unwrap_or_else(|| "memory".to_owned());
    let provider = sanitize(&serving.provider);
    let model = sanitize(&serving.model);
    err_line(&format!(
        "{} serves at http://{bound}",
        paint.bold("callboard")
    ));
    err_line(&paint.dim(&format!(
        "{tenants}, provider {provider}, model {model}, store {}",
        sanitize(&store)
    )));
    if console {
        err_line(&paint.dim(&format!("console at http://{bound}/console")));
    }
    for note in &serving.notes {
        err_line(&paint.dim(&format!("note: {}", sanitize(note))));
    }
    match &serving.single {
        Some(Single::Made { tenant, key }) => {
            err_line(&format!(
                "no tenants are configured: the key of tenant {tenant} follows on standard output, only this once"
            ));
            out_line(key);
        }
        Some(Single::Known { tenant, file }) => {
            let place = match file {
                Some(file) => {
                    let file = sanitize(&file.display().to_string());
                    format!("{file} holds its hash; remove the file to get a new key")
                }
                None => "the database holds its hash".to_owned(),
            };
            err_line(&paint.dim(&format!(
                "tenant {tenant} keeps the key of an earlier start; {place}"
            )));
        }
        None => {}
    }
}

/// Says what the one tenant lacks, and how to send its first prompt.
fn first_steps(single: &Single, bound: SocketAddr, has_workspace: bool) {
    let paint = Paint::stderr();
    let (Single::Made { tenant, .. } | Single::Known { tenant, .. }) = single;
    if !has_workspace {
        err_line(&paint.dim(&format!(
            "tenant {tenant} has no workspace, so its model has no tools for files; `--workspace DIR` gives it one"
        )));
    }
    let key = match single {
        // Only a terminal: a log keeps what it gets.
        Single::Made { key, .. } if Terminals::detect().stderr => key,
        _ => "$KEY",
    };
    err_line(&paint.dim(&format!(
        "try it: curl http://{bound}/v1/conversations/first/messages -H \"authorization: Bearer {key}\" -H \"content-type: application/json\" -d '{{\"content\":\"hello\"}}'"
    )));
}

async fn resume(
    host: crate::Host,
    operator: TenantOperator,
    sessions: Sessions,
    left_behind: Vec<callboard_actors::ids::Scope>,
) {
    match Serving::resume(&host, &operator, &sessions, left_behind).await {
        Ok(resumed) if resumed.woken + resumed.left + resumed.failed + resumed.erased > 0 => {
            let erased = if resumed.erased == 0 {
                String::new()
            } else {
                format!(", {} of single calls erased", resumed.erased)
            };
            let left = if resumed.left == 0 {
                String::new()
            } else {
                format!(", {} of tenants that are not served skipped", resumed.left)
            };
            let failed = if resumed.failed == 0 {
                String::new()
            } else {
                format!(", {} failed", resumed.failed)
            };
            err_line(&format!(
                "interrupted rounds resumed: {}{left}{failed}{erased}",
                resumed.woken
            ));
        }
        Ok(_) => {}
        Err(error) => err_line(&format!(
            "interrupted rounds are not resumed: {}",
            sanitize(&error.to_string())
        )),
    }
    Serving::keep_resuming(&host, &operator, &sessions).await;
}

/// Reloads the configuration and reports the result.
async fn reload(operator: &TenantOperator) {
    match operator.read_again().await {
        Ok(Reloaded {
            added,
            changed,
            removed,
            needs_restart,
        }) => {
            let list = |what: &str, ids: &[String]| {
                if ids.is_empty() {
                    String::new()
                } else {
                    format!(", {what} {}", ids.join(" "))
                }
            };
            let lists = [
                list("added", &added),
                list("changed", &changed),
                list("removed", &removed),
            ]
            .concat();
            err_line(&sanitize(&format!("reloaded{lists}")));
            needs_restart
                .iter()
                .for_each(|line| err_line(&sanitize(&format!("note: {line}"))));
        }
        Err(error) => err_line(&sanitize(&format!(
            "not reloaded, nothing changed: {error}"
        ))),
    }
}

/// Connections that the kernel keeps until they are accepted; one beyond them is tried again by its
/// client a second later.
const BACKLOG: u32 = 4096;

fn listener_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_burst_of_connections_waits_for_the_host_and_not_for_a_second_try() {
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
        let allowed = allowed.ok().and_then(|text| text.trim().parse().ok());
        let listener = listener_at(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();

        let mut burst = Vec::new();
        for _ in 0..allowed.unwrap_or(128).min(400) {
            let connect = tokio::net::TcpStream::connect(address);
            let connected = tokio::time::timeout(Duration::from_secs(30), connect);
            burst.push(connected.await.unwrap().unwrap());
        }
        drop((listener, burst));
    }

    #[test]
    fn every_configured_bound_reaches_the_server() {
        let text = "[host]\ndata_dir = \"data\"\nconnections_max = 1\nconnections_per_address_max = 2\nstreams_per_tenant_max = 3\nrequests_per_tenant_max = 10\nbody_bytes_max = 4\ntenant_answer_bytes_max = 5\nconnection_answer_bytes_max = 9\nanswer_bytes_max = 6\nheader_s = 7\nwrite_pause_s = 8\nremote_attachments = true\n";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("callboard.toml");
        std::fs::write(&file, text).unwrap();
        let config = Config::load(Some(&file), std::iter::empty()).unwrap();

        let expected = HttpBounds {
            connections_max: 1,
            connections_per_address_max: Some(2),
            streams_per_tenant_max: 3,
            requests_per_tenant_max: 10,
            body_bytes_max: 4,
            tenant_answer_bytes_max: 5,
            connection_answer_bytes_max: 9,
            answer_bytes_max: 6,
            header_within: Duration::from_secs(7),
            write_pause_max: Duration::from_secs(8),
            remote_attachments: true,
            ..HttpBounds::default()
        };
        assert_eq!(bounds(&config.http), expected);
    }
}
