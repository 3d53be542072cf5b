//! `callboard mock-model`: a scripted model server, for measuring Callboard or another runtime.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{
    failure::{Done, Failure},
    flags::read_pem,
    output::write_file,
    signals::Signals,
    terminal::{counted, err_line, out_json, out_line},
};
use crate::mock_model::{
    Fault, HTTP2_STREAMS_MAX, MockModelSettings, MockTls, TlsIdentity, WritePer, serve,
};

/// Serve a scripted model over HTTP or https: Anthropic and OpenAI
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard mock-model --listen 127.0.0.1:9000 --latency-ms 300 --chunks 200 --chunk-delay-ms 20
  callboard mock-model --tool-calls 1 --fault-rate 0.05 --faults 429,half,stall --seed 7
  callboard run --provider anthropic --base-url http://127.0.0.1:9000 \"Hello\"
  callboard mock-model --tls --h2 --streams 100 --write-per event --ca-out ca.pem

The address is the first line of standard output. OpenAI clients take it with /v1. A prompt whose first word begins with
`load-` is answered with that word first. See docs/load.md.")]
pub(super) struct MockModelArgs {
    /// Address and port; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Milliseconds to the first byte of an answer
    #[arg(long, value_name = "MS", default_value_t = 0)]
    latency_ms: u64,
    /// Milliseconds before each chunk but the first
    #[arg(long, value_name = "MS", default_value_t = 0)]
    chunk_delay_ms: u64,
    /// What a streamed answer puts into one write
    #[arg(long, value_enum, default_value_t = Write::Answer)]
    write_per: Write,
    /// Chunks of text in an answer
    #[arg(long, value_name = "N", default_value_t = 64)]
    chunks: usize,
    /// Bytes of text in a chunk
    #[arg(long, value_name = "N", default_value_t = 4)]
    chunk_bytes: usize,
    /// Text of each chunk, instead of filler
    #[arg(long, value_name = "TEXT", conflicts_with = "chunk_bytes")]
    text: Option<String>,
    /// Tool calls of a turn before its final answer, if the request offers tools or --tool names
    /// one
    #[arg(long, value_name = "N", default_value_t = 0)]
    tool_calls: u32,
    /// The tool to call; by default the first one offered
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Arguments of the tool call
    #[arg(long, value_name = "JSON", default_value = "{}")]
    tool_input: String,
    /// Chunks of text before a tool call
    #[arg(long, value_name = "N", default_value_t = 0)]
    tool_chunks: usize,
    /// The key that clients must send; others get 401
    #[arg(
        long,
        value_name = "KEY",
        env = "CALLBOARD_MOCK_KEY",
        hide_env_values = true
    )]
    key: Option<String>,
    /// Calls at once; further ones get 429
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
    /// Calls per minute; further ones get 429
    #[arg(long, value_name = "N")]
    rpm: Option<u32>,
    /// Tokens per minute; further ones get 429
    #[arg(long, value_name = "N")]
    tpm: Option<u64>,
    /// Fraction of the calls that fail, 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    fault_rate: f64,
    /// How they fail: 429, 529, 500, reset, stall, html, half, malformed-json, error-event
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_values_t = Fault::ALL)]
    faults: Vec<Fault>,
    /// Seed that decides which calls fail
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Exit after this many model calls
    #[arg(long, value_name = "N")]
    max_requests: Option<u64>,
    /// Serve https, with HTTP/1.1. The certificate is made at the start, for loopback and the
    /// address of --listen
    #[arg(long)]
    tls: bool,
    /// Present this certificate instead: PEM, followed by its intermediate certificates
    #[arg(long, value_name = "FILE", requires_all = ["tls", "cert_key"])]
    cert: Option<PathBuf>,
    /// The private key of --cert, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// Write the certificate that clients must trust to this file, in PEM
    #[arg(long, value_name = "FILE", requires = "tls", conflicts_with = "cert")]
    ca_out: Option<PathBuf>,
    /// Offer HTTP/2 as well
    #[arg(long, requires = "tls")]
    h2: bool,
    /// Concurrent streams of one HTTP/2 connection; clients let further ones wait
    #[arg(long, value_name = "N", requires = "h2", default_value_t = HTTP2_STREAMS_MAX, value_parser = clap::value_parser!(u32).range(1..))]
    streams: u32,
    /// Print the address as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Write {
    /// Everything that is due at the same time: the whole answer, or each chunk with
    /// --chunk-delay-ms
    Answer,
    /// Each event, as providers send them
    Event,
}

impl From<Write> for WritePer {
    fn from(write: Write) -> Self {
        match write {
            Write::Answer => Self::Answer,
            Write::Event => Self::Event,
        }
    }
}

/// How to serve https, and the certificate that clients must trust if it was made here.
fn tls(args: &MockModelArgs) -> Result<Option<(MockTls, Option<String>)>, Failure> {
    if !args.tls {
        return Ok(None);
    }
    let (identity, ca_pem) = match (&args.cert, &args.cert_key) {
        (Some(cert), Some(key)) => {
            let chain = read_pem("--cert", cert)?;
            let key = read_pem("--cert-key", key)?;
            (TlsIdentity::from_pem(&chain, &key), None)
        }
        _ => match TlsIdentity::make(&[args.listen.ip().to_string()]) {
            Ok(made) => (Ok(made.identity), Some(made.ca_pem)),
            Err(error) => (Err(error), None),
        },
    };
    let tls = MockTls {
        identity: identity.map_err(|error| Failure::usage(error.to_string()))?,
        http2_streams_max: args.h2.then_some(args.streams),
    };
    Ok(Some((tls, ca_pem)))
}

pub(super) async fn run(args: MockModelArgs) -> Result<Done, Failure> {
    let (tls, ca_pem) = tls(&args)?.unzip();
    let settings = MockModelSettings {
        latency: Duration::from_millis(args.latency_ms),
        chunk_delay: Duration::from_millis(args.chunk_delay_ms),
        write_per: args.write_per.into(),
        chunks: args.chunks,
        chunk_bytes: args.chunk_bytes,
        text: args.text,
        key: args.key,
        tool_chunks: args.tool_chunks,
        tool_calls: args.tool_calls,
        tool: args.tool,
        tool_input: args.tool_input,
        concurrency: args.concurrency,
        requests_per_minute: args.rpm,
        tokens_per_minute: args.tpm,
        fault_rate: args.fault_rate,
        faults: args.faults,
        seed: args.seed,
        requests_max: args.max_requests,
        tls,
    };
    settings
        .check()
        .map_err(|error| Failure::usage(error.to_string()))?;
    let failed =
        |error: std::io::Error| Failure::work(format!("cannot serve at {}: {error}", args.listen));
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    // Listen for signals before the address is printed: a script that reads it may end the server
    // at once.
    let mut signals = Signals::listen();
    let scheme = if args.tls { "https" } else { "http" };
    if let (Some(file), Some(pem)) = (&args.ca_out, ca_pem.flatten()) {
        write_file("the certificate", file, pem.as_bytes())?;
    }
    let url = format!("{scheme}://{}", listener.local_addr().map_err(failed)?);
    if args.json {
        out_json(&json!({ "url": url }).to_string());
    } else {
        out_line(&url);
    }

    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        stopping.cancel();
    });
    let calls = serve(listener, settings, stop).await.map_err(failed)?;
    err_line(&counted(calls, "model call"));
    Ok(Done::Well)
}
