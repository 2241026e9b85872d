//! Start, supervise, pause, observe and trace actors; ask with a deadline.
