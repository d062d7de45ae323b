//! TLS: the certificate and key of this process, from files that are read again on a reload, or by
//! ACME.
//!
//! - [`certificate`]: a certificate with its key, and what it says.
//! - [`client_certificate`]: connections whose clients may show certificates.
//! - [`trust`]: authorities that are trusted for requests of this process.

pub mod certificate;
pub mod client_certificate;
pub mod config;
pub mod trust;

use crate::acme::AcmeState;
use crate::callers::CallerNonce;
use anyhow::{Context as _, ensure};
use arc_swap::ArcSwap;
use certificate::{CertificateFacts, TlsCertificate};
use client_certificate::{HandshakeRecorder, ShownCertificate, with_nonce};
use config::TlsConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

/// Where the certificate comes from.
#[derive(Debug)]
enum CertificateSource {
    Files { certificate: PathBuf, key: PathBuf },
    Acme(Box<AcmeState>),
}

/// The certificate in use, replaced without interrupting connections.
pub struct TlsIdentity {
    source: CertificateSource,
    has_http2: bool,
    current: ArcSwap<TlsCertificate>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").field("source", &self.source).finish_non_exhaustive()
    }
}

impl TlsIdentity {
    /// Reads the files that `config` names, or the certificate that was issued by ACME before;
    /// `None` if there is no TLS. With `has_http2`, HTTP/2 is offered to clients.
    ///
    /// # Errors
    /// One sentence with the file.
    pub fn open(config: &TlsConfig, has_http2: bool) -> anyhow::Result<Option<Self>> {
        let (source, current) = match (&config.certificate, &config.key) {
            (Some(certificate), Some(key)) => {
                let current = read(certificate, key, has_http2)?;
                (CertificateSource::Files { certificate: certificate.clone(), key: key.clone() }, current)
            }
            _ if config.acme.is_configured() => {
                let acme = AcmeState::open(&config.acme)?;
                let current = acme.stored_certificate(has_http2)?.unwrap_or_else(TlsCertificate::none);
                (CertificateSource::Acme(Box::new(acme)), current)
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { source, has_http2, current: ArcSwap::from_pointee(current) }))
    }

    /// Reads the files again, for new connections.
    ///
    /// # Errors
    /// One sentence with the file; the old certificate stays in use.
    pub fn reload(&self) -> anyhow::Result<()> {
        if let CertificateSource::Files { certificate, key } = &self.source {
            self.replace(read(certificate, key, self.has_http2)?);
        }
        Ok(())
    }

    /// Uses another certificate for new connections.
    pub fn replace(&self, certificate: TlsCertificate) {
        self.current.store(Arc::new(certificate));
    }

    /// How certificates are obtained by ACME; `None` if they come from files.
    #[must_use]
    pub const fn acme(&self) -> Option<&AcmeState> {
        match &self.source {
            CertificateSource::Files { .. } => None,
            CertificateSource::Acme(acme) => Some(acme),
        }
    }

    /// Whether HTTP/2 is offered to clients.
    #[must_use]
    pub const fn has_http2(&self) -> bool {
        self.has_http2
    }

    /// The names and the validity of the certificate in use; `None` without a certificate.
    #[must_use]
    pub fn facts(&self) -> Option<CertificateFacts> {
        self.current.load().facts().cloned()
    }

    /// Whether the certificate in use has the key of this record: that of the server in the site
    /// record.
    #[must_use]
    pub fn has_key(&self, record: &[u8]) -> bool {
        self.current.load().has_key(record)
    }

    /// The handshake of a connection; `None` if it was a challenge of ACME, which is answered by
    /// the handshake alone (RFC 8737).
    ///
    /// # Errors
    /// When the handshake fails.
    pub async fn accept<S>(&self, stream: S) -> io::Result<Option<TlsStream<S>>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let challenges = self.acme().map(AcmeState::challenges).filter(|challenges| !challenges.is_empty());
        let Some(challenges) = challenges else {
            return TlsAcceptor::from(self.current.load().server()).accept(stream).await.map(Some);
        };
        let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
        let Some(server) = challenges.for_hello(&start.client_hello()) else {
            return start.into_stream(self.current.load().server()).await.map(Some);
        };
        let mut stream = start.into_stream(server).await?;
        stream.shutdown().await?;
        Ok(None)
    }

    /// The handshake of a connection whose client may show a certificate, and what it has shown.
    /// `nonce` is the nonce that it signs. At most `len_max` bytes of its handshake are kept.
    ///
    /// # Errors
    /// When the handshake fails.
    pub async fn accept_certificate<S>(
        &self,
        stream: S,
        nonce: impl Future<Output = Option<CallerNonce>>,
        len_max: usize,
    ) -> io::Result<(TlsStream<S>, ShownCertificate)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
        let nonce = nonce.await;
        let recorder = Arc::new(HandshakeRecorder::new(nonce, len_max));
        let server = self.current.load().certificate_server().config(Arc::clone(&recorder));
        // The `ServerHello` is written here, and sent by the future.
        let stream = with_nonce(nonce, || start.into_stream(server)).await?;
        Ok((stream, recorder.shown()))
    }
}

fn read(certificate: &Path, key: &Path, has_http2: bool) -> anyhow::Result<TlsCertificate> {
    let shown = certificate.display();
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("cannot read the certificate {shown} (`tls.certificate`)"))?;
    ensure!(!chain.is_empty(), "{shown} has no certificate (`tls.certificate`): expected PEM");
    let bytes = handle_auth::file::open_secret_file(key)
        .context("cannot read the key of the certificate (`tls.key`)")?;
    let key_der = PrivateKeyDer::from_pem_slice(&bytes)
        .with_context(|| format!("{} has no private key as PEM (`tls.key`)", key.display()))?;
    TlsCertificate::new(chain, key_der, has_http2)
        .with_context(|| format!("{} is not the key of {shown}", key.display()))
}
