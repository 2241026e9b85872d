//! A nightly job that stands in the crontab of every machine and runs on one of them.
//!
//! The day's figures arrive in an inbox; the job waits for them, adds them up and puts the report on a shelf. The lock
//! sees to it that two machines seldom do the work twice. What sees to it that a machine which was stopped in the middle
//! does not put an old report over a new one is the shelf: it keeps the highest token and refuses lower ones.
//!
//! `cargo run -p lock-client --example cron_job -- INBOX SHELF 2026-11-30` against
//! `dlock lock-server --listen 127.0.0.1:7400`; start it twice.

use lock_client::lock_api::{FencingToken, LockError, LockKey, Owner};
use lock_client::{ClientOptions, LockClient};
use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder of reports, and the highest token that has touched it.
struct Shelf(PathBuf);

impl Shelf {
    /// Compares and writes in one step, under a lock of the file system. The first contact raises the mark, before
    /// anything is read that the report depends on: from here on a slower machine can write nothing any more.
    fn touch<T>(
        &self,
        token: FencingToken,
        act: impl FnOnce(&Path) -> std::io::Result<T>,
    ) -> Result<T, Box<dyn Error>> {
        let mark = self.0.join("mark");
        let lock = File::create(self.0.join("lock"))?;
        lock.lock()?;
        let highest: u64 = fs::read_to_string(&mark)
            .unwrap_or_default()
            .trim()
            .parse()
            .unwrap_or(0);
        if token.get() < highest {
            return Err(format!("the shelf refuses token {token}: {highest} was here").into());
        }
        // Whole or not at all, also when the power fails.
        let next = self.0.join("mark.next");
        fs::write(&next, token.to_string())?;
        File::open(&next)?.sync_all()?;
        fs::rename(&next, &mark)?;
        Ok(act(&self.0)?)
    }
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [inbox, shelf, day] = arguments.as_slice() else {
        return Err("cron_job INBOX SHELF DAY".into());
    };
    let (inbox, shelf, report) = (Path::new(inbox), Shelf(shelf.into()), format!("{day}.report"));
    fs::create_dir_all(&shelf.0)?;

    let server = std::env::var("DLOCK_LOCK_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7400".to_owned());
    let owner = Owner::new(format!("report-{}", std::process::id()))?;
    let options = ClientOptions::new(owner).session_ttl(Duration::from_secs(5));
    let client = LockClient::connect(&[server], options).await?;

    let ran = client
        .with_lock(
            &LockKey::new(format!("jobs/report/{day}"))?,
            |token, _lock| async move {
                if shelf.touch(token, |shelf| shelf.join(&report).try_exists())? {
                    println!("the report is there already");
                    return Ok(());
                }
                println!("working under token {token}");
                let figures = loop {
                    match fs::read_to_string(inbox.join(format!("{day}.csv"))) {
                        Ok(figures) => break figures,
                        Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                    }
                };
                let sum: i64 = figures.lines().filter_map(|line| line.parse::<i64>().ok()).sum();
                // Between whatever check and this line the process may have been stopped for an hour.
                shelf.touch(token, |shelf| {
                    fs::write(shelf.join(&report), format!("{sum} under token {token}\n"))
                })?;
                println!("reported {sum} under token {token}");
                Ok::<_, Box<dyn Error>>(())
            },
        )
        .await;
    match ran {
        Ok(done) => done?,
        // Nothing was begun here, and nothing has to be: no mail from cron about it.
        Err(LockError::ContentionExceeded { .. }) => println!("another machine is at it"),
        // No lock, no work, whatever the reason; the next run of cron tries again.
        Err(error) => return Err(format!("{} error: {error}", error.fate()).into()),
    }
    client.close().await?;
    Ok(())
}
