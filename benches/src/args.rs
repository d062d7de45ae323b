//! Options that several commands have.

/// Options of commands that load a server on one core from another.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Core of the servers.
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// Core of the load.
    #[arg(long, default_value_t = 1)]
    pub client_core: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Connections that do little, beside which a server is measured.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct CrowdArgs {
    /// Idle connections of the crowd.
    #[arg(long, default_value_t = 10_000)]
    pub idle: usize,
    /// Slow connections of the crowd; each sends a byte per second.
    #[arg(long, default_value_t = 1_000)]
    pub slow: usize,
}
