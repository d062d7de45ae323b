//! What a process used, as the kernel counts it, and what machine this is.

use anyhow::{Context as _, ensure};
use std::fs;
use std::ops::Sub;
use std::time::Duration;

/// Length of a tick in `/proc`: 1/100 s on every architecture we build for.
const TICK: Duration = Duration::from_millis(10);

/// Processor time of a process with all its threads.
///
/// The sum is exact. How it divides into user and system is sampled by most kernels, at each timer
/// interrupt; a share of 5 % of 10 s at 250 Hz is right to about a tenth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// In the program.
    pub user: Duration,
    /// In the kernel on its behalf.
    pub system: Duration,
}

impl Usage {
    /// Of the process `pid` until now.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        Self::read(pid, 11)
    }

    /// Of all processes that this one started and that have ended.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn of_ended_children() -> anyhow::Result<Self> {
        Self::read(std::process::id(), 13)
    }

    /// User time is the field number `at` after the name, and system time the next.
    fn read(pid: u32, at: usize) -> anyhow::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name, in parentheses, may contain anything.
        let (_, fields) = stat.rsplit_once(") ").context("a name in parentheses")?;
        let ticks = |nth: usize| -> anyhow::Result<u32> {
            Ok(fields.split(' ').nth(nth).context("user and system time")?.parse()?)
        };
        Ok(Self { user: TICK * ticks(at)?, system: TICK * ticks(at + 1)? })
    }

    /// Of the process `pid` and all that it started, and they.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of_tree(pid: u32) -> anyhow::Result<Self> {
        let mut sum = Self::of(pid)?;
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let children = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
            for child in children.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
                // One that has just ended used little.
                let Ok(used) = Self::of_tree(child) else { continue };
                sum = Self { user: sum.user + used.user, system: sum.system + used.system };
            }
        }
        Ok(sum)
    }

    /// Both together.
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

/// Processor time of the calling thread: a clock that stands while somebody else has the core.
///
/// # Panics
/// When the kernel's clock runs backwards.
#[must_use]
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a time since the thread was started")
}

/// How long `core` has been idle since the start of the machine.
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

/// Most bytes of memory that this process has had resident.
///
/// # Errors
/// When the kernel does not say.
pub fn resident_len_max() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let text = line.trim();
    ensure!(text.ends_with(" kB"), "VmHWM is {text}");
    Ok(text[..text.len() - 3].parse::<u64>()? << 10)
}

/// Processor, kernel, cores: what a published number must say about the machine.
#[must_use]
pub fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // Of the machine; this thread may be pinned to one of them.
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    format!("{}, {cores} cores, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}
