//! A leader that plans for all, and followers that take over when it is gone.
//!
//! Start it on several nodes. One leads and writes a plan again and again; when it is stopped or cut off, another one is
//! elected for a higher term. The old leader may believe for a while that it still leads: two leaders at once. So the
//! plan keeps the highest term that wrote it and refuses lower ones.
//!
//! `cargo run -p lock-client --example leader_election -- node-1 PLAN` against
//! `dlock lock-server --listen 127.0.0.1:7400`; end it with Ctrl-C.

use lock_client::lock_api::{FencingToken, LockKey, Owner};
use lock_client::{ClientOptions, LeaderElection, LockClient, Term};
use std::error::Error;
use std::fs::OpenOptions;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

/// Writes the plan unless a later term has written it: compared and written under one lock of the file system.
/// The file is one line, `TERM DECISION`. False when it was refused.
fn write_plan(plan: &Path, term: FencingToken, decision: &str) -> std::io::Result<bool> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(plan)?;
    file.lock()?;
    let mut now = String::new();
    file.read_to_string(&mut now)?;
    let highest: u64 = now.split(' ').next().and_then(|term| term.parse().ok()).unwrap_or(0);
    if term.get() < highest {
        return Ok(false);
    }
    file.rewind()?;
    // Of a fixed width, so that one write replaces it.
    write!(file, "{term} {decision:<60}")?;
    file.sync_all()?;
    Ok(true)
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [node, plan] = arguments.as_slice() else {
        return Err("leader_election NODE PLAN".into());
    };
    let plan = Path::new(plan);
    let server = std::env::var("DLOCK_LOCK_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7400".to_owned());
    let options = ClientOptions::new(Owner::new(node.as_str())?).session_ttl(Duration::from_secs(8));
    let client = LockClient::connect(&[server], options).await?;
    let election = LeaderElection::new(client, LockKey::new("cluster/leader")?);

    loop {
        println!("{node} stands");
        let led = election
            .lead(|term, _lock| async move {
                println!("{node} leads, term {term}");
                for n in 1_u64.. {
                    println!("{node} decides {n} in term {term}");
                    // The term is a parameter of every act of a leader.
                    if !write_plan(plan, term, &format!("decision {n} of {node}"))? {
                        println!("{node} is refused, term {term} is over");
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Ok::<_, std::io::Error>(())
            })
            .await?;
        match led {
            // Refused: somebody leads a later term. Stand again, and follow meanwhile.
            Term::Done(refused) => refused?,
            // Noticed by itself before it acted.
            Term::Lost(lost) => println!("{node} is deposed: {lost}"),
            Term::SteppedDown(asked) => println!("{node} steps down, {} asked for it: {}", asked.by, asked.reason),
        }
    }
}
