//! Settings of HTTP/2.

use handle_daemon::settings;
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioTimer};

settings! {
    /// HTTP/2, beside HTTP/1.1: over TLS where the client prefers it, and on plain connections
    /// whose clients begin with its preface. `limits` apply as well.
    pub struct Http2Config {
        /// Serve HTTP/2.
        restart enabled: bool = true;
        /// Requests in progress on a connection.
        live streams: u32 = 100, 1..=1 << 16;
        /// Requests that a client may cancel before they are handled. Beyond this number, the
        /// connection is closed.
        live resets: usize = 20, 1..=1 << 16;
        /// Requests of a connection that may be reset because the client violated the protocol.
        /// Beyond this number, the connection is closed.
        live errors: usize = 256, 1..=1 << 16;
        /// Flow-control window of a request body, in bytes.
        live stream_window_bytes: u32 = 256 << 10, 65_535..=1 << 30;
        /// Flow-control window of all request bodies of a connection, in bytes.
        live connection_window_bytes: u32 = 1 << 20, 65_535..=1 << 30;
        /// Maximum length of a frame.
        live frame_bytes: u32 = 16_384, 16_384..=16_777_215;
        /// Bytes of an answer that are buffered for a client that does not read.
        live send_bytes: usize = 256 << 10, 16_384..=1 << 30;
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
