//! A connection that is given up if its client does not read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// Bytes the system may hold for a client that does not read; it takes twice as much for itself.
const SEND_BUFFER: usize = 128 << 10;

/// A connection whose writes fail if the client takes no byte for a while. Reads have no limit here:
/// those of heads and bodies have their own.
pub(crate) struct Socket<S> {
    stream: S,
    write_timeout: Duration,
    /// Runs while a write waits for the client.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Called before a write fails because of that.
    give_up: fn(&S),
}

impl Socket<TcpStream> {
    /// A connection that was taken.
    pub(crate) fn of(stream: TcpStream, write_timeout: Duration) -> Self {
        let _ = stream.set_nodelay(true);
        let system = SockRef::from(&stream);
        // Without these the system holds megabytes for a client that does not read, and what was sent
        // to one that is gone for a quarter of an hour. A system that refuses works all the same.
        let _ = system.set_send_buffer_size(SEND_BUFFER);
        #[cfg(target_os = "linux")]
        let _ = system.set_tcp_user_timeout(Some(write_timeout));
        // The system forgets what was not read once it is closed.
        let give_up = |stream: &TcpStream| {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        };
        Self::new(stream, write_timeout, give_up)
    }
}

impl<S> Socket<S> {
    fn new(stream: S, write_timeout: Duration, give_up: fn(&S)) -> Self {
        Self { stream, write_timeout, stalled: None, give_up }
    }

    /// What came of a write, or a failure if the client takes nothing for too long.
    fn timed<T>(&mut self, cx: &mut Context, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stalled = None;
            return wrote;
        }
        let after = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(after)));
        stalled.as_mut().poll(cx).map(|()| {
            (self.give_up)(&self.stream);
            let message = "the client did not read its response in time (--write-timeout)";
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.timed(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        slices: &[io::IoSlice],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.timed(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_given_up() {
        let (mut client, server) = duplex(64);
        let mut socket = Socket::new(server, PATIENCE, |_| {});
        let started = Instant::now();
        let failure = socket.write_all(&[b'x'; 65]).await.unwrap_err();
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), PATIENCE.as_secs());
        // What it has can still be read.
        client.read_exact(&mut [0; 64]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_a_little_is_waited_for() {
        let (mut client, server) = duplex(64);
        let mut socket = Socket::new(server, PATIENCE, |_| {});
        let started = Instant::now();
        let reading = tokio::spawn(async move {
            for _ in 0..4 {
                sleep(PATIENCE - Duration::from_secs(1)).await;
                client.read_exact(&mut [0; 32]).await.unwrap();
            }
            client
        });
        socket.write_all(&[b'x'; 192]).await.unwrap();
        assert!(started.elapsed() > 3 * PATIENCE);
        drop(reading.await.unwrap());
    }
}
