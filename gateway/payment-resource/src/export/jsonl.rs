//! One JSON object a line: the rows of the account ledger, of all accounts.

use super::{Cut, Out};
use crate::render;

pub(super) async fn write(out: &Out) -> Result<(), Cut> {
    let mut after = 0;
    while let Some(rows) = out.entries(None, after).await? {
        after = rows.last().map_or(after, |row| row.entry_id);
        let mut text = String::new();
        for row in rows {
            let line = serde_json::to_string(&render::ledger(row)).map_err(|error| Cut::Format(error.to_string()))?;
            text.push_str(&line);
            text.push('\n');
        }
        out.write(text).await?;
    }
    Ok(())
}
