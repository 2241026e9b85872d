//! The backend on etcd.
