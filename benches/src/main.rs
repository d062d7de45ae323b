//! `handle-bench`: measures the figures of `docs/performance.md`.
#![forbid(unsafe_code)]

mod commands;

fn main() -> anyhow::Result<()> {
    commands::main()
}
