//! The longer texts of the help: examples, attributes and measures.

use std::fmt::Write as _;

use crate::QuestionForm;
use crate::judge::assertion::MEASURES;

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  an assertion (--assert) does not hold
  2  invalid command line
  3  the run is invalid, an answer was wrong, or the command failed; the report says why";

pub(crate) const RUN: &str = "\
With --rate, request i is due at start + i/rate, whatever happened to earlier requests (open loop).
Response time counts from the due time, service time from the actual send time. Requests that are
not sent in time count as not sent; more than 0.1 % of them make the run invalid. With --max, each
thread keeps a window of pending requests (closed loop). This finds the highest rate, but its times
mean little, because a slow server gets fewer requests.

Examples:
  handle-loadgen run --target 127.0.0.1:2641 --handles names.txt --rate 50k --duration 30s
  handle-loadgen run --target [::1]:2641 --snapshot /var/lib/handle --rate 10000 --verify
  handle-loadgen run --target 10.0.0.5:2641 --handles names.txt --max --threads 2 --cores 2,3
  handle-loadgen run --target 127.0.0.1:2641 --generate 100k --ramp 1k..100k --poisson
  handle-loadgen run --target 127.0.0.1:8000 --transport http-json --handles names.txt --rate 500
  handle-loadgen run --target localhost:8000 --transport http-redirect --http2 --insecure \\
      --pipeline 16 --handles names.txt --max
  handle-loadgen run --target 127.0.0.1:2641 --replay capture.pcap --speed x2
  handle-loadgen run --target 127.0.0.1:2641 --handles names.txt --rate 1k --quick \\
      --assert 'p99<5ms' --assert 'loss<0.01%'
  handle-loadgen limit --json limit.json
  handle-loadgen run --target 127.0.0.1:2641 --snapshot set --max --share-of limit.json

Exit codes:
  0  success
  1  an assertion (--assert) does not hold
  2  invalid command line
  3  the run is invalid (stopped, not sent, behind schedule, no answer, drops at the socket), an
     answer is wrong or cannot be judged, or the command failed";

pub(crate) const FIND_MAX: &str = "\
The rate is doubled until it is too high, and the gap is halved until it is narrow. Longer runs then
confirm the result. The report has the lowest and highest figures of these runs, and tells whether
the server or the generator was the limit.

Examples:
  handle-loadgen find-max --target 127.0.0.1:2641 --snapshot set --loss 0.1% --p99 5ms
  handle-loadgen find-max --target 127.0.0.1:2641 --handles names.txt --trial 5s --repeat 5 \\
      --json max.json

Exit codes:
  0  a rate was found and confirmed
  1  no rate meets the limits
  2  invalid command line
  3  no answer at all, stopped, or failed";

pub(crate) const COMPARE: &str = "\
Each whole second is a sample. Samples are resampled in blocks and, with several runs of a side, by
runs. The change is that of B against A, with its 95 % confidence interval; if that contains 0, the
difference is not significant.

Example:
  handle-loadgen compare before.json after.json --more-a before-2.json --more-b after-2.json";

pub(crate) const REPLAY: &str = "\
Example:
  handle-loadgen run --target 127.0.0.1:2641 --snapshot set --rate 1k --verify \\
      --mismatches wrong.jsonl
  handle-loadgen replay wrong.jsonl --target 127.0.0.1:2641

Exit codes:
  0  all answers are correct now
  1  some are not
  2  invalid command line
  3  failed";

pub(crate) const HOSTILE: &str = "\
Requests are mutated with knowledge of the protocol: wrong lengths, inconsistent fragments, unknown
operations, invalid names, noise. After each case, a plain question must be answered as at first.

Examples:
  handle-loadgen hostile --target 127.0.0.1:2641 --probe 10.5072/test --duration 10m \\
      --junit hostile.xml
  handle-loadgen hostile --target 127.0.0.1:2641 --probe 10.5072/test --tcp --cases 10000 --seed 7

Exit codes:
  0  no findings
  1  findings
  2  invalid command line, or the server does not answer the first question
  3  stopped before any finding, or failed";

pub(crate) const HTML: &str = "\
Example:
  handle-loadgen html report.json --output report.html";

pub(crate) const COMPLETIONS: &str = "\
Example:
  handle-loadgen completions bash > ~/.local/share/bash-completion/completions/handle-loadgen";

pub(crate) const LIMIT: &str = "\
Use the sizes of the real traffic: a request is 60 bytes and its handle. The result is an upper
bound for a server on one core that sends and receives single datagrams.

Examples:
  handle-loadgen limit
  handle-loadgen limit --answer-len 400 --datapath portable --json limit.json";

pub(crate) const ECHO: &str = "\
Without --answer-len, each request is returned unchanged. With it, the answer has that length and
is a successful response without meaningful content.

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
    table("Measures (--assert MEASURE<BOUND, also <=, > and >=):", &MEASURES);
    text + RUN
}
