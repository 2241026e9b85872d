//! The sockets of one submission, open before its intent is recorded (case S1).
//!
//! Owns: the rail's addresses, and an unconnected socket with its local port for each of them. Does not own: TLS, HTTP.
//! On failure: before the intent it says what is missing, and nothing was done. Afterwards only the rail and the network
//! can fail: what is ours is in hand.

use actix_rt::net::TcpStream;
use actix_service::{Service, fn_service};
use actix_tls::connect::{ConnectError, ConnectInfo, Connection};
use awc::http::Uri;
use rail_core::Unprepared;
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpSocket;

/// How long the rail's name may take to become addresses.
pub(crate) const ADDRESS_WITHIN: Duration = Duration::from_secs(1);

/// The most addresses of the rail that are tried for one connection. Each costs a descriptor while a submission is made.
const ADDRESSES_MAX: usize = 4;

/// Unconnected sockets, each with the address that it is for, in the order in which they are tried.
pub(crate) type Sockets = Vec<(SocketAddr, TcpSocket)>;

/// Opens the sockets for one connection to the rail at `base`.
///
/// # Errors
/// [`Unprepared`].
pub(crate) async fn open(base: &str) -> Result<Sockets, Unprepared> {
    let no_address = |why: String| Unprepared::NoAddress(why);
    let uri: Uri = base
        .parse()
        .map_err(|_| no_address("rail.url is no address".to_owned()))?;
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let port = uri.port_u16().unwrap_or(default_port);
    let found = tokio::time::timeout(ADDRESS_WITHIN, tokio::net::lookup_host((host, port))).await;
    let addresses = match found {
        Ok(Ok(addresses)) => addresses,
        // The resolver needs descriptors too.
        Ok(Err(error)) if is_ours(&error) => return Err(Unprepared::NoSocket(error.to_string())),
        Ok(Err(error)) => return Err(no_address(error.to_string())),
        Err(_elapsed) => return Err(no_address(format!("no answer within {ADDRESS_WITHIN:?}"))),
    };
    let (mut sockets, mut refused) = (Sockets::new(), None);
    for address in addresses.take(ADDRESSES_MAX) {
        match socket(address) {
            Ok(socket) => sockets.push((address, socket)),
            Err(error) if is_ours(&error) => return Err(Unprepared::NoSocket(error.to_string())),
            // A machine without IPv6, for one: another address may do.
            Err(error) => refused = Some(error.to_string()),
        }
    }
    if sockets.is_empty() {
        return Err(match refused {
            Some(why) => Unprepared::NoSocket(why),
            None => no_address("its name has none".to_owned()),
        });
    }
    Ok(sockets)
}

/// A socket with a local port of its own: connecting it takes nothing further of this machine.
fn socket(to: SocketAddr) -> io::Result<TcpSocket> {
    let (socket, any) = match to {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    socket.set_nodelay(true)?;
    socket.bind(SocketAddr::new(any, 0))?;
    Ok(socket)
}

/// Whether this machine has no more of what was asked for: descriptors, buffers, memory, ports.
fn is_ours(error: &io::Error) -> bool {
    // EMFILE, ENFILE, ENOBUFS, ENOMEM by their numbers on Linux: std has no kinds for the first three.
    matches!(error.raw_os_error(), Some(24 | 23 | 105 | 12))
        || matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::OutOfMemory)
}

/// Connects over these sockets, in their order, once.
pub(crate) fn connector(
    sockets: Sockets,
) -> impl Service<ConnectInfo<Uri>, Response = Connection<Uri, TcpStream>, Error = ConnectError> + Clone + 'static {
    let sockets = Rc::new(RefCell::new(sockets));
    fn_service(move |to: ConnectInfo<Uri>| {
        let sockets = sockets.take();
        async move {
            let mut failed = ConnectError::Unresolved;
            for (address, socket) in sockets {
                match socket.connect(address).await {
                    Ok(stream) => return Ok(Connection::new(to.request().clone(), stream)),
                    Err(error) => failed = ConnectError::Io(error),
                }
            }
            Err(failed)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sockets_have_their_ports_before_they_are_connected() {
        let sockets = open("http://127.0.0.1:9").await.unwrap();
        assert_eq!(sockets.len(), 1);
        let (to, socket) = &sockets[0];
        assert_eq!(to.port(), 9);
        assert_ne!(socket.local_addr().unwrap().port(), 0);
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_said_before_anything_is_done() {
        let missing = open("http://no-such-rail.invalid").await;
        assert!(matches!(missing, Err(Unprepared::NoAddress(_))), "{missing:?}");
    }
}
