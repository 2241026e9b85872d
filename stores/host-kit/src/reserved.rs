//! Addresses that are kept.
//!
//! Owns: a port between the moment it is chosen and the moment somebody listens there, and from one listener to the next.
//! Does not own: who listens.
//! On failure: no port is free, which is said.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

/// A TCP address of the loopback interface that is kept while this lives: nobody gets it who asks for any free port, a
/// listener that names it gets it, again and again, and while none does, connections to it are refused.
///
/// It is a socket that is bound and never listens. Linux lets a listener have the same address where both allow it
/// (`SO_REUSEADDR`, which servers set as a rule), and passes over it in its search for a free port (socket(7), ip(7)).
#[derive(Debug)]
pub struct Reserved {
    address: SocketAddr,
    _socket: TcpSocket,
}

impl Reserved {
    /// Keeps a port that is free now.
    ///
    /// # Errors
    /// When none is.
    pub fn loopback() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        Ok(Self {
            address: socket.local_addr()?,
            _socket: socket,
        })
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn it_is_had_by_name_alone_and_refuses_while_nobody_listens() {
        let kept = Reserved::loopback().unwrap();
        for _ in 0..3 {
            let refused = TcpStream::connect(kept.address()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            let listener = TcpListener::bind(kept.address()).unwrap();
            let _near = TcpStream::connect(kept.address()).unwrap();
            let _far = listener.accept().unwrap();
        }
        // More than enough to come by it, were it free: ports are chosen at random.
        let others: Vec<_> = (0..500).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        assert!(others.iter().all(|other| other.local_addr().unwrap() != kept.address()));
    }
}
