//! The metrics that each process serves are those that it declares.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use super::gateway::site_of;
use handle_daemon::metrics::MetricGroup;
use handle_source::{PullConfig, SourceConfig};
use handle_tests::admin_server::administer_with;
use handle_tests::client::{TestClient, exchange_over_tcp, request};
use handle_tests::fleet::write_secret;
use handle_tests::gateway_server::{serve_over_http, use_tls};
use handle_tests::http;
use handle_tests::process::until;
use handle_tests::record_backend::RecordBackend;
use handle_tests::test_server::serve_with;
use handle_tests::vectors::VectorSource;
use handle_worker::config::Datapath;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Kind and labels of each metric, by its name.
type MetricShapes = BTreeMap<String, (String, BTreeSet<String>)>;

/// What the endpoint at `address` serves. A metric without a series has no labels.
fn served(address: SocketAddr) -> MetricShapes {
    let text = http::get(address, "/metrics").unwrap().body;
    assert!(text.ends_with("# EOF\n"), "{text}");
    let mut shapes = MetricShapes::new();
    let mut name = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let kind;
            (name, kind) = rest.split_once(' ').unwrap();
            assert!(
                shapes.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new())).is_none(),
                "{name} twice"
            );
        } else if let Some((series, labels)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            assert!(series.starts_with(name), "{line} is below {name}");
            let (labels, _) = labels.rsplit_once('}').unwrap();
            let names = labels.split("\",").filter_map(|pair| Some(pair.split_once('=')?.0));
            shapes.get_mut(name).unwrap().1.extend(names.filter(|name| *name != "le").map(str::to_owned));
        }
    }
    shapes
}

fn declared(groups: &[MetricGroup]) -> MetricShapes {
    let rows = groups.iter().flat_map(|group| &group.rows);
    rows.map(|row| {
        let labels = row.labels.iter().map(|&label| label.to_owned()).collect();
        (row.name.to_owned(), (row.kind.name().to_owned(), labels))
    })
    .collect()
}

#[test]
fn handled_serves_the_metrics_that_it_declares() {
    let server = serve_with("main", Datapath::Portable, |config| {
        config.observe.http = Some(([127, 0, 0, 1], 0).into());
        // The metrics of forwarding exist when it is enabled; the socket need not accept
        // connections.
        config.forward.socket = Some("/nonexistent/admin.socket".into());
    });
    // The question makes the first series of the busiest networks.
    TestClient::new(server.address()).resolve(b"10.5072/URL-ONE").unwrap();
    let served = served(server.server.http_address().unwrap());
    assert_eq!(served, declared(&handle_worker::observe::metric_groups()));
}

#[test]
fn handle_admin_serves_the_metrics_that_it_declares() {
    let backend = RecordBackend::start(&[]);
    let administered = administer_with("root", |config| {
        config.observe.http = Some(([127, 0, 0, 1], 0).into());
        config.publish.directory = Some(config.store.file.with_file_name("set"));
        config.publish.ship.url = format!("file://{}", config.store.file.with_file_name("shipped").display());
        let key = config.store.file.with_file_name("notice-key");
        write_secret(&key, &"k".repeat(64));
        config.publish.notify.key_file = Some(key);
        config.publish.notify.listen = Some(([127, 0, 0, 1], 0).into());
        let source = |name: &str, prefix: &str, url: String| SourceConfig {
            name: name.to_owned(),
            prefixes: vec![prefix.to_owned()],
            url,
            ..SourceConfig::default()
        };
        let copied = source("copied", "10.2", backend.url());
        config.sources = vec![
            source("asked", "10.1", "http://127.0.0.1:9/".to_owned()),
            SourceConfig { pull: Some(PullConfig::default()), ..copied },
        ];
    });
    // Before, the age of the copy is not known.
    let pulls = &administered.server().shared().pulls;
    until("the source is copied", || pulls.status()[0].counts.compares == 1);
    exchange_over_tcp(administered.address(), &request(b"TST/ITEM-001", 1)).unwrap();
    let served = served(administered.server().http_address().unwrap());
    let mut declared = declared(&handle_admin::observe::metric_groups());
    // These have no series before a mirror has asked; `replication` tests their labels.
    let of_mirrors = declared.iter_mut().filter(|(name, _)| name.starts_with("handle_admin_receiver_"));
    of_mirrors.for_each(|(_, (_, labels))| labels.clear());
    // These belong to a process that is a mirror itself, whose metrics `mirroring` reads.
    declared.retain(|name, _| !name.starts_with("handle_admin_mirror_"));
    assert_eq!(served, declared);
}

#[test]
fn handle_gateway_serves_the_metrics_that_it_declares() {
    let directory = tempfile::tempdir().unwrap();
    let (served_here, _) = serve_over_http(VectorSource::Own, "root", |config| {
        config.observe.http = Some(([127, 0, 0, 1], 0).into());
        config.upstream.resolver_site = Some(site_of(([127, 0, 0, 1], 9).into(), directory.path()));
        config.registration.directory = Some(directory.path().join("requests"));
        config.registration.reviewers = vec!["300:0.NA/TST".to_owned()];
        config.admin.address = Some(([127, 0, 0, 1], 9).into());
        config.admin.socket = Some(directory.path().join("admin.socket"));
        use_tls(config, directory.path());
    });
    let served = served(served_here.gateway.http_address().unwrap());
    assert_eq!(served, declared(&handle_gateway::observe::metric_groups()));
}

#[test]
fn handle_cache_serves_the_metrics_that_it_declares_and_those_of_handled() {
    let mut config = handle_cache::Config {
        listen: vec![([127, 0, 0, 1], 0).into()],
        workers: 1,
        pin: false,
        datapath: Datapath::Portable,
        ..handle_cache::Config::default()
    };
    config.observe.http = Some(([127, 0, 0, 1], 0).into());
    config.upstream.servers = vec!["127.0.0.1:9".to_owned()];
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("notice-key");
    write_secret(&key, &"k".repeat(64));
    (config.notify.address, config.notify.key_file) = ("127.0.0.1:9".to_owned(), Some(key));
    let (server, _cache) = handle_cache::program::start(&config, None).unwrap();
    let address = server.http_address().unwrap();
    let mut served = served(address);
    let own = declared(&handle_cache::metrics::metric_groups());
    served.retain(|name, _| name.starts_with("handle_cache_"));
    assert_eq!(served, own);
    // Rules for the age of a set do not fire on a caching server, which has none.
    let text = http::get(address, "/metrics").unwrap().body;
    assert!(text.contains("\nhandled_snapshot_age_seconds 0.0\n"), "{text}");
    assert!(
        text.contains("\nhandled_snapshot_generation 0\n") && text.contains("\nhandled_ready 1\n"),
        "{text}"
    );
    server.stop().unwrap();
}
