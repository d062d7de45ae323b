//! An echo server and a flood of requests for it, to measure how much a datapath carries.
//!
//! ```text
//! taskset -c 0 target/release/examples/echo serve --kind uring --addr 127.0.0.1:2641
//! taskset -c 1 target/release/examples/echo flood --kind portable --addr 127.0.0.1:2641
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use handle_net::{DatapathChoice, OpenedDatapath, Peer, SocketOptions, open};

/// Bytes of a request, and of an answer of typical size.
const REQUEST_LEN: usize = 64;
const ANSWER_LEN: usize = 180;

/// Most outstanding requests: enough for full batches, few enough for the receive queue.
const WINDOW: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let command = args.next().ok_or("missing command: expected `serve` or `flood`")?;
    let (mut choice, mut address) = (DatapathChoice::Auto, SocketAddr::from(([127, 0, 0, 1], 0)));
    let (mut seconds, mut batch_len) = (5, SocketOptions::default().batch_len);
    while let (Some(name), Some(value)) = (args.next(), args.next()) {
        match (&*name, &*value) {
            ("--kind", "auto") => choice = DatapathChoice::Auto,
            ("--kind", "uring") => choice = DatapathChoice::Uring,
            ("--kind", "portable") => choice = DatapathChoice::Portable,
            ("--addr", value) => address = value.parse()?,
            ("--seconds", value) => seconds = value.parse()?,
            ("--batch", value) => batch_len = value.parse()?,
            (name, value) => return Err(format!("unknown option {name} {value}").into()),
        }
    }
    let (options, end) =
        (SocketOptions { batch_len, ..SocketOptions::default() }, Duration::from_secs(seconds));
    match &*command {
        "serve" => serve(open(choice, &SocketOptions { address, ..options })?, end),
        "flood" => flood(open(choice, &options)?, address, end),
        _ => Err("unknown command: expected `serve` or `flood`".into()),
    }
}

/// Answers requests until `end` after the first one.
fn serve(OpenedDatapath { mut path, reason }: OpenedDatapath, end: Duration) -> Result<(), Box<dyn Error>> {
    println!("{} ({reason})", path.local_addr()?);
    let (mut answers, mut batches, mut failed, mut start) = (0u64, 0u64, 0u64, None);
    loop {
        let batch = path.wait(Duration::from_millis(100))?;
        if !batch.inbox.is_empty() {
            batches += 1;
            start.get_or_insert_with(Instant::now);
        }
        for datagram in batch.inbox.iter() {
            let answer = |buffer: &mut [u8]| {
                let len = datagram.bytes.len().min(ANSWER_LEN);
                buffer[..len].copy_from_slice(&datagram.bytes[..len]);
                ANSWER_LEN
            };
            failed += u64::from(batch.outbox.push(datagram.peer, ANSWER_LEN, answer).is_err());
        }
        let flushed = path.flush()?;
        answers += u64::from(flushed.sent);
        failed += u64::from(flushed.failed + flushed.would_block);
        if let Some(start) = start.filter(|start| start.elapsed() >= end) {
            let rate = answers as f64 / start.elapsed().as_secs_f64();
            let (mean, drops) = (answers / batches.max(1), path.kernel_drops());
            println!(
                "{}: {rate:.0} answers/s, {mean} a batch; {failed} failed, {drops} dropped",
                path.kind()
            );
            return Ok(());
        }
    }
}

/// Keeps `WINDOW` requests outstanding until `end`. A request without an answer is repeated after
/// 10 ms.
fn flood(opened: OpenedDatapath, to: SocketAddr, end: Duration) -> Result<(), Box<dyn Error>> {
    let OpenedDatapath { mut path, .. } = opened;
    let (peer, start) = (Peer::to(to), Instant::now());
    let (mut answers, mut under_way) = (0u64, 0);
    while start.elapsed() < end {
        while under_way < WINDOW && path.outbox().push(peer, REQUEST_LEN, |buffer| buffer.len()).is_ok() {
            under_way += 1;
        }
        path.flush()?;
        let received = path.wait(Duration::from_millis(10))?.inbox.len();
        answers += received as u64;
        under_way = if received == 0 { 0 } else { under_way.saturating_sub(received) };
    }
    println!("{}: {:.0} answers/s received", path.kind(), answers as f64 / start.elapsed().as_secs_f64());
    Ok(())
}
