//! The store and its publisher in a separate process, which takes commands as lines on standard
//! input.

use anyhow::{Context as _, bail};
use handle_admin::publish::{Command, PublishConfig, StorePublisher};
use handle_benches::records::{RecordBuffer, RecordGenerator};
use handle_benches::usage::PrivatePeak;
use handle_benches::{serve, usage};
use handle_proto::{Value, Values};
use handle_store::{Store, StoreConfig};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for a command.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Memory for sorting the imported records.
const IMPORT_MEMORY_LEN: usize = 256 << 20;
/// Distance between the numbers of successively changed records.
const STRIDE: u64 = 7_919;

/// Returns the monotonic clock, which all processes share, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let [seconds, nanos] = [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000_000 + nanos
}

/// Returns the number of the record that change `number` changes.
pub(crate) fn changed_record(number: u64, records: u64) -> u64 {
    number * STRIDE % records
}

/// Prefix of the value that a change writes; the number of the change follows.
pub(crate) const CHANGED: &str = "https://changed.example/";

/// Handle to the process.
pub(crate) struct Keeper {
    process: Child,
    output: BufReader<ChildStdout>,
    input: ChildStdin,
    pub(crate) records: u64,
}

impl Keeper {
    pub(crate) fn start(dir: &Path, records: u64, core: usize) -> anyhow::Result<Self> {
        // With idle priority, the store takes no processor time from the load, as if the load came
        // from another machine.
        let mut process = std::process::Command::new("chrt")
            .args(["--idle", "0"])
            .args(serve::this_command()?)
            .arg("keep")
            .arg(dir)
            .args([records.to_string(), core.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start `chrt` (of util-linux), which gives the store idle priority")?;
        let output = BufReader::new(process.stdout.take().context("standard output was piped")?);
        let input = process.stdin.take().context("standard input was piped")?;
        Ok(Self { process, output, input, records })
    }

    pub(crate) fn send(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.input, "{line}")?;
        Ok(self.input.flush()?)
    }

    /// Reads the next line, which must begin with `word`, and returns the rest.
    pub(crate) fn read_answer(&mut self, word: &str) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        match line.trim_end().strip_prefix(word) {
            Some(rest) => Ok(rest.trim_start().to_owned()),
            None => bail!("the store's process says {line:?} in place of {word}"),
        }
    }

    /// Reads the next acknowledgement: number of the change and its time. `None` after the last
    /// one.
    pub(crate) fn next_acknowledgement(&mut self) -> anyhow::Result<Option<(u64, u64)>> {
        let line = self.read_answer("")?;
        if line == "changed" {
            return Ok(None);
        }
        let (number, at) =
            line.strip_prefix("ack ").and_then(|rest| rest.split_once(' ')).context("`ack`")?;
        Ok(Some((number.parse()?, at.parse()?)))
    }

