//! Certificates: how brokers know one another.
//!
//! Each broker has a certificate of the cell's own authority for the name [`broker_name`] gives it,
//! good for both ends of a connection. Whoever connects checks the name of the other; who is
//! connected to checks it against the greeting. TLS 1.3 only.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::frame::{Frames, Pipe};

/// How connections between brokers are protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Security {
    /// By mutual TLS.
    Tls(TlsFiles),
    /// Not at all: anybody who can reach the port can take part. For one machine and tests.
    Plain,
}

/// The files of a broker's certificate, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the cell's authority. Several during a change of it.
    pub authority: PathBuf,
    /// The broker's certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// The broker's private key.
    pub key: PathBuf,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read, or holds nothing of its kind.
    #[error("cannot read {what} from {}", path.display())]
    File {
        /// What was to be read.
        what: &'static str,
        /// From where.
        path: PathBuf,
        /// What the reader says.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// They do not fit together.
    #[error("the certificate in {} cannot be used", path.display())]
    Unusable {
        /// The certificate's file.
        path: PathBuf,
        /// What the TLS library says.
        #[source]
        source: rustls::Error,
    },
    /// The certificate is for another broker.
    #[error("the certificate in {} is not for the name {name}", path.display())]
    OtherName {
        /// The certificate's file.
        path: PathBuf,
        /// The name it should be for.
        name: String,
    },
    /// The other brokers would not take the certificate.
    #[error(
        "the certificate in {} is not good for the authority in {}: have one made by that authority \
         that is good today, for serverAuth and clientAuth (openssl verify -CAfile tells more)",
        path.display(), authority.display()
    )]
    Refused {
        /// The certificate's file.
        path: PathBuf,
        /// The authority's file.
        authority: PathBuf,
        /// Why: another authority, expired, not good yet, not for this use.
        #[source]
        source: rustls::Error,
    },
    /// A cell's name does not fit a certificate.
    #[error("the cell's name cannot stand in a certificate: no name may begin or end with a dash")]
    CellName,
}

/// The name in the certificate of broker `node` of `cell`. It need not be known to any name server.
#[must_use]
pub fn broker_name(cell: &str, node: u64) -> String {
    format!("broker-{node}.{cell}.sublet")
}

/// What a broker shows to others, and how it judges what they show. All clones are the same one.
#[derive(Clone)]
pub struct Identity {
    cell: String,
    tls: Option<Arc<Kept>>,
}

/// The files, and what they held when they were read last.
struct Kept {
    files: TlsFiles,
    node: u64,
    tls: RwLock<Tls>,
    /// How often they were read again.
    version: AtomicU64,
}

#[derive(Clone)]
struct Tls {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.tls.is_some() { "tls" } else { "plain" };
        f.debug_struct("Identity").field("cell", &self.cell).field("kind", &kind).finish()
    }
}

impl Identity {
    /// Reads the files of `security` for broker `node` of `cell`, and checks that they are its own and
    /// that whoever trusts the same authority takes the certificate now.
    ///
    /// # Errors
    /// [`IdentityError`] says which file is wrong.
    pub fn load(security: &Security, cell: &str, node: u64) -> Result<Self, IdentityError> {
        let tls = match security {
            Security::Plain => None,
            Security::Tls(files) => {
                let tls = RwLock::new(Tls::load(files, cell, node, UnixTime::now())?);
                let (files, version) = (files.clone(), AtomicU64::new(0));
                Some(Arc::new(Kept { files, node, tls, version }))
            }
        };
        Ok(Self { cell: cell.to_owned(), tls })
    }

