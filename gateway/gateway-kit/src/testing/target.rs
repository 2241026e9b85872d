//! Where requests are sent: a socket, or an application in this process.

use actix_web::body::{BodySize, MessageBody, to_bytes_limited};
use actix_web::dev::{Service, ServiceResponse};
use actix_web::http::Method;
use actix_web::test::TestRequest;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request as it goes over the wire; nothing in it is checked or encoded.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// The method.
    pub method: String,
    /// Path and query, percent-encoded (rightly or wrongly).
    pub target: String,
    /// Headers beside `Host`, `Connection` and the body's length.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Option<Vec<u8>>,
    /// Whether the body is sent in chunks, without its length.
    pub chunked: bool,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = |text: &str| text.chars().take(160).collect::<String>();
        write!(f, "{} {}", self.method, cut(&self.target))?;
        for (name, value) in &self.headers {
            write!(f, "\n    {name}: {}", cut(&String::from_utf8_lossy(value)))?;
        }
        match &self.body {
            None => Ok(()),
            Some(body) => write!(f, "\n    {} bytes: {}", body.len(), cut(&String::from_utf8_lossy(body))),
        }
    }
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; empty for an endless one.
    pub body: Vec<u8>,
}

impl Answer {
    /// The first header of this name (lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }
}

/// Where requests are sent.
pub trait Target {
    /// Sends one request and reads its answer.
    fn send(&self, request: &Sent) -> impl Future<Output = Result<Answer, String>>;
}

/// How long a single answer may take before a test gives up on it.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A server on a socket. Each request has its own connection and is written byte by byte as it stands.
#[derive(Clone, Copy, Debug)]
pub struct Socket(pub SocketAddr);

impl Target for Socket {
    async fn send(&self, request: &Sent) -> Result<Answer, String> {
        match tokio::time::timeout(ANSWER_WITHIN, exchange(self.0, request)).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(format!("no answer within {ANSWER_WITHIN:?}")),
        }
    }
}

async fn exchange(address: SocketAddr, request: &Sent) -> Result<Answer, String> {
    let mut head = format!(
        "{} {} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n",
        request.method, request.target
    )
    .into_bytes();
    for (name, value) in &request.headers {
        head.extend_from_slice(format!("{name}: ").as_bytes());
        head.extend_from_slice(value);
        head.extend_from_slice(b"\r\n");
    }
    let mut body = Vec::new();
    if let Some(bytes) = &request.body {
        if request.chunked {
            head.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            for chunk in bytes.chunks(4_096) {
                body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                body.extend_from_slice(chunk);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"0\r\n\r\n");
        } else {
            head.extend_from_slice(format!("Content-Length: {}\r\n", bytes.len()).as_bytes());
            body.extend_from_slice(bytes);
        }
    }
    head.extend_from_slice(b"\r\n");
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| format!("cannot connect: {error}"))?;
    let (mut reader, mut writer) = stream.into_split();
    let writing = async {
        // A server may answer and close before it has read a body that is too large; then its answer is what counts.
        let _ = writer.write_all(&head).await;
        let _ = writer.write_all(&body).await;
        std::future::pending::<()>().await;
    };
    let reading = async {
        let mut received = Vec::new();
        loop {
            if let Some(answer) = complete(&received, false)? {
                return Ok(answer);
            }
            let mut buffer = [0; 8_192];
            match reader.read(&mut buffer).await {
                Ok(0) => return complete(&received, true)?.ok_or_else(|| "closed without an answer".to_owned()),
                Ok(read) => received.extend_from_slice(&buffer[..read]),
                Err(error) => return Err(format!("reading failed: {error}")),
            }
        }
    };
    tokio::select! {
        biased;
        answer = reading => answer,
        () = writing => unreachable!("writing never ends"),
    }
}

/// The answer, once enough of it is there.
fn complete(received: &[u8], closed: bool) -> Result<Option<Answer>, String> {
    let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(&received[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status: u16 = status.ok_or_else(|| format!("no HTTP answer: {head}"))?;
    if status == 100 {
        return complete(&received[end + 4..], closed);
    }
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut answer = Answer {
        status,
        headers,
        body: Vec::new(),
    };
    let rest = &received[end + 4..];
    if answer
        .header("content-type")
        .is_some_and(|kind| kind.starts_with("text/event-stream"))
    {
        return Ok(Some(answer));
    }
    if let Some(length) = answer.header("content-length") {
        let length: usize = length.parse().map_err(|_| format!("a content-length of {length}"))?;
        if rest.len() < length {
            return if closed {
                Err("closed within the body".to_owned())
            } else {
                Ok(None)
            };
        }
        answer.body = rest[..length].to_vec();
        return Ok(Some(answer));
    }
    if answer
        .header("transfer-encoding")
        .is_some_and(|coding| coding.contains("chunked"))
    {
        return match unchunk(rest) {
            Some(body) => Ok(Some(Answer { body, ..answer })),
            None if closed => Err("closed within the body".to_owned()),
            None => Ok(None),
        };
    }
    if closed || status == 204 || status == 304 {
        answer.body = rest.to_vec();
        return Ok(Some(answer));
    }
    Ok(None)
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?.trim(), 16).ok()?;
        rest = rest.get(line + 2..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}

/// An application in this process, as `actix_web::test::init_service` makes it.
#[derive(Debug)]
pub struct InProcess<S>(pub S);

impl<S, B> Target for InProcess<S>
where
    S: Service<actix_http::Request, Response = ServiceResponse<B>, Error = actix_web::Error>,
    B: MessageBody,
{
    async fn send(&self, request: &Sent) -> Result<Answer, String> {
        let method = Method::from_bytes(request.method.as_bytes()).map_err(|error| error.to_string())?;
        let mut test = TestRequest::with_uri(&request.target).method(method);
        for (name, value) in &request.headers {
            let value = actix_web::http::header::HeaderValue::from_bytes(value).map_err(|error| error.to_string())?;
            test = test.append_header((name.as_str(), value));
        }
        if let Some(body) = &request.body {
            test = test.set_payload(body.clone());
        }
        let read = async {
            match self.0.call(test.to_request()).await {
                Ok(response) => read(response.into_parts().1).await,
                Err(error) => read(error.error_response()).await,
            }
        };
        match tokio::time::timeout(ANSWER_WITHIN, read).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(format!("no answer within {ANSWER_WITHIN:?}")),
        }
    }
}

async fn read<B: MessageBody>(response: actix_web::HttpResponse<B>) -> Result<Answer, String> {
    let header = |(name, value): (
        &actix_web::http::header::HeaderName,
        &actix_web::http::header::HeaderValue,
    )| {
        (
            name.as_str().to_owned(),
            String::from_utf8_lossy(value.as_bytes()).into_owned(),
        )
    };
    let mut answer = Answer {
        status: response.status().as_u16(),
        headers: response.headers().iter().map(header).collect(),
        body: Vec::new(),
    };
    let body = response.into_body();
    if matches!(body.size(), BodySize::Stream)
        && answer
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("text/event-stream"))
    {
        return Ok(answer);
    }
    match to_bytes_limited(body, 64 << 20).await {
        Ok(Ok(bytes)) => answer.body = bytes.to_vec(),
        Ok(Err(error)) => return Err(error.into().to_string()),
        Err(_) => return Err("an answer of more than 64 MiB".to_owned()),
    }
    Ok(answer)
}
