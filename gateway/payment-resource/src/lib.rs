//! The payment resource's HTTP gateway.
