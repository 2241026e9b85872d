//! HTTP as bytes, for a relay that decides message by message what becomes of it.

use std::io;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Reads one HTTP message: its head, and as much body as the head says.
pub async fn message(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
            let body = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            if bytes.len() >= head + 4 + body.unwrap_or(0) {
                return Ok(Some(bytes));
            }
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}
