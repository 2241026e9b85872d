//! TLS before the rail stub, as the rail's own entrance would speak it: every connection is handed on to the stub as it is.

use super::BOUND;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{HandshakeKind, ServerConfig};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use test_servers::Authority;
use test_servers::rcgen::ExtendedKeyUsagePurpose;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// What an entrance shows of itself, and asks of others.
pub struct Shown {
    pub chain: String,
    pub key: String,
    /// Whose certificates callers must have; None asks for none.
    pub callers: Option<String>,
}

impl Shown {
    pub fn of(authority: &Authority, hosts: &[&str]) -> Self {
        let (chain, key) = authority.issue("the rail", hosts, ExtendedKeyUsagePurpose::ServerAuth);
        Self {
            chain,
            key,
            callers: None,
        }
    }

    pub fn asking_for(self, authority: &Authority) -> Self {
        Self {
            callers: Some(authority.pem()),
            ..self
        }
    }

    fn config(&self) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match &self.callers {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = rustls::RootCertStore::empty();
                roots
                    .add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
                    .unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .unwrap();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let mut config = builder.with_single_cert(chain, key).unwrap();
        // It would rather speak h2: who offers that is spoken to in it, and the stub understands nothing.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

/// How each connection to an entrance went: its kind of handshake, or why there was none.
pub type Handshakes = Rc<RefCell<Vec<Result<HandshakeKind, String>>>>;

pub struct Entrance {
    pub port: u16,
    pub handshakes: Handshakes,
    /// The protocol that each handshake settled on.
    pub protocols: Rc<RefCell<Vec<Option<String>>>>,
}

impl Entrance {
    /// An entrance to the stub at `rail`, `http://host:port`.
    pub async fn before(rail: &str, shown: &Shown) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(shown.config()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stub = rail.strip_prefix("http://").unwrap().to_owned();
        let handshakes = Handshakes::default();
        let seen = handshakes.clone();
        let protocols = Rc::<RefCell<Vec<Option<String>>>>::default();
        let settled = protocols.clone();
        tokio::task::spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, stub, seen) = (acceptor.clone(), stub.clone(), seen.clone());
                let settled = settled.clone();
                tokio::task::spawn_local(async move {
                    match acceptor.accept(stream).await {
                        Err(error) => seen.borrow_mut().push(Err(error.to_string())),
                        Ok(mut stream) => {
                            let protocol = stream.get_ref().1.alpn_protocol();
                            let protocol = protocol.map(|name| String::from_utf8_lossy(name).into_owned());
                            settled.borrow_mut().push(protocol);
                            seen.borrow_mut().push(Ok(stream.get_ref().1.handshake_kind().unwrap()));
                            let mut to = TcpStream::connect(stub).await.unwrap();
                            // However it ends: what counts is what the stub has read.
                            let _ = tokio::io::copy_bidirectional(&mut stream, &mut to).await;
                        }
                    }
                });
            }
        });
        Self {
            port,
            handshakes,
            protocols,
        }
    }

    pub fn url(&self, host: &str) -> String {
        format!("https://{host}:{}", self.port)
    }

    /// Waits until so many connections came to a handshake, or to none.
    pub async fn seen(&self, count: usize) -> Vec<Result<HandshakeKind, String>> {
        tokio::time::timeout(BOUND, async {
            while self.handshakes.borrow().len() < count {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("never {count}: {:?}", self.handshakes.borrow()));
        self.handshakes.borrow().clone()
    }
}

/// Writes a file below `directory`, and says where.
pub fn file(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    // A key is nobody else's business.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    path.display().to_string()
}
