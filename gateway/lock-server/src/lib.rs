//! The lock server's HTTP gateway.
