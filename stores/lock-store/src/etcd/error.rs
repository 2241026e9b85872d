//! What each error of etcd means for the call that met it: every gRPC status code on purpose.
//!
//! etcd says `UNAVAILABLE` both when a request was never sent and when it was proposed and nobody knows; what it says in
//! words decides. What is not known here is [`Fate::Unknown`], never a grant.

use etcd_client::Error;
use lock_api::StoreError;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// No connection was made: certainly not sent, the next endpoint may be asked.
    NotSent,
    /// Nothing was done.
    Refused,
    /// It may have been done.
    Unknown,
    /// The lease is gone; nothing was done.
    LeaseGone,
    /// The revision asked for was compacted away; nothing was done.
    Compacted,
    /// The cluster's data are damaged.
    Corrupt,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// As whoever called the store will see it.
    Store(StoreError),
    /// See [`Fate::LeaseGone`].
    LeaseGone,
    /// See [`Fate::Compacted`].
    Compacted,
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Store(error) => error,
            CallError::LeaseGone => unavailable("the session's lease ended meanwhile"),
            CallError::Compacted => unavailable("the revision was compacted meanwhile"),
        }
    }
}

/// Nothing was done.
pub(super) fn unavailable(detail: impl Into<String>) -> StoreError {
    StoreError::Unavailable { detail: detail.into() }
}

/// An error with what caused it: which of a handshake's reasons it was stands at the end of the chain alone.
pub(super) fn said(error: &Error) -> String {
    let mut said = match error {
        Error::GRpcStatus(status) if !status.message().is_empty() => status.message().to_owned(),
        error => error.to_string(),
    };
    let mut cause = match error {
        Error::GRpcStatus(status) => std::error::Error::source(status),
        error => std::error::Error::source(error),
    };
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = error.source();
    }
    said
}

/// The words of a cluster that takes no write because its quota is used up (the alarm NOSPACE).
pub(super) const NO_SPACE: &str = "database space exceeded";

/// What readiness says of a store that failed: a word and what is known.
pub(super) fn problem(error: &StoreError) -> String {
    let said = error.detail();
    let refused = [
        "certificate",
        "tls handshake",
        "authentication failed",
        "invalid auth token",
        "user name is empty",
        "permission denied",
    ];
    let word = match error {
        StoreError::Corrupt { .. } => "damaged",
        _ if said.contains(NO_SPACE) => "full",
        _ if refused.iter().any(|part| said.contains(part)) => "refused",
        _ => "unreachable",
    };
    format!("{word}: {said}")
}

/// What an error means.
pub(super) fn fate(error: &Error) -> Fate {
    match error {
        Error::GRpcStatus(status) => {
            // The word is of the library's own error below the status, which names only what happens while connecting.
            let connecting = format!("{status:?}").contains("ConnectError(");
            fate_of_status(status.code() as i32, status.message(), connecting)
        }
        // Never left this process.
        Error::InvalidArgs(_)
        | Error::InvalidUri(_)
        | Error::InvalidMetadataValue(_)
        | Error::EndpointError(_)
        | Error::EndpointsNotManaged => Fate::Refused,
        Error::LeaseKeepAliveError(said) if said == "lease not found" => Fate::LeaseGone,
        Error::IoError(_)
        | Error::TransportError(_)
        | Error::WatchError(_)
        | Error::Utf8Error(_)
        | Error::LeaseKeepAliveError(_)
        | Error::ElectError(_)
        | Error::Internal(_) => Fate::Unknown,
    }
}