    /// Reads the files again, authority and all: what they hold counts for connections that are made
    /// from now on. Those that are open stay. Blocks for as long as reading takes.
    ///
    /// # Errors
    /// [`IdentityError`]; everything is as it was then.
    pub fn reload(&self) -> Result<(), IdentityError> {
        let Some(kept) = &self.tls else { return Ok(()) };
        let tls = Tls::load(&kept.files, &self.cell, kept.node, UnixTime::now())?;
        *kept.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
        kept.version.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// How often the files were read again: what a peer has said to those before counts no more.
    pub(super) fn version(&self) -> u64 {
        self.tls.as_ref().map_or(0, |kept| kept.version.load(Ordering::SeqCst))
    }

    fn tls(&self) -> Option<Tls> {
        let kept = self.tls.as_ref()?;
        Some(kept.tls.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Whether connections are protected.
    pub(in super::super) const fn is_protected(&self) -> bool {
        self.tls.is_some()
    }

    /// Makes a connection to `node` safe.
    ///
    /// # Errors
    /// What the handshake gave; a certificate for another name is `InvalidData`.
    pub(super) async fn connect(&self, stream: TcpStream, node: u64) -> io::Result<Frames> {
        let Some(tls) = self.tls() else { return Ok(Frames::new(Box::new(stream))) };
        let name = server_name(&self.cell, node).map_err(io::Error::other)?;
        let stream = tls.connector.connect(name, stream).await?;
        Ok(Frames::new(Box::new(stream)))
    }

    /// Takes in a connection. With it comes who may be at its other end.
    ///
    /// # Errors
    /// What the handshake gave.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<(Frames, Certified)> {
        let cell = self.cell.clone();
        let Some(tls) = self.tls() else {
            let pipe: Box<dyn Pipe> = Box::new(stream);
            return Ok((Frames::new(pipe), Certified { cell, certificate: None }));
        };
        let stream = tls.acceptor.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        // The verifier asks for one, so there is one; without it nobody is certified.
        let shown = shown.map(|shown| shown.clone().into_owned());
        let none = CertificateDer::from(Vec::new());
        let certificate = Some(shown.unwrap_or(none));
        Ok((Frames::new(Box::new(stream)), Certified { cell, certificate }))
    }
}

/// Whom the certificate of a connection is for. Without TLS: anybody.
pub(super) struct Certified {
    cell: String,
    certificate: Option<CertificateDer<'static>>,
}

impl Certified {
    pub(super) fn is(&self, node: u64) -> bool {
        let Some(certificate) = &self.certificate else { return true };
        is_for(certificate, &self.cell, node)
    }
}

fn is_for(certificate: &CertificateDer<'_>, cell: &str, node: u64) -> bool {
    let Ok(name) = server_name(cell, node) else { return false };
    let parsed = ParsedCertificate::try_from(certificate);
    parsed.is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
}

fn server_name(cell: &str, node: u64) -> Result<ServerName<'static>, IdentityError> {
    ServerName::try_from(broker_name(cell, node)).map_err(|_| IdentityError::CellName)
}

impl Tls {
    fn load(files: &TlsFiles, cell: &str, node: u64, now: UnixTime) -> Result<Self, IdentityError> {
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |source| IdentityError::Unusable { path, source }
        };
        let name = server_name(cell, node)?;
        let mut roots = RootCertStore::empty();
        for authority in certificates("the authority", &files.authority)? {
            roots.add(authority).map_err(unusable(&files.authority))?;
        }
        let chain = certificates("a certificate", &files.certificate)?;
        let is_ours = chain.first().is_some_and(|own| is_for(own, cell, node));
        if !is_ours {
            let (path, name) = (files.certificate.clone(), name.to_str().into_owned());
            return Err(IdentityError::OtherName { path, name });
        }
        let key = PrivateKeyDer::from_pem_file(&files.key);
        let key = key.map_err(file("a private key", &files.key))?;

        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let roots = Arc::new(roots);
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(unusable(&files.certificate))?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unusable(&files.certificate))?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))
                .map_err(unusable(&files.authority))?;
        check(&chain, &name, (&roots, &verifier), now).map_err(|source| {
            let (path, authority) = (files.certificate.clone(), files.authority.clone());
            IdentityError::Refused { path, authority, source }
        })?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(unusable(&files.certificate))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(unusable(&files.certificate))?;
        let (client, server) = (Arc::new(client), Arc::new(server));
        Ok(Self { connector: TlsConnector::from(client), acceptor: TlsAcceptor::from(server) })
    }
}

/// Judges our own certificate as the others will: when they call us, and when we call them.
fn check(
    chain: &[CertificateDer<'static>],
    name: &ServerName<'static>,
    (roots, verifier): (&Arc<RootCertStore>, &Arc<dyn ClientCertVerifier>),
    now: UnixTime,
) -> Result<(), rustls::Error> {
    let Some((own, between)) = chain.split_first() else {
        return Err(rustls::Error::NoCertificatesPresented);
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let callers = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider)
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    callers.verify_server_cert(own, between, name, &[], now)?;
    verifier.verify_client_cert(own, between, now)?;
    Ok(())
}

fn certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let read: Vec<_> = read.map_err(file(what, path))?;
    match read.is_empty() {
        true => Err(file(what, path)(rustls::pki_types::pem::Error::NoItemsFound)),
        false => Ok(read),
    }
}

fn file(
    what: &'static str,
    path: &Path,
) -> impl FnOnce(rustls::pki_types::pem::Error) -> IdentityError {
    let path = path.to_owned();
    move |source| IdentityError::File { what, path, source }
}

#[cfg(test)]
mod tests {
    use rustls::CertificateError;

    use super::*;

    fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/raft/tests/certificates").join(name)
    }

    fn load(broker: &str, authority: &str, day: u64) -> Result<(), CertificateError> {
        let files = TlsFiles {
            authority: file(&format!("{authority}.pem")),
            certificate: file(&format!("{broker}.pem")),
            key: file(&format!("{broker}.key")),
        };
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(day * 86_400));
        match Tls::load(&files, "test", 2, now) {
            Ok(_) => Ok(()),
            Err(IdentityError::Refused { path, source, .. }) => {
                assert_eq!(path, files.certificate);
                let rustls::Error::InvalidCertificate(why) = source else { panic!("{source}") };
                Err(why)
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_certificate_that_others_would_refuse_is_refused_when_it_is_read() {
        // In days since 1970: 1995, 2027, 2130. The fixtures are good from 2020 to 2120.
        let (early, today, late) = (9_131, 20_820, 58_440);
        load("broker-2", "authority", today).unwrap();
        load("stranger-2", "stranger", today).unwrap();
        for (broker, authority) in [("stranger-2", "authority"), ("broker-2", "stranger")] {
            let refused = load(broker, authority, today).unwrap_err();
            let is_stranger =
                matches!(refused, CertificateError::UnknownIssuer | CertificateError::BadSignature);
            assert!(is_stranger, "{refused:?}");
        }
        let refused = load("broker-2", "authority", late).unwrap_err();
        assert!(matches!(refused, CertificateError::ExpiredContext { .. }), "{refused:?}");
        let refused = load("broker-2", "authority", early).unwrap_err();
        assert!(matches!(refused, CertificateError::NotValidYetContext { .. }), "{refused:?}");
    }
}
