//! Sessions, leases and the lease clock as actors.
