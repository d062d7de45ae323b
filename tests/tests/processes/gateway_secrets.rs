//! Secrets of callers in the logs of `handle-gateway`: there are none, whatever is logged.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::gateway_load::publish;
use data_encoding::BASE64;
use handle_auth::digest::mac;
use handle_proto::code::DigestAlgorithm;
use handle_tests::admin_server::administer_with;
use handle_tests::daemon::free_address;
use handle_tests::gateway_server::{HttpAnswer, exchange_over_tls, tls_client, write_tls};
use handle_tests::process::{RunningProcess, program, until};
use rustls::pki_types::ServerName;
use serde_json::json;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;

const SECRET: &str = "open sesame open";
const STORED_SECRET: &str = "a secret that is stored";
const RESTRICTED: &str = "/api/handles/TST/HALF?publicOnly=false";

fn ask(address: SocketAddr, request: &str, headers: &str, body: &str) -> HttpAnswer {
    let len = body.len();
    let request = format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {len}\r\n\r\n{body}"
    );
    HttpAnswer::split(&exchange_over_tls(address, request.as_bytes()), false).unwrap().0
}

/// The statuses of requests over HTTP/2 with these values of `Authorization`.
fn ask_over_http2(address: SocketAddr, authorizations: &[String]) -> Vec<u16> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls_client(&[b"h2"])));
        let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut statuses = Vec::new();
        for authorization in authorizations {
            let request = ::http::Request::get(format!("https://localhost{RESTRICTED}"));
            let request = request.header("authorization", authorization).body(()).unwrap();
            let mut requests = requests.clone().ready().await.unwrap();
            let (answer, _) = requests.send_request(request, true).unwrap();
            statuses.push(answer.await.unwrap().status().as_u16());
        }
        statuses
    })
}

#[test]
fn no_log_has_a_secret_of_a_caller() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let socket = path("admin.socket");
    let administration = administer_with("root", |config| config.local.socket = Some(socket.clone()));
    publish(&path("set"));
    write_tls(directory.path(), 0);
    let address = free_address();
    let config = format!(
        "snapshot = \"set\"\nsite = {:?}\nlisten = [\"{address}\"]\nworkers = 1\nlog = \"trace\"\n\
         [admin]\naddress = \"{}\"\nsocket = \"admin.socket\"\nvisible_ms = 0\n\
         [request_log]\nformat = \"json\"\npath = \"requests.log\"\nwhole_addresses = true\n\
         [tls]\ncertificate = \"certificate.pem\"\nkey = \"key.pem\"\n",
        administration.config.site,
        administration.address()
    );
    fs::write(path("gateway.toml"), config).unwrap();
    let mut command = Command::new(program("handle-gateway", "handle-gateway"));
    command.arg("--config").arg(path("gateway.toml")).arg("--allow-root").stdin(Stdio::null());
    command.stderr(File::create(path("log")).unwrap());
    let mut gateway = RunningProcess::start(command);
    until("the gateway answers", || TcpStream::connect(address).is_ok());

    let opened = ask(address, "POST /api/sessions", "", "").json();
    let (id, nonce) = (opened["sessionId"].as_str().unwrap(), opened["nonce"].as_str().unwrap());
    let proof = mac(
        DigestAlgorithm::HMAC_SHA256,
        SECRET.as_bytes(),
        &[&BASE64.decode(nonce.as_bytes()).unwrap(), b"c"],
    );
    let proof = BASE64.encode(&proof.unwrap());
    let fields = json!({
        "sessionId": id, "id": "301:0.NA/TST", "type": "HS_SECKEY", "alg": "HMAC-SHA256",
        "cnonce": BASE64.encode(b"c"), "signature": proof,
    });
    let json_type = "Content-Type: application/json\r\n";
    let signed = ask(address, "PUT /api/sessions/this", json_type, &fields.to_string());
    assert_eq!(signed.status, 200, "{}", signed.text());
    let session = format!("Handle sessionId=\"{id}\"");
    let basic =
        |secret: &str| format!("Basic {}", BASE64.encode(format!("301%3A0.NA/TST:{secret}").as_bytes()));
    let (good, wrong) = (basic(SECRET), basic("a wrong secret"));
    for (authorization, status) in [(&session, 200), (&good, 200), (&wrong, 401)] {
        let header = format!("Authorization: {authorization}\r\n");
        assert_eq!(ask(address, &format!("GET {RESTRICTED}"), &header, "").status, status);
    }
    let authorizations = [session.clone(), good.clone(), wrong.clone()];
    assert_eq!(ask_over_http2(address, &authorizations), [200, 200, 401]);
    let body = json!([
        { "index": 1, "type": "URL", "data": "https://example.org/" },
        { "index": 300, "type": "HS_SECKEY", "data": STORED_SECRET, "permissions": "1100" },
    ]);
    let headers = format!("Authorization: {good}\r\n{json_type}");
    assert_eq!(ask(address, "PUT /api/handles/TST/SECRET", &headers, &body.to_string()).status, 201);
    let form = format!("id=301%3A0.NA%2FTST&secret={}", SECRET.replace(' ', "+"));
    let headers = "Origin: https://localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    let signed = ask(address, "POST /admin/sign-in", headers, &form);
    assert_eq!(signed.status, 303, "{}", signed.text());
    let cookie = signed.header("set-cookie").unwrap().split(['=', ';']).nth(1).unwrap().to_owned();
    assert!(cookie.len() > 16, "{cookie}");
    let shown =
        ask(address, "GET /admin/", &format!("Cookie: {}\r\n", signed.header("set-cookie").unwrap()), "");
    assert_eq!(shown.status, 200);

    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0));
    let logs = ["log", "requests.log"].map(|name| fs::read_to_string(path(name)).unwrap());
    // Frames of HTTP/2 are logged.
    assert!(logs[0].contains("TRACE") && logs[0].contains("frame=Headers"), "{}", logs[0]);
    assert!(logs[1].contains("/api/sessions/this") && logs[1].lines().count() >= 10, "{}", logs[1]);
    let credentials = |text: &str| text.split_once(' ').unwrap().1.to_owned();
    let (good, wrong) = (credentials(&good), credentials(&wrong));
    let wrong_secret = "a wrong secret";
    for secret in
        [id, nonce, &proof, &good, &wrong, wrong_secret, SECRET, STORED_SECRET, &cookie, "open+sesame"]
    {
        for log in &logs {
            let line = log.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "has {secret:?}");
        }
    }
}
