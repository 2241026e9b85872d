//! A service that knows nothing of locks, behind `dlock fence-proxy`.
//!
//! The service books what it is sent; it cannot be changed, or nobody dares to. The proxy before it keeps the highest
//! token of each account and lets nothing older through; nothing else may reach the service. A holder of the account's
//! lock sends its token along in `X-Fencing-Token`, and is answered 409 when it is no longer the newest.
//!
//! ```sh
//! cargo run -p lock-client --example http_resource -- serve 127.0.0.1:9000
//! dlock fence-proxy --listen 127.0.0.1:9001 --admin 127.0.0.1:9002 --upstream http://127.0.0.1:9000 \
//!     --store sqlite:/var/lib/dlock/fence.db --key-prefix-segments 2
//! echo 30 | cargo run -p lock-client --example http_resource -- book http://127.0.0.1:9001 A
//! ```
//!
//! The last one needs `dlock lock-server --listen 127.0.0.1:7400`, and books an amount per line of its input.

use actix_web::{App, HttpServer, web};
use lock_client::lock_api::{LockKey, Owner};
use lock_client::{ClientOptions, LockClient};
use std::error::Error;
use std::time::Duration;

async fn booking(account: web::Path<String>, amount: String) -> &'static str {
    println!("booked {amount} on {account}");
    "booked"
}

/// The service: it believes whoever reaches it.
async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let server = HttpServer::new(|| App::new().route("/accounts/{account}/bookings", web::post().to(booking)));
    let server = server.workers(1).bind(address)?;
    println!("serving at http://{}", server.addrs()[0]);
    Ok(server.run().await?)
}

/// The holder.
async fn book(proxy: &str, account: &str) -> Result<(), Box<dyn Error>> {
    let server = std::env::var("DLOCK_LOCK_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7400".to_owned());
    let owner = Owner::new(format!("till-{}", std::process::id()))?;
    let client = LockClient::connect(&[server], ClientOptions::new(owner).session_ttl(Duration::from_secs(3))).await?;
    // The first two segments of the path are the proxy's key, `--key-prefix-segments 2`; the lock's is the same.
    let held = client
        .acquire_within(&LockKey::new(format!("accounts/{account}"))?, Duration::from_secs(20))
        .await?;
    println!("holding {account} under token {}", held.token());

    let http = awc::Client::default();
    // Reading blocks this thread; heartbeats are sent from the client's own.
    for amount in std::io::stdin().lines() {
        let amount = amount?;
        let mut answer = http
            .post(format!("{proxy}/accounts/{account}/bookings"))
            .insert_header(("X-Fencing-Token", held.token().to_string()))
            .send_body(amount.clone())
            .await
            .map_err(|error| format!("whether {amount} was booked is not known: {error}"))?;
        let body = answer.body().await?;
        let said = String::from_utf8_lossy(&body);
        match answer.status().as_u16() {
            200 => println!("booked {amount} under token {}", held.token()),
            // FENCED_OUT: a later holder was here. IN_DOUBT: one that is older has no answer yet; try again later.
            409 if said.contains("FENCED_OUT") => {
                println!("refused by the proxy: {said}");
                break;
            }
            status => return Err(format!("{status}: {said}").into()),
        }
    }
    // Lost, where the proxy refused: then there is nothing to give back.
    if let Err(error) = held.release().await {
        println!("{}: {error}", error.fate());
    }
    client.close().await?;
    Ok(())
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", address] => serve(address).await,
        ["book", proxy, account] => book(proxy, account).await,
        _ => Err("http_resource serve ADDRESS | book PROXY ACCOUNT".into()),
    }
}
