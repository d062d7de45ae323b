//! The longer texts of the help: examples, and tables of what can be written.

use std::fmt::Write as _;

use handle_loadgen::QuestionForm;
use handle_loadgen::assertion::MEASURES;

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  good
  1  a promise (--assert) does not hold
  2  the command line makes no sense
  3  the run does not count, an answer was wrong, or it could not be done; the report says why";

pub(crate) const RUN: &str = "\
With --rate, request i is due at start + i/rate whatever happened to earlier ones (open loop).
Response time counts from then, service time from when it was really sent. Requests that could
not be sent in time are counted as not sent, and more than 0.1 % of them make the run invalid.
With --max each thread keeps a window of requests waiting (closed loop): that finds the highest
rate, but its times say little, as a slow server is asked less.

Examples:
  handle-loadgen run --target 127.0.0.1:2641 --handles names.txt --rate 50k --duration 30s
  handle-loadgen run --target [::1]:2641 --snapshot /var/lib/handle --rate 10000 --verify
  handle-loadgen run --target 10.0.0.5:2641 --handles names.txt --max --threads 2 --cores 2,3
  handle-loadgen run --target 127.0.0.1:2641 --generate 100k --ramp 1k..100k --poisson
  handle-loadgen run --target 127.0.0.1:8000 --transport http-json --handles names.txt --rate 500
  handle-loadgen run --target 127.0.0.1:2641 --replay capture.pcap --speed x2
  handle-loadgen run --target 127.0.0.1:2641 --handles names.txt --rate 1k --quick \\
      --assert 'p99<5ms' --assert 'loss<0.01%'
  handle-loadgen limit --json limit.json
  handle-loadgen run --target 127.0.0.1:2641 --snapshot set --max --share-of limit.json

Exit codes:
  0  good
  1  a promise (--assert) does not hold
  2  the command line makes no sense
  3  the run does not count (stopped, not sent, behind schedule, no answer, own drops), an answer
     is wrong or could not be judged, or it could not be done";

pub(crate) const FIND_MAX: &str = "\
Rates are doubled until one is too high, and the gap is halved until it is narrow. What is found is
run again for longer; the report has the lowest and the highest of these runs, and says when it was
the generator and not the server that could not do more.

Examples:
  handle-loadgen find-max --target 127.0.0.1:2641 --snapshot set --loss 0.1% --p99 5ms
  handle-loadgen find-max --target 127.0.0.1:2641 --handles names.txt --trial 5s --repeat 5 \\
      --json max.json

Exit codes:
  0  a rate was found and confirmed
  1  no rate is good
  2  the command line makes no sense
  3  there was no answer at all, it was stopped, or it could not be done";

pub(crate) const COMPARE: &str = "\
Each whole second is a sample, drawn again in blocks and, where there are several runs of a side,
by runs. The change is that of B against A, with the interval in which it lies with a confidence of
95 %; where 0 is in it, no difference is shown.

Example:
  handle-loadgen compare before.json after.json --more-a before-2.json --more-b after-2.json";

pub(crate) const REPLAY: &str = "\
Example:
  handle-loadgen run --target 127.0.0.1:2641 --snapshot set --rate 1k --verify \\
      --mismatches wrong.jsonl
  handle-loadgen replay wrong.jsonl --target 127.0.0.1:2641

Exit codes:
  0  all are right now
  1  some are not
  2  the command line makes no sense
  3  it could not be done";

pub(crate) const HOSTILE: &str = "\
Requests are changed by rules that know the protocol: lengths that lie, fragments that disagree,
unknown operations, broken names, noise. After each, a plain question must be answered as at first.

Examples:
  handle-loadgen hostile --target 127.0.0.1:2641 --probe 10.5072/test --duration 10m \\
      --junit hostile.xml
  handle-loadgen hostile --target 127.0.0.1:2641 --probe 10.5072/test --tcp --cases 10000 --seed 7

Exit codes:
  0  nothing was found
  1  something was found
  2  the command line makes no sense, or the server does not answer to begin with
  3  it was stopped before anything was found, or could not be done";

pub(crate) const HTML: &str = "\
Example:
  handle-loadgen html report.json --output report.html";

pub(crate) const COMPLETIONS: &str = "\
Example:
  handle-loadgen completions bash > ~/.local/share/bash-completion/completions/handle-loadgen";

pub(crate) const MAN: &str = "\
Example:
  handle-loadgen man ~/.local/share/man/man1";

pub(crate) const LIMIT: &str = "\
Use the sizes of the real traffic: a request is 60 bytes and its handle. The result is an upper
bound for a server on one core that sends and receives single datagrams.

Examples:
  handle-loadgen limit
  handle-loadgen limit --answer-len 400 --datapath portable --json limit.json";

pub(crate) const ECHO: &str = "\
Without --answer-len each request comes back as it is. With it, the answer has that many bytes and
is a successful one without meaning.

Examples:
  handle-loadgen echo --listen 127.0.0.1:2641 --answer-len 180 --core 0
  handle-loadgen run --target 127.0.0.1:2641 --handles names.txt --max --cores 1";

/// The help of `run` with tables of attributes and measures.
pub(crate) fn run_long() -> String {
    let mut text = String::new();
    let mut table = |title: &str, rows: &[(&str, &str)]| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{title}");
        for (name, meaning) in rows {
            let _ = writeln!(text, "  {name:<36} {meaning}");
        }
        text.push('\n');
    };
    table("Attributes of a form (--mix WEIGHT=ATTRIBUTE+ATTRIBUTE):", &QuestionForm::ATTRIBUTES);
    table("What can be promised (--assert MEASURE<BOUND, also <=, > and >=):", &MEASURES);
    text + RUN
}
