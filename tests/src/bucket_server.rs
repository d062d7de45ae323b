//! A server for tests that speaks the part of S3 that fleets use: objects in a directory, with
//! conditions, ranges, listings and uploads in parts. It checks signatures, and fails on demand.

mod signature;
mod storage;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;
use storage::{BucketStorage, StorageReply};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// The only name that may sign requests.
pub const KEY_ID: &str = "HANDLETESTSKEYID";
/// Its secret.
pub const SECRET: &str = "secret-of-the-tests/never+logged";

/// Which conditions of writes a server honours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketConditions {
    /// `If-None-Match` and `If-Match`.
    Both,
    /// `If-None-Match` only.
    IfNoneMatch,
    /// None.
    Neither,
}

/// A request, as the function that decides about faults sees it.
#[derive(Clone, Debug)]
pub struct BucketRequest {
    /// Its method.
    pub method: Method,
    /// Bucket and name of the object.
    pub path: String,
    /// Its query.
    pub query: String,
}

impl BucketRequest {
    /// Whether it reads the object whose name ends so.
    #[must_use]
    pub fn reads(&self, suffix: &str) -> bool {
        self.method == Method::GET && self.path.ends_with(suffix)
    }

    /// Whether it writes the object whose name ends so, in whole or in part.
    #[must_use]
    pub fn writes(&self, suffix: &str) -> bool {
        (self.method == Method::PUT || self.method == Method::POST) && self.path.ends_with(suffix)
    }
}

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketFault {
    /// Nothing.
    Nothing,
    /// The request is refused with this status.
    Status(u16),
    /// The request is answered later.
    Delay(Duration),
    /// The connection ends after so many bytes of the body.
    CutAfter(usize),
    /// The body is this much shorter, and the answer says so.
    ShortBy(usize),
    /// One bit of the body is wrong: that of the byte at this position.
    WrongBit(usize),
    /// The body comes in pieces of this many bytes, with 50 ms between them.
    Trickle(usize),
    /// The request is done, and the connection ends without an answer.
    AnswerLost,
}

type FaultFunction = dyn Fn(&BucketRequest) -> BucketFault + Send + Sync;

/// What connections share.
struct ServerState {
    storage: BucketStorage,
    faults: Mutex<Arc<FaultFunction>>,
    requests: AtomicUsize,
}

/// A running server. When dropped, it stops.
pub struct BucketServer {
    /// Its address.
    pub address: SocketAddr,
    state: Arc<ServerState>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for BucketServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BucketServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl BucketServer {
    /// Serves the directory on a free port.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        Self::start_with(dir, SocketAddr::from(([127, 0, 0, 1], 0)), BucketConditions::Both)
    }

    /// Serves the directory at an address, honouring these conditions.
    ///
    /// # Panics
    /// If the address is not free.
    #[must_use]
    pub fn start_with(dir: &Path, address: SocketAddr, conditions: BucketConditions) -> Self {
        let listener = std::net::TcpListener::bind(address).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let faults: Arc<FaultFunction> = Arc::new(|_: &BucketRequest| BucketFault::Nothing);
        let state = Arc::new(ServerState {
            storage: BucketStorage::new(dir, conditions),
            faults: Mutex::new(faults),
            requests: AtomicUsize::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::from_std(listener).expect("a socket");
                tokio::select! {
                    () = accept(listener, shared) => {}
                    // Stopped or dropped.
                    _ = stopped => {}
                }
            });
        });
        Self { address, state, stop: Some(stop), thread: Some(thread) }
    }

    /// From now on, `decide` says what goes wrong with each request.
    pub fn set_faults(&self, decide: impl Fn(&BucketRequest) -> BucketFault + Send + Sync + 'static) {
        *self.state.faults.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(decide);
    }

    /// From now on, nothing goes wrong.
    pub fn clear_faults(&self) {
        self.set_faults(|_| BucketFault::Nothing);
    }

    /// Number of requests so far.
    #[must_use]
    pub fn requests_count(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// The options with which clients use this server, as lines of a file with credentials.
    #[must_use]
    pub fn options(&self) -> String {
        options(self.address, SECRET)
    }
}

/// The options with which clients use the server at `address` with this secret.
#[must_use]
pub fn options(address: SocketAddr, secret: &str) -> String {
    format!(
        "AWS_ACCESS_KEY_ID={KEY_ID}\nAWS_SECRET_ACCESS_KEY={secret}\nAWS_REGION=eu-1\n\
         AWS_ENDPOINT=http://{address}\nAWS_ALLOW_HTTP=true\n"
    )
}

impl Drop for BucketServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic has already been shown where it happened.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn accept(listener: TcpListener, state: Arc<ServerState>) {
    while let Ok((stream, _)) = listener.accept().await {
        // Small answers leave at once.
        let _ = stream.set_nodelay(true);
        let state = Arc::clone(&state);
        let service = service_fn(move |request| answer(Arc::clone(&state), request));
        let serving =
            http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            // Clients notice the end of a connection, whatever the reason.
            let _ = serving.await;
        });
    }
}

async fn answer(state: Arc<ServerState>, request: Request<Incoming>) -> io::Result<Response<FaultyBody>> {
    state.requests.fetch_add(1, Ordering::Relaxed);
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default().to_owned());
    let seen = BucketRequest { method: head.method.clone(), path, query };
    let decide = Arc::clone(&state.faults.lock().unwrap_or_else(PoisonError::into_inner));
    let fault = decide(&seen);
    if let BucketFault::Delay(time) = fault {
        tokio::time::sleep(time).await;
    }
    let reply = match fault {
        BucketFault::Status(status) => StorageReply::error(status, "InternalError"),
        _ if !signature::is_valid(&head, &seen) => StorageReply::error(403, "SignatureDoesNotMatch"),
        _ => state.storage.answer(&seen, &head.headers, &body),
    };
    if fault == BucketFault::AnswerLost {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let mut response =
        Response::builder().status(StatusCode::from_u16(reply.status).map_err(io::Error::other)?);
    for (name, value) in &reply.headers {
        response = response.header(*name, value);
    }
    response.body(FaultyBody::new(reply.body, fault)).map_err(io::Error::other)
}

/// A body with the fault of its request.
struct FaultyBody {
    left: Bytes,
    announced: u64,
    piece_len: usize,
    is_cut: bool,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl FaultyBody {
    fn new(mut left: Bytes, fault: BucketFault) -> Self {
        let mut announced = left.len() as u64;
        let (mut piece_len, mut is_cut) = (usize::MAX, false);
        match fault {
            BucketFault::CutAfter(len) if len < left.len() => {
                left.truncate(len);
                is_cut = true;
            }
            BucketFault::ShortBy(len) => {
                left.truncate(left.len().saturating_sub(len));
                announced = left.len() as u64;
            }
            BucketFault::WrongBit(at) if at < left.len() => {
                let mut bytes = left.to_vec();
                bytes[at] ^= 1;
                left = bytes.into();
            }
            BucketFault::Trickle(len) => piece_len = len,
            _ => {}
        }
        Self { left, announced, piece_len, is_cut, pause: None }
    }
}

impl Body for FaultyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.pause = None;
        }
        if self.left.is_empty() {
            let cut = self.is_cut.then(|| Err(io::ErrorKind::ConnectionReset.into()));
            return Poll::Ready(cut);
        }
        let len = self.piece_len.min(self.left.len());
        let piece = self.left.split_to(len);
        if self.piece_len < usize::MAX {
            self.pause = Some(Box::pin(tokio::time::sleep(Duration::from_millis(50))));
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.announced)
    }
}
