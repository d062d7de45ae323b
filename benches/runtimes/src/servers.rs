//! A server for each runtime, all with the same answers. Those over `handle-net` take whole
//! batches; the others use a task for each outstanding datagram, as is usual for them.

use crate::Runtime;
use anyhow::Result;
use handle_benches::answers::{context, push};
use handle_benches::serve;
use handle_net::{Datapath, DatapathKind};
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use handle_resolver::batch::Scratch;
use handle_resolver::{AnswerOutcome, InBatch, WireReply as _, answer, answer_batch};
use handle_snapshot::PublishedSet;
use std::time::Duration;

/// Number of tasks, each with one outstanding datagram.
#[cfg(any(feature = "tokio-uring", feature = "glommio"))]
const TASKS_COUNT: usize = 64;
/// Length of a receive buffer, as in `handle-net`.
#[cfg(any(feature = "tokio-uring", feature = "glommio"))]
const RECEIVE_LEN: usize = 2048;
/// Length of the longest answer.
#[cfg(any(feature = "tokio-uring", feature = "glommio"))]
const ANSWER_LEN_MAX: usize = 16 << 10;

/// Serves until the input of this process ends.
pub fn serve(runtime: Runtime, set: &PublishedSet, core: usize) -> Result<()> {
    match runtime {
        Runtime::Uring => serve_batches(DatapathKind::Uring, set, core),
        Runtime::Portable => serve_batches(DatapathKind::Portable, set, core),
        #[cfg(feature = "tokio-uring")]
        Runtime::TokioUring => tokio_uring(set, core),
        #[cfg(feature = "glommio")]
        Runtime::Glommio => glommio(set, core),
        #[cfg(not(all(feature = "tokio-uring", feature = "glommio")))]
        _ => anyhow::bail!("not compiled in"),
    }
}

fn serve_batches(kind: DatapathKind, set: &PublishedSet, core: usize) -> Result<()> {
    let mut scratch = Box::new(Scratch::new());
    serve::on_path(kind, Some(core), |path: &mut dyn Datapath| {
        let batch = path.wait(Duration::from_millis(20))?;
        let (inbox, outbox) = (batch.inbox, batch.outbox);
        if inbox.is_empty() {
            return Ok(());
        }
        let context = context(set);
        let datagrams = inbox.iter().map(|datagram| datagram.bytes);
        answer_batch(&context, &mut scratch, datagrams, |at, outcome| {
            let peer = inbox.get(at).peer;
            match outcome {
                InBatch::Fast(reply) => push(outbox, peer, reply),
                InBatch::Other(AnswerOutcome::Reply(reply)) => push(outbox, peer, reply),
                InBatch::Other(_) => 0,
            };
        });
        path.flush().map(drop)
    })
}

/// Writes the answer to one datagram, and returns its length; 0 for none.
#[cfg(any(feature = "tokio-uring", feature = "glommio"))]
fn answer_one(set: &PublishedSet, datagram: &[u8], out: &mut [u8]) -> usize {
    match answer(&context(set), datagram) {
        AnswerOutcome::Reply(reply) if reply.datagrams_len() <= out.len() => {
            reply.write_datagrams(out);
            reply.datagrams_len()
        }
        _ => 0,
    }
}

/// Announces the address, and ends this process at the end of its input, because the tasks never
/// end.
#[cfg(any(feature = "tokio-uring", feature = "glommio"))]
fn announce_until_end(address: std::net::SocketAddr) -> Result<()> {
    serve::announce(address)?;
    std::thread::spawn(|| {
        serve::wait_for_end();
        std::process::exit(0);
    });
    Ok(())
}

#[cfg(feature = "tokio-uring")]
fn tokio_uring(set: &PublishedSet, core: usize) -> Result<()> {
    use std::rc::Rc;
    use tokio_uring::buf::BoundedBuf as _;
    use tokio_uring::net::UdpSocket;

    serve::pin(Some(core));
    let options =
        handle_net::SocketOptions::new(std::net::SocketAddr::from(([127, 0, 0, 1], 0))).one_at_a_time();
    let socket = handle_net::bind(&options)?;
    let address = socket.local_addr()?;
    // Tasks must own the set, which is cheap to clone.
    let set = Rc::new(set.clone());
    tokio_uring::builder().entries(1024).start(async move {
        let socket = Rc::new(UdpSocket::from_std(socket));
        for _ in 0..TASKS_COUNT {
            let (socket, set) = (Rc::clone(&socket), Rc::clone(&set));
            tokio_uring::spawn(async move {
                let (mut buffer, mut out) = (vec![0; RECEIVE_LEN], vec![0; ANSWER_LEN_MAX]);
                loop {
                    let (received, filled) = socket.recv_from(buffer).await;
                    buffer = filled;
                    let Ok((len, peer)) = received else { continue };
                    let answer_len = answer_one(&set, &buffer[..len], &mut out);
                    for start in (0..answer_len).step_by(UDP_MESSAGE_LEN_MAX) {
                        let end = answer_len.min(start + UDP_MESSAGE_LEN_MAX);
                        let (_, sent) = socket.send_to(out.slice(start..end), peer).await;
                        out = sent.into_inner();
                    }
                }
            });
        }
        announce_until_end(address)?;
        std::future::pending().await
    })
}

#[cfg(feature = "glommio")]
fn glommio(set: &PublishedSet, core: usize) -> Result<()> {
    use glommio::net::UdpSocket;
    use glommio::{LocalExecutorBuilder, Placement, spawn_local};
    use std::rc::Rc;

    // Tasks must own the set, which is cheap to clone.
    let set = Rc::new(set.clone());
    let executor = LocalExecutorBuilder::new(Placement::Fixed(core)).make();
    let executor = executor.map_err(|error| anyhow::anyhow!("{error} (see: ulimit -l)"))?;
    executor.run(async move {
        let bound = UdpSocket::bind("127.0.0.1:0").map_err(|error| anyhow::anyhow!("{error}"))?;
        let address = bound.local_addr().map_err(|error| anyhow::anyhow!("{error}"))?;
        let socket = Rc::new(bound);
        for _ in 0..TASKS_COUNT {
            let (socket, set) = (Rc::clone(&socket), Rc::clone(&set));
            let task = spawn_local(async move {
                let (mut buffer, mut out) = (vec![0; RECEIVE_LEN], vec![0; ANSWER_LEN_MAX]);
                loop {
                    let Ok((len, peer)) = socket.recv_from(&mut buffer).await else { continue };
                    let answer_len = answer_one(&set, &buffer[..len], &mut out);
                    for piece in out[..answer_len].chunks(UDP_MESSAGE_LEN_MAX) {
                        // The client repeats lost requests.
                        let _ = socket.send_to(piece, peer).await;
                    }
                }
            });
            task.detach();
        }
        announce_until_end(address)?;
        std::future::pending().await
    })
}
