//! Connections that a handler can reset: the one fault that an HTTP library never causes.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};

/// A handler's access to its connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Link(Arc<AtomicBool>);

impl Link {
    /// Resets the connection at its next write.
    pub(super) fn reset(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Connected<IncomingStream<'_, Links>> for Link {
    fn connect_info(stream: IncomingStream<'_, Links>) -> Self {
        stream.io().link.clone()
    }
}

/// A listener whose connections can be reset.
#[derive(Debug)]
pub(super) struct Links(pub(super) TcpListener);

impl Listener for Links {
    type Io = LinkedStream;
    type Addr = ();

    async fn accept(&mut self) -> (LinkedStream, ()) {
        loop {
            match self.0.accept().await {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    return (
                        LinkedStream {
                            stream,
                            link: Link::default(),
                        },
                        (),
                    );
                }
                // Most likely too many open files: wait for clients to disconnect.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection that its handler can reset.
#[derive(Debug)]
pub(super) struct LinkedStream {
    stream: TcpStream,
    link: Link,
}

impl LinkedStream {
    fn check(&self) -> io::Result<()> {
        if self.link.0.load(Ordering::Acquire) {
            let _ = self.stream.set_zero_linger(); // closing then sends a reset
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

impl AsyncRead for LinkedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for LinkedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
