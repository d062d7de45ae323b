//! The socket of a connection, plain or with TLS.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustls::ClientConnection;

use super::tls::TlsContext;

/// The reason for the failure of a connection.
#[derive(Debug)]
pub(super) struct LinkFailure(pub(super) String);

impl From<io::Error> for LinkFailure {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// A connection that carries bytes.
pub(super) struct ByteLink {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    established: bool,
    /// Bytes to write.
    pub(super) output: Vec<u8>,
    written: usize,
}

impl ByteLink {
    pub(super) fn begin(
        target: SocketAddr,
        source: Option<IpAddr>,
        tls: Option<&TlsContext>,
        token: Token,
        registry: &Registry,
    ) -> io::Result<Self> {
        let tls = tls.map(TlsContext::begin).transpose().map_err(io::Error::other)?;
        let mut stream = connect(target, source)?;
        // Otherwise the kernel delays a request until the one before is acknowledged.
        stream.set_nodelay(true)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { stream, tls: tls.map(Box::new), established: false, output: Vec::new(), written: 0 })
    }

    /// Whether the connection is established, with TLS including the handshake.
    pub(super) const fn is_established(&self) -> bool {
        self.established
    }

    /// The protocol that was negotiated in the handshake.
    pub(super) fn alpn(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.alpn_protocol()
    }

    /// Writes as much as the kernel accepts.
    pub(super) fn write(&mut self) -> Result<(), LinkFailure> {
        let Some(tls) = &mut self.tls else { return self.write_plain() };
        if !self.output.is_empty() {
            tls.writer().write_all(&self.output)?;
            self.output.clear();
        }
        while tls.wants_write() {
            match tls.write_tls(&mut self.stream) {
                Ok(0) => return Err(LinkFailure("closed".to_owned())),
                Ok(_) => {}
                Err(error) if is_not_now(&error) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_plain(&mut self) -> Result<(), LinkFailure> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(LinkFailure("closed".to_owned())),
                Ok(len) => self.written += len,
                Err(error) if is_not_now(&error) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads until there is no more data, through `buffer`, at most until `input` has `len_max`
    /// bytes; returns whether the peer has closed the connection.
    pub(super) fn read(
        &mut self,
        buffer: &mut [u8],
        input: &mut Vec<u8>,
        len_max: usize,
    ) -> Result<bool, LinkFailure> {
        loop {
            let read = match &mut self.tls {
                None => self.stream.read(buffer),
                Some(tls) => tls.read_tls(&mut self.stream),
            };
            match read {
                Ok(0) => return Ok(true),
                Ok(len) => {
                    if self.tls.is_some() {
                        self.decrypt(buffer, input)?;
                    } else {
                        self.established = true;
                        input.extend_from_slice(&buffer[..len]);
                    }
                    if input.len() > len_max {
                        return Ok(false);
                    }
                }
                Err(error) if is_not_now(&error) => {
                    let has_peer = self.tls.is_none() && self.stream.peer_addr().is_ok();
                    self.established = self.established || has_peer;
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Decrypts received records, and answers those of the handshake.
    fn decrypt(&mut self, buffer: &mut [u8], input: &mut Vec<u8>) -> Result<(), LinkFailure> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        if let Err(error) = tls.process_new_packets() {
            // Sends the alert with the reason; the connection ends in any case.
            let _ = tls.write_tls(&mut self.stream);
            return Err(LinkFailure(error.to_string()));
        }
        loop {
            match tls.reader().read(buffer) {
                Ok(0) => break,
                Ok(len) => input.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.established = !tls.is_handshaking();
        if tls.wants_write() { self.write() } else { Ok(()) }
    }
}

fn connect(target: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let Some(source) = source else { return TcpStream::connect(target) };
    let socket = socket2::Socket::new(socket2::Domain::for_address(target), socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(EINPROGRESS) => Err(error),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

/// The error number of Linux for a connection in progress.
const EINPROGRESS: i32 = 115;

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_sent_without_delay() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (poll, target) = (mio::Poll::new().unwrap(), listener.local_addr().unwrap());
        for source in [None, Some([127, 0, 0, 5].into())] {
            let link = ByteLink::begin(target, source, None, Token(0), poll.registry()).unwrap();
            assert!(link.stream.nodelay().unwrap());
            assert_eq!(listener.accept().unwrap().1.ip(), source.unwrap_or(target.ip()));
        }
    }
}
