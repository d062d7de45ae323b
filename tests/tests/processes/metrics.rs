//! The metrics that each process serves are those that it declares.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use super::gateway::site_of;
use handle_daemon::metrics::MetricGroup;
use handle_server::config::Datapath;
use handle_tests::admin_server::administer_with;
use handle_tests::client::{TestClient, exchange_over_tcp, request};
use handle_tests::gateway_server::{serve_over_http, use_tls};
use handle_tests::http;
use handle_tests::test_server::serve_with;
use handle_tests::vectors::VectorSource;
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
        // The metrics of forwarding exist when it is enabled; the socket need not accept connections.
        config.forward.socket = Some("/nonexistent/forward".into());
    });
    // The question makes the first series of the busiest networks.
    TestClient::new(server.address()).resolve(b"10.5072/URL-ONE").unwrap();
    let served = served(server.server.http_address().unwrap());
    assert_eq!(served, declared(&handle_server::observe::metric_groups()));
}

#[test]
fn handle_admin_serves_the_metrics_that_it_declares() {
    let administered = administer_with("root", |config| {
        config.observe.http = Some(([127, 0, 0, 1], 0).into());
        config.publish.directory = Some(config.store.file.with_file_name("set"));
    });
    exchange_over_tcp(administered.address(), &request(b"TST/ITEM-001", 1)).unwrap();
    let served = served(administered.server().http_address().unwrap());
    let mut declared = declared(&handle_admin::observe::metric_groups());
    // These have no series before a mirror has asked; `replication` tests their labels.
    let of_mirrors = declared.iter_mut().filter(|(name, _)| name.starts_with("handle_admin_receiver_"));
    of_mirrors.for_each(|(_, (_, labels))| labels.clear());
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
        config.admin.callers = Some(directory.path().join("callers.sock"));
        use_tls(config, directory.path());
    });
    let served = served(served_here.gateway.http_address().unwrap());
    assert_eq!(served, declared(&handle_gateway::observe::metric_groups()));
}
