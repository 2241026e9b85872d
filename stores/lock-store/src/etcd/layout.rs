//! Where each thing is: the physical keys under one prefix.
//!
//! A user's key is appended to its place byte for byte. etcd compares whole keys and knows no paths, so `a/b` never touches
//! `a`, `a/` or `A`, the keys of a prefix stand together, and byte order is the order of etcd's ranges.

/// All places of one store.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    prefix: Vec<u8>,
}

/// What a physical key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// The order of facts and the last token.
    Head,
    /// The identity of the history, the floor and the doubt.
    Lineage,
    /// The last seal, and how far sealed facts were dropped.
    Sealed,
    /// `g/<key>`, leased: somebody holds the key.
    Grant(&'a str),
    /// `r/<key>`, leased: the last renewal of that grant.
    Renewed(&'a str),
    /// `t/<key>`: the last token, and who holds the key under it.
    Key(&'a str),
    /// `s/<id>`, leased: there as long as the session's lease.
    Pulse(&'a str),
    /// `b/<id>`, leased: the last heartbeat of a session too short for a lease.
    Stamp(&'a str),
    /// `u/<id>`: the session's own record, which outlives its lease until its end is recorded.
    Session(&'a str),
    /// `h/<id>/<key>`: what a session holds.
    Held(&'a str, &'a str),
    /// `n/<key>`, leased: that the key's holder was asked to give it up.
    Asked(&'a str),
    /// `y/<id>/<key>`, leased: the same, where whoever reads of the session finds it.
    Yielding(&'a str, &'a str),
    /// `c/<key>`: the key is closed, for as long as its `t` says.
    Closed(&'a str),
    /// `e/<seq>`: a fact.
    Event(u64),
    /// `a/<first seq>`: a seal.
    Seal(u64),
    /// Nothing of ours.
    Other,
}

impl Layout {
    /// `prefix` ends in a slash.
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.as_bytes().to_vec(),
        }
    }

    pub(super) fn all(&self) -> Vec<u8> {
        self.prefix.clone()
    }

    fn at(&self, place: &str, name: &str) -> Vec<u8> {
        [self.prefix.as_slice(), place.as_bytes(), name.as_bytes()].concat()
    }

    pub(super) fn head(&self) -> Vec<u8> {
        self.at("head", "")
    }

    pub(super) fn lineage(&self) -> Vec<u8> {
        self.at("lineage", "")
    }

    pub(super) fn sealed(&self) -> Vec<u8> {
        self.at("sealed", "")
    }

    pub(super) fn grant(&self, key: &str) -> Vec<u8> {
        self.at("g/", key)
    }

    pub(super) fn renewed(&self, key: &str) -> Vec<u8> {
        self.at("r/", key)
    }

    /// Also the beginning of all keys that begin so.
    pub(super) fn key(&self, key: &str) -> Vec<u8> {
        self.at("t/", key)
    }

    pub(super) fn pulse(&self, session: &str) -> Vec<u8> {
        self.at("s/", session)
    }

    pub(super) fn stamp(&self, session: &str) -> Vec<u8> {
        self.at("b/", session)
    }

    pub(super) fn session(&self, session: &str) -> Vec<u8> {
        self.at("u/", session)
    }

    pub(super) fn held(&self, session: &str, key: &str) -> Vec<u8> {
        // A session's id has no slash.
        self.at("h/", &format!("{session}/{key}"))
    }

    /// The beginning of everything that any session holds.
    pub(super) fn all_held(&self) -> Vec<u8> {
        self.at("h/", "")
    }

    pub(super) fn asked(&self, key: &str) -> Vec<u8> {
        self.at("n/", key)
    }

    pub(super) fn yielding(&self, session: &str, key: &str) -> Vec<u8> {
        self.at("y/", &format!("{session}/{key}"))
    }

    pub(super) fn closed(&self, key: &str) -> Vec<u8> {
        self.at("c/", key)
    }

    /// In order of number, as twenty digits.
    pub(super) fn event(&self, seq: u64) -> Vec<u8> {
        self.at("e/", &format!("{seq:020}"))
    }

    pub(super) fn seal(&self, first_seq: u64) -> Vec<u8> {
        self.at("a/", &format!("{first_seq:020}"))
    }

    pub(super) fn end_of_events(&self) -> Vec<u8> {
        after_prefix(self.at("e/", ""))
    }

    pub(super) fn end_of_seals(&self) -> Vec<u8> {
        after_prefix(self.at("a/", ""))
    }

    pub(super) fn place<'a>(&self, physical: &'a [u8]) -> Place<'a> {
        let Some(rest) = physical
            .strip_prefix(self.prefix.as_slice())
            .and_then(|rest| std::str::from_utf8(rest).ok())
        else {
            return Place::Other;
        };
        let Some((place, name)) = rest.split_once('/') else {
            return match rest {
                "head" => Place::Head,
                "lineage" => Place::Lineage,
                "sealed" => Place::Sealed,
                _ => Place::Other,
            };
        };
        match place {
            "g" => Place::Grant(name),
            "r" => Place::Renewed(name),
            "t" => Place::Key(name),
            "s" => Place::Pulse(name),
            "b" => Place::Stamp(name),
            "u" => Place::Session(name),
            "h" => name
                .split_once('/')
                .map_or(Place::Other, |(session, key)| Place::Held(session, key)),
            "y" => name
                .split_once('/')
                .map_or(Place::Other, |(session, key)| Place::Yielding(session, key)),
            "n" => Place::Asked(name),
            "c" => Place::Closed(name),
            "e" => name.parse().map_or(Place::Other, Place::Event),
            "a" => name.parse().map_or(Place::Other, Place::Seal),
            _ => Place::Other,
        }
    }
}

/// The first key behind all that begin with `prefix`.
pub(super) fn after_prefix(mut prefix: Vec<u8>) -> Vec<u8> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return prefix;
        }
    }
    // etcd's word for "to the end".
    vec![0]
}

