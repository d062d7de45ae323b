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
    served: ServedConnections,
    _directory: tempfile::TempDir,
}

impl ServedSocket {
    fn start(config: &LocalConfig) -> Self {
        Self::start_with(config, echo)
    }

    fn start_with<F>(
        config: &LocalConfig,
        serve: impl Fn(LocalConnection) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        Self::start_resumed(config, Vec::new(), serve)
    }

    fn start_resumed<F>(
        config: &LocalConfig,
        resumed: Vec<ResumedConnection>,
        serve: impl Fn(LocalConnection) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.socket");
        let socket = LocalSocket::bind(&path, config, config.rights().unwrap()).unwrap();
        let (stop, stopping) = watch::channel(false);
        let refused = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&refused);
        let refuse = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let served = socket.serve(stopping, resumed, refuse, move |connection, _| serve(connection)).unwrap();
        Self { path, refused, stop, served, _directory: directory }
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

/// The reply to one request; `None` if the connection is refused because too many are open.
async fn ask(connection: &mut LocalConnection, request: &[u8]) -> Option<Vec<u8>> {
    let received = async {
        connection.send(0, |content| content.extend_from_slice(request)).await?;
        connection.reader.receive(1000).await
    };
    match timeout(TIMEOUT, received).await.expect("a reply or the end") {
        Ok(reply) => Some(reply.to_vec()),
        Err(error) => {
            assert_eq!(LocalRefusal::of(&error), Some(LocalRefusal::Busy), "{error}");
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
            None
        }
    }
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
fn connections_of_another_process_count_towards_the_bound_of_their_kind() {
    run(async {
        let config = LocalConfig { bulk_connections: 1, ..LocalConfig::default() };
        let (mut peers, mut resumed) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (ours, peer) = std::os::unix::net::UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            peer.set_nonblocking(true).unwrap();
            resumed.push(ResumedConnection::new(ours, LocalKind::Bulk, echo).unwrap());
            peers.push(LocalConnection::new(UnixStream::from_std(peer).unwrap(), LocalKind::Bulk, None));
        }
        let served = ServedSocket::start_resumed(&config, resumed, echo);
        assert_eq!(ask(&mut peers[0], b"x").await, Some(b"bulk x".to_vec()));
        let ended = timeout(TIMEOUT, peers[1].reader.receive(1000)).await.unwrap().unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(served.refused(), 1);
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
            let mut told = [0; FrameHeader::LEN];
            timeout(TIMEOUT, stream.read_exact(&mut told)).await.expect("told at once").unwrap();
            assert_eq!((told, served.refused()), (frame::refuse(LocalRefusal::Frame), at + 1), "{header:?}");
            assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0, "closed");
        }
        // A connection that only checks whether a process listens is none of these.
        drop(UnixStream::connect(&served.path).await.unwrap());
        assert!(ask(&mut served.connect(LocalKind::Bulk).await, b"x").await.is_some());
        assert_eq!(served.refused(), headers.len() + lies.len());
    });
}

#[test]
fn connections_are_bounded_by_kind_and_those_of_the_gateway_wait_for_their_turn() {
    run(async {
        let config = LocalConfig {
            forward_connections: 1,
            bulk_connections: 1,
            callers_connections: 1,
            relay_connections: 1,
            changes_connections: 1,
            waiting_connections: 1,
            ..LocalConfig::default()
        };
        let served = ServedSocket::start(&config);
        for kind in [LocalKind::Forward, LocalKind::Changes] {
            let mut first = served.connect(kind).await;
            assert!(ask(&mut first, b"x").await.is_some());
            let refused = served.refused();
            assert_eq!(ask(&mut served.connect(kind).await, b"x").await, None, "{kind:?}");
            assert_eq!(served.refused(), refused + 1);
            drop(first);
            while ask(&mut served.connect(kind).await, b"x").await.is_none() {}
        }
        for kind in [LocalKind::Bulk, LocalKind::Callers, LocalKind::Relay] {
            let mut held = served.connect(kind).await;
            assert!(ask(&mut held, b"x").await.is_some());
            let mut waiting = served.connect(kind).await;
            let begun = timeout(Duration::from_millis(50), ask(&mut waiting, b"x")).await;
            assert!(begun.is_err(), "{kind:?} waits");
            assert_eq!(ask(&mut served.connect(kind).await, b"x").await, None, "one more than may wait");
            drop(held);
            assert!(waiting.reader.receive(1000).await.is_ok());
        }
    });
}

#[test]
fn connections_that_wait_for_their_turn_keep_no_others_of_their_user_away() {
    run(async {
        let config = LocalConfig { pending_connections: 1, callers_connections: 1, ..LocalConfig::default() };
        let served = ServedSocket::start(&config);
        let mut held = served.connect(LocalKind::Callers).await;
        assert!(ask(&mut held, b"x").await.is_some());
        let mut waiting = served.connect(LocalKind::Callers).await;
        let begun = timeout(Duration::from_millis(50), ask(&mut waiting, b"x")).await;
        assert!(begun.is_err(), "it waits");
        assert!(ask(&mut served.connect(LocalKind::Forward).await, b"x").await.is_some());
        assert_eq!(served.refused(), 0);
    });
}

#[test]
fn a_connection_that_its_peer_closes_while_it_waits_is_not_served() {
    run(async {
        let config = LocalConfig { relay_connections: 1, ..LocalConfig::default() };
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let served = ServedSocket::start_with(&config, move |connection| {
            counted.fetch_add(1, Ordering::SeqCst);
            echo(connection)
        });
        let mut held = served.connect(LocalKind::Relay).await;
        assert!(ask(&mut held, b"x").await.is_some());
        let mut given_up = served.connect(LocalKind::Relay).await;
        assert!(timeout(Duration::from_millis(50), ask(&mut given_up, b"x")).await.is_err(), "it waits");
        drop((given_up, held));
        assert!(ask(&mut served.connect(LocalKind::Relay).await, b"x").await.is_some());
        assert_eq!(count.load(Ordering::SeqCst), 2, "the first and the last one");
    });
}

#[test]
fn requests_in_progress_are_answered_when_the_socket_stops() {
    run(async {
        let (release, released) = watch::channel(false);
        let mut served = ServedSocket::start_with(&LocalConfig::default(), move |mut connection| {
            let mut released = released.clone();
            async move {
                let request = connection.reader.receive(100).await?;
                let _ = released.wait_for(|&is_released| is_released).await;
                connection.writer.send(0, |content| content.extend_from_slice(&request)).await
            }
        });
        let silent = UnixStream::connect(&served.path).await.unwrap();
        let mut connection = served.connect(LocalKind::Relay).await;
        assert!(timeout(Duration::from_millis(50), ask(&mut connection, b"x")).await.is_err(), "in progress");
        served.stop.send(true).unwrap();
        assert!(!served.served.none_left(Duration::from_millis(50)).await, "it is awaited");
        release.send(true).unwrap();
        assert_eq!(&connection.reader.receive(100).await.unwrap()[..], b"x");
        assert!(served.served.none_left(TIMEOUT).await, "a silent connection is not awaited");
        drop(silent);
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
