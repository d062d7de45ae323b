//! Processor time and memory of a process, as the kernel counts them, and a description of the
//! machine.

use anyhow::{Context as _, ensure};
use std::fs;
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Length of a tick in `/proc`: 1/100 s on all supported architectures.
const TICK: Duration = Duration::from_millis(10);
/// Time between two looks at the memory of this process.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Processor time of a process with all its threads.
///
/// The sum is exact. Most kernels sample the division into user and system time at each timer
/// interrupt; a share of 5 % of 10 s at 250 Hz is accurate to about a tenth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Time in the program.
    pub user: Duration,
    /// Time in the kernel for the program.
    pub system: Duration,
}

impl Usage {
    /// Returns the usage of the process `pid` until now.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        Self::read(pid, 11)
    }

    /// Returns the usage of all ended children of this process.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn of_ended_children() -> anyhow::Result<Self> {
        Self::read(std::process::id(), 13)
    }

    /// Reads user time from field `at` after the name, and system time from the next field.
    fn read(pid: u32, at: usize) -> anyhow::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name, in parentheses, may contain anything.
        let (_, fields) = stat.rsplit_once(") ").context("a name in parentheses")?;
        let ticks = |at: usize| -> anyhow::Result<u32> {
            Ok(fields.split(' ').nth(at).context("user and system time")?.parse()?)
        };
        Ok(Self { user: TICK * ticks(at)?, system: TICK * ticks(at + 1)? })
    }

    /// Returns the usage of the process `pid` and all its descendants.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of_tree(pid: u32) -> anyhow::Result<Self> {
        let mut sum = Self::of(pid)?;
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let children = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
            for child in children.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
                // A process that has just ended used little.
                let Ok(used) = Self::of_tree(child) else { continue };
                sum = Self { user: sum.user + used.user, system: sum.system + used.system };
            }
        }
        Ok(sum)
    }

    /// Returns the sum of user and system time.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.user + self.system
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { user: self.user - earlier.user, system: self.system - earlier.system }
    }
}

/// Returns the processor time of the calling thread.
///
/// # Panics
/// When the clock of the kernel returns a negative time.
#[must_use]
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("the processor time is not negative")
}

/// Returns how long `core` has been idle since the start of the machine.
///
/// # Errors
/// When there is no such core.
pub fn idle(core: usize) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    let name = format!("cpu{core} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name)).context("no such core")?;
    let mut ticks = line.split(' ').skip(3).map(str::parse::<u32>);
    let idle = ticks.next().context("idle time")??;
    let waiting = ticks.next().context("time of waiting for devices")??;
    Ok(TICK * (idle + waiting))
}

/// Returns the peak resident memory of this process, in bytes.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn resident_len_max() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let text = line.trim();
    ensure!(text.ends_with(" kB"), "VmHWM is {text}");
    Ok(text[..text.len() - 3].parse::<u64>()? << 10)
}

/// Returns the resident memory of the process `pid`, in bytes.
///
/// # Errors
/// When there is no such process.
pub fn resident_len(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes << 10)
}

/// Returns the resident memory of this process that is not of files, in bytes.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn private_len() -> anyhow::Result<u64> {
    own_len("RssAnon:")
}

/// Returns the resident memory of this process that is of mapped files, in bytes. The kernel takes
/// it back when it needs memory.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn mapped_len() -> anyhow::Result<u64> {
    own_len("RssFile:")
}

/// Returns the length in a line of the status of this process.
fn own_len(name: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes: u64 = line.with_context(|| name.to_owned())?.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes << 10)
}

/// Looks at the memory of this process that is not of files several times a second, and keeps the
/// most that was seen. The kernel keeps the peak of both kinds together only.
#[derive(Debug)]
pub struct PrivatePeak(Arc<AtomicU64>);

impl PrivatePeak {
    /// Begins to look, until the process ends.
    #[must_use]
    pub fn begin() -> Self {
        let most = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&most);
        thread::spawn(move || {
            while let Ok(now) = private_len() {
                seen.fetch_max(now, Ordering::Relaxed);
                thread::sleep(LOOK_INTERVAL);
            }
        });
        Self(most)
    }

    /// Returns the most that was seen, in bytes.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Describes processor, cores and kernel, as every published figure must.
#[must_use]
pub fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // All cores of the machine, also if this thread is pinned to one of them.
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    format!("{}, {cores} cores, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}
