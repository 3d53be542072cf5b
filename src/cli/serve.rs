//! `callboard serve`: the HTTP host, from its first line to its last.

use std::{future::Future, net::SocketAddr, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use clap::Args;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use super::{
    failure::{Done, Failure},
    run::seconds,
    signals::{Hangups, Signals},
    terminal::{Paint, err_line, out_line, tame},
};
use crate::{
    app::{Serving, Single, TenantOperator, serving},
    config::{Config, ConfigError, process_environment},
    http::{self, HttpBounds, HttpConfig, Reloaded, Served},
    telemetry::Telemetry,
};

/// How much longer the host would wait by itself than this program does.
const BEYOND_GRACE: Duration = Duration::from_secs(60);

/// How long the store may take to write what it has.
const STORE_CLOSE_MAX: Duration = Duration::from_secs(10);

/// Serve many tenants over HTTP until a signal
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard serve
  callboard --config callboard.toml serve --listen 127.0.0.1:8787
  kill -HUP PID     # read the configuration again
  kill -TERM PID    # finish open rounds, then end

Without configuration it serves one tenant, `default`, at 127.0.0.1:8787; its key is printed once on standard output.")]
pub(super) struct ServeArgs {
    /// Address and port, in place of `[host] listen` [default: 127.0.0.1:8787]; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Seconds that open rounds have to end after SIGTERM or Ctrl-C; what is open then is taken up again by the next start
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "30")]
    grace: Duration,
}

pub(super) async fn run(file: Option<PathBuf>, args: ServeArgs, telemetry: &Telemetry) -> Result<Done, Failure> {
    // From here on a signal ends nothing by itself.
    let (mut signals, mut hangups) = (Signals::listen(), Hangups::listen());
    let listen = args.listen.clone();
    let redactor = telemetry.redactor().clone();
    let read = move || -> Result<Config, ConfigError> {
        let mut config = Config::load(file.as_deref(), process_environment())?;
        // Less than what the file says would be served, and to fewer.
        config.demand_trust()?;
        // Before anything is done with them: a key of a new configuration is never seen either.
        redactor.learn(config.masked_texts());
        if let Some(listen) = &listen {
            config.set("host.listen", listen, "--listen")?;
        }
        Ok(config)
    };
    let config = read()?;
    let per_address = config.connections_per_address_max;
    let (address, figures) = (config.listen(), config.observability.settings.enable_metrics);
    super::trust::note(&config);
    let serving = serving(config, Box::new(read), telemetry.redactor().clone()).await?;
    telemetry.observe(&serving.host);
    let listener = TcpListener::bind(address).await.map_err(|error| cannot_listen(address, &error))?;
    let bound = listener.local_addr().unwrap_or(address);
    tell(&serving, bound).await;

    let Serving { host, operator, left_behind, .. } = serving;
    // The cut is made here, at the end of the grace: what is still open then stays open in the journal, for the next start. The host's
    // own drain would close it as interrupted.
    let drain_within = args.grace.saturating_add(BEYOND_GRACE);
    let bounds = HttpBounds { connections_per_address_max: per_address, ..HttpBounds::default() };
    let http = HttpConfig::new(operator.keys().clone())
        .bounds(bounds)
        .operator(Arc::new(operator.clone()))
        .drain_within(drain_within)
        .metrics(figures)
        .redactor(telemetry.redactor().clone());
    let (end, ended) = oneshot::channel::<()>();
    let mut server = tokio::spawn(http::serve(listener, host.clone(), http, async { drop(ended.await) }));
    let resume = tokio::spawn(resume(host.clone(), operator.clone(), left_behind));

    let mut end = Some(end);
    let mut cut: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(std::future::pending());
    let done = loop {
        let stop = tokio::select! {
            biased;
            served = &mut server => match served {
                Ok(served) => {
                    err_line(&format!("stopped after {:.1} s; {} conversations were awake", served.took.as_secs_f64(), served.conversations));
                    break Ok(Done::Well);
                }
                Err(error) => break Err(Failure::work(format!("the HTTP host broke down: {error}"))),
            },
            () = &mut cut => {
                err_line("the time is over: rounds that are open are taken up again by the next start");
                break leave(&host, &server, Done::Well).await;
            }
            () = signals.next() => true,
            () = operator.drained(), if end.is_some() => true,
            () = hangups.next() => false,
        };
        match (stop, end.take()) {
            (true, Some(end)) => {
                err_line(&format!("stopping: open rounds have {} s; a signal ends them at once", args.grace.as_secs_f64()));
                resume.abort();
                let _ = end.send(()); // It may have begun to end by the operator's route.
                cut = Box::pin(tokio::time::sleep(args.grace));
            }
            (true, None) => {
                err_line("stopped at once: rounds that are open are taken up again by the next start");
                break leave(&host, &server, Done::Interrupted).await;
            }
            (false, still) => {
                end = still;
                reload(&operator).await;
            }
        }
    };
    resume.abort();
    done
}

