//! Encryption, as the URL says it in the words of libpq.

use crate::pooled::unavailable;
use lock_api::StoreError;
use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host as PgHost, SslMode};

/// How much of the server's word is checked, as `sslmode` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// `disable`: never encrypted.
    Disabled,
    /// `prefer`, also where nothing is said: encrypted where the server can, by whomever it is.
    Preferred,
    /// `require`: encrypted, by whomever it is; with `sslrootcert` as `verify-ca`.
    Required,
    /// `verify-ca`: by somebody whom the authority vouches for.
    Authority,
    /// `verify-full`: by the host of the URL.
    Host,
}

/// What a URL says of encryption:
///
/// | parameter | |
/// |---|---|
/// | `sslmode` | `disable`, `prefer` (where nothing is said), `require`, `verify-ca`, `verify-full`, as in libpq |
/// | `sslrootcert` | a PEM file with the authorities, or `system` for this machine's; the two `verify-…` need it |
/// | `sslcert`, `sslkey` | PEM files: who we are, where the server asks |
/// | `insecure_transport` | `true`: the password may go to whoever answers at a host beyond this machine (dlock's own) |
#[derive(Clone, Debug)]
pub struct Tls {
    check: Check,
    roots: Option<String>,
    identity: Option<(String, String)>,
    insecure: bool,
}

impl Tls {
    /// Takes what concerns encryption out of a URL. Answers the rest of the URL too.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] naming the parameter that cannot be.
    pub fn of_url(url: &str) -> Result<(String, Self), StoreError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut check, mut roots, mut cert, mut key, mut insecure) = (None, None, None, None, false);
        let mut rest = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value)
                .decode_utf8()
                .map_err(|_| unavailable(format!("the store's URL: {name} is no UTF-8")))?
                .into_owned();
            match name {
                "sslmode" => {
                    check = Some(match value.as_str() {
                        "disable" => Check::Disabled,
                        "prefer" => Check::Preferred,
                        "require" => Check::Required,
                        "verify-ca" => Check::Authority,
                        "verify-full" => Check::Host,
                        _ => {
                            return Err(unavailable(
                                "the store's URL: sslmode must be disable, prefer, require, verify-ca or verify-full",
                            ));
                        }
                    });
                }
                "sslrootcert" => roots = Some(value),
                "sslcert" => cert = Some(value),
                "sslkey" => key = Some(value),
                "insecure_transport" => {
                    insecure = value
                        .parse()
                        .map_err(|_| unavailable("the store's URL: insecure_transport must be true or false"))?;
                }
                _ => rest.push(pair),
            }
        }
        let check = match (check.unwrap_or(Check::Preferred), &roots) {
            (Check::Required, Some(_)) => Check::Authority,
            (Check::Authority | Check::Host, None) => {
                return Err(unavailable(
                    "the store's URL: sslmode=verify-… needs sslrootcert, a PEM file or system",
                ));
            }
            (check, _) => check,
        };
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(unavailable("the store's URL: sslcert and sslkey go together")),
        };
        let url = if rest.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", rest.join("&"))
        };
        let tls = Self {
            check,
            roots,
            identity,
            insecure,
        };
        Ok((url, tls))
    }

    /// Whether the driver asks the server for encryption.
    #[must_use]
    pub fn mode(&self) -> SslMode {
        match self.check {
            Check::Disabled => SslMode::Disable,
            Check::Preferred => SslMode::Prefer,
            Check::Required | Check::Authority | Check::Host => SslMode::Require,
        }
    }

    /// Refuses to give a password to whoever answers in a host's place (case S4): beyond this machine the server has to be
    /// verified, or to prove by SCRAM's channel binding that it knows the password and is the one that encrypts.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] naming the host and what to say in the URL.
    pub(crate) fn check_transport(&self, config: &Config) -> Result<(), StoreError> {
        let verified = matches!(self.check, Check::Authority | Check::Host);
        let bound = self.check == Check::Required && config.get_channel_binding() == ChannelBinding::Require;
        if verified || bound || self.insecure {
            return Ok(());
        }
        match beyond(config) {
            None => Ok(()),
            Some(host) => Err(unavailable(format!(
                "the store's URL: {host} is another machine, and nothing verifies that it is the server: whoever answers \
                 there could ask for the password in the clear. Say sslmode=verify-full and sslrootcert, or sslmode=require \
                 and channel_binding=require; or insecure_transport=true where the network itself is trusted"
            ))),
        }
    }

    /// The files that it is made of.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let roots = self.roots.iter().filter(|roots| *roots != "system");
        let identity = self.identity.iter().flat_map(|(cert, key)| [cert, key]);
        roots.chain(identity).map(PathBuf::from).collect()
    }

    /// What encrypts, with the certificates read.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] naming the file that cannot be used.
    pub fn client(&self) -> Result<ClientConfig, StoreError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let inner = match self.check {
            Check::Authority | Check::Host => Some(
                WebPkiServerVerifier::builder_with_provider(Arc::new(self.roots()?), provider.clone())
                    .build()
                    .map_err(|error| unavailable(format!("sslrootcert: {error}")))?,
            ),
            Check::Disabled | Check::Preferred | Check::Required => None,
        };
        let verifier = Verifier {
            inner,
            name_counts: self.check == Check::Host,
            provider: provider.clone(),
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unavailable(format!("TLS: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let Some((cert, key)) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = tls_kit::certificates(cert).map_err(|error| unavailable(format!("sslcert {error}")))?;
        let key = tls_kit::key(key).map_err(|error| unavailable(format!("sslkey {error}")))?;
        builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| unavailable(format!("sslcert and sslkey: {error}")))
    }

    fn roots(&self) -> Result<RootCertStore, StoreError> {
        match self.roots.as_deref() {
            None | Some("system") => {
                tls_kit::authorities(None).map_err(|error| unavailable(format!("sslrootcert=system: {error}")))
            }
            path => tls_kit::authorities(path).map_err(|error| unavailable(format!("sslrootcert {error}"))),
        }
    }
}

