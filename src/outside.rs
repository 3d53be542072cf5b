//! Connections to servers of others whose HTTP client is a library's: MCP over HTTP, collectors of
//! traces and metrics, lists of models. The library skips interim answers (100, 103) for as long as
//! they come, and TLS takes tickets for sessions without end, so a server that sends them would keep a
//! worker from everybody else. Such connections are served by threads that give way to those of the
//! host: one for each MCP server of a tenant, one for the collector, and one for each question to a
//! model server.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll},
    thread,
};

use tokio::{
    runtime::{self, Handle},
    sync::oneshot,
};

/// How far the threads give way.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// A thread that serves connections. It ends with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct Outside {
    runtime: Handle,
    _ends: Arc<oneshot::Sender<Infallible>>,
}

impl Outside {
    /// Starts a thread.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let (started, starts) = mpsc::channel();
        let (ends, end) = oneshot::channel::<Infallible>();
        let work = move || {
            #[cfg(target_os = "linux")]
            let _ = rustix::process::setpriority_process(None, NICENESS);
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(error))),
            };
            if started.send(Ok(runtime.handle().clone())).is_ok() {
                let _ = runtime.block_on(end);
            }
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name("outside".to_owned())
            .spawn(work)?;
        Ok(Self {
            runtime: starts.recv().map_err(io::Error::other)??,
            _ends: Arc::new(ends),
        })
    }

    /// Runs a request here; the connections that it opens are served by the other thread.
    ///
    /// # Cancel safety
    /// As cancel safe as `request`.
    pub(crate) fn serve<F: Future>(&self, request: F) -> Within<F> {
        Within {
            runtime: self.runtime.clone(),
            future: Box::pin(request),
        }
    }
}

/// A future that enters a runtime whenever it is polled.
pub(crate) struct Within<F> {
    runtime: Handle,
    future: Pin<Box<F>>,
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

    #[test]
    fn a_thread_ends_with_its_last_user() {
        let outside = Outside::start().unwrap();
        let clone = outside.clone();
        let (_held, ended) = mpsc::channel::<()>();
        let task = async move {
            let _held = _held;
            std::future::pending::<()>().await;
        };
        outside.runtime.spawn(task);

        drop(outside);
        assert!(ended.recv_timeout(Duration::from_millis(50)).is_err());
        drop(clone);

        let error = ended.recv_timeout(Duration::from_secs(20)).unwrap_err();
        assert_eq!(error, mpsc::RecvTimeoutError::Disconnected);
    }

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
        let outside = Outside::start().unwrap();
        let asked = outside.serve(client.get(url).send());
        let asked = timeout(Duration::from_secs(2), asked);

        let answer = tokio::select! {
            answer = asked => answer,
            () = ticks => unreachable!(),
        };

        assert!(answer.is_err());
        assert!(longest < Duration::from_secs(1), "{longest:?}");
    }
}
