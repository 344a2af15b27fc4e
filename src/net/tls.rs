//! Encrypted connections: which CAs to trust, the client's certificate, and a TLS session over a
//! non-blocking socket.
//!
//! Encryption has a cost: the session allocates for each record that it writes, and computes the
//! handshake on the thread of the loop (less than 1 ms). The hazard is that decrypted bytes stay
//! unread, because the poller does not report them. So a read goes on until the socket is drained
//! or the buffer is full.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
};

use crate::proto::error::ConfigError;

/// Which CAs to trust on encrypted connections, and the client's certificate: for
/// [`Config::tls`](crate::Config::tls).
///
/// The CA that signs the certificates of your nodes is usually your own:
/// [`trusting`](Tls::trusting) trusts only that CA. Only `system` (feature `system-ca`) trusts the
/// CAs of the system. A `rustls::ClientConfig` of your own may trust any CA.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Trusts nodes with a certificate of this CA, or of any of these if `ca` has several (PEM).
    ///
    /// # Errors
    /// `ca` is not PEM, or has no certificate.
    pub fn trusting(ca: &[u8]) -> Result<Tls, ConfigError> {
        Tls::of(roots(ca)?, None)
    }

    /// As [`trusting`](Tls::trusting), with a client certificate for nodes that require one: the
    /// certificate and its chain up to the CA (PEM), and its key (PEM).
    ///
    /// # Errors
    /// One of them is not such a PEM, or the key does not belong to the certificate.
    pub fn mutual(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Tls, ConfigError> {
        Tls::of(roots(ca)?, Some((certificate, key)))
    }

    /// Trusts nodes with a certificate of a CA that this system trusts. The variables
    /// `SSL_CERT_FILE` and `SSL_CERT_DIR` name other CAs in place of those.
    ///
    /// # Errors
    /// The system has no CA.
    #[cfg(feature = "system-ca")]
    pub fn system() -> Result<Tls, ConfigError> {
        Tls::of(system_roots()?, None)
    }

    /// As [`system`](Tls::system), with a client certificate and its key as for
    /// [`mutual`](Tls::mutual).
    ///
    /// # Errors
    /// Those of `system` and of `mutual`.
    #[cfg(feature = "system-ca")]
    pub fn system_mutual(certificate: &[u8], key: &[u8]) -> Result<Tls, ConfigError> {
        Tls::of(system_roots()?, Some((certificate, key)))
    }

    /// Trusts these CAs. `own` is the client certificate and its key.
    fn of(roots: RootCertStore, own: Option<(&[u8], &[u8])>) -> Result<Tls, ConfigError> {
        let builder = builder(roots)?;
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let certificates = certificates(certificate, "the client certificate")?;
                // The parser's error text is not quoted, because it may have a part of the key.
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|_| bad("client key: no private key in PEM"))?;
                builder
                    .with_client_auth_cert(certificates, key)
                    .map_err(|error| bad(format!("client certificate and key: {error}")))?
            }
        };
        Ok(Tls { config: Arc::new(config) })
    }

    /// The configuration of rustls, with which a program can make its own connections to the nodes.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }
}

impl From<Arc<ClientConfig>> for Tls {
    fn from(config: Arc<ClientConfig>) -> Tls {
        Tls { config }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// Two are equal if they share one configuration.
impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }
}

impl Eq for Tls {}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn roots(ca: &[u8]) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca, "the CA")? {
        roots.add(certificate).map_err(|error| bad(format!("the CA: {error}")))?;
    }
    Ok(roots)
}

/// The CAs of the system, without those that cannot be read.
#[cfg(feature = "system-ca")]
fn system_roots() -> Result<RootCertStore, ConfigError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        let way_out = "install the package ca-certificates, or name a CA";
        return Err(bad(format!("the system has no CA{why}; {way_out}")));
    }
    Ok(roots)
}

fn builder(roots: RootCertStore) -> Result<Builder, ConfigError> {
    // Names the provider, because a program with two providers has no default one.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(error.to_string()))?;
    Ok(builder.with_root_certificates(roots))
}

fn certificates(pem: &[u8], of: &str) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(bad(format!("{of}: no certificate in PEM"))),
        Err(error) => Err(bad(format!("{of}: {error}"))),
    }
}

fn bad(problem: impl Into<Box<str>>) -> ConfigError {
    ConfigError::Tls { problem: problem.into() }
}

/// How the connections to one node are encrypted.
#[derive(Debug)]
pub(super) struct Encryption {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Encryption {
    /// The encryption for the node `host`, whose certificate has to be for that name or IP address.
    pub(super) fn to(host: &str, tls: Option<&Tls>) -> Result<Encryption, ConfigError> {
        let Some(tls) = tls else {
            return Err(bad(format!(
                "{host} is to be encrypted (rediss://), and nothing says whom to trust: give \
                 Config::tls a CA or a ClientConfig"
            )));
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| bad(format!("no certificate can be for the name {host}")))?;
        Ok(Encryption { config: Arc::clone(&tls.config), name })
    }

    /// Begins a session on a connection that is being opened.
    pub(super) fn begin(&self, tcp: TcpStream) -> io::Result<TlsStream> {
        let session = ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(|error| failed(&error))?;
        Ok(TlsStream { tcp, session, failure: None })
    }

