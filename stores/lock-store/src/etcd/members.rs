//! The members of the cluster: a connection to each, and which of them is asked.
//!
//! Owns: the favourite, which is asked first; who is in trouble; looking after those until they work again.
//! Does not own: what is asked, and what an answer that does not come means ([`super::call`]).
//! On failure: a member that did not answer in time is asked after the others, until it has answered a read that takes a
//! leader and a majority. Whoever waits for an answer meanwhile is told when one does.

use super::call::ANSWER_BYTES_MAX;
use super::error::{Fate, fate, said};
use super::options::EtcdAccess;
use etcd_client::{Client, ConnectOptions, Error, KvClient, LeaseClient, WatchClient};
use host_kit::Random;
use lock_api::StoreError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tls_kit::Reloaded;
use tokio::sync::{OnceCell, watch};
use tokio::time::{Instant, timeout};

/// How long one look at a member in trouble waits.
const LOOK_WITHIN: Duration = Duration::from_secs(3);
/// The longest pause between two looks that were answered with an error.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// What is called at a member.
#[derive(Clone)]
pub(super) struct Clients {
    pub(super) kv: KvClient,
    pub(super) lease: LeaseClient,
    pub(super) watch: WatchClient,
}

/// A call of one member that failed.
pub(super) struct Failed {
    pub(super) fate: Fate,
    pub(super) said: String,
}

/// What changes about the members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// The member that is asked first.
    pub(super) favourite: usize,
    /// How often a member that had been in trouble worked again, or took over from one.
    pub(super) recoveries: u64,
}

struct Member {
    url: String,
    /// The connection, and the generation of the files that it was made with.
    clients: Mutex<(u64, Arc<OnceCell<Clients>>)>,
}

/// How often the files are looked at.
const FILES_EVERY: Duration = Duration::from_secs(1);

/// How connections are made, as the files say it now.
struct Options {
    files: Reloaded<ConnectOptions>,
    current: ConnectOptions,
    generation: u64,
    looked: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Health {
    /// When it last got into trouble, as a number that rises; 0 while it is in none.
    trouble: u64,
    looked_after: bool,
}

#[derive(Debug)]
struct State {
    favourite: usize,
    troubles: u64,
    health: Vec<Health>,
}

pub(super) struct Members {
    members: Vec<Member>,
    options: Mutex<Options>,
    /// A key that may be read, whether it is there or not.
    readable: Vec<u8>,
    random: Random,
    state: Mutex<State>,
    news: watch::Sender<News>,
}

impl Members {
    /// Connects to none of them yet. `readable` is a key that this side may read.
    pub(super) fn new(access: &EtcdAccess, readable: Vec<u8>, random: Random) -> Result<Arc<Self>, StoreError> {
        let members: Vec<_> = access
            .urls()
            .into_iter()
            .map(|url| Member {
                url,
                clients: Mutex::default(),
            })
            .collect();
        let state = State::new(members.len());
        let files = {
            let access = access.clone();
            Reloaded::new(access.files(), move || access.connect_options())?
        };
        let (current, generation) = files.current_and_generation();
        Ok(Arc::new(Self {
            members,
            options: Mutex::new(Options {
                files,
                current,
                generation,
                looked: Instant::now(),
            }),
            readable,
            random,
            state: Mutex::new(state),
            news: watch::Sender::default(),
        }))
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    pub(super) fn url(&self, member: usize) -> &str {
        &self.members[member].url
    }

    pub(super) fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member to ask next, by how often each has been asked.
    pub(super) fn next(&self, asked: &[u32]) -> usize {
        self.state().next(asked)
    }

    pub(super) fn favourite(&self) -> usize {
        self.state().favourite
    }

    fn options(&self) -> MutexGuard<'_, Options> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation of the files. New ones are taken here (case L35).
    fn generation(&self) -> u64 {
        let mut options = self.options();
        if options.looked.elapsed() >= FILES_EVERY {
            options.looked = Instant::now();
            (options.current, options.generation) = options.files.current_and_generation();
        }
        options.generation
    }

    /// The connection to a member. Only where the cluster has users is something asked for over the wire here. Where the files
    /// were replaced it is another connection than before; calls under way end on the old one.
    pub(super) async fn clients(&self, member: usize) -> Result<Clients, Failed> {
        let generation = self.generation();
        let member = &self.members[member];
        let clients = {
            let mut clients = member.clients.lock().unwrap_or_else(PoisonError::into_inner);
            if clients.0 != generation {
                *clients = (generation, Arc::default());
            }
            clients.1.clone()
        };
        let connected = clients.get_or_try_init(async || {
            let options = self.options().current.clone();
            let client = Client::connect([&member.url], Some(options)).await?;
            Ok::<_, Error>(Clients {
                kv: client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX),
                lease: client.lease_client(),
                watch: client.watch_client().max_decoding_message_size(ANSWER_BYTES_MAX),
            })
        });
        connected.await.cloned().map_err(|error| Failed {
            fate: match (&error, fate(&error)) {
                // Nothing but the request for a token has been sent.
                (Error::GRpcStatus(_), Fate::Unknown) => Fate::NotSent,
                (Error::GRpcStatus(_), other) => other,
                // Made without the wire: the settings are wrong.
                _ => Fate::Refused,
            },
            said: said(&error),
        })
    }

