//! What TLS is told by files: the authorities that are trusted, and who we are.
//!
//! Owns: reading PEM files, secrets and this machine's authorities; who else may read a secret; making anew what was made of
//! files that changed; a client that verifies whom it talks to, always.
//! Does not own: connections, nor what a setting or a parameter of a URL is called: an error names the file, its reader
//! names the setting.
//! On failure: nothing half: a file that cannot be used is refused with its path and the reason.

mod reloaded;
mod secret;

pub use reloaded::Reloaded;
pub use secret::{check_private, secret};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;

/// A file, or this machine's authorities, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// This file.
    #[error("{path}: {reason}")]
    File {
        /// Its path.
        path: String,
        /// What is wrong with it. Nothing of its content.
        reason: String,
    },
    /// No authority is known to this machine (`SSL_CERT_FILE`, `SSL_CERT_DIR`, else the usual places).
    #[error("this machine trusts no authority")]
    NoAuthority,
    /// Certificate and key cannot be shown together.
    #[error("the certificate and the key: {0}")]
    Identity(String),
}

fn file(path: &str, reason: impl ToString) -> Unusable {
    Unusable::File {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// The certificates of a PEM file, in its order; at least one.
///
/// # Errors
/// [`Unusable::File`] where it cannot be read, or holds no certificate.
pub fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let found = CertificateDer::pem_file_iter(path)
        .map_err(|error| file(path, error))?
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| file(path, error))?;
    if found.is_empty() {
        return Err(file(path, "there is no certificate in it"));
    }
    Ok(found)
}

/// The authorities of a PEM file; without one, those that this machine trusts.
///
/// # Errors
/// [`Unusable`] where there is none, or one of the file's is no certificate.
pub fn authorities(path: Option<&str>) -> Result<RootCertStore, Unusable> {
    let mut store = RootCertStore::empty();
    match path {
        None => {
            let found = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(found.certs);
            if store.is_empty() {
                return Err(Unusable::NoAuthority);
            }
        }
        Some(path) => {
            for certificate in certificates(path)? {
                store.add(certificate).map_err(|error| file(path, error))?;
            }
        }
    }
    Ok(store)
}

/// Who we are, where the other side asks: a chain of certificates, our own first, and its key.
#[derive(Debug)]
pub struct Identity {
    /// The chain.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key of its first certificate.
    pub key: PrivateKeyDer<'static>,
}

/// The key of a PEM file (PKCS#8, PKCS#1 or SEC1).
///
/// # Errors
/// [`Unusable::File`] where it cannot be read, others can read it ([`check_private`]), or it holds no key.
pub fn key(path: &str) -> Result<PrivateKeyDer<'static>, Unusable> {
    check_private(path.as_ref())?;
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => file(path, "there is no private key in it"),
        error => file(path, error),
    })
}

/// A client that believes only who has a certificate of these authorities, not expired, for the name that was asked for; TLS 1.2
/// or 1.3. Each connection verifies anew: none resumes what an earlier one verified. Whether a certificate was revoked is
/// not asked.
///
/// # Errors
/// [`Unusable::Identity`] where the key is not that of the certificate.
pub fn verifying_client(authorities: RootCertStore, identity: Option<Identity>) -> Result<ClientConfig, Unusable> {
    let wrong = |error: rustls::Error| Unusable::Identity(error.to_string());
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_root_certificates(authorities);
    let mut client = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { chain, key }) => builder.with_client_auth_cert(chain, key).map_err(wrong)?,
    };
    client.resumption = rustls::client::Resumption::disabled();
    Ok(client)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    struct Files(tempfile::TempDir);

    impl Files {
        fn put(&self, name: &str, text: &str) -> String {
            let path = self.0.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            path.display().to_string()
        }
    }

    fn said<T: std::fmt::Debug>(refused: Result<T, Unusable>) -> String {
        refused.unwrap_err().to_string()
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_the_reason() {
        let files = Files(tempfile::tempdir().unwrap());
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["rail".to_owned()]).unwrap();
        let good = files.put("good.pem", &cert.pem());
        let its_key = files.put("its.key", &signing_key.serialize_pem());
        let empty = files.put("empty.pem", "");
        let text = files.put("text.pem", "no PEM at all\n");
        let cut = files.put("cut.pem", &cert.pem()[..200]);
        let hollow = files.put(
            "hollow.pem",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        );
        assert_eq!(certificates(&good).unwrap().len(), 1);
        assert_eq!(authorities(Some(&good)).unwrap().len(), 1);
        for path in [&empty, &text, &its_key] {
            let said = said(certificates(path));
            assert_eq!(said, format!("{path}: there is no certificate in it"));
        }
        for refused in [said(certificates(&cut)), said(authorities(Some(&hollow)))] {
            assert!(
                refused.contains("cut.pem: ") || refused.contains("hollow.pem: "),
                "{refused}"
            );
        }
        assert_eq!(said(key(&good)), format!("{good}: there is no private key in it"));
        let missing = said(certificates("/not/there.pem"));
        assert!(missing.starts_with("/not/there.pem: "), "{missing}");
        let missing = said(key("/not/there.key"));
        assert!(missing.starts_with("/not/there.key: "), "{missing}");
    }

    #[test]
    fn somebody_elses_key_is_refused() {
        let files = Files(tempfile::tempdir().unwrap());
        let ours = generate_simple_self_signed(["us".to_owned()]).unwrap();
        let theirs = generate_simple_self_signed(["them".to_owned()]).unwrap();
        let cert = files.put("cert.pem", &ours.cert.pem());
        let with = |name: &str, pem: &str| {
            let identity = Identity {
                chain: certificates(&cert).unwrap(),
                key: key(&files.put(name, pem)).unwrap(),
            };
            verifying_client(authorities(Some(&cert)).unwrap(), Some(identity))
        };
        with("ours.key", &ours.signing_key.serialize_pem()).unwrap();
        let said = said(with("theirs.key", &theirs.signing_key.serialize_pem()));
        assert!(said.starts_with("the certificate and the key: "), "{said}");
    }
}
