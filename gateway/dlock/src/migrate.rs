//! Bringing a store to this binary's schema.

use crate::config::ConfigArgs;
use crate::exit::{Failure, OK, UNAVAILABLE};
use gateway_kit::Settings;

/// Bring the stores to the schema of this binary, without serving.
///
/// On SQLite each component migrates its own files when it starts, so this is for looking before: it needs the files for
/// itself, and says what it did. Stores that are not named are left alone.
#[derive(clap::Args)]
pub struct Args {
    /// The lock store: `sqlite:PATH`.
    #[arg(long, value_name = "URL")]
    lock_store: Option<String>,
    /// paydb: `sqlite:DIRECTORY`, with the files of the payment resource and of the rail proxy.
    #[arg(long, value_name = "URL")]
    payment_store: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub fn run(args: Args) -> crate::Outcome {
    if args.lock_store.is_none() && args.payment_store.is_none() {
        return Err(Failure::usage(
            "nothing to migrate: name --lock-store or --payment-store",
        ));
    }
    let settings = args.config.load(&[
        ("lock.store.url", args.lock_store.clone()),
        ("payment.store.url", args.payment_store.clone()),
        ("rail.store.url", args.payment_store.clone()),
    ])?;
    gateway_kit::init_logging_to_stderr("dlock-migrate");
    let host = crate::config::host(&settings)?;
    let failed = |what: &str, error: String| Failure::new(UNAVAILABLE, format!("{what}: {error}"));
    crate::block_on(async {
        if args.lock_store.is_some() {
            lock_server::migrate(&settings, &host)
                .await
                .map_err(|error| failed("lock store", error.to_string()))?;
            println!("lock store: {}", shown(&settings, "lock.store.url"));
        }
        if args.payment_store.is_some() {
            payment_resource::migrate(&settings, &host)
                .await
                .map_err(|error| failed("payment store", error.to_string()))?;
            rail_proxy::migrate(&settings, &host).map_err(|error| failed("rail store", error.to_string()))?;
            println!("paydb: {}", shown(&settings, "payment.store.url"));
        }
        Ok(OK)
    })
}

fn shown(settings: &Settings, name: &str) -> String {
    gateway_kit::mask(settings.text(name).unwrap_or_default()).to_string()
}
