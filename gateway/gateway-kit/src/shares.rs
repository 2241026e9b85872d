//! Bounds of which one caller can take a share only.
//!
//! Owns: how much of a bound is taken, and by whom. Does not own: what it counts.
//! On failure: what does not fit is refused with the name of the bound; what was taken is given back when its [`Seat`] goes.

use crate::ApiError;
use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest};
use http_contract::Code;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Who asks, as far as the connection tells: the address at its other end, of IPv6 its first 64 bits, which one machine has
/// for itself. A machine, or all that stands behind one proxy, is one caller. No header is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caller(IpAddr);

impl Caller {
    /// The caller at this address.
    #[must_use]
    pub fn at(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
            v4 => v4,
        })
    }

    /// The caller of this request. Where there is no socket, all are one.
    #[must_use]
    pub fn of(request: &HttpRequest) -> Self {
        Self::at(
            request
                .peer_addr()
                .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip()),
        )
    }

    /// Its address.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        self.0
    }
}

impl FromRequest for Caller {
    type Error = Infallible;
    type Future = Ready<Result<Self, Infallible>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(Self::of(request)))
    }
}

/// A bound, of which one caller gets half. Cheap to clone: all clones count together.
#[derive(Clone)]
pub struct Shares<K = Caller>(Arc<Inner<K>>);

struct Inner<K> {
    /// What is counted, in the plural: for the refusal.
    what: &'static str,
    /// The setting that raises the bound, or what else the bound is.
    by: &'static str,
    whole: usize,
    share: usize,
    taken: Mutex<Taken<K>>,
}

struct Taken<K> {
    all: usize,
    by_caller: HashMap<K, usize>,
}

/// Why something does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    what: &'static str,
    by: &'static str,
    /// The bound that is reached.
    limit: usize,
    /// Whether it is the caller's own share.
    of_caller: bool,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.of_caller { " of one caller" } else { "" };
        let Self { what, by, limit, .. } = self;
        write!(f, "too many {what}{whose}: at most {limit} ({by}); nothing was done")
    }
}

impl From<Full> for ApiError {
    fn from(full: Full) -> Self {
        Self::new(Code::Overloaded, full.to_string())
            .field("limit", full.limit)
            .field("limited_by", full.by)
            .retry_after(Duration::from_secs(1))
    }
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// A bound of `whole`, at least 1, of which one caller gets half, at least 1. `what` is what it counts, `by` the
    /// setting that it comes from.
    #[must_use]
    pub fn halves(what: &'static str, by: &'static str, whole: usize) -> Self {
        let whole = whole.max(1);
        Self(Arc::new(Inner {
            what,
            by,
            whole,
            share: whole.div_ceil(2),
            taken: Mutex::new(Taken {
                all: 0,
                by_caller: HashMap::new(),
            }),
        }))
    }

    /// The whole, and what one caller gets of it.
    #[must_use]
    pub fn bounds(&self) -> (usize, usize) {
        (self.0.whole, self.0.share)
    }

    /// How much is taken now.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.0.taken().all
    }

    /// Whether this caller may begin something that will take room here.
    ///
    /// # Errors
    /// [`Full`]: the whole, or the caller's share, is taken.
    pub fn room(&self, caller: K) -> Result<(), Full> {
        let inner = &*self.0;
        let taken = inner.taken();
        let own = taken.by_caller.get(&caller).copied().unwrap_or(0);
        if own >= inner.share {
            Err(inner.full(inner.share, true))
        } else if taken.all >= inner.whole {
            Err(inner.full(inner.whole, false))
        } else {
            Ok(())
        }
    }

    /// Takes `amount`, whatever the bound: for what cannot be refused any more.
    #[must_use]
    pub fn take_anyway(&self, caller: K, amount: usize) -> Seat<K> {
        let mut taken = self.0.taken();
        taken.all += amount;
        *taken.by_caller.entry(caller).or_default() += amount;
        drop(taken);
        Seat {
            of: self.clone(),
            caller,
            amount,
        }
    }

    /// Takes `amount` for this caller, until the seat goes. An amount beyond the share is taken by a caller who has nothing
    /// else of it: it could never fit otherwise.
    ///
    /// # Errors
    /// [`Full`]: nothing was taken.
    pub fn take(&self, caller: K, amount: usize) -> Result<Seat<K>, Full> {
        let inner = &*self.0;
        let mut taken = inner.taken();
        let own = taken.by_caller.get(&caller).copied().unwrap_or(0);
        if own > 0 && own.saturating_add(amount) > inner.share {
            return Err(inner.full(inner.share, true));
        }
        if taken.all > 0 && taken.all.saturating_add(amount) > inner.whole {
            return Err(inner.full(inner.whole, false));
        }
        taken.all += amount;
        taken.by_caller.insert(caller, own + amount);
        drop(taken);
        Ok(Seat {
            of: self.clone(),
            caller,
            amount,
        })
    }
}

impl<K> Inner<K> {
    const fn full(&self, limit: usize, of_caller: bool) -> Full {
        Full {
            what: self.what,
            by: self.by,
            limit,
            of_caller,
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken<K>> {
        // Nothing that can panic happens under it.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> fmt::Debug for Shares<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shares")
            .field("what", &self.0.what)
            .field("whole", &self.0.whole)
            .finish_non_exhaustive()
    }
}

/// What a caller has taken of a bound; given back when it goes.
pub struct Seat<K: Copy + Eq + Hash = Caller> {
    of: Shares<K>,
    caller: K,
    amount: usize,
}

impl<K: Copy + Eq + Hash> Seat<K> {
    /// Who has it.
    #[must_use]
    pub const fn caller(&self) -> K {
        self.caller
    }
}

impl<K: Copy + Eq + Hash> fmt::Debug for Seat<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat")
            .field("amount", &self.amount)
            .finish_non_exhaustive()
    }
}

impl<K: Copy + Eq + Hash> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut taken = self.of.0.taken();
        taken.all -= self.amount;
        if let Some(own) = taken.by_caller.get_mut(&self.caller) {
            *own -= self.amount;
            if *own == 0 {
                taken.by_caller.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_s6_one_caller_gets_half_and_what_it_gives_back_is_free_again() {
        let shares = Shares::halves("seats", "a.setting", 4);
        let two: Vec<_> = (0..2).map(|_| shares.take(1, 1).unwrap()).collect();
        let refused = shares.take(1, 1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "too many seats of one caller: at most 2 (a.setting); nothing was done"
        );
        let others: Vec<_> = (2..4).map(|caller| shares.take(caller, 1).unwrap()).collect();
        let refused = ApiError::from(shares.take(5, 1).unwrap_err());
        assert!(refused.detail().contains("at most 4 (a.setting)"), "{refused}");
        drop((two, others));
        assert_eq!(shares.taken(), 0);
        assert!(shares.take(1, 1).is_ok());
    }

    #[test]
    fn what_is_larger_than_a_share_still_fits_alone() {
        let shares = Shares::halves("bytes", "a.setting", 10);
        let large = shares.take(1, 100).unwrap();
        assert!(shares.take(1, 1).is_err() && shares.take(2, 1).is_err());
        drop(large);
        assert!(shares.take(2, 5).is_ok());
    }

    #[test]
    fn a_caller_is_an_address_or_the_network_of_one_machine() {
        let at = |text: &str| Caller::at(text.parse().unwrap());
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_eq!(at("2001:db8:0:1::1"), at("2001:db8:0:1:ffff::2"));
        assert_ne!(at("2001:db8:0:1::1"), at("2001:db8:0:2::1"));
        assert_ne!(at("10.0.0.1"), at("10.0.0.2"));
    }
}
