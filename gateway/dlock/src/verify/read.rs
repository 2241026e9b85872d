//! Reading what the product exports: one JSON object a line, or the pages of a list one after the other.

use crate::exit::Failure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::Read;

/// A file's text; `-` is standard input.
pub fn text(name: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = if name == "-" {
        std::io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        std::fs::read(name).map(|found| bytes = found)
    };
    read.map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    // A byte that is no UTF-8 is shown as such, and is then found by whoever reads the row.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The rows, in order. A row has to have every column and no other, or it is not what was exported.
pub fn rows<T: DeserializeOwned + Serialize>(text: &str) -> Result<Vec<T>, String> {
    let mut rows = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let value = value.map_err(|error| format!("after {} rows: {error}", rows.len()))?;
        match value {
            Value::Object(mut page) if page.contains_key("items") => {
                let strange = page
                    .keys()
                    .find(|name| !["items", "next_cursor"].contains(&name.as_str()));
                if let Some(name) = strange {
                    return Err(format!("after {} rows: a page has no {name:?}", rows.len()));
                }
                match page.remove("items") {
                    Some(Value::Array(items)) => {
                        for item in items {
                            rows.push(row(item, rows.len())?);
                        }
                    }
                    _ => return Err(format!("after {} rows: items is no list", rows.len())),
                }
            }
            row_alone => rows.push(row(row_alone, rows.len())?),
        }
    }
    Ok(rows)
}

fn row<T: DeserializeOwned + Serialize>(value: Value, before: usize) -> Result<T, String> {
    let of = |why: String| format!("row {} of the file: {why}", before + 1);
    let row: T = serde_json::from_value(value.clone()).map_err(|error| of(error.to_string()))?;
    match serde_json::to_value(&row) {
        Ok(again) if again == value => Ok(row),
        Ok(_) => Err(of("it has other columns than an export".to_owned())),
        Err(error) => Err(of(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_contract::lock::SealRow;

    const ONE: &str = r#"{"chain":"c","n":1,"first_seq":1,"last_seq":2,"prev_hash":"0","hash":"a"}"#;

    #[test]
    fn lines_and_pages_are_the_same_rows() {
        let lines = format!("{ONE}\n{ONE}\n");
        let pages = format!(r#"{{"items":[{ONE}],"next_cursor":"1"}}{{"items":[{ONE}],"next_cursor":null}}"#);
        assert_eq!(rows::<SealRow>(&lines).unwrap(), rows::<SealRow>(&pages).unwrap());
        assert_eq!(rows::<SealRow>("").unwrap(), []);
    }

    #[test]
    fn a_column_more_or_less_is_no_export() {
        for text in [
            ONE.replace("\"n\":1", "\"n\":1,\"m\":1"),
            ONE.replace("\"n\":1,", ""),
            format!(r#"{{"items":[{ONE}],"more":1}}"#),
            ONE[..20].to_owned(),
        ] {
            assert!(rows::<SealRow>(&text).is_err(), "{text}");
        }
    }
}
