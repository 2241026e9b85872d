//! One JSON object a line: the rows of the account ledger, of all accounts or of one.

use super::{Cut, Out};
use crate::render;

pub(super) async fn write(out: &Out) -> Result<(), Cut> {
    let mut entries = out.entries(out.account_id.as_deref());
    while let Some(rows) = entries.next().await? {
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
