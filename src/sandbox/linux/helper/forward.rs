//! The forwarder: listens on the loopback address of a jail without a network and copies bytes to
//! the proxy's socket, which is bound into the jail. The forwarder makes no decisions; a command
//! that kills it loses the network.
//!
//! The forwarder may connect to a Unix socket, and the command may not. So it closes its memory and
//! descriptors to other processes: a command cannot make it connect elsewhere by debugging it.

use std::{io::Write, net::Ipv4Addr, sync::Arc};

use rustix::process::DumpableBehavior;
use tokio::{
    net::{TcpListener, UnixStream},
    sync::Semaphore,
};

use crate::sandbox::{
    exec::shell::forwards,
    policy::{FORWARD_PORT, FORWARD_SOCKET},
};

pub(super) const STAGE: &str = "forward";

/// Open connections. More than the proxy accepts, so that the proxy is the one that refuses;
/// further connections wait.
const CONNECTIONS_MAX: usize = 128;

/// Reports that it listens, then forwards until it is killed.
pub(super) fn run(nonce: &str) -> std::io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, FORWARD_PORT)).await?;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{}", forwards(nonce))?;
        stdout.flush()?;
        drop(stdout);
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        while let Ok(permit) = permits.clone().acquire_owned().await {
            let Ok((mut program, _)) = listener.accept().await else {
                continue;
            };
            tokio::spawn(async move {
                if let Ok(mut proxy) = UnixStream::connect(FORWARD_SOCKET).await {
                    let _ = tokio::io::copy_bidirectional(&mut program, &mut proxy).await;
                }
                drop(permit);
            });
        }
        Ok(())
    })
}
