//! One direction of the traffic between two containers, seen from inside one of them. `dlock one-way` runs it there as
//! the superuser of the container's network namespace.
//!
//! ```text
//! cut:  the neighbour's hardware address becomes one that nobody has: what is sent to it is gone, without a word
//! hear: one datagram that another node says is awaited: its direction still works
//! ```
//!
//! Owns: the entry of the neighbour table, the datagram.
//! Does not own: who runs it and where (`containers.rs`).
//! On failure: the sentence it ends with.

use futures_util::StreamExt;
use rtnetlink::packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use tokio::net::UdpSocket;

/// Locally administered, unicast, nobody's.
const NOBODY: [u8; 6] = [0x02, 0x00, 0x00, 0x00, 0xde, 0xad];
/// Where a datagram is awaited.
const PORT: u16 = 7499;
/// How long a datagram is awaited, and said.
const WITHIN: Duration = Duration::from_secs(3);
/// Between two of the same.
const EVERY: Duration = Duration::from_millis(50);
/// What it says.
const WORD: &[u8] = b"dlock one-way";

/// Whatever is sent to `to` from here on is lost.
///
/// # Errors
/// When no network of this namespace holds the address, or the table may not be changed.
pub async fn cut(to: Ipv4Addr) -> Result<(), String> {
    let index = interface_to(to)?;
    let handle = netlink()?;
    let entry = handle.neighbours().add(index, IpAddr::V4(to)).replace();
    let entry = entry.state(NeighbourState::Permanent).link_layer_address(&NOBODY);
    entry.execute().await.map_err(|error| format!("cutting {to}: {error}"))
}

/// The neighbour's own address is asked for again.
///
/// # Errors
/// As for [`cut`]. What was not cut is no error.
pub async fn mend(to: Ipv4Addr) -> Result<(), String> {
    let handle = netlink()?;
    let mut entries = handle.neighbours().get().execute();
    let mut cut = Vec::new();
    while let Some(entry) = entries.next().await {
        let entry = entry.map_err(|error| format!("reading the neighbours: {error}"))?;
        if is_cut(&entry, to) {
            cut.push(entry);
        }
    }
    for entry in cut {
        let deleted = handle.neighbours().del(entry).execute().await;
        deleted.map_err(|error| format!("mending {to}: {error}"))?;
    }
    Ok(())
}

fn is_cut(entry: &NeighbourMessage, to: Ipv4Addr) -> bool {
    use rtnetlink::packet_route::neighbour::NeighbourAddress;
    let destination = NeighbourAttribute::Destination(NeighbourAddress::Inet(to));
    let nobody = NeighbourAttribute::LinkLayerAddress(NOBODY.to_vec());
    entry.attributes.contains(&destination) && entry.attributes.contains(&nobody)
}

fn netlink() -> Result<rtnetlink::Handle, String> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(|error| format!("netlink: {error}"))?;
    // It ends with the handle.
    tokio::spawn(connection);
    Ok(handle)
}

/// The interface whose own network holds the address.
fn interface_to(to: Ipv4Addr) -> Result<u32, String> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|error| format!("reading {path}: {error}"));
    let name = on_link(&read("/proc/net/route")?, to).ok_or_else(|| format!("{to} is in no network of this node"))?;
    let index = read(&format!("/sys/class/net/{name}/ifindex"))?;
    index
        .trim()
        .parse()
        .map_err(|_| format!("the index of {name} is {index:?}"))
}

/// The interface of the narrowest route to the address that leads over no gateway.
fn on_link(routes: &str, to: Ipv4Addr) -> Option<String> {
    // Iface Destination Gateway Flags RefCnt Use Metric Mask: numbers in hexadecimal, as they lie in memory.
    let routes = routes.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |n: usize| Some(u32::from_str_radix(fields.get(n)?, 16).ok()?.swap_bytes());
        Some((*fields.first()?, number(1)?, number(2)?, number(7)?))
    });
    routes
        .filter(|&(_, destination, gateway, mask)| gateway == 0 && to.to_bits() & mask == destination)
        .max_by_key(|&(_, _, _, mask)| mask)
        .map(|(name, ..)| name.to_owned())
}

/// Awaits a datagram of [`say`]. Answers whether one came.
///
/// # Errors
/// When the port is not to be had.
pub async fn hear() -> Result<bool, String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).await;
    let socket = socket.map_err(|error| format!("listening on {PORT}: {error}"))?;
    let mut word = [0; 64];
    let heard = tokio::time::timeout(WITHIN, async {
        loop {
            match socket.recv(&mut word).await {
                Ok(length) if &word[..length] == WORD => return,
                Ok(_) | Err(_) => {}
            }
        }
    });
    Ok(heard.await.is_ok())
}

/// Sends datagrams to a node that may [`hear`], until that must have ended.
///
/// # Errors
/// When there is no socket.
pub async fn say(to: Ipv4Addr) -> Result<(), String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await;
    let socket = socket.map_err(|error| format!("a socket: {error}"))?;
    let mut every = tokio::time::interval(EVERY);
    // A port where nobody listens yet answers with an error, which is of no interest.
    let saying = async {
        loop {
            every.tick().await;
            let _ = socket.send_to(WORD, (to, PORT)).await;
        }
    };
    let _ = tokio::time::timeout(WITHIN, saying).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
        eth1\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";

    #[test]
    fn the_interface_is_that_of_the_network_the_address_is_in() {
        let at = |to: [u8; 4]| on_link(ROUTES, to.into());
        assert_eq!(at([172, 17, 0, 9]).as_deref(), Some("eth0"));
        assert_eq!(at([172, 18, 3, 4]).as_deref(), Some("eth1"));
        assert_eq!(at([10, 0, 0, 1]), None, "over a gateway");
        assert_eq!(on_link("no table", [10, 0, 0, 1].into()), None);
    }
}
