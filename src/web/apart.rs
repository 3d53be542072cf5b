//! Runs a request on a thread of its own. The HTTP library skips interim answers (100, 103) for as long
//! as they come, all that have arrived in one go: a server that sends them without end would keep a
//! thread of the host's runtime from everybody else. Compressed bytes that decode to nothing would, too.

use std::time::Duration;

use reqwest::{Client, Request, Response};
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    time::interval,
};

use super::dns::{for_tenant, owner};
use crate::thread_clock::ThreadTimes;

/// Processor time after which a request is given up. A page of the largest size takes a tenth of it.
const WORK_MAX: Duration = Duration::from_secs(2);

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Threads of the host go first.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

type Work = Box<dyn FnOnce() + Send>;

/// The thread of a request. It lasts until its answer is read.
pub(super) struct Apart {
    works: mpsc::Sender<Work>,
}

impl Apart {
    /// Runs `work` on the thread; `None` if the thread has worked for too long.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, is_done) = oneshot::channel();
        let work = Box::new(move || drop(done.send(work())));
        self.works.send(work).await.ok()?;
        is_done.await.ok()
    }
}

/// Sends a request and returns the head of its answer; `None` if no thread can be started, or the
/// answer makes too much work.
///
/// # Cancel safety
/// Dropping the future closes the connection.
pub(super) async fn execute(
    client: &Client,
    request: Request,
) -> Option<(reqwest::Result<Response>, Apart)> {
    let (answer, answered) = oneshot::channel();
    let (works, mut next) = mpsc::channel::<Work>(1);
    let client = client.clone();
    let owner = owner();
    let work = move || {
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(None, NICENESS);
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let answering = async {
                let executed = client.execute(request);
                let _ = answer.send(match owner {
                    Some(tenant) => for_tenant(tenant, executed).await,
                    None => executed.await,
                });
                std::future::pending().await
            };
            let working = async {
                while let Some(work) = next.recv().await {
                    work();
                }
            };
            tokio::select! {
                biased;
                () = has_worked() => {}
                () = working => {}
                () = answering => {}
            }
        });
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("web".to_owned());
    thread.spawn(work).ok()?;
    Some((answered.await.ok()?, Apart { works }))
}

/// Becomes ready when this thread has worked for too long.
async fn has_worked() {
    let mut looks = interval(LOOK);
    while ThreadTimes::read().is_none_or(|times| times.has_run < WORK_MAX) {
        looks.tick().await;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test]
    async fn interim_answers_without_end_keep_no_thread_of_the_host_and_are_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let _ = socket.read(&mut [0; 4096]);
            let many = b"HTTP/1.1 103 Hints\r\n\r\n".repeat(4096);
            while socket.write_all(&many).is_ok() {}
        });
        let client = crate::tls::client_builder()
            .unwrap()
            .no_proxy()
            .build()
            .unwrap();
        let request = client.get(url).build().unwrap();
        let mut longest = Duration::ZERO;
        let ticks = async {
            loop {
                let before = Instant::now();
                sleep(Duration::from_millis(1)).await;
                longest = longest.max(before.elapsed());
            }
        };

        let answer = tokio::select! {
            answer = execute(&client, request) => answer,
            () = ticks => unreachable!(),
        };

        assert!(answer.is_none());
        assert!(longest < Duration::from_secs(1), "{longest:?}");
    }
}
