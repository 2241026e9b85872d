//! Variables that a platform gives every container of a namespace: those of a Service called `dlock`, or `dlock-…` (case L42).
//!
//! Owns: their forms (Kubernetes, "Environment variables" of Services, with the older ones of Docker's links).
//! Does not own: what is done about them. On failure: what has another form is no such variable, and so an unknown setting.

use std::net::IpAddr;

const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Whether a variable that begins with `DLOCK_` has a name and a value that only a platform gives. Both must fit, so that a
/// misspelt setting stays an error.
pub(super) fn is_of_a_service(variable: &str, value: &str) -> bool {
    let Some(rest) = variable.strip_prefix("DLOCK") else {
        return false;
    };
    if rest.ends_with("_SERVICE_HOST") {
        return is_address(value);
    }
    if let Some((_, name)) = rest.split_once("_SERVICE_PORT")
        && (name.is_empty() || name.starts_with('_'))
    {
        return is_port(value);
    }
    if rest.ends_with("_PORT") && is_link(value) {
        return true;
    }
    let parts: Vec<&str> = rest.split('_').collect();
    let linked = |number: &str, protocol: &str| {
        is_port(number) && PROTOCOLS.iter().any(|known| protocol.eq_ignore_ascii_case(known))
    };
    match parts[..] {
        [.., "PORT", number, protocol] if linked(number, protocol) => is_link(value),
        [.., "PORT", number, protocol, "ADDR"] if linked(number, protocol) => is_address(value),
        [.., "PORT", number, protocol, "PORT"] if linked(number, protocol) => is_port(value),
        [.., "PORT", number, protocol, "PROTO"] if linked(number, protocol) => PROTOCOLS.contains(&value),
        _ => false,
    }
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port > 0)
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// `tcp://10.0.0.1:7400`.
fn is_link(text: &str) -> bool {
    text.split_once("://")
        .filter(|(protocol, _)| PROTOCOLS.contains(protocol))
        .and_then(|(_, rest)| rest.rsplit_once(':'))
        .is_some_and(|(host, port)| is_address(host.trim_matches(['[', ']'])) && is_port(port))
}
