//! The process that `processes::fleets_bucket_faults` kills: serves a directory as object storage.
#![forbid(unsafe_code)]

use anyhow::Context as _;
use handle_tests::bucket_server::{BucketConditions, BucketServer};
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let dir = std::env::args().nth(1).context("the directory")?;
    let address = std::env::args().nth(2).context("an address")?.parse()?;
    let _server = BucketServer::start_with(Path::new(&dir), address, BucketConditions::Both);
    loop {
        std::thread::park();
    }
}
