//! Kernel statistics of this process, under the names that Prometheus clients use everywhere.

use std::fs;

/// Statistics of the process; `None` where the kernel provides none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ProcessFigures {
    /// Open file descriptors.
    pub(super) open_fds: Option<u64>,
    /// Maximum number of open file descriptors.
    pub(super) max_fds: Option<u64>,
    /// Bytes of resident memory, including the resident part of mapped files.
    pub(super) resident_bytes: Option<u64>,
    /// Processor time of all threads, user and system, in seconds.
    pub(super) cpu_s: Option<f64>,
}

impl ProcessFigures {
    /// Reads the current statistics.
    #[must_use]
    pub(super) fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (cpu_ticks, resident_pages) = parse_stat(&stat).unzip();
        #[expect(clippy::cast_precision_loss, reason = "exact for 2.8 million years of processor time")]
        let cpu_s = cpu_ticks.map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
        Self {
            // Reading the directory opens one descriptor itself.
            open_fds: fs::read_dir("/proc/self/fd")
                .ok()
                .map(|entries| (entries.count() as u64).saturating_sub(1)),
            max_fds: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
            resident_bytes: resident_pages.map(|pages| pages * rustix::param::page_size() as u64),
            cpu_s,
        }
    }
}

/// Processor time in ticks, and resident pages: fields 14, 15 and 24 of `/proc/self/stat`.
fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    // The name of the program may contain any character, but ends with the last parenthesis; field
    // 3 follows.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some((field(14)? + field(15)?, field(24)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let stat =
            "7 (a) b) c) S 1 7 7 0 -1 4194560 1 2 3 4 50 8 0 0 20 0 1 0 100 2000 300 18446744073709551615";
        assert_eq!(parse_stat(stat), Some((58, 300)));
        for len in 0..stat.len() - 25 {
            assert_eq!(parse_stat(&stat[..len]), None, "cut to {len}");
        }
    }

    #[test]
    fn knows_its_own_process() {
        let before = ProcessFigures::now();
        let held = fs::File::open("/proc/self/stat").unwrap();
        let after = ProcessFigures::now();
        // Other tests open and close files at the same time, so the comparison is loose.
        assert!(
            before.open_fds.unwrap() >= 3 && after.open_fds.unwrap() <= after.max_fds.unwrap_or(u64::MAX)
        );
        assert!(after.resident_bytes.unwrap() > 1 << 16 && after.cpu_s.unwrap() >= before.cpu_s.unwrap());
        drop(held);
    }
}
