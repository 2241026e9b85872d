//! The fencing proxy.

use crate::api::lock_key;
use crate::config::{ConfigArgs, checked_component, duration};
use crate::exit::Failure;
use fence_kit::{KeeperOptions, KeySource, ProxyOptions, RuleKind};
use lock_api::LockKey;
use std::time::Duration;

/// A reverse proxy that lets a request through to an HTTP service only under a fencing token that is not stale.
///
/// Each request but GET and HEAD needs `X-Fencing-Token` and a key that says what it acts on. A token below the highest one
/// of its key is answered 409 FENCED_OUT; a higher one waits (409 IN_DOUBT) until every request of a lower one is answered,
/// also over a crash of the proxy. What nobody will ever see answered, an operator clears: `dlock fence clear`.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("keyed").required(true).args(["key", "key_header", "key_prefix_segments"])))]
pub struct Args {
    /// The address for callers; port 0 takes a free one.
    #[arg(long, value_name = "ADDR")]
    listen: String,
    /// The address for probes, metrics and operators, such as 127.0.0.1:7408. Setting `http.listen`; port 0 by default.
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// The service: `http://host:port[/path]`.
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// Where marks and unanswered requests are kept: `sqlite:PATH`.
    #[arg(long, value_name = "URL", value_parser = sqlite)]
    store: String,
    /// One key for the whole service.
    #[arg(long, value_name = "NAME", value_parser = lock_key, allow_hyphen_values = true)]
    key: Option<LockKey>,
    /// The header that names the key.
    #[arg(long, value_name = "HEADER", value_parser = header)]
    key_header: Option<String>,
    /// The first N segments of the path are the key.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    key_prefix_segments: Option<u8>,
    /// A token may do one thing: its second request is answered FENCED_OUT with the reason token_spent.
    #[arg(long)]
    once: bool,
    /// GET and HEAD need a token too.
    #[arg(long)]
    fence_reads: bool,
    /// How long the service may take for a whole answer; at least 100ms.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    timeout: Duration,
    /// The largest body that is passed on, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    body_limit: u64,
    /// The service's word that a request has no effect later than this after its connection was closed; without it an
    /// unanswered one closes its key until an operator clears it. At least 1s.
    #[arg(long, value_name = "DURATION", value_parser = settled_after)]
    settled_after: Option<Duration>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// The path of a store in a file.
pub fn sqlite(text: &str) -> Result<String, String> {
    match text.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => Ok(path.to_owned()),
        _ => Err("must be sqlite:PATH".to_owned()),
    }
}

/// In less than this hardly any service answers, and each request would leave a doubt.
fn timeout(text: &str) -> Result<Duration, String> {
    at_least(Duration::from_millis(100), text)
}

/// What lies in buffers on the way may take longer than less than this.
fn settled_after(text: &str) -> Result<Duration, String> {
    at_least(Duration::from_secs(1), text)
}

fn at_least(least: Duration, text: &str) -> Result<Duration, String> {
    duration(text).and_then(|given| {
        if given < least {
            return Err(format!("must be at least {least:?}"));
        }
        Ok(given)
    })
}

fn header(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    match actix_web::http::header::HeaderName::from_bytes(name.as_bytes()) {
        Ok(name) if name.as_str() != "x-fencing-token" => Ok(name.as_str().to_owned()),
        _ => Err("must be the name of a header, and not the token's".to_owned()),
    }
}

pub fn run(args: &Args) -> crate::Outcome {
    let key = match (&args.key, &args.key_header, args.key_prefix_segments) {
        (Some(key), _, _) => KeySource::Fixed(key.clone()),
        (_, Some(name), _) => KeySource::Header(
            name.parse()
                .map_err(|_| Failure::usage("--key-header must be the name of a header"))?,
        ),
        (_, _, Some(count)) => KeySource::PrefixSegments(usize::from(count)),
        (None, None, None) => return Err(Failure::usage("a key is required")),
    };
    let options = |admin: String| ProxyOptions {
        keeper: KeeperOptions {
            rule: if args.once {
                RuleKind::OncePerToken
            } else {
                RuleKind::SameOrNewer
            },
            settled_after: args.settled_after,
            ..KeeperOptions::default()
        },
        fence_reads: args.fence_reads,
        timeout: args.timeout,
        body_bytes_max: args.body_limit,
        ..ProxyOptions::new(&args.listen, admin, &args.upstream, &args.store, key.clone())
    };
    let flags = [("http.listen", args.admin.clone())];
    checked_component(
        fence_kit::proxy::COMPONENT,
        &args.config,
        &flags,
        |_| fence_kit::check_upstream(&args.upstream),
        |settings, admin, host| fence_kit::serve(options(admin), settings, host, |_| {}),
    )
}
