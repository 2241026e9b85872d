//! A table of PostgreSQL that refuses a stale holder by itself.
//!
//! Withdrawals from an account, one amount per line of the standard input, by whoever holds the account's lock. The
//! fence kit's trigger stands on the table: every transaction shows its token first, and one that is behind the highest
//! token of the account writes nothing, whatever it still believes. Set up once, as the owner of the schema:
//!
//! ```sh
//! dlock fence sql | psql -1 -f - "$DATABASE_URL"
//! psql "$DATABASE_URL" -c "CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL)" \
//!     -c "INSERT INTO account VALUES ('A', 100)" -c "SELECT dlock_fence_table('account', 'account:', 'id')"
//! ```
//!
//! `echo 30 | DATABASE_URL=postgres://… cargo run -p lock-client --example sql_table -- A` against
//! `dlock lock-server --listen 127.0.0.1:7400`.

use lock_client::lock_api::{FencingToken, LockKey, Owner};
use lock_client::{ClientOptions, LockClient};
use std::error::Error;
use std::time::Duration;
use tokio_postgres::NoTls;

/// One transaction. The token comes first, before anything is read that the write depends on: that waits for whoever
/// writes under the key, and what is read afterwards is what that one has left.
async fn withdraw(
    database: &mut tokio_postgres::Client,
    account: &str,
    amount: i64,
    token: FencingToken,
) -> Result<Option<i64>, tokio_postgres::Error> {
    let (key, token) = (
        format!("account:{account}"),
        i64::try_from(token.get()).unwrap_or(i64::MAX),
    );
    let transaction = database.transaction().await?;
    transaction
        .execute("SELECT dlock_fence($1, $2)", &[&key, &token])
        .await?;
    let balance: i64 = transaction
        .query_one("SELECT balance FROM account WHERE id = $1", &[&account])
        .await?
        .get(0);
    let Some(left) = balance.checked_sub(amount).filter(|left| *left >= 0) else {
        return Ok(None);
    };
    transaction
        .execute("UPDATE account SET balance = $2 WHERE id = $1", &[&account, &left])
        .await?;
    transaction.commit().await?;
    Ok(Some(left))
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let account = std::env::args().nth(1).ok_or("sql_table ACCOUNT")?;
    let (mut database, connection) = tokio_postgres::connect(&std::env::var("DATABASE_URL")?, NoTls).await?;
    actix_rt::spawn(connection);

    let server = std::env::var("DLOCK_LOCK_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7400".to_owned());
    let owner = Owner::new(format!("till-{}", std::process::id()))?;
    let client = LockClient::connect(&[server], ClientOptions::new(owner).session_ttl(Duration::from_secs(3))).await?;
    // The lock's key and the fence's are one and the same.
    let held = client
        .acquire_within(&LockKey::new(format!("account:{account}"))?, Duration::from_secs(20))
        .await?;
    println!("holding {account} under token {}", held.token());

    // Reading blocks this thread; heartbeats are sent from the client's own.
    for line in std::io::stdin().lines() {
        let amount: i64 = line?.trim().parse()?;
        match withdraw(&mut database, &account, amount, held.token()).await {
            Ok(Some(left)) => println!("withdrew {amount} under token {}, {left} left", held.token()),
            Ok(None) => println!("not enough for {amount}"),
            Err(error) => {
                // LK001: a later holder has written. Nothing of this transaction happened.
                let code = error.code().map_or("?", |code| code.code()).to_owned();
                println!(
                    "refused by the table: {code}: {}",
                    error.as_db_error().map_or("", |e| e.message())
                );
                break;
            }
        }
    }
    // Lost, where the table refused: then there is nothing to give back.
    if let Err(error) = held.release().await {
        println!("{}: {error}", error.fate());
    }
    client.close().await?;
    Ok(())
}
