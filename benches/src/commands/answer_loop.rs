//! Answers requests in a loop, without a socket, for profilers: `perf record`, `callgrind`.
//!
//! `docs/performance.md` says how to get instructions per answer from it.

use clap::ValueEnum;
use handle_benches::answers::{Answerer, BATCH_LEN};
use handle_benches::requests::{RequestKind, Requests};
use handle_benches::sets;
use handle_snapshot::Trust;
use std::hint::black_box;
use std::time::Instant;

/// Answers requests in a loop, without a socket.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Records in the set.
    #[arg(long, default_value_t = 100_000)]
    records: u64,
    /// Number of answers.
    #[arg(long, default_value_t = 10_000_000)]
    answers: usize,
    /// Kind of the requests.
    #[arg(long, value_enum, default_value_t = LoopRequest::Plain)]
    ask: LoopRequest,
    /// Compare each record with its checksum, as in sets with private values.
    #[arg(long)]
    checked: bool,
    /// Answer one request at a time instead of in stages.
    #[arg(long)]
    one: bool,
    /// Different requests, answered in a cycle.
    #[arg(long, default_value_t = 65_536)]
    requests: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum LoopRequest {
    Plain,
    Selected,
    Missing,
    Digest,
    Long,
}

impl From<LoopRequest> for RequestKind {
    fn from(request: LoopRequest) -> Self {
        match request {
            LoopRequest::Plain => Self::Plain,
            LoopRequest::Selected => Self::Selected,
            LoopRequest::Missing => Self::Missing,
            LoopRequest::Digest => Self::Digest,
            LoopRequest::Long => Self::Long,
        }
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut set = sets::open(args.records)?;
    sets::warm(&set);
    if args.checked {
        set = set.with_trust(|_| Trust::Checked);
    }
    let requests = Requests::new(args.records, args.requests, args.ask.into(), 1)?;
    let mut answerer = Answerer::new(&set);
    // Not the clock of the thread, which does not work under valgrind.
    let start = Instant::now();
    let (answers, len) = answer_all(&mut answerer, &requests, &args);
    let each = start.elapsed().as_secs_f64() / answers as f64;
    println!("{answers} answers, {} bytes each, {:.1} ns each", len / answers, each * 1e9);
    Ok(())
}

/// The function to profile, found by its name.
#[inline(never)]
fn answer_all<'a>(answerer: &mut Answerer<'a>, requests: &'a Requests, args: &Args) -> (usize, usize) {
    let (mut answers, mut len) = (0, 0);
    while answers < args.answers {
        if args.one {
            len += black_box(answerer.one(requests, answers));
            answers += 1;
        } else {
            len += black_box(answerer.batch(requests, answers));
            answers += BATCH_LEN;
        }
    }
    (answers, len)
}