/// What a status means: its code, its message, and whether it was made while connecting.
fn fate_of_status(code: i32, message: &str, connecting: bool) -> Fate {
    let said_by_etcd = message.starts_with("etcdserver: ");
    match code {
        // INVALID_ARGUMENT: too many operations, a key twice, too large. ALREADY_EXISTS: a lease of this id.
        3 | 6 => Fate::Refused,
        // NOT_FOUND
        5 if message.contains("requested lease not found") => Fate::LeaseGone,
        5 => Fate::Refused,
        // PERMISSION_DENIED, UNAUTHENTICATED, UNIMPLEMENTED
        7 | 16 | 12 => Fate::Refused,
        // RESOURCE_EXHAUSTED: out of space or too many requests, where etcd itself says so.
        8 if said_by_etcd => Fate::Refused,
        // FAILED_PRECONDITION: no leader here, a member that is no voter, users not switched on.
        9 if said_by_etcd => Fate::Refused,
        // OUT_OF_RANGE
        11 if message.contains("revision has been compacted") => Fate::Compacted,
        11 if said_by_etcd => Fate::Refused,
        // UNAVAILABLE: before the connection stood, or refused by a member that sees no leader.
        14 if connecting || message.starts_with("tcp connect error") || message.starts_with("dns error") => {
            Fate::NotSent
        }
        14 if message == "etcdserver: no leader" || message == "etcdserver: not capable" => Fate::NotSent,
        // DATA_LOSS
        15 => Fate::Corrupt,
        // OK (no error at all), CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, ABORTED, INTERNAL, and every other word of
        // UNAVAILABLE ("request timed out", "leader changed", a broken connection): it may have been proposed.
        0 | 1 | 2 | 4 | 10 | 13 | 14 => Fate::Unknown,
        // What nobody knows, and an answer that this side could not take.
        _ => Fate::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_code_is_mapped_on_purpose() {
        use Fate::{Compacted, Corrupt, LeaseGone, NotSent, Refused, Unknown};
        for (code, message, connecting, expected) in [
            (0, "", false, Unknown),
            (1, "Timeout expired", false, Unknown),
            (2, "transport error", false, Unknown),
            (2, "etcdserver: odd", false, Unknown),
            (3, "etcdserver: too many operations in txn request", false, Refused),
            (3, "etcdserver: duplicate key given in txn request", false, Refused),
            (4, "context deadline exceeded", false, Unknown),
            (5, "etcdserver: requested lease not found", false, LeaseGone),
            (5, "etcdserver: member not found", false, Refused),
            (6, "etcdserver: lease already exists", false, Refused),
            (7, "etcdserver: permission denied", false, Refused),
            (8, "etcdserver: mvcc: database space exceeded", false, Refused),
            (8, "etcdserver: too many requests", false, Refused),
            (8, "decoded message length too large", false, Unknown),
            (9, "etcdserver: authentication is not enabled", false, Refused),
            (9, "else", false, Unknown),
            (10, "", false, Unknown),
            (
                11,
                "etcdserver: mvcc: required revision has been compacted",
                false,
                Compacted,
            ),
            (
                11,
                "etcdserver: mvcc: required revision is a future revision",
                false,
                Refused,
            ),
            (11, "decoded message length too large", false, Unknown),
            (12, "unknown service", false, Refused),
            (13, "h2 protocol error", false, Unknown),
            (14, "tcp connect error", false, NotSent),
            (14, "dns error", false, NotSent),
            (14, "anything at all", true, NotSent),
            (14, "etcdserver: no leader", false, NotSent),
            (14, "etcdserver: request timed out", false, Unknown),
            (
                14,
                "etcdserver: request timed out, possibly due to previous leader failure",
                false,
                Unknown,
            ),
            (14, "etcdserver: leader changed", false, Unknown),
            (14, "etcdserver: server stopped", false, Unknown),
            (14, "connection reset", false, Unknown),
            (15, "etcdserver: corrupt cluster", false, Corrupt),
            (16, "etcdserver: invalid auth token", false, Refused),
            (17, "", false, Unknown),
            (-1, "", false, Unknown),
        ] {
            assert_eq!(
                fate_of_status(code, message, connecting),
                expected,
                "{code} {message:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_refused_connection_was_never_used() {
        let nobody = host_kit::Reserved::loopback().unwrap();
        let at = nobody.address().to_string();
        let client = etcd_client::Client::connect([at], None).await.unwrap();
        let error = client.kv_client().get("a", None).await.unwrap_err();
        assert_eq!(fate(&error), Fate::NotSent, "{error:?}");
    }

    #[tokio::test]
    async fn a_connection_that_breaks_after_the_request_is_unknown() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            use tokio::io::AsyncReadExt;
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut some = [0; 1024];
                drop(stream.read(&mut some).await);
            }
        });
        let client = etcd_client::Client::connect([at], None).await.unwrap();
        let error = client.kv_client().get("a", None).await.unwrap_err();
        assert_eq!(fate(&error), Fate::Unknown, "{error:?}");
    }
}
