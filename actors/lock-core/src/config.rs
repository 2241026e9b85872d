//! The bounds and intervals of the core, each a name of C5.2 or a limit with its reason.

use std::time::Duration;

/// What the lease clock and its children keep to. The gateway fills it from the configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The deadline of one call to the store (`lock.store.timeout`).
    pub store_timeout: Duration,
    /// The most items in one call to the store (`lock.store.batch-max`).
    pub batch_max: usize,
    /// The most items of one kind that wait for their batch; beyond it a request is OVERLOADED (NFR-11).
    pub lane_max: usize,
    /// The most waiters in this replica's queue of one key (`lock.acquire.waiters-max`).
    pub waiters_max: usize,
    /// The most lease actors of this replica: keys that are held or waited for (NFR-11).
    pub leases_max: usize,
    /// The most session actors of this replica (NFR-11).
    pub sessions_max: usize,
    /// The most keys that all sessions of this replica hold (NFR-11).
    pub keys_max: usize,
    /// The most watches of this replica (NFR-11).
    pub watches_max: usize,
    /// How often at most the lease clock looks for what is due (`lock.expiry.interval`).
    pub expiry_interval: Duration,
    /// How often it looks when it knows of nothing due: another replica may have made what ends now.
    pub expiry_safety: Duration,
    /// The most grants and sessions that one sweep ends, so that a mass death does not hold up acquires (case L25).
    pub expiry_limit: u32,
    /// How long a lease or session actor without work stays, so that a hot key does not start one per acquire.
    pub linger: Duration,
    /// How often at most the event log is read for watches and waiters.
    pub wake_interval: Duration,
    /// After how long at most a waiting key is tried again although nothing was heard: the net under a lost wake-up.
    pub wake_safety: Duration,
    /// How long a freed key is remembered (`lock.tombstone.retention`).
    pub tombstone_retention: Duration,
    /// How often tombstones are purged.
    pub purge_interval: Duration,
    /// The most tombstones or events that one housekeeping call takes.
    pub housekeeping_limit: u32,
    /// How often new events are sealed (`lock.audit.seal-interval`).
    pub seal_interval: Duration,
    /// How long sealed events are kept (`lock.audit.retention`).
    pub audit_retention: Duration,
    /// How often sealed events past their retention are dropped.
    pub drop_interval: Duration,
    /// How often the gauges are corrected by counting in the store.
    pub count_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store_timeout: Duration::from_secs(2),
            batch_max: 512,
            lane_max: 32_768,
            waiters_max: 1_000,
            leases_max: 200_000,
            sessions_max: 200_000,
            keys_max: 400_000,
            watches_max: 1_000,
            expiry_interval: Duration::from_millis(100),
            expiry_safety: Duration::from_secs(1),
            expiry_limit: 500,
            linger: Duration::from_secs(1),
            wake_interval: Duration::from_millis(20),
            wake_safety: Duration::from_secs(1),
            tombstone_retention: Duration::from_secs(24 * 60 * 60),
            purge_interval: Duration::from_secs(10),
            housekeeping_limit: 1_000,
            seal_interval: Duration::from_secs(10),
            audit_retention: Duration::from_secs(30 * 24 * 60 * 60),
            drop_interval: Duration::from_secs(5 * 60),
            count_interval: Duration::from_secs(15),
        }
    }
}
