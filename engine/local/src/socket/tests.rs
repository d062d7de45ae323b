use super::*;
use crate::frame;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::AsyncWriteExt as _;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A socket that answers each request with its kind, until the setup is dropped.
struct ServedSocket {
    path: PathBuf,
    refused: Arc<AtomicUsize>,
    stop: watch::Sender<bool>,
    _directory: tempfile::TempDir,
}

impl ServedSocket {
    fn start(config: &LocalConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.socket");
        let socket = LocalSocket::bind(&path, config, config.rights().unwrap()).unwrap();
        let (stop, stopping) = watch::channel(false);
        let refused = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&refused);
        let refuse = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        socket.serve(stopping, refuse, |connection, _| echo(connection)).unwrap();
        Self { path, refused, stop, _directory: directory }
    }

    async fn connect(&self, kind: LocalKind) -> LocalConnection {
        LocalConnection::connect(&self.path, kind).await.unwrap()
    }

    fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }
}

async fn echo(mut connection: LocalConnection) -> io::Result<()> {
    loop {
        let request = connection.reader.receive(connection.kind().request_len_max()).await?;
        let kind = connection.kind().name().as_bytes();
        connection.writer.send(0, |content| content.extend([kind, b" ", &request].concat())).await?;
    }
}

/// The reply to one request; `None` if the connection is closed.
async fn ask(connection: &mut LocalConnection, request: &[u8]) -> Option<Vec<u8>> {
    connection.writer.send(0, |content| content.extend_from_slice(request)).await.ok()?;
    let received = timeout(TIMEOUT, connection.reader.receive(1000)).await.expect("a reply or the end");
    received.ok().map(|reply| reply.to_vec())
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

#[test]
fn one_socket_serves_every_kind_and_each_connection_keeps_its_own() {
    run(async {
        let served = ServedSocket::start(&LocalConfig::default());
        assert_eq!(served.path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut connections = Vec::new();
        for kind in LocalKind::ALL {
            connections.push(served.connect(kind).await);
        }
        for round in [&b"one"[..], b"two"] {
            for connection in &mut connections {
                let expected = [connection.kind().name().as_bytes(), b" ", round].concat();
                assert_eq!(ask(connection, round).await, Some(expected));
            }
        }
        // A frame of another kind ends the connection.
        let other = frame::encode(LocalKind::Relay, 1, |content| content.push(b'x'));
        connections[0].writer.send_frame(&other).await.unwrap();
        assert!(connections[0].reader.receive(1000).await.is_err());
        assert_eq!(served.refused(), 0);
        served.stop.send(true).unwrap();
        while served.path.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn first_frames_of_another_version_kind_or_length_are_refused_before_they_are_read() {
    run(async {
        let served = ServedSocket::start(&LocalConfig::default());
        let long = u32::try_from(LocalKind::Changes.request_len_max() + 1).unwrap().to_be_bytes();
        let headers = [[0, 1, 0, 0, 0, 1], [2, 1, 0, 0, 0, 1], [1, 0, 0, 0, 0, 1], [1, 6, 0, 0, 0, 1]];
        let lies = [[1, 1, 0xff, 0xff, 0xff, 0xff], [1, 5, long[0], long[1], long[2], long[3]]];
        for (at, header) in headers.into_iter().chain(lies).enumerate() {
            let mut stream = UnixStream::connect(&served.path).await.unwrap();
            stream.write_all(&header).await.unwrap();
            let read = timeout(TIMEOUT, stream.read(&mut [0; 8])).await.expect("closed at once");
            assert_eq!((read.unwrap_or(0), served.refused()), (0, at + 1), "{header:?}");
        }
        // A connection that only checks whether a process listens is none of these.
        drop(UnixStream::connect(&served.path).await.unwrap());
        assert!(ask(&mut served.connect(LocalKind::Bulk).await, b"x").await.is_some());
        assert_eq!(served.refused(), headers.len() + lies.len());
    });
}

#[test]
fn connections_are_bounded_by_kind_and_only_those_of_callers_wait() {
    run(async {
        let config = LocalConfig { relay_connections: 1, callers_connections: 1, ..LocalConfig::default() };
        let served = ServedSocket::start(&config);
        let mut first = served.connect(LocalKind::Relay).await;
        assert!(ask(&mut first, b"x").await.is_some());
        assert_eq!(ask(&mut served.connect(LocalKind::Relay).await, b"x").await, None);
        assert_eq!(served.refused(), 1);
        assert!(ask(&mut served.connect(LocalKind::Bulk).await, b"x").await.is_some(), "another kind");
        drop(first);
        while ask(&mut served.connect(LocalKind::Relay).await, b"x").await.is_none() {}
        let mut held = served.connect(LocalKind::Callers).await;
        assert!(ask(&mut held, b"x").await.is_some());
        let mut waiting = served.connect(LocalKind::Callers).await;
        let begun = timeout(Duration::from_millis(50), ask(&mut waiting, b"x")).await;
        assert!(begun.is_err(), "it waits");
        drop(held);
        assert!(waiting.reader.receive(1000).await.is_ok());
    });
}

#[test]
fn silent_connections_of_a_user_take_no_permit_of_a_kind_and_are_bounded() {
    run(async {
        let config = LocalConfig { pending_connections: 3, forward_connections: 1, ..LocalConfig::default() };
        let served = ServedSocket::start(&config);
        let mut silent = Vec::new();
        for _ in 0..2 {
            silent.push(UnixStream::connect(&served.path).await.unwrap());
        }
        assert!(ask(&mut served.connect(LocalKind::Forward).await, b"x").await.is_some());
        silent.push(UnixStream::connect(&served.path).await.unwrap());
        assert_eq!(ask(&mut served.connect(LocalKind::Bulk).await, b"x").await, None);
        assert_eq!(served.refused(), 1);
        drop(silent);
        while ask(&mut served.connect(LocalKind::Bulk).await, b"x").await.is_none() {}
    });
}

#[test]
fn the_file_lets_in_others_only_if_a_list_names_them_and_is_not_taken_from_another_process() {
    run(async {
        let config = LocalConfig { changes_users: vec!["12345".to_owned()], ..LocalConfig::default() };
        let served = ServedSocket::start(&config);
        assert_eq!(served.path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
        let error = LocalSocket::bind(&served.path, &config, config.rights().unwrap()).unwrap_err();
        assert!(format!("{error:#}").contains("local.socket"), "{error:#}");
    });
}
