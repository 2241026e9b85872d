//! Payouts, by hand.

use crate::api::{Api, LOCK_SERVER, LockServerArgs, OperatorArgs, PaymentArgs};
use crate::config::ConfigArgs;
use crate::exit::{Failure, OK, REFUSED};
use crate::output::{self, OutputArgs};
use clap::ValueEnum;
use http_client::{CallError, PayoutFilter};
use http_contract::Code;
use http_contract::payment::{PayoutState, Resolution, ResolveBody};
use http_contract::rail::CloseExceptionBody;
use lock_api::{FencingToken, LockKey, Owner};
use lock_client::{ClientOptions, LockClient};
use std::time::Duration;

/// Payouts of the payment resource.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Payouts, by state and account.
    List {
        #[command(flatten)]
        at: PaymentArgs,
        /// Only those in this state.
        #[arg(long, value_enum, ignore_case = true)]
        state: Option<StateArg>,
        /// Only those of this account.
        #[arg(long, value_name = "ID")]
        account: Option<String>,
        /// The most payouts to show.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// One payout with its submission to the rail.
    Show {
        #[command(flatten)]
        at: PaymentArgs,
        /// Its id.
        payout_id: String,
    },
    /// Every step of a payout: when, by whom, under which token.
    History {
        #[command(flatten)]
        at: PaymentArgs,
        /// Its id.
        payout_id: String,
    },
    /// Everything of one payout in order of time: its steps, its submission, grants of its account's lock, refusals, the
    /// messages and log lines of its traces. Exit code 69 when a place could not be asked.
    Trace(crate::payout_trace::Args),
    /// Settle an ambiguous payout by hand (break-glass): takes the account's lock, so that no worker acts meanwhile.
    Resolve {
        #[command(flatten)]
        at: PaymentArgs,
        #[command(flatten)]
        servers: LockServerArgs,
        #[command(flatten)]
        config: ConfigArgs,
        /// Its id.
        payout_id: String,
        /// Whether it was paid.
        #[arg(long, value_enum, ignore_case = true)]
        outcome: OutcomeArg,
        /// The rail's reference, where it was paid.
        #[arg(long, value_name = "TEXT")]
        rail_reference: Option<String>,
        /// How long to wait for the account's lock.
        #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = crate::config::duration)]
        wait: Duration,
        #[command(flatten)]
        by: OperatorArgs,
    },
    /// What the rail proxy found that a human has to look at: evidence against what a payout counts as.
    Exception {
        #[command(subcommand)]
        verb: ExceptionVerb,
    },
    /// After a revoke: raise both fence points of an account, so that the revoked holder is refused from now on although
    /// nobody has acquired yet. A point that is as high already says so, and that is no failure.
    Fence {
        #[command(flatten)]
        at: PaymentArgs,
        #[command(flatten)]
        servers: LockServerArgs,
        /// The account.
        account_id: String,
        /// The revoke's token; left out, the highest token ever minted for the account's lock.
        #[arg(long, value_name = "TOKEN")]
        token: Option<FencingToken>,
    },
}