    /// A member answered what takes a leader and a majority.
    pub(super) fn works(&self, member: usize) {
        let mut state = self.state();
        if let Some(favourite) = state.works(member) {
            // Told while nobody else can change it.
            self.news.send_modify(|news| {
                news.favourite = favourite;
                news.recoveries += 1;
            });
        }
        drop(state);
    }

    /// A member did not answer in time, or not as one that works. It is looked after from now on.
    pub(super) fn is_in_trouble(self: &Arc<Self>, member: usize) {
        let mut state = self.state();
        let (favourite, look) = state.is_in_trouble(member);
        self.news.send_if_modified(|news| {
            let moved = news.favourite != favourite;
            news.favourite = favourite;
            moved
        });
        drop(state);
        if look {
            tracing::debug!(event = "etcd_member_in_trouble", member = self.url(member));
            tokio::spawn(look_after(Arc::downgrade(self), member));
        }
    }

    /// Reads as a writer does: a member that is frozen does not answer, one without a leader only when there is one again.
    async fn look(&self, member: usize) -> bool {
        let Ok(clients) = self.clients(member).await else {
            return false;
        };
        let mut kv = clients.kv;
        kv.get(self.readable.clone(), None).await.is_ok()
    }
}

/// Looks at a member until it works again, or nobody needs it any more.
async fn look_after(members: Weak<Members>, member: usize) {
    loop {
        let Some(members) = members.upgrade() else { return };
        match timeout(LOOK_WITHIN, members.look(member)).await {
            Ok(true) => {
                tracing::debug!(event = "etcd_member_works_again", member = members.url(member));
                members.state().health[member].looked_after = false;
                members.works(member);
                return;
            }
            Ok(false) => {
                let pause = members.random.up_to(LOOK_PAUSE);
                drop(members);
                tokio::time::sleep(pause).await;
            }
            Err(_) => {}
        }
    }
}

impl State {
    fn new(members: usize) -> Self {
        Self {
            favourite: 0,
            troubles: 0,
            health: vec![Health::default(); members],
        }
    }

    /// Those that were asked least; of those one that is in no trouble, or has been in it longest; of those the favourite
    /// or who comes after it.
    fn next(&self, asked: &[u32]) -> usize {
        let count = self.health.len();
        (0..count)
            .map(|step| (self.favourite + step) % count)
            .min_by_key(|member| (asked[*member], self.health[*member].trouble))
            .unwrap_or(self.favourite)
    }

    /// Answers the favourite where something has changed for the better.
    fn works(&mut self, member: usize) -> Option<usize> {
        let was_in_trouble = std::mem::take(&mut self.health[member].trouble) > 0;
        let takes_over = self.health[self.favourite].trouble > 0;
        if takes_over {
            self.favourite = member;
        }
        (was_in_trouble || takes_over).then_some(self.favourite)
    }

    /// Answers the favourite, and whether somebody has to begin to look after the member.
    fn is_in_trouble(&mut self, member: usize) -> (usize, bool) {
        self.troubles += 1;
        self.health[member].trouble = self.troubles;
        if self.favourite == member {
            let asked = vec![0; self.health.len()];
            self.favourite = self.next(&asked);
        }
        let looked_after = std::mem::replace(&mut self.health[member].looked_after, true);
        (self.favourite, !looked_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_favourite_stays_until_it_is_in_trouble() {
        let mut state = State::new(3);
        assert_eq!(state.next(&[0, 0, 0]), 0);
        assert_eq!(state.works(2), None, "nobody is in trouble");
        assert_eq!(state.next(&[0, 0, 0]), 0);
        assert_eq!(state.next(&[1, 0, 0]), 1, "the favourite has been asked");
        assert_eq!(state.is_in_trouble(0), (1, true));
        assert_eq!(state.is_in_trouble(0), (1, false), "it is looked after");
        assert_eq!(state.next(&[0, 1, 0]), 2);
        assert_eq!(state.works(0), Some(1), "it works again and is no favourite any more");
        assert_eq!(state.works(0), None);
    }

    #[test]
    fn where_all_are_in_trouble_the_first_that_works_is_the_favourite() {
        let mut state = State::new(3);
        for member in [0, 1, 2] {
            state.is_in_trouble(member);
        }
        assert_eq!(state.next(&[0, 0, 0]), 0, "the longest in trouble");
        assert_eq!(state.next(&[1, 0, 0]), 1);
        assert_eq!(state.works(2), Some(2));
        assert_eq!(state.next(&[0, 0, 0]), 2);
        assert_eq!(state.next(&[1, 1, 1]), 2, "once more the one that works");
    }

    #[test]
    fn a_single_member_stays_the_favourite() {
        let mut state = State::new(1);
        assert_eq!(state.is_in_trouble(0), (0, true));
        assert_eq!(state.next(&[7]), 0);
        assert_eq!(state.works(0), Some(0));
    }
}
