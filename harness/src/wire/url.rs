//! The servers in a store's URL, each exchanged for a wire's address.
//!
//! Owns: finding them. Does not own: what else the URL says. On failure: a URL without servers is left as it is.

use super::link::Protocol;

/// What a store's URL speaks, where it names servers at all.
pub(super) fn protocol(url: &str) -> Option<Protocol> {
    match url.split_once("://")?.0 {
        "postgres" | "postgresql" => Some(Protocol::Postgres),
        "etcd" => Some(Protocol::Etcd),
        _ => None,
    }
}

/// Replaces each `host:port` of the URL by what `wire` answers for it. A server without a port has its protocol's.
///
/// # Errors
/// Whatever `wire` fails with.
pub(super) fn rewired<E>(url: &str, mut wire: impl FnMut(&str) -> Result<String, E>) -> Result<String, E> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Ok(url.to_owned());
    };
    let port = match protocol(url) {
        Some(Protocol::Postgres) => "5432",
        Some(Protocol::Etcd) => "2379",
        _ => return Ok(url.to_owned()),
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let from = rest[..end].rfind('@').map_or(0, |at| at + 1);
    let mut servers = Vec::new();
    for server in rest[from..end].split(',') {
        // A socket in the file system has no wire.
        if server.is_empty() || server.starts_with("%2F") || server.starts_with("%2f") {
            servers.push(server.to_owned());
            continue;
        }
        let has_port = server.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        servers.push(wire(&if has_port {
            server.to_owned()
        } else {
            format!("{server}:{port}")
        })?);
    }
    Ok(format!(
        "{scheme}://{}{}{}",
        &rest[..from],
        servers.join(","),
        &rest[end..]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(url: &str) -> (String, Vec<String>) {
        let mut servers = Vec::new();
        let rewired = rewired(url, |server| {
            servers.push(server.to_owned());
            Ok::<_, ()>(format!("w:{}", servers.len()))
        });
        (rewired.unwrap(), servers)
    }

    #[test]
    fn each_server_of_a_url_gets_a_wire_and_the_rest_stays() {
        for (url, rewired, servers) in [
            ("sqlite:/x/y", "sqlite:/x/y", &[][..]),
            (
                "postgres://u:p@h:1,i/d?x=y@z",
                "postgres://u:p@w:1,w:2/d?x=y@z",
                &["h:1", "i:5432"],
            ),
            ("postgresql://[::1]/d", "postgresql://w:1/d", &["[::1]:5432"]),
            ("postgres://u@%2Frun/d", "postgres://u@%2Frun/d", &[]),
            ("etcd://a:1,b", "etcd://w:1,w:2", &["a:1", "b:2379"]),
        ] {
            assert_eq!(
                seen(url),
                (rewired.to_owned(), servers.iter().map(|s| (*s).to_owned()).collect())
            );
        }
    }
}
