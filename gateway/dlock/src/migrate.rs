//! Bringing a store to this binary's schema.

use crate::config::ConfigArgs;
use crate::exit::{Failure, OK, UNAVAILABLE};
use gateway_kit::Settings;
use host_kit::Host;
use pay_schema::PaySchema;
use pg_kit::{Access, PasswordSource};

/// Bring the stores to the schema of this binary, without serving.
///
/// In files each component migrates its own when it starts, so this is for looking before: it needs the files for itself,
/// and says what it did. paydb on PostgreSQL is migrated here alone, as the role that owns its schema; the components run
/// as two other roles, which can change no table. Stores that are not named are left alone.
#[derive(clap::Args)]
pub struct Args {
    /// The lock store: `sqlite:PATH`, `postgres://…` or `etcd://…`.
    #[arg(long, value_name = "URL")]
    lock_store: Option<String>,
    /// paydb: `sqlite:DIRECTORY`, with the files of the payment resource and of the rail proxy, or `postgres://OWNER@…`. The
    /// owner's password: `--password-file`, else `PGPASSWORD`, else the URL's.
    #[arg(long, visible_alias = "store", value_name = "URL")]
    payment_store: Option<String>,
    /// paydb's schema; made where it is missing.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "pay",
        help_heading = "paydb on PostgreSQL"
    )]
    schema: String,
    /// The payment resource's role.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "dlock_payment",
        help_heading = "paydb on PostgreSQL"
    )]
    payment_role: String,
    /// The rail proxy's role.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "dlock_rail",
        help_heading = "paydb on PostgreSQL"
    )]
    rail_role: String,
    /// A file with the owner's password.
    #[arg(long, value_name = "FILE", help_heading = "paydb on PostgreSQL")]
    password_file: Option<String>,
    /// Make the two roles where they are missing, with LOGIN and no password. The owner needs CREATEROLE for that.
    #[arg(long, help_heading = "paydb on PostgreSQL")]
    create_roles: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Args {
    /// paydb on PostgreSQL, where that is what was named.
    fn pay_schema(&self) -> Option<PaySchema> {
        let url = self.payment_store.as_deref()?;
        (url.starts_with("postgres://") || url.starts_with("postgresql://")).then(|| PaySchema {
            access: Access {
                password: PasswordSource::file_or_environment(self.password_file.as_deref()),
                ..Access::at(url)
            },
            schema: self.schema.clone(),
            payment_role: self.payment_role.clone(),
            rail_role: self.rail_role.clone(),
        })
    }
}

pub fn run(args: Args) -> crate::Outcome {
    if args.lock_store.is_none() && args.payment_store.is_none() {
        return Err(Failure::usage(
            "nothing to migrate: name --lock-store or --payment-store",
        ));
    }
    let pay_schema = args.pay_schema();
    if args.create_roles && pay_schema.is_none() {
        return Err(Failure::usage("--create-roles: only paydb on PostgreSQL has roles"));
    }
    if args.password_file.is_some() && pay_schema.is_none() {
        return Err(Failure::usage(
            "--password-file: it is the password of paydb's owner on PostgreSQL; the lock store's is lock.store.password-file",
        ));
    }
    let settings = args.config.load(&[
        ("lock.store.url", args.lock_store.clone()),
        ("payment.store.url", args.payment_store.clone()),
        ("rail.store.url", args.payment_store.clone()),
    ])?;
    if args.config.print_config {
        print!("{}", settings.to_toml());
        return Ok(OK);
    }
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
        match pay_schema {
            Some(options) => {
                let said = on_postgres(&options, args.create_roles, &host)
                    .await
                    .map_err(|error| failed("paydb", error.to_string()))?;
                println!("paydb: {}: {said}", shown(&settings, "payment.store.url"));
            }
            None if args.payment_store.is_some() => {
                payment_resource::migrate(&settings, &host)
                    .await
                    .map_err(|error| failed("payment store", error.to_string()))?;
                rail_proxy::migrate(&settings, &host).map_err(|error| failed("rail store", error.to_string()))?;
                println!("paydb: {}", shown(&settings, "payment.store.url"));
            }
            None => {}
        }
        Ok(OK)
    })
}

/// Answers what was done, in a line.
async fn on_postgres(options: &PaySchema, create_roles: bool, host: &Host) -> Result<String, lock_api::StoreError> {
    let made = if create_roles {
        pay_schema::create_roles(options).await?
    } else {
        Vec::new()
    };
    let migrated = pay_schema::migrate(options, host).await?;
    let mut said = format!(
        "schema {} of version {} (it was {}), lineage {}",
        options.schema, migrated.to, migrated.from, migrated.lineage
    );
    if !made.is_empty() {
        said.push_str(&format!("; roles made, without a password: {}", made.join(", ")));
    }
    Ok(said)
}

fn shown(settings: &Settings, name: &str) -> String {
    gateway_kit::mask(settings.text(name).unwrap_or_default()).to_string()
}
