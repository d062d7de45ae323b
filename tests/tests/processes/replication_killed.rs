//! A dump of many records from a process: in bounded memory, and continued after the process was
//! killed in the middle of it.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use handle_auth::{PrivateKey, file};
use handle_client::replication::connection::ReceiveError;
use handle_client::replication::{StreamContent, StreamEvent, StreamLimits};
use handle_proto::wire::Request;
use handle_proto::wire::replication::{DumpHandles, StartingPoint};
use handle_proto::wire::replication_stream::DumpItem;
use handle_proto::{Value, Values, Version};
use handle_store::{Store, StoreConfig};
use handle_tests::replication::{TestReceiver, WHOLE};
use handle_tests::service_directory::InitialisedService;
use std::collections::HashSet;
use std::fs;
use std::time::Duration;

const RECORDS: usize = 100_000;
const DATA_LEN: usize = 1000;
/// Most bytes that the process may need for a stream of 100 MB, next to its page cache of 4 MiB.
const GROWTH_MAX: u64 = 32 << 20;

/// A service with many records, and little memory for pages of its store.
fn service() -> InitialisedService {
    let service = InitialisedService::make();
    let config = service.path("site/handle-admin.toml");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains("[store]\n"), "{text}");
    // Nothing is published, so that only the stream needs memory.
    let text = text.replace("directory = \"snapshot\"\n", "");
    fs::write(&config, text.replace("[store]\n", "[store]\ncache_bytes = 4194304\n")).unwrap();
    let store = Store::open(&StoreConfig::at(&service.path("site/store.redb"))).unwrap();
    let temp_dir = service.path("site");
    let (mut bulk, mut buffer, data) = (store.bulk(&temp_dir, 16 << 20), Vec::new(), vec![b'x'; DATA_LEN]);
    for n in 0..RECORDS {
        let values = Values::build([Value::new(1, b"URL", &data)], &mut buffer);
        bulk.add(format!("10.1045/{n}").as_bytes(), values).unwrap();
    }
    bulk.finish(|_| ()).unwrap();
    service
}

fn admin_key(service: &InitialisedService) -> PrivateKey {
    let key = file::open_key_file(&service.path("site/admin-private.bin"), None).unwrap();
    PrivateKey::from_record(key.as_bytes()).unwrap()
}

fn receiver<'k>(service: &InitialisedService, key: &'k PrivateKey) -> TestReceiver<'k> {
    TestReceiver {
        server: service.administration,
        server_key: fs::read(service.path("site/server-public.bin")).unwrap(),
        handle: b"10.1045/ADMIN",
        index: 300,
        key,
        version: Version::CURRENT,
        timeout: Duration::from_secs(60),
    }
}

/// A line of `/proc/<pid>/status` in bytes.
fn memory(service: &InitialisedService, line: &str) -> u64 {
    let pid = service.admin.as_ref().unwrap().0.id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix(line)).unwrap();
    line.trim_matches([':', '\t', ' ', 'k', 'B']).parse::<u64>().unwrap() * 1024
}

/// Dumps the records after `start`, and calls `each` with the number of those received so far.
fn dump(
    receiver: &TestReceiver<'_>,
    start: Option<&[u8]>,
    mut each: impl FnMut(usize),
) -> (Vec<Vec<u8>>, Result<(), ReceiveError>) {
    let start = start.map(|item| StartingPoint { item, kind: 2 });
    let request = Request::DumpHandles(DumpHandles { receiver: WHOLE, start });
    let connection = receiver.begin(&request).unwrap();
    let (mut names, limits) = (vec![], StreamLimits::default());
    let received = connection.receive(StreamContent::Dump, &receiver.server_key, limits, |event| {
        if let StreamEvent::Dump(DumpItem::Handle { handle, values }) = event {
            assert!(!values.is_empty());
            names.push(handle.to_vec());
            each(names.len());
        }
        Ok::<_, ReceiveError>(())
    });
    (names, received)
}

#[test]
fn a_dump_needs_little_memory_and_goes_on_after_the_primary_was_killed() {
    let mut service = service();
    service.start_admin();
    let key = admin_key(&service);
    let receiver = receiver(&service, &key);
    let pid = service.admin.as_ref().unwrap().0.id();
    // Resets the highest amount of memory.
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    let before = memory(&service, "VmRSS");
    let (all, received) = dump(&receiver, None, |_| ());
    received.unwrap();
    assert!(all.len() > RECORDS, "{} records", all.len());
    let growth = memory(&service, "VmHWM").saturating_sub(before);
    println!("a dump of {} records takes {} KiB", all.len(), growth >> 10);
    assert!(growth < GROWTH_MAX, "{growth} bytes");
    let (first, received) = dump(&receiver, None, |count| {
        if count == RECORDS / 5 {
            service.admin.as_ref().unwrap().signal("KILL");
        }
    });
    assert!(matches!(received, Err(ReceiveError::Connection(_) | ReceiveError::Tls)), "{received:?}");
    assert!((RECORDS / 5..RECORDS).contains(&first.len()), "{} records", first.len());
    service.admin = None;
    service.start_admin();
    let (rest, received) = dump(&receiver, first.last().map(Vec::as_slice), |_| ());
    received.unwrap();
    assert_eq!(first.len() + rest.len(), all.len());
    let names: HashSet<_> = first.iter().chain(&rest).collect();
    assert_eq!(names, all.iter().collect(), "each record arrives once");
}
