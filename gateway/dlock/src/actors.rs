//! `dlock actors`: the trees of actors of running components.

use crate::api::{Api, url};
use crate::config::duration;
use crate::exit::{self, Failure, OK};
use crate::output::{self, Format, OutputArgs};
use crate::trace::explained;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// The most characters of an actor's own state in a table.
const STATE_CHARS_MAX: usize = 60;

/// The actors of running components: parents and children, what waits, what was last done, who is paused.
#[derive(clap::Args)]
pub struct Args {
    /// The components' addresses.
    #[arg(value_name = "URL", required = true, value_parser = url)]
    urls: Vec<String>,
    /// Show them again and again, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// With --watch: how often.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration, requires = "watch")]
    every: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(async {
        let api = Api::new();
        loop {
            let (mut answers, mut complaints) = (Vec::new(), Vec::new());
            for url in &args.urls {
                match api.plain(url).get_json::<Value>("/debug/actors", &api.trace).await {
                    Ok(answer) => answers.push(answer),
                    Err(error) => complaints.push(explained(url, &error)),
                }
            }
            if args.watch && args.output.output == Format::Table {
                // To the top left corner, and everything below it away.
                print!("\x1b[H\x1b[2J");
            }
            match args.output.output {
                Format::Json => output::line(Format::Json, &answers, String::new)?,
                Format::Table => {
                    for answer in &answers {
                        output::line(Format::Table, answer, || tree(answer))?;
                    }
                }
            }
            for complaint in &complaints {
                eprintln!("dlock: {complaint}");
            }
            if !args.watch {
                return if complaints.is_empty() {
                    Ok(OK)
                } else {
                    Err(Failure::new(exit::UNAVAILABLE, "not every component answered"))
                };
            }
            tokio::time::sleep(args.every).await;
        }
    })
}

/// One component's actors, children below their parents.
fn tree(answer: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let actors = answer["actors"].as_array().map_or(&[][..], Vec::as_slice);
    let known: BTreeMap<&str, &Value> = actors
        .iter()
        .filter_map(|actor| Some((actor["path"].as_str()?, actor)))
        .collect();
    let mut children: BTreeMap<Option<&str>, Vec<&Value>> = BTreeMap::new();
    for actor in actors {
        // A parent that went while the tree was read leaves its child at the top.
        let parent = actor["parent"].as_str().filter(|parent| known.contains_key(parent));
        children.entry(parent).or_default().push(actor);
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "ACTOR", "KIND", "WAITING", "OLDEST", "LAST", "RESTARTS", "PAUSED", "STATE",
    ]);
    let mut open: Vec<(usize, &Value)> = children
        .remove(&None)
        .unwrap_or_default()
        .into_iter()
        .rev()
        .map(|actor| (0, actor))
        .collect();
    while let Some((depth, actor)) = open.pop() {
        table.add_row(row(depth, actor));
        let below = actor["path"].as_str().and_then(|path| children.remove(&Some(path)));
        open.extend(
            below
                .unwrap_or_default()
                .into_iter()
                .rev()
                .map(|child| (depth + 1, child)),
        );
    }
    format!(
        "{} {} (pid {}): {} actors\n{table}",
        text(&answer["component"]),
        text(&answer["instance"]),
        answer["pid"],
        actors.len()
    )
}

fn row(depth: usize, actor: &Value) -> [String; 8] {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let path = text(&actor["path"]);
    let below = actor["parent"].as_str().filter(|_| depth > 0);
    let name = match below.and_then(|parent| path.strip_prefix(parent)) {
        Some(rest) => rest.trim_start_matches('/').to_owned(),
        None => path,
    };
    let oldest = &actor["oldest_waiting"];
    let last = &actor["last_message"];
    let state = match &actor["state"] {
        Value::Null => "-".to_owned(),
        state => {
            let all = state.to_string();
            let short: String = all.chars().take(STATE_CHARS_MAX).collect();
            if short.len() < all.len() {
                format!("{short}…")
            } else {
                short
            }
        }
    };
    let paused = match (actor["paused_for_ms"].as_u64(), actor["restarts_in_ms"].as_u64()) {
        (Some(left), _) => format!("for {left} ms"),
        (None, Some(left)) => format!("restarts in {left} ms"),
        (None, None) => "-".to_owned(),
    };
    [
        format!("{}{name}", "  ".repeat(depth)),
        text(&actor["kind"]),
        format!("{}/{}", actor["mailbox_depth"], actor["mailbox_capacity"]),
        if oldest.is_null() {
            "-".to_owned()
        } else {
            format!("{} {} ms", text(&oldest["message"]), oldest["age_ms"])
        },
        if last.is_null() {
            "-".to_owned()
        } else {
            format!("{} {} ms ago", text(&last["message"]), last["ago_ms"])
        },
        actor["restarts"].to_string(),
        paused,
        state,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn children_stand_below_their_parents() {
        let actor = |path: &str, parent: Value| {
            json!({
                "path": path, "parent": parent, "kind": "lease", "mailbox_depth": 2, "mailbox_capacity": 16, "restarts": 1,
                "oldest_waiting": {"message": "Renew", "age_ms": 40}, "last_message": {"message": "Acquire", "ago_ms": 7},
                "paused_for_ms": 300, "restarts_in_ms": null, "state": {"held": true},
            })
        };
        let answer = json!({
            "component": "lock-server", "instance": "one", "pid": 3,
            "actors": [
                actor("lock-server/clock", Value::Null),
                actor("lock-server/clock/lease/a", json!("lock-server/clock")),
                actor("lock-server/gone/lease/b", json!("lock-server/gone")),
            ],
        });
        let text = tree(&answer);
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines[0], "lock-server one (pid 3): 3 actors");
        assert!(lines[2].trim_start().starts_with("lock-server/clock "), "{text}");
        assert!(lines[3].contains("  lease/a "), "{text}");
        assert!(lines[4].contains("lock-server/gone/lease/b"), "{text}");
        for part in [
            "2/16",
            "Renew 40 ms",
            "Acquire 7 ms ago",
            "for 300 ms",
            "{\"held\":true}",
        ] {
            assert!(lines[2].contains(part), "{part}: {text}");
        }
    }
}
