//! The suite that defines the SPI: one list of cases, parameterised by a backend. A backend's test file is a call of
//! [`lock_store_conformance!`](crate::lock_store_conformance), and nothing is a lock store that does not pass it.
//!
//! Owns: what the words of `lock_api::spi` mean, said as assertions, and the cases that bit users of other systems (each
//! function's name begins with the id of its case).
//! Does not own: how a backend is started, stopped, or how its time passes; that is its [`Backend`].
//! On failure: a case panics and says what it saw.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a suite of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tokens that were never minted are made up here to be refused"
)]

pub mod delays;
pub mod events;
pub mod expiry;
pub mod grants;
mod helpers;
pub mod model;
pub mod races;
pub mod scale;
pub mod sessions;
pub mod tokens;
pub mod yields;

use lock_api::LockStore;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A future that stays on its thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// One store under test, empty at first, and what a test may do to it from outside.
pub trait Backend {
    /// The store.
    fn store(&self) -> Arc<dyn LockStore>;

    /// Stops the store and starts it again on what it left behind. False where nothing can be left behind (memory).
    fn restart(&mut self) -> LocalFuture<'_, bool>;

    /// Lets time pass: for the store, for whoever waits, and by the wall clock.
    fn pass(&self, by: Duration) -> LocalFuture<'_, ()>;

    /// Sets the store's wall clock forwards or backwards. False where that cannot be done.
    fn jump_wall(&self, by_ms: i64) -> bool {
        let _ = by_ms;
        false
    }

    /// Keeps the store from writing, as another's transaction on the same rows would, until what is answered is
    /// called. None where that cannot be done.
    fn hold_writes(&self) -> Option<Box<dyn FnOnce()>> {
        None
    }

    /// How many bytes the store uses. None where that cannot be told.
    fn used_bytes(&self) -> LocalFuture<'_, Option<u64>> {
        Box::pin(std::future::ready(None))
    }

    /// Whether time passes by [`Backend::pass`] alone, so that what is left of a lease can be compared to the
    /// millisecond.
    fn exact_time(&self) -> bool;

    /// Whether calls that one caller makes without waiting in between are applied in the order in which they were made. A
    /// store with several connections does not promise that; only the items of one batch act in order.
    fn keeps_call_order(&self) -> bool {
        true
    }

    /// Whether two keys granted by one call have different tokens. They may share one where a token is the number of a
    /// transaction (C1.7); those of one key rise everywhere.
    fn one_token_per_grant(&self) -> bool {
        true
    }

    /// How often a case that repeats itself does so here, where `wanted` is what the case asks for.
    fn rounds(&self, wanted: u32) -> u32 {
        wanted
    }
}

/// Writes one test per case: `lock_store_conformance! { #[tokio::test] fresh }`, where `fresh` is an async function that
/// starts an empty `impl Backend`.
#[macro_export]
macro_rules! lock_store_conformance {
    ($(#[$test:meta])* $fresh:path) => {
        $crate::lock_store_conformance! { @list [$(#[$test])*] $fresh;
            sessions: opening_is_idempotent, an_id_with_other_fields_is_refused_as_a_whole,
                a_heartbeat_extends_by_the_ttl_and_says_what_is_held, closing_frees_in_the_same_transaction,
                sessions_are_listed_in_order_in_pages, an_expired_session_has_ended_for_whoever_asks,
                case_l05_a_dead_session_gets_no_grant, case_d05_a_heartbeat_does_not_stretch_a_grant,
                case_l14_the_longest_and_shortest_ttl, a_call_without_time_does_nothing;
            grants: a_grant_says_what_was_asked, answers_come_in_order_and_each_item_stands_alone,
                case_l06_a_short_ask_does_not_shorten_a_lease, case_l22_the_same_request_finds_its_own_grant,
                case_d03_two_tasks_of_one_session_exclude_each_other, case_l08_a_stranger_changes_no_row,
                case_d08_a_token_is_no_credential, case_l15_an_expired_grant_is_not_revived,
                case_l16_a_repeated_release_does_not_free_the_next_grant, case_l17_releasing_what_was_never_held,
                case_l28_neighbouring_keys_are_independent, case_l29_keys_round_trip_exactly,
                case_l30_a_revoke_names_the_token_it_breaks, a_grant_ends_with_its_session,
                keys_are_listed_by_prefix_in_byte_order, renewing_changes_the_ttl_and_not_the_token;
            tokens: case_l10_the_next_token_is_above_every_earlier_one, case_l09_a_hot_key_is_granted_in_token_order,
                a_witness_above_the_last_token_stops_all_grants, a_witness_out_of_reach_is_refused_and_recorded,
                a_floor_within_its_bounds_ends_the_doubt, a_doubt_can_be_dismissed, the_lineage_stays,
                a_healthy_store_says_so;
            expiry: expire_due_ends_what_is_due_and_nothing_else, a_sweep_stops_at_its_limit,
                an_acquire_takes_over_what_has_expired, case_d09_an_acquire_never_ends_a_session,
                case_l07_expiry_is_judged_after_the_wait, a_restart_gives_the_full_ttl_again,
                case_d10_a_jump_of_the_wall_clock_ends_nothing;
            events: each_fact_is_recorded_once_and_in_order, a_cursor_misses_nothing, a_change_wakes_who_waits,
                seals_chain_and_can_be_verified, sealed_segments_are_dropped_whole;
            delays: an_expired_grant_closes_its_key_for_its_delay, the_end_of_a_session_closes_its_keys,
                a_revoke_closes_the_key, a_release_and_a_close_leave_none, no_delay_is_as_ever,
                an_acquire_that_meets_the_end_is_not_granted_around_the_delay,
                a_release_that_comes_too_late_leaves_the_delay, a_live_grant_is_found_again_whatever_its_delay,
                a_batch_with_a_closed_key_twice, a_sweep_says_when_a_delay_ends, each_grant_brings_its_own_delay,
                a_closed_key_is_not_forgotten, a_restart_gives_the_full_delay_again,
                the_longest_delay_and_a_jump_of_the_wall_clock, who_comes_as_a_delay_ends_is_granted_once;
            yields: a_request_to_yield_is_seen_by_its_holder, the_first_to_ask_stays,
                who_does_not_hold_is_not_asked, a_request_to_yield_goes_with_its_grant,
                a_request_to_yield_ends_nothing_and_outlives_a_restart;
            races: case_l12_a_release_stands_against_renews_and_heartbeats,
                case_l23_no_waiter_sleeps_past_a_release, case_l18_an_abandoned_acquire_can_be_found_or_is_none;
            scale: case_l25_a_mass_death_is_swept_in_batches, case_l26_a_death_with_many_keys_holds_nobody_up,
                case_l27_keys_used_once_leave_nothing_behind;
            model: random_histories_agree_with_the_model;
        }
    };
    (@list $tests:tt $fresh:path; $($group:ident: $($case:ident),+;)+) => {
        $($crate::lock_store_conformance! { @group $tests $fresh, $group; $($case),+ })+
    };
    (@group $tests:tt $fresh:path, $group:ident; $($case:ident),+) => {
        $($crate::lock_store_conformance! { @case $tests $fresh, $group, $case })+
    };
    (@case [$(#[$test:meta])*] $fresh:path, $group:ident, $case:ident) => {
        $(#[$test])*
        async fn $case() {
            let mut backend = $fresh().await;
            $crate::conformance::$group::$case(&mut backend).await;
        }
    };
}
