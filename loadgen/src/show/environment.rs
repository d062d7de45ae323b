//! The machine and the program of a measurement.

use std::fs;

use serde::{Deserialize, Serialize};

/// The machine and the program of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Environment {
    /// This program and its version.
    pub program: String,
    /// The command as it was typed.
    pub command: Vec<String>,
    /// Name and release of the kernel.
    pub kernel: String,
    /// The name that the processor reports.
    pub cpu_model: String,
    /// The frequency governor, if the system reports it.
    #[serde(default)]
    pub governor: Option<String>,
    /// Cores that this process may use.
    pub cores: usize,
    /// The compilation target of the program, and whether it was optimised.
    pub build: String,
}

impl Environment {
    /// Collects the facts; `unknown` stands for what cannot be determined.
    #[must_use]
    pub fn read() -> Self {
        Self {
            program: concat!("handle-loadgen ", env!("CARGO_PKG_VERSION")).to_owned(),
            command: std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect(),
            kernel: format!("{} {}", first_line("ostype"), first_line("osrelease")),
            cpu_model: cpu_model().unwrap_or_else(|| "unknown".to_owned()),
            governor: governor(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            build: format!(
                "{}-{}, {}",
                std::env::consts::ARCH,
                std::env::consts::OS,
                if cfg!(debug_assertions) { "not optimised" } else { "optimised" }
            ),
        }
    }
}

fn first_line(name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}

fn governor() -> Option<String> {
    let text = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok()?;
    Some(text.trim().to_owned())
}

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name") || line.starts_with("Model"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
