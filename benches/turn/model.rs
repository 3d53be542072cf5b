//! The model server for both wires: this program in a second process, so that its work is not
//! counted.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use callboard::mock_model::{self, MockModelSettings};
use tokio_util::sync::CancellationToken;

use super::{Wire, phases::runtime};

const ASKED: &str = "model-server";

/// Serves if this process was started as the model server. Call it first in `main`.
pub(crate) fn serve_if_asked() -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [asked, latency_ms, tool_calls] = arguments.as_slice() else {
        return false;
    };
    if asked != ASKED {
        return false;
    }
    let settings = MockModelSettings {
        latency: Duration::from_millis(latency_ms.parse().unwrap()),
        tool_calls: tool_calls.parse().unwrap(),
        tool_chunks: 32,
        tool_input: super::arguments(),
        ..MockModelSettings::default()
    };
    runtime().block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("http://{}", listener.local_addr().unwrap());
        mock_model::serve(listener, settings, CancellationToken::new())
            .await
            .unwrap();
    });
    true
}

/// A running model server. Dropping it ends the process.
pub(crate) struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts a model that calls a tool `tool_calls` times per turn and answers each request after
    /// `latency`.
    pub(crate) fn start(latency: Duration, tool_calls: u32) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            ASKED,
            &latency.as_millis().to_string(),
            &tool_calls.to_string(),
        ]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Self {
            child,
            address: line.trim().to_owned(),
        }
    }

    /// The base URL for a wire, as the official SDKs write it.
    pub(crate) fn url(&self, wire: Wire) -> String {
        match wire {
            Wire::Anthropic => self.address.clone(),
            Wire::OpenAi => format!("{}/v1", self.address),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
