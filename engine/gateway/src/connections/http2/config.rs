//! Settings of HTTP/2.

use handle_daemon::settings;
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioTimer};

settings! {
    /// HTTP/2 beside HTTP/1.1: over TLS if the client prefers it, on plain connections if they
    /// begin with its preface. `limits` apply as well.
    pub struct Http2Config {
        /// Set this when clients or proxies have trouble with HTTP/2: `false` serves HTTP/1.1 only.
        restart enabled: bool = true;
    } constants {
        /// Requests in progress on a connection: the least that RFC 9113 section 6.5.2 recommends.
        streams: u32 = 100;
        /// Requests that a client may cancel before they are handled. Beyond this number, the
        /// connection is closed, because whoever does so at a high rate has work done for nothing.
        resets: usize = 20;
        /// Requests of a connection that may be reset because the client violated the protocol.
        /// Beyond this number, the connection is closed.
        errors: usize = 256;
        /// Flow-control window of a request body, in bytes: a body of this length comes without
        /// waiting.
        stream_window_bytes: u32 = 256 << 10;
        /// Flow-control window of all request bodies of a connection, in bytes: four of them.
        connection_window_bytes: u32 = 1 << 20;
        /// Maximum length of a frame: the least, so that long answers do not delay short ones.
        frame_bytes: u32 = 16_384;
        /// Bytes of an answer that are buffered for a client that does not read.
        send_bytes: usize = 256 << 10;
    }
}

impl Http2Config {
    pub(super) fn builder(&self, header_bytes: usize) -> Builder<TokioExecutor> {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.streams)
            .max_pending_accept_reset_streams(self.resets)
            .max_local_error_reset_streams(self.errors)
            .initial_stream_window_size(self.stream_window_bytes)
            .initial_connection_window_size(self.connection_window_bytes)
            .max_frame_size(self.frame_bytes)
            .max_send_buf_size(self.send_bytes)
            // h2 refuses heads that are as long as this.
            .max_header_list_size(u32::try_from(header_bytes + 1).unwrap_or(u32::MAX));
        builder
    }
}
