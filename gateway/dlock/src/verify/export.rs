//! `dlock lock audit`: the trail and its seals, page by page, one JSON object a line.

use crate::api::{Api, LockServerArgs};
use crate::exit::{Failure, INTERNAL};
use http_contract::PAGE_LIMIT_MAX;
use serde::Serialize;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Writes the seals, where they are wanted, then the trail to standard output.
///
/// The seals first: what they cover is then in the trail, and what is written meanwhile is its unsealed tail.
pub async fn run(api: &Api, servers: &LockServerArgs, after: u64, seals_to: Option<&Path>) -> Result<(), Failure> {
    if let Some(path) = seals_to {
        let failed = |error: std::io::Error| Failure::new(INTERNAL, format!("{}: {error}", path.display()));
        // Beside it and renamed: what stands there, a link say, is never written through, and a half of it is never found.
        let dir = path
            .parent()
            .filter(|dir| !dir.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let file = tempfile::Builder::new()
            .prefix(".dlock-seals-")
            .tempfile_in(dir)
            .map_err(failed)?;
        let mut out = BufWriter::new(file);
        let mut last = after;
        loop {
            let page = api
                .lock_server(servers, async |s| s.seals(last, PAGE_LIMIT_MAX, &api.trace).await)
                .await?;
            lines(&mut out, &page.items).map_err(failed)?;
            match (page.items.last(), page.next_cursor) {
                (Some(seal), Some(_)) => last = seal.first_seq,
                _ => break,
            }
        }
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
    }
    let failed = |error: std::io::Error| Failure::new(INTERNAL, format!("standard output: {error}"));
    let mut last = after;
    loop {
        let page = api
            .lock_server(servers, async |s| s.audit(last, PAGE_LIMIT_MAX, &api.trace).await)
            .await?;
        let mut out = std::io::stdout().lock();
        lines(&mut out, &page.items)
            .and_then(|()| out.flush())
            .map_err(failed)?;
        match (page.items.last(), page.next_cursor) {
            (Some(row), Some(_)) => last = row.seq,
            _ => return Ok(()),
        }
    }
}

fn lines<T: Serialize>(out: &mut impl Write, rows: &[T]) -> std::io::Result<()> {
    for row in rows {
        let row = serde_json::to_string(row)?;
        writeln!(out, "{}", gateway_kit::shown_json(&row))?;
    }
    Ok(())
}
