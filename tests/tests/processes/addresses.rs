//! Answers come from the address that the request was sent to, over IPv4 and IPv6.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_proto::ResponseCode;
use handle_proto::wire::{Envelope, Header};
use handle_snapshot::set::publisher::SetPublisher;
use handle_tests::client::{TestClient, exchange_over_tcp, request};
use handle_tests::{records, test_server};
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use std::net::{IpAddr, SocketAddr};

/// Sends requests to several addresses. The client's socket is connected, so that it does not
/// receive answers from other addresses.
fn check_answer_addresses(datapath: Datapath) {
    let records = records::load();
    let directory = tempfile::tempdir().unwrap();
    records::publish(&mut SetPublisher::open(directory.path()).unwrap(), &records, 1);
    let listen: Vec<SocketAddr> =
        ["[::]:0", "127.0.0.1:0", "[::1]:0"].map(|address| address.parse().unwrap()).into();
    let config = Config { listen, ..test_server::config(directory.path(), datapath) };
    let server = Server::start(&config).unwrap();
    let addresses = server.addresses();
    assert_eq!(addresses.len(), 3);
    let target =
        |ip: &str, listener: SocketAddr| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), listener.port());
    for address in [
        target("127.0.0.1", addresses[0]),
        target("127.0.0.2", addresses[0]),
        target("::1", addresses[0]),
        addresses[1],
        addresses[2],
    ] {
        let answer = TestClient::new(address).resolve(records[0].handle.as_bytes());
        assert_eq!(answer.map(|answer| answer.code), Some(ResponseCode::SUCCESS), "{address}");
        let answer =
            exchange_over_tcp(address, &request(records[0].handle.as_bytes(), 7)).expect("an answer");
        let (envelope, rest) = Envelope::split(&answer).unwrap();
        let code = Header::split(rest).unwrap().0.response_code;
        assert_eq!((envelope.request_id, code), (7, ResponseCode::SUCCESS), "{address} over TCP");
    }
    server.stop().unwrap();
}

#[test]
fn answers_come_from_the_address_that_was_asked_on_the_portable_datapath() {
    check_answer_addresses(Datapath::Portable);
}

#[test]
fn answers_come_from_the_address_that_was_asked_on_the_datapath_of_this_machine() {
    check_answer_addresses(Datapath::Auto);
}
