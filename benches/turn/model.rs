//! The model server for both wires: this program in a second process, so that its work is not
//! counted.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use callboard::{
    mock_model::{self, HTTP2_STREAMS_MAX, MockModelSettings, MockTls, TlsIdentity, WritePer},
    providers::Network,
    tls::Trust,
};
use tokio_util::sync::CancellationToken;

use super::{
    Wire,
    phases::{runtime, word_after},
};

const ASKED: &str = "model-server";

/// How the model server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// TLS and HTTP/2 with 100 streams a connection, as hosted models are reached.
    TlsHttp2,
    /// TLS and HTTP/1.1.
    TlsHttp1,
    /// HTTP/1.1 without TLS, as a model on the same machine is reached.
    Plain,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::TlsHttp2, Self::TlsHttp1, Self::Plain];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TlsHttp2 => "tls-http2",
            Self::TlsHttp1 => "tls-http1",
            Self::Plain => "plain",
        }
    }

    pub(crate) fn of(name: &str) -> Self {
        let way = Self::ALL.into_iter().find(|way| way.name() == name);
        way.expect("tls-http2, tls-http1 or plain")
    }
}

/// The name of what a server puts into one write.
pub(crate) fn write_name(write_per: WritePer) -> &'static str {
    match write_per {
        WritePer::Event => "event",
        WritePer::Answer => "answer",
    }
}

/// What a server puts into one write, as `--write` says; each event alone by default.
pub(crate) fn wanted_write() -> WritePer {
    match word_after("--write").as_deref() {
        Some("answer") => WritePer::Answer,
        _ => WritePer::Event,
    }
}

/// What a model server does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    pub(crate) way: Way,
    pub(crate) write_per: WritePer,
    /// Time between a request and the first byte of its answer.
    pub(crate) latency: Duration,
    /// Time between two chunks.
    pub(crate) pace: Duration,
    /// Chunks of 4 bytes in an answer.
    pub(crate) chunks: usize,
    /// Tool calls in a turn before the answer.
    pub(crate) tool_calls: u32,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            way: Way::TlsHttp2,
            write_per: WritePer::Event,
            latency: Duration::ZERO,
            pace: Duration::ZERO,
            chunks: 64,
            tool_calls: 0,
        }
    }
}

impl Model {
    fn arguments(self) -> [String; 7] {
        [
            ASKED.to_owned(),
            self.way.name().to_owned(),
            write_name(self.write_per).to_owned(),
            self.latency.as_millis().to_string(),
            self.pace.as_millis().to_string(),
            self.chunks.to_string(),
            self.tool_calls.to_string(),
        ]
    }

    fn parse(arguments: &[String]) -> Option<Self> {
        let [asked, way, write_per, latency, pace, chunks, tool_calls] = arguments else {
            return None;
        };
        (asked == ASKED).then(|| Self {
            way: Way::of(way),
            write_per: if write_per == "event" {
                WritePer::Event
            } else {
                WritePer::Answer
            },
            latency: Duration::from_millis(latency.parse().unwrap()),
            pace: Duration::from_millis(pace.parse().unwrap()),
            chunks: chunks.parse().unwrap(),
            tool_calls: tool_calls.parse().unwrap(),
        })
    }
}

/// Serves if this process was started as the model server. Call it first in `main`.
pub(crate) fn serve_if_asked() -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(model) = Model::parse(&arguments) else {
        return false;
    };
    let made = (model.way != Way::Plain).then(|| TlsIdentity::make(&[]).unwrap());
    let tls = made.as_ref().map(|made| MockTls {
        identity: made.identity.clone(),
        http2_streams_max: (model.way == Way::TlsHttp2).then_some(HTTP2_STREAMS_MAX),
    });
    let settings = MockModelSettings {
        latency: model.latency,
        chunk_delay: model.pace,
        write_per: model.write_per,
        chunks: model.chunks,
        tool_calls: model.tool_calls,
        tool_chunks: 32,
        tool_input: super::arguments(),
        tls,
        ..MockModelSettings::default()
    };
    runtime().block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        match made {
            Some(made) => println!("https://{address}\n{}{END}", made.ca_pem),
            None => println!("http://{address}\n{END}"),
        }
        mock_model::serve(listener, settings, CancellationToken::new())
            .await
            .unwrap();
    });
    true
}

/// Follows the address of a server and its certificate.
const END: &str = "serving";

/// A running model server. Dropping it ends the process.
pub(crate) struct Server {
    child: Child,
    address: String,
    pub(crate) way: Way,
    /// The certificate that clients must trust, in PEM; empty without TLS.
    pub(crate) ca_pem: String,
}

impl Server {
    pub(crate) fn start(model: Model) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(model.arguments());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let address = lines.next().unwrap();
        let ca_pem = lines
            .take_while(|line| line != END)
            .map(|line| line + "\n")
            .collect();
        Self {
            child,
            address,
            way: model.way,
            ca_pem,
        }
    }

    /// The base URL for a wire, as the official SDKs write it.
    pub(crate) fn url(&self, wire: Wire) -> String {
        match wire {
            Wire::Anthropic => self.address.clone(),
            Wire::OpenAi => format!("{}/v1", self.address),
        }
    }

    /// How a provider of this project reaches it: with all defaults, and its certificate.
    pub(crate) fn network(&self) -> Network {
        let authorities = (self.way != Way::Plain).then(|| self.ca_pem.as_bytes().to_vec());
        Network {
            trust: Trust {
                authorities,
                ..Trust::default()
            },
            ..Network::default()
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
