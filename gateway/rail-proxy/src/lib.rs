//! The rail proxy's HTTP gateway and the forwarder.