/// The first host of a configuration that is not this machine.
fn beyond(config: &Config) -> Option<String> {
    let addresses = config.get_hostaddrs();
    if !addresses.is_empty() {
        let beyond = addresses.iter().find(|address| !address.is_loopback());
        return beyond.map(ToString::to_string);
    }
    config.get_hosts().iter().find_map(|host| match host {
        #[cfg(unix)]
        PgHost::Unix(_) => None,
        PgHost::Tcp(name) => (!is_this_machine(name)).then(|| name.clone()),
    })
}

/// Whether a name or address is of the loopback interface.
fn is_this_machine(name: &str) -> bool {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Believes the server as far as the mode says. Its signature of the handshake is checked in every mode.
struct Verifier {
    /// None believes any certificate.
    inner: Option<Arc<WebPkiServerVerifier>>,
    /// Whether the host's name must stand in the certificate.
    name_counts: bool,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("checked", &self.inner.is_some())
            .field("name_counts", &self.name_counts)
            .finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else {
            return Ok(ServerCertVerified::assertion());
        };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The chain was verified before the name.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name_counts => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> Result<(String, Tls), String> {
        Tls::of_url(url).map_err(|error| error.to_string())
    }

    #[test]
    fn what_concerns_encryption_is_taken_out_of_the_url() {
        let (url, tls) = of("postgres://u@h/d?sslmode=verify-full&application_name=x&sslrootcert=%2Fca.pem").unwrap();
        assert_eq!(url, "postgres://u@h/d?application_name=x");
        assert_eq!((tls.check, tls.roots.as_deref()), (Check::Host, Some("/ca.pem")));
        assert_eq!(of("postgres://u@h/d?sslmode=require").unwrap().0, "postgres://u@h/d");
        assert_eq!(of("postgres://u@h/d").unwrap().1.mode(), SslMode::Prefer);
        // As libpq does it.
        let (_, tls) = of("postgres://u@h/d?sslmode=require&sslrootcert=x").unwrap();
        assert_eq!(tls.check, Check::Authority);
    }

    #[test]
    fn case_s4_a_password_goes_to_nobody_who_was_not_verified() {
        let check = |url: &str| {
            let (url, tls) = Tls::of_url(url).unwrap();
            tls.check_transport(&url.parse().unwrap())
                .map_err(|error| error.to_string())
        };
        for parameters in [
            "",
            "?sslmode=prefer",
            "?sslmode=disable",
            "?sslmode=require",
            "?channel_binding=require",
            "?sslmode=prefer&channel_binding=require",
            "?insecure_transport=false",
            "?hostaddr=10.0.0.1",
        ] {
            let said = check(&format!("postgres://u:p@db.internal/d{parameters}")).unwrap_err();
            assert!(
                said.contains("insecure_transport=true") && said.contains("verify-full"),
                "{said}"
            );
        }
        for url in [
            "postgres://u@localhost,db/d",
            "postgres://u@10.0.0.1/d",
            "postgres://u@[2001:db8::1]/d",
            "postgres://u@localhost/d?hostaddr=10.0.0.1",
        ] {
            assert!(check(url).is_err(), "{url}");
        }
        for url in [
            "postgres://u@db/d?sslmode=verify-full&sslrootcert=system",
            "postgres://u@db/d?sslmode=verify-ca&sslrootcert=/ca.pem",
            "postgres://u@db/d?sslmode=require&sslrootcert=/ca.pem",
            "postgres://u@db/d?sslmode=require&channel_binding=require",
            "postgres://u@db/d?insecure_transport=true",
            "postgres://u@localhost/d",
            "postgres://u@127.0.0.2/d?sslmode=disable",
            "postgres://u@[::1]/d",
            "postgres://u@%2Frun%2Fpostgresql/d",
            "postgres://u@db/d?hostaddr=127.0.0.1",
        ] {
            check(url).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (url, part) in [
            ("postgres://u@h/d?sslmode=maybe", "sslmode must be"),
            ("postgres://u@h/d?sslmode=verify-full", "needs sslrootcert"),
            ("postgres://u@h/d?sslcert=a", "go together"),
            ("postgres://u@h/d?sslrootcert=%ff", "no UTF-8"),
            ("postgres://u@h/d?insecure_transport=yes", "true or false"),
        ] {
            let said = of(url).unwrap_err();
            assert!(said.contains(part), "{url}: {said}");
        }
        let (_, tls) = of("postgres://u@h/d?sslmode=verify-ca&sslrootcert=/not/there").unwrap();
        let said = tls.client().unwrap_err().to_string();
        assert!(said.contains("sslrootcert /not/there"), "{said}");
    }
}
