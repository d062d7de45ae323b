use super::*;
use crate::Gateway;
use crate::request_log::RequestLogFormat;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

#[test]
fn an_answer_is_counted_and_logged_once_with_the_status_that_the_client_gets() {
    let files = tempfile::tempdir().unwrap();
    let (local_info, log) = (files.path().join("local_info.json"), files.path().join("requests.log"));
    std::fs::write(&local_info, "[]").unwrap();
    let listen = vec![(Ipv4Addr::LOCALHOST, 0).into()];
    let mut config = Config { listen, workers: 1, ..Config::default() };
    config.upstream.local_info = Some(local_info);
    config.request_log.format = RequestLogFormat::Json;
    config.request_log.path = Some(log.clone());
    let gateway = Gateway::start(&config).unwrap();
    let status = |headers: &str| {
        let mut stream = TcpStream::connect(gateway.addresses()[0]).unwrap();
        let request = format!("POST /api/nowhere HTTP/1.1\r\nContent-Length: 2\r\n{headers}\r\n[]");
        stream.write_all(request.as_bytes()).unwrap();
        let mut line = [0; 12];
        stream.read_exact(&mut line).unwrap();
        String::from_utf8_lossy(&line[9..]).parse::<u16>().unwrap()
    };
    // Without `Host`, a request is answered before it is routed.
    let statuses = || [status(""), status("Host: x\r\n")];
    let limits = config.limits.answers().bytes;
    let mut capacity = gateway.state().answers.reservation(Ipv4Addr::LOCALHOST.into());
    capacity.add(limits.per_holder, limits).unwrap();
    assert_eq!(statuses(), [503, 503]);
    drop(capacity);
    assert_eq!(statuses(), [400, 404]);
    let counters = &gateway.state().counters;
    let counted =
        [&counters.answers_2xx, &counters.answers_3xx, &counters.answers_4xx, &counters.answers_5xx];
    assert_eq!(counted.map(|counter| counter.get()), [0, 0, 2, 2]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let lines = loop {
        let text = std::fs::read_to_string(&log).unwrap();
        if text.lines().count() >= 4 || Instant::now() > deadline {
            break text;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let logged = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let logged: Vec<_> = logged.map(|line| line["status"].clone()).collect();
    assert_eq!(logged, [503, 503, 400, 404]);
    gateway.stop().unwrap();
}
