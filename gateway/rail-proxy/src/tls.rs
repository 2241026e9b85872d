//! How the rail is verified, and who we are there (`rail.tls.*`).
//!
//! Owns: from settings and certificate files to what encrypts, anew when a file was replaced (case L35). Does not own:
//! reading such files (`tls-kit`), connections.
//! On failure: refused at the start, naming the setting; later the files before are kept. Nothing here makes a rail
//! believed unseen.

use crate::config::RunError;
use awc::http::Uri;
use gateway_kit::Settings;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::path::PathBuf;
use std::sync::Arc;
use tls_kit::{Identity, Reloaded, Unusable};

const CA: &str = "rail.tls.ca-file";
const CERT: &str = "rail.tls.cert-file";
const KEY: &str = "rail.tls.key-file";

fn wrong(name: &'static str, reason: impl ToString) -> RunError {
    RunError::Setting {
        name,
        reason: reason.to_string(),
    }
}

/// What encrypts a connection to the rail, as the files say it now.
pub type RailTls = Reloaded<Arc<ClientConfig>>;

/// What encrypts the connections to the rail at `url`; None where it is reached in the clear.
///
/// # Errors
/// [`RunError::Setting`]: an address that is none, or a file that cannot be used.
pub(crate) fn of_settings(settings: &Settings, url: &str) -> Result<Option<RailTls>, RunError> {
    let no_address = || wrong("rail.url", "must be an address such as https://rail.example.com");
    let uri: Uri = url.parse().map_err(|_| no_address())?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(no_address)?;
    match uri.scheme_str() {
        Some("http") => return Ok(None),
        Some("https") => {}
        _ => return Err(no_address()),
    }
    // What no certificate can be for, no connection could be made to. A literal of IPv6 comes in brackets, and is none.
    if ServerName::try_from(host).is_err() {
        return Err(wrong(
            "rail.url",
            "with https: it must have a host name or an IPv4 address",
        ));
    }
    let [ca, cert, key] = [CA, CERT, KEY].map(|name| settings.text(name).map(str::to_owned));
    let paths = [&ca, &cert, &key].into_iter().flatten().map(PathBuf::from).collect();
    let client = Reloaded::new(paths, move || client(ca.as_deref(), cert.as_deref(), key.as_deref()));
    client.map(Some)
}

/// Reads the files.
fn client(ca: Option<&str>, cert: Option<&str>, key: Option<&str>) -> Result<Arc<ClientConfig>, RunError> {
    let authorities = tls_kit::authorities(ca).map_err(|error| match error {
        Unusable::NoAuthority => wrong(CA, format!("is unset, and {error}")),
        error => wrong(CA, error),
    })?;
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some(Identity {
            chain: tls_kit::certificates(cert).map_err(|error| wrong(CERT, error))?,
            key: tls_kit::key(key).map_err(|error| wrong(KEY, error))?,
        }),
        (None, None) => None,
        // The settings refuse it before.
        (Some(_), None) => return Err(wrong(CERT, format!("needs {KEY} beside it"))),
        (None, Some(_)) => return Err(wrong(KEY, format!("needs {CERT} beside it"))),
    };
    let mut client =
        tls_kit::verifying_client(authorities, identity).map_err(|error| wrong(CERT, format!("and {KEY}: {error}")))?;
    // The forwarder speaks nothing else.
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(client))
}
