//! Real records are served byte for byte as published.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::TestClient;
use handle_tests::{records, test_server};
use handle_worker::Server;
use handle_worker::config::Datapath;

/// Every record resolves to its values, in any case of its handle.
fn check_all_records(datapath: Datapath) {
    let records = records::load();
    assert!(records.len() > 1000, "the sample is too small");
    let directory = tempfile::tempdir().unwrap();
    records::publish(&mut SetPublisher::open(directory.path()).unwrap(), &records, 1);
    let server = Server::start(&test_server::config(directory.path(), datapath)).unwrap();
    let mut client = TestClient::new(server.addresses()[0]);
    for record in &records {
        for handle in
            [record.handle.clone(), record.handle.to_ascii_uppercase(), record.handle.to_ascii_lowercase()]
        {
            let answer = client.resolve(handle.as_bytes()).expect("an answer");
            assert_eq!(answer.code, ResponseCode::SUCCESS, "{handle}");
            assert_eq!(answer.handle, handle.as_bytes(), "the handle in the spelling of the request");
            assert_eq!(answer.values, record.values, "{handle}");
        }
    }
    let none = client.resolve(b"10.1016/there is no such handle").unwrap();
    assert_eq!(none.code, ResponseCode::HANDLE_NOT_FOUND);
    server.stop().unwrap();
}

#[test]
fn every_record_resolves_over_the_portable_datapath() {
    check_all_records(Datapath::Portable);
}

#[test]
fn every_record_resolves_over_the_datapath_of_this_machine() {
    check_all_records(Datapath::Auto);
}
