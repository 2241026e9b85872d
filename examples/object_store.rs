//! One object of an S3-compatible store, replaced by whoever holds its lock: a conditional put as the fence.
//!
//! The token that wrote an object is the first line of its content. A writer reads the object with its ETag, refuses itself
//! when a higher token is in it, and puts with `If-Match: <ETag>` (`If-None-Match: *` for the first one): the store compares
//! and writes at once. A 412 means that somebody was faster: read and compare again. Every writer has to do it so; a bucket
//! policy can demand the condition.
//!
//! The token is not in the metadata: the ETag of an object is that of its content, so a newer holder that writes the same
//! content again would leave the ETag as it was, and an older one's put would pass.
//!
//! It speaks the store's HTTP itself, so that each step can be seen, and does not sign: it sends
//! `OBJECT_STORE_AUTHORIZATION`, or what moto takes, a server for tests that looks at no signature. With the crate
//! `object_store` the two puts are `PutMode::Create` and `PutMode::Update(UpdateVersion { e_tag, .. })`, and a 412 is
//! `Error::AlreadyExists` or `Error::Precondition`.
//!
//! `echo hello | cargo run -p lock-client --example object_store -- http://127.0.0.1:5000/bucket/greeting` against
//! `dlock lock-server --listen 127.0.0.1:7400`. Each line of the input is a new content.

use lock_client::lock_api::{FencingToken, LockKey, Owner};
use lock_client::{ClientOptions, LockClient};
use std::error::Error;
use std::time::Duration;

const UNSIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=none";

/// What stands in the store: which version, and the token that wrote it. None when there is no object.
struct Seen {
    etag: String,
    token: u64,
}

async fn read(http: &awc::Client, object: &str) -> Result<Option<Seen>, Box<dyn Error>> {
    let mut answer = http.get(object).send().await.map_err(|error| error.to_string())?;
    match answer.status().as_u16() {
        200 => {}
        404 => return Ok(None),
        status => return Err(format!("the store answers {status}").into()),
    }
    let content = answer.body().await?;
    let etag = answer.headers().get("etag").ok_or("the store gives no ETag")?;
    Ok(Some(Seen {
        etag: etag.to_str()?.to_owned(),
        // One that carries no token was not written by a holder: it is below every token.
        token: String::from_utf8_lossy(&content)
            .lines()
            .next()
            .and_then(|token| token.parse().ok())
            .unwrap_or(0),
    }))
}

/// False when the store has another version by now.
async fn put(
    http: &awc::Client,
    object: &str,
    over: Option<&Seen>,
    content: &str,
    token: FencingToken,
) -> Result<bool, Box<dyn Error>> {
    let request = http.put(object);
    let request = match over {
        Some(seen) => request.insert_header(("If-Match", seen.etag.clone())),
        None => request.insert_header(("If-None-Match", "*")),
    };
    let answer = request
        .send_body(format!("{token}\n{content}\n"))
        .await
        .map_err(|error| error.to_string())?;
    match answer.status().as_u16() {
        200 => Ok(true),
        // 409: two puts met; S3 answers the later one so.
        409 | 412 => Ok(false),
        status => Err(format!("the store answers {status}").into()),
    }
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let object = std::env::args().nth(1).ok_or("object_store URL")?;
    let server = std::env::var("DLOCK_LOCK_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7400".to_owned());
    let owner = Owner::new(format!("writer-{}", std::process::id()))?;
    let client = LockClient::connect(&[server], ClientOptions::new(owner).session_ttl(Duration::from_secs(3))).await?;
    let held = client
        .acquire_within(&LockKey::new(object.as_str())?, Duration::from_secs(20))
        .await?;
    let authorization = std::env::var("OBJECT_STORE_AUTHORIZATION").unwrap_or_else(|_| UNSIGNED.to_owned());
    let http = awc::Client::builder()
        .add_default_header(("Authorization", authorization))
        .finish();
    let token = held.token();

    let mut seen = read(&http, &object).await?;
    println!(
        "read under token {token}, last written under {}",
        seen.as_ref().map_or(0, |seen| seen.token)
    );
    'contents: for content in std::io::stdin().lines() {
        let content = content?;
        loop {
            if let Some(newer) = seen.as_ref().filter(|seen| seen.token > token.get()) {
                println!("given up: token {} has written, {token} is stale", newer.token);
                break 'contents;
            }
            if put(&http, &object, seen.as_ref(), &content, token).await? {
                seen = read(&http, &object).await?;
                println!("wrote {content} under token {token}");
                break;
            }
            println!("refused by the store: it has another version by now");
            seen = read(&http, &object).await?;
        }
    }
    // Lost, where a later holder has written: then there is nothing to give back.
    if let Err(error) = held.release().await {
        println!("{}: {error}", error.fate());
    }
    client.close().await?;
    Ok(())
}