/// Ends with rounds open: connections are closed, what was acknowledged is on the disk, processes of tools end with this one.
async fn leave(host: &crate::Host, server: &JoinHandle<Served>, done: Done) -> Result<Done, Failure> {
    server.abort();
    host.ports().sessions.close(STORE_CLOSE_MAX).await?;
    Ok(done)
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Failure {
    let failure = Failure::work(format!("cannot listen at {address}: {}", error.kind()));
    match error.kind() {
        std::io::ErrorKind::AddrInUse => failure.hint("another program has this port; choose one with --listen"),
        _ => failure.hint("choose another address with --listen"),
    }
}

/// The first lines: where, whom, with what.
async fn tell(serving: &Serving, bound: SocketAddr) {
    let paint = Paint::stderr();
    let count = serving.operator.tenants().await.len();
    let tenants = if count == 1 { "1 tenant".to_owned() } else { format!("{count} tenants") };
    let store = serving.store.as_ref().map_or_else(|| "memory".to_owned(), |path| path.display().to_string());
    let (provider, model) = (tame(&serving.provider), tame(&serving.model));
    err_line(&format!("{} serves at http://{bound}", paint.bold("callboard")));
    err_line(&paint.dim(&format!("{tenants}, provider {provider}, model {model}, store {}", tame(&store))));
    for note in &serving.notes {
        err_line(&paint.dim(&format!("note: {}", tame(note))));
    }
    match &serving.single {
        Some(Single::Made { tenant, key }) => {
            err_line(&format!("there is no configuration: the key of tenant {tenant} follows on standard output, this once"));
            out_line(key);
        }
        Some(Single::Known { tenant, file }) => {
            let file = tame(&file.display().to_string());
            err_line(
                &paint.dim(&format!("tenant {tenant} has the key of an earlier start; {file} holds its hash, remove it for a new one")),
            );
        }
        None => {}
    }
}

async fn resume(host: crate::Host, operator: TenantOperator, left_behind: Vec<callboard_actors::ids::Scope>) {
    match Serving::resume(&host, &operator, left_behind).await {
        Ok(resumed) if resumed.woken + resumed.left + resumed.failed + resumed.erased > 0 => {
            let erased = if resumed.erased == 0 { String::new() } else { format!(", {} of single calls erased", resumed.erased) };
            let left = if resumed.left == 0 { String::new() } else { format!(", {} of tenants that are not served stay", resumed.left) };
            let failed = if resumed.failed == 0 { String::new() } else { format!(", {} did not wake", resumed.failed) };
            err_line(&format!("interrupted rounds taken up again: {}{left}{failed}{erased}", resumed.woken));
        }
        Ok(_) => {}
        Err(error) => err_line(&format!("interrupted rounds are not taken up: {}", tame(&error.to_string()))),
    }
}

/// Reads the configuration again and says what came of it.
async fn reload(operator: &TenantOperator) {
    match operator.read_again().await {
        Ok(Reloaded { added, changed, removed, needs_restart }) => {
            let list = |what: &str, ids: &[String]| if ids.is_empty() { String::new() } else { format!(", {what} {}", ids.join(" ")) };
            let lists = [list("added", &added), list("changed", &changed), list("removed", &removed)].concat();
            err_line(&tame(&format!("reloaded{lists}")));
            needs_restart.iter().for_each(|line| err_line(&tame(&format!("note: {line}"))));
        }
        Err(error) => err_line(&tame(&format!("not reloaded, all is as before: {error}"))),
    }
}