/// The first key behind this one.
pub(super) fn just_after(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_l28_each_key_has_a_place_of_its_own_and_comes_back() {
        let layout = Layout::new("dlock/");
        let keys = ["a", "a/", "a/b", "A", "a%2Fb", "a//b", "/", "g/a", "é", "\u{10ffff}"];
        let mut seen = std::collections::BTreeSet::new();
        for key in keys {
            for (physical, place) in [
                (layout.grant(key), Place::Grant(key)),
                (layout.renewed(key), Place::Renewed(key)),
                (layout.key(key), Place::Key(key)),
                (layout.held("s1", key), Place::Held("s1", key)),
                (layout.yielding("s1", key), Place::Yielding("s1", key)),
                (layout.asked(key), Place::Asked(key)),
                (layout.closed(key), Place::Closed(key)),
            ] {
                assert_eq!(layout.place(&physical), place);
                assert!(seen.insert(physical), "{key} shares a place");
            }
        }
        assert_eq!(layout.place(&layout.event(7)), Place::Event(7));
        assert_eq!(layout.place(&layout.seal(7)), Place::Seal(7));
        assert_eq!(layout.place(&layout.session("s1")), Place::Session("s1"));
        assert_eq!(layout.place(b"dlock2/g/a"), Place::Other);
    }

    #[test]
    fn physical_order_is_the_order_of_keys() {
        let layout = Layout::new("p/");
        let mut keys = ["b", "a/10", "a", "a/", "a0", "A/1", "a/\u{10ffff}", "é", "%"];
        let mut physical: Vec<_> = keys.iter().map(|key| layout.key(key)).collect();
        keys.sort_unstable();
        physical.sort();
        assert_eq!(physical, keys.map(|key| layout.key(key)));
        for prefix in ["", "a", "a/", "\u{10ffff}"] {
            let (from, to) = (layout.key(prefix), after_prefix(layout.key(prefix)));
            for key in keys {
                let within = layout.key(key) >= from && layout.key(key) < to;
                assert_eq!(within, key.starts_with(prefix), "{key:?} in {prefix:?}");
            }
        }
    }

    #[test]
    fn events_stand_in_order_of_number() {
        let layout = Layout::new("p/");
        assert!(layout.event(9) < layout.event(10));
        assert!(layout.event(u64::MAX) < layout.end_of_events());
        assert_eq!(after_prefix(vec![1, 255]), [2]);
        assert_eq!(after_prefix(vec![255]), [0]);
    }
}