#[derive(clap::Subcommand)]
enum ExceptionVerb {
    /// Exceptions in the order in which they were found; only the open ones, unless --all is given.
    List {
        #[command(flatten)]
        at: PaymentArgs,
        /// The closed ones too.
        #[arg(long)]
        all: bool,
        /// The most exceptions to show.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Close an exception, once: say what was found and done. The payout stays as it is.
    Close {
        #[command(flatten)]
        at: PaymentArgs,
        /// Its id, as the list shows it.
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        exception_id: u64,
        #[command(flatten)]
        by: OperatorArgs,
    },
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum StateArg {
    Pending,
    Claimed,
    #[value(name = "rail_ambiguous", alias = "ambiguous")]
    RailAmbiguous,
    Posted,
    Failed,
}

impl From<StateArg> for PayoutState {
    fn from(state: StateArg) -> Self {
        match state {
            StateArg::Pending => Self::Pending,
            StateArg::Claimed => Self::Claimed,
            StateArg::RailAmbiguous => Self::RailAmbiguous,
            StateArg::Posted => Self::Posted,
            StateArg::Failed => Self::Failed,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum OutcomeArg {
    Posted,
    Failed,
}

pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(verb(args))
}

/// The lock that guards an account (architecture §3.4).
fn lock_of(account_id: &str) -> Result<LockKey, Failure> {
    Ok(LockKey::new(format!("payout:{account_id}"))?)
}

async fn verb(args: Args) -> crate::Outcome {
    let format = args.output.output;
    let api = Api::new();
    let trace = &api.trace;
    match args.verb {
        Verb::List {
            at,
            state,
            account,
            limit,
            cursor,
        } => {
            let filter = PayoutFilter {
                state: state.map(PayoutState::from),
                account_id: account,
            };
            let page = api
                .ask_payments(&at, async |p| p.payouts(&filter, limit, cursor.as_deref(), trace).await)
                .await?;
            let columns = [
                ("PAYOUT", "payout_id"),
                ("ACCOUNT", "account_id"),
                ("AMOUNT", "amount_minor"),
                ("STATE", "state"),
                ("TOKEN", "claim_token"),
                ("UPDATED", "updated_at"),
            ];
            output::list(format, &page, &columns)?;
        }
        Verb::Show { at, payout_id } => {
            let payout = api
                .ask_payments(&at, async |p| p.payout(&payout_id, trace).await)
                .await?;
            let submission = match api.rail_proxy(&at.rail_proxy).submission(&payout_id, trace).await {
                Ok(submission) => Some(submission),
                Err(error) if error.code() == Some(http_contract::Code::SubmissionNotFound) => None,
                Err(error) => {
                    eprintln!("dlock: the submission is not shown: {error}");
                    None
                }
            };
            output::object(
                format,
                &serde_json::json!({ "payout": payout, "submission": submission }),
            )?;
        }
        Verb::History { at, payout_id } => {
            let page = api
                .ask_payments(&at, async |p| p.payout_history(&payout_id, trace).await)
                .await?;
            let columns = [
                ("SEQ", "seq"),
                ("AT", "at"),
                ("FROM", "from_state"),
                ("TO", "to_state"),
                ("TOKEN", "token"),
                ("ACTOR", "actor"),
                ("DETAIL", "detail"),
            ];
            output::list(format, &page, &columns)?;
        }
        Verb::Trace(args) => return crate::payout_trace::run(args, format).await,
        Verb::Resolve {
            at,
            servers,
            config,
            payout_id,
            outcome,
            rail_reference,
            wait,
            by,
        } => {
            let body = ResolveBody {
                outcome: match outcome {
                    OutcomeArg::Posted => Resolution::Posted,
                    OutcomeArg::Failed => Resolution::Failed,
                },
                rail_reference,
                reason: Some(by.reason),
            };
            let account = api
                .ask_payments(&at, async |p| p.payout(&payout_id, trace).await)
                .await?
                .account_id;
            let settings = config.load(&[])?;
            let options = ClientOptions::configured(
                Owner::new(by.operator.as_str())?,
                |name| settings.optional_duration(name),
                u32::try_from(settings.integer("lock.acquire.max-attempts")).unwrap_or(u32::MAX),
            );
            let unreached = |error| Failure::from(error).with_next_step(&LOCK_SERVER.next_step_at(&servers.urls));
            let client = LockClient::connect(&servers.urls, options).await.map_err(unreached)?;
            let held = client
                .lock(&lock_of(&account)?)
                .trace(*trace)
                .acquire_within(wait)
                .await
                .map_err(unreached)?;
            let token = held.check_still_held().map_err(lock_api::LockError::Lost)?;
            let resolved = api
                .ask_payments(&at, async |p| {
                    p.resolve_by_hand(&payout_id, token, &by.operator, &body, trace).await
                })
                .await;
            if let Err(error) = held.release().await {
                eprintln!("dlock: the account's lock was not released: {error}");
            }
            if let Err(error) = client.close().await {
                eprintln!("dlock: the session was not closed and will expire: {error}");
            }
            output::object(format, &resolved?.body)?;
        }
        Verb::Exception { verb } => exception(&api, format, verb).await?,
        Verb::Fence {
            at,
            servers,
            account_id,
            token,
        } => {
            let token = match token {
                Some(token) => token,
                None => highest_token(&api, &servers, &lock_of(&account_id)?).await?,
            };
            // Both points, whatever one of them says: each refuses the revoked holder on its own (FR-17).
            let payment = api
                .ask_payments(&at, async |p| already(p.fence(&account_id, token, trace).await))
                .await;
            let rail = api
                .ask_rail_proxy(&at, async |r| already(r.fence_account(&account_id, token, trace).await))
                .await;
            let shown = |result: &Result<serde_json::Value, Failure>| match result {
                Ok(value) => value.clone(),
                Err(error) => serde_json::json!({ "error": error.to_string() }),
            };
            output::object(
                format,
                &serde_json::json!({
                    "account_id": account_id,
                    "token": token.get(),
                    "payment_resource": shown(&payment),
                    "rail_proxy": shown(&rail),
                }),
            )?;
            for (point, answer) in [("payment-resource", payment?), ("rail-proxy", rail?)] {
                if answer["already"] == true {
                    eprintln!("dlock: {point} refuses everybody below {token} already");
                }
            }
        }
    }
    Ok(OK)
}

async fn exception(api: &Api, format: output::Format, verb: ExceptionVerb) -> Result<(), Failure> {
    let trace = &api.trace;
    match verb {
        ExceptionVerb::List { at, all, limit, cursor } => {
            let open = (!all).then_some(true);
            let page = api
                .ask_rail_proxy(&at, async |r| r.exceptions(open, limit, cursor.as_deref(), trace).await)
                .await?;
            let columns = [
                ("ID", "exception_id"),
                ("PAYOUT", "payout_id"),
                ("AT", "at"),
                ("KIND", "kind"),
                ("DETAIL", "detail"),
                ("CLOSED_BY", "closed_by"),
                ("REASON", "closed_reason"),
            ];
            output::list(format, &page, &columns)?;
        }
        ExceptionVerb::Close { at, exception_id, by } => {
            let body = CloseExceptionBody { reason: by.reason };
            let closed = api
                .ask_rail_proxy(&at, async |r| {
                    r.close_exception(exception_id, &by.operator, &body, trace).await
                })
                .await?;
            output::object(format, &closed.body)?;
        }
    }
    Ok(())
}

/// A fence point's answer as it is shown. One whose mark is as high already refuses the call itself; what was asked for
/// holds all the same.
fn already<T: serde::Serialize>(answer: Result<T, CallError>) -> Result<serde_json::Value, CallError> {
    match answer {
        Ok(answer) => Ok(serde_json::to_value(answer).unwrap_or_default()),
        Err(CallError::Problem(problem)) if problem.code == Code::FencedOut => Ok(serde_json::json!({
            "already": true,
            "highest_token": problem.fields.get("highest_token"),
        })),
        Err(error) => Err(error),
    }
}

/// The highest token ever minted for a key: after a revoke, the revoke's own (FR-08).
async fn highest_token(api: &Api, servers: &LockServerArgs, key: &LockKey) -> Result<FencingToken, Failure> {
    let view = crate::lock::show(api, servers, key).await?;
    match view.token {
        Some(token) => Ok(http_contract::token(token)?),
        None => Err(Failure::new(
            REFUSED,
            format!("{key} was never locked: there is no token to fence off, and nobody to be refused"),
        )),
    }
}