    /// Begins a session on a connection that blocks, for a look-up.
    pub(super) fn begin_blocking(
        &self,
        tcp: std::net::TcpStream,
    ) -> io::Result<StreamOwned<ClientConnection, std::net::TcpStream>> {
        let session = ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(|error| failed(&error))?;
        Ok(StreamOwned::new(session, tcp))
    }
}

/// A TLS session on a non-blocking socket.
#[derive(Debug)]
pub struct TlsStream {
    tcp: TcpStream,
    session: ClientConnection,
    /// An error that came in a read which also got bytes: the next read returns the error.
    failure: Option<io::Error>,
}

impl TlsStream {
    /// The socket.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// The socket, for the poller.
    pub fn tcp_mut(&mut self) -> &mut TcpStream {
        &mut self.tcp
    }

    /// Continues the handshake as far as possible without waiting, and returns whether it is done.
    ///
    /// # Errors
    /// The handshake failed. The error says why, in words for an operator.
    pub fn shake_hands(&mut self) -> io::Result<bool> {
        loop {
            self.push()?;
            if !self.session.is_handshaking() {
                return Ok(true);
            }
            match self.pull() {
                Ok((0, _)) => {
                    let words = "closed by the node in the TLS handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, words));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => {
                    // Sends the node the alert that says why.
                    let _ = self.push();
                    return Err(error);
                }
            }
        }
    }

    /// Encrypts `bytes`, and writes them after the encrypted bytes that were left before. Returns
    /// how many were accepted, and whether the kernel has taken everything. Makes only one write
    /// while the kernel takes everything.
    ///
    /// # Errors
    /// If the connection failed.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        let mut taken = 0;
        loop {
            taken += self.session.writer().write(&bytes[taken..])?;
            match self.push() {
                Ok(true) if taken == bytes.len() => return Ok((taken, true)),
                Ok(true) => {}
                Ok(false) => return Ok((taken, false)),
                // If the socket has an unread alert of the node, that says why the write failed.
                Err(error) => return Err(self.pull().err().filter(is_of_tls).unwrap_or(error)),
            }
        }
    }

    /// Whether there are encrypted bytes that the kernel has not taken yet.
    pub fn has_unsent(&self) -> bool {
        self.session.wants_write()
    }

    /// Ends the session, and closes so that what was written still arrives.
    ///
    /// # Errors
    /// If the connection failed before.
    pub fn finish(mut self) -> io::Result<()> {
        self.session.send_close_notify();
        let _ = self.push();
        self.tcp.shutdown(Shutdown::Write)
    }

    /// Writes the encrypted bytes, and returns whether the kernel took all of them.
    fn push(&mut self) -> io::Result<bool> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.tcp) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads once from the socket and decrypts. Returns how many bytes were read (zero at the end),
    /// and whether the socket is drained.
    fn pull(&mut self) -> io::Result<(usize, bool)> {
        let mut socket = Noting { tcp: &mut self.tcp, drained: false };
        let count = loop {
            match self.session.read_tls(&mut socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        let drained = socket.drained;
        self.session.process_new_packets().map_err(|error| failed(&error))?;
        Ok((count, drained))
    }
}

impl Read for TlsStream {
    /// Reads as a plain socket does: if the buffer is not filled, the stream is drained.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (mut filled, mut drained) = (0, false);
        loop {
            match self.session.reader().read(&mut buffer[filled..]) {
                Ok(0) => return Ok(filled),
                Ok(count) => {
                    filled += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if filled == 0 => return Err(error),
                Err(_) => return Ok(filled),
            }
            match self.failure.take_if(|_| filled == 0) {
                Some(error) => return Err(error),
                None if drained || self.failure.is_some() => break,
                None => {}
            }
            match self.pull() {
                Ok((0, _)) if filled == 0 => return Ok(0),
                Ok((0, _)) => break,
                Ok((_, all)) => drained = all,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    let _ = self.push();
                    self.failure = Some(error);
                }
            }
        }
        if filled == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(filled) }
    }
}

/// Reads from the socket, and records whether a read did not fill its buffer.
struct Noting<'a> {
    tcp: &'a mut TcpStream,
    drained: bool,
}

impl Read for Noting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.tcp.read(buffer)?;
        self.drained = count < buffer.len();
        Ok(count)
    }
}

fn is_of_tls(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// The error of a blocking session, in the same words as that of a non-blocking one.
pub(super) fn in_words(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.map(failed).unwrap_or(error)
}

/// The error of a session. Replaces some texts of rustls by words for an operator.
fn failed(error: &rustls::Error) -> io::Error {
    let words = match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate is signed by an unknown CA".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it requires a client certificate".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::UnknownCA) => {
            "it does not know the CA of the client certificate".to_owned()
        }
        other => other.to_string(),
    };
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_file_that_is_no_pem_is_refused_by_name() {
        let problem = |result: Result<Tls, ConfigError>| result.unwrap_err().to_string();
        let none = problem(Tls::trusting(b""));
        assert_eq!(none, "TLS: the CA: no certificate in PEM");
        let key = b"-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n";
        assert!(!problem(Tls::mutual(b"", key, key)).contains("hunter2"));
    }

    #[test]
    fn tls_without_a_ca_is_refused() {
        let error = Encryption::to("h", None).unwrap_err();
        assert!(error.to_string().contains("whom to trust"), "{error}");
    }
}
