use super::*;
use crate::{Config, Gateway};
use handle_proto::Value;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::{Builder, HomedPrefixes, LayerOptions};
use std::collections::BTreeSet;

/// The metrics of a gateway with a set and other services.
fn metrics() -> String {
    let directory = tempfile::tempdir().unwrap();
    let (set, local_info) = (directory.path().join("set"), directory.path().join("local_info.json"));
    std::fs::create_dir(&set).unwrap();
    std::fs::write(&local_info, "[]").unwrap();
    let options = LayerOptions { seed: 1, folds: true, created_unix_ms: 1 };
    let mut publisher = SetPublisher::open(&set).unwrap();
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(HomedPrefixes::default());
        builder.add(0, b"10.1/a", [Value::new(1, b"URL", b"https://example.org/")])?;
        builder.finish(file)
    });
    published.unwrap();
    let listen = vec![([127, 0, 0, 1], 0).into()];
    let mut config = Config { snapshot: Some(set), listen, workers: 1, ..Config::default() };
    config.upstream.local_info = Some(local_info);
    let gateway = Gateway::start(&config).unwrap();
    let text = gateway.state().metrics().unwrap();
    gateway.stop().unwrap();
    text
}

fn operations(file: &str) -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/").to_owned() + file
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_metrics_that_exist() {
    let metrics = metrics();
    let exported: BTreeSet<&str> = metrics.lines().filter_map(|line| line.split([' ', '{']).next()).collect();
    for file in ["handled-dashboard.json", "alerts.yml"] {
        let text = std::fs::read_to_string(operations(file)).unwrap();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text.split(|c| !is_part(c)).filter(|word| word.starts_with("handle_gateway_"));
        let mut count = 0;
        for name in words {
            assert!(exported.contains(name), "{file}: {name} is not among the metrics");
            count += 1;
        }
        assert!(count > 10, "{file} watches the gateway: {count}");
    }
}
