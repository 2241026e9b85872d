//! One file per page: what it reads, and how it is shown.

mod accounts;
mod actors;
mod home;
mod lock;
mod locks;
mod payout;
mod payouts;
mod queue;
mod refusals;
mod scenario;
mod sessions;
mod timeline;

use crate::hub::PACE;
use crate::page::Shown;
use crate::topic::Topic;
use crate::upstream::Upstreams;
use futures_util::future::LocalBoxFuture;
use std::time::Duration;

/// How many rows a page of a list has.
pub(crate) const ROWS: u32 = 100;

/// A page that is read again and again.
pub(crate) trait View {
    /// Reads what it shows. What cannot be read keeps its last value.
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()>;

    /// Shows what was read.
    fn show(&self, now_ms: i64) -> Shown;

    /// How long from one read to the next.
    fn pace(&self) -> Duration {
        PACE
    }
}

/// The page of a topic, with nothing read yet.
pub(crate) fn of(topic: &Topic) -> Box<dyn View> {
    match topic.clone() {
        Topic::Home => Box::<home::Home>::default(),
        Topic::Locks { prefix, held, cursor } => Box::new(locks::Locks::new(prefix, held, cursor)),
        Topic::Lock { key } => Box::new(lock::Lock::new(key)),
        Topic::Sessions { cursor } => Box::new(sessions::Sessions::new(cursor)),
        Topic::Session { id } => Box::new(sessions::Session::new(id)),
        Topic::Payouts { state, account, cursor } => Box::new(payouts::Payouts::new(state, account, cursor)),
        Topic::Payout { id } => Box::new(payout::Payout::new(id)),
        Topic::Accounts { cursor } => Box::new(accounts::Accounts::new(cursor)),
        Topic::Queue => Box::<queue::Queue>::default(),
        Topic::Refusals { account } => Box::new(refusals::Refusals::new(account)),
        Topic::Actors { component, prefix } => Box::new(actors::Actors::new(component, prefix)),
        Topic::Scenario => Box::<scenario::Scenario>::default(),
    }
}
