//! Whether a component is ready.

use crate::api::{Api, url};
use crate::exit::{Failure, OK, REFUSED};

/// Asks `/readyz` of a component and exits with 0 when it is ready, else with 1 and the failed checks on standard error.
#[derive(clap::Args)]
pub struct Args {
    /// The component's address.
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:7400", value_parser = url)]
    url: String,
    /// Ask another path, such as `/livez`.
    #[arg(long, value_name = "PATH", default_value = "/readyz")]
    path: String,
}

pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(async {
        let api = Api::new();
        match api.plain(&args.url).probe(&args.path, &api.trace).await {
            Ok(()) => Ok(OK),
            Err(error) => Err(Failure::new(REFUSED, format!("{}: not ready: {error}", args.url))),
        }
    })
}