    pub(crate) fn ask(&mut self, line: &str) -> anyhow::Result<String> {
        self.send(line)?;
        self.read_answer(line.split(' ').next().unwrap_or_default())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // It has no state to save.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In the process: imports, publishes, and executes commands.
pub(crate) fn keep(dir: &Path, records: u64, core: usize) -> anyhow::Result<()> {
    serve::pin(Some(core));
    let private = PrivatePeak::begin();
    std::fs::create_dir_all(dir)?;
    let config = StoreConfig::at(&dir.join("store"));
    let generator = RecordGenerator::new()?;
    let started = Instant::now();
    let store = match config.file.exists() {
        true => Store::open(&config)?,
        false => {
            let store = Store::create(&config, true)?;
            import(&store, dir, &generator, records)?;
            store
        }
    };
    let store = Arc::new(store);
    print_line(&format!("imported {records} records in {:.1} s", started.elapsed().as_secs_f64()))?;
    let started = Instant::now();
    let publish = PublishConfig { directory: Some(dir.join("set")), ..PublishConfig::default() };
    let publishing = StorePublisher::start(store.clone(), &publish)?;
    wait_until_visible(&store, &publishing)?;
    let status = publishing.status();
    let handles = status.set.map_or(0, |set| set.handles);
    print_line(&format!("published {handles} handles in {:.1} s", started.elapsed().as_secs_f64()))?;
    let mut changes = 0..;
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let number =
            |at: usize| words.get(at).context("a number")?.parse::<u64>().map_err(anyhow::Error::from);
        match words[0] {
            "change" => {
                let rate = number(2)?;
                let begin = Instant::now();
                for (at, change) in (0..number(1)?).zip(&mut changes) {
                    let due = begin + Duration::from_nanos(at * 1_000_000_000 / rate);
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    apply_change(&store, &generator, change, records)?;
                    print_line(&format!("ack {change} {}", now_ns()))?;
                }
                print_line("changed")?;
            }
            "create" => {
                let (count, clients) = (number(1)?, number(2)?.max(1));
                let started = Instant::now();
                create(&store, count, clients)?;
                let rate = count as f64 / started.elapsed().as_secs_f64();
                print_line(&format!("create {rate:.0} durable creations a second by {clients} clients"))?;
                wait_until_visible(&store, &publishing)?;
            }
            command @ ("merge" | "rebuild") => {
                let (rebuilds, started) = (publishing.status().counts.rebuilds, Instant::now());
                publishing.command(if command == "merge" { Command::Merge } else { Command::Rebuild })?;
                let is_done = |status: handle_admin::publish::PublishStatus| match command {
                    "merge" => status.set.is_some_and(|set| set.layers.len() == 1),
                    _ => status.counts.rebuilds > rebuilds,
                };
                while !is_done(publishing.status()) && started.elapsed() < TIMEOUT {
                    std::thread::sleep(Duration::from_millis(10));
                }
                print_line(&format!("{command} {:.1} s", started.elapsed().as_secs_f64()))?;
            }
            "memory" => print_line(&format!(
                "memory {} MiB held at most, {} MiB now, and {} MiB of mapped files; {} MiB of both at most",
                private.most() >> 20,
                usage::private_len()? >> 20,
                usage::mapped_len()? >> 20,
                usage::resident_len_max()? >> 20
            ))?,
            "status" => print_line(&format!("status {}", serde_json::to_string(&publishing.status())?))?,
            other => bail!("unknown command {other:?}"),
        }
    }
    Ok(())
}

fn print_line(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn wait_until_visible(store: &Store, publishing: &StorePublisher) -> anyhow::Result<()> {
    anyhow::ensure!(publishing.wait_for(store.last_id(), TIMEOUT), "not visible: {:?}", publishing.status());
    Ok(())
}

/// Imports generated records into a store; `dir` takes files for sorting.
pub(crate) fn import(
    store: &Store,
    dir: &Path,
    generator: &RecordGenerator,
    records: u64,
) -> anyhow::Result<()> {
    let mut bulk = store.bulk(dir, IMPORT_MEMORY_LEN);
    generator.prefixes().into_iter().for_each(|prefix| bulk.home(prefix));
    let (mut buffer, mut encoded) = (RecordBuffer::default(), Vec::new());
    for n in 0..records {
        let record = generator.record(n, &mut buffer);
        encoded.clear();
        bulk.add(record.handle, Values::build(record.values, &mut encoded))?;
    }
    bulk.finish(|_| {})?;
    Ok(())
}

fn put(store: &Store, handle: &[u8], data: Vec<u8>) -> anyhow::Result<()> {
    let key = handle_store::key(handle, store.folds());
    Ok(store.change(move |transaction| {
        transaction.put(&key, Values::build([Value::new(1, b"URL", &data)], &mut Vec::new()))
    })?)
}

fn apply_change(store: &Store, generator: &RecordGenerator, number: u64, records: u64) -> anyhow::Result<()> {
    let mut handle = Vec::new();
    generator.handle(changed_record(number, records), &mut handle);
    put(store, &handle, format!("{CHANGED}{number}/").into_bytes())
}

fn create(store: &Store, count: u64, clients: u64) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let client = |client: u64| {
            (0..count / clients).try_for_each(|number| {
                let handle = format!("10.1016/created-{client}-{number}");
                put(
                    store,
                    handle.as_bytes(),
                    format!("https://created.example/{client}/{number}").into_bytes(),
                )
            })
        };
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
    })
}
