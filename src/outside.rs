//! Connections to servers of others whose HTTP client is a library's: MCP over HTTP, collectors of
//! traces and metrics, lists of models. The library skips interim answers (100, 103) for as long as
//! they come, so a server that sends them without end would keep a worker from everybody else. These
//! connections share a thread of their own, which gives way to those of the host.

use std::{
    io,
    pin::Pin,
    sync::{OnceLock, mpsc},
    task::{Context, Poll},
    thread,
};

use tokio::runtime::{self, Handle};

/// How far the thread gives way.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

static RUNTIME: OnceLock<Handle> = OnceLock::new();

/// The runtime of these connections, which lasts as long as the process.
///
/// # Errors
/// The thread or the runtime cannot be started.
pub(crate) fn handle() -> io::Result<&'static Handle> {
    if let Some(handle) = RUNTIME.get() {
        return Ok(handle);
    }
    // Of two that start one at the same time, the runtime of one is never used.
    let started = start()?;
    Ok(RUNTIME.get_or_init(|| started))
}

fn start() -> io::Result<Handle> {
    let (started, starts) = mpsc::channel();
    let work = move || {
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(None, NICENESS);
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return drop(started.send(Err(error))),
        };
        if started.send(Ok(runtime.handle().clone())).is_ok() {
            runtime.block_on(std::future::pending::<()>());
        }
    };
    thread::Builder::new()
        .name("outside".to_owned())
        .spawn(work)?;
    starts.recv().map_err(io::Error::other)?
}

/// Runs a request here; the connections that it opens are served by the other thread. If that cannot
/// be started, they are served here.
///
/// # Cancel safety
/// As cancel safe as `request`.
pub(crate) async fn outside<F: Future>(request: F) -> F::Output {
    match handle() {
        Ok(runtime) => Within::new(runtime.clone(), request).await,
        Err(_) => request.await,
    }
}

/// A future that enters a runtime whenever it is polled.
pub(crate) struct Within<F> {
    runtime: Handle,
    future: Pin<Box<F>>,
}

impl<F> Within<F> {
    pub(crate) fn new(runtime: Handle, future: F) -> Self {
        Self {
            runtime,
            future: Box::pin(future),
        }
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let runtime = self.runtime.clone();
        let _entered = runtime.enter();
        self.future.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        time::Duration,
    };

    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    #[tokio::test]
    async fn interim_answers_without_end_keep_no_thread_of_the_host() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let _ = socket.read(&mut [0; 4096]);
            let many = b"HTTP/1.1 103 Hints\r\n\r\n".repeat(4096);
            while socket.write_all(&many).is_ok() {}
        });
        let client = crate::tls::client_builder().unwrap().no_proxy();
        let client = client.build().unwrap();
        let mut longest = Duration::ZERO;
        let ticks = async {
            loop {
                let before = Instant::now();
                sleep(Duration::from_millis(1)).await;
                longest = longest.max(before.elapsed());
            }
        };
        let asked = timeout(Duration::from_secs(2), outside(client.get(url).send()));

        let answer = tokio::select! {
            answer = asked => answer,
            () = ticks => unreachable!(),
        };

        assert!(answer.is_err());
        assert!(longest < Duration::from_secs(1), "{longest:?}");
    }
}
