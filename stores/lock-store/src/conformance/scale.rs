//! Many at once.

use super::Backend;
use super::helpers::{LONG, PAST_T, T, WITHIN, acquire_request, key, open_request, sid, store};
use lock_api::{AcquireOutcome, ReleaseRequest};

/// L25: ten thousand sessions die at once: the sweep is batched, and acquires go on between its batches.
pub async fn case_l25_a_mass_death_is_swept_in_batches(backend: &mut dyn Backend) {
    let store = store(backend);
    let sessions = backend.rounds(10_000);
    store.open("alive", LONG).await;
    let ids: Vec<_> = (0..sessions).map(|n| format!("s{n:05}")).collect();
    for chunk in ids.chunks(1000) {
        let opened = store
            .0
            .open(chunk.iter().map(|id| open_request(id, T)).collect(), WITHIN)
            .await
            .unwrap();
        assert_eq!(opened.len(), chunk.len());
        let wanted = chunk
            .iter()
            .map(|id| acquire_request(&format!("k/{id}"), id, "r", LONG))
            .collect();
        let granted = store.0.acquire(wanted, WITHIN).await.unwrap();
        assert!(
            granted
                .iter()
                .all(|answer| matches!(answer, AcquireOutcome::Granted { .. }))
        );
    }
    backend.pass(PAST_T).await;
    let (mut ended, mut sweeps) = (0, 0);
    loop {
        let sweep = store.0.expire_due(500, WITHIN);
        let request = format!("r{sweeps}");
        let foreground = store.acquire("foreground", "alive", &request, LONG);
        let (report, answer) = tokio::join!(sweep, foreground);
        let report = report.unwrap();
        assert!(report.sessions.len() <= 500);
        ended += report.sessions.len();
        sweeps += 1;
        let AcquireOutcome::Granted { grant, .. } = answer else {
            panic!("{answer:?}")
        };
        store.release("foreground", "alive", grant.token).await;
        if !report.more {
            break;
        }
    }
    assert_eq!(ended, sessions as usize);
    assert!(sweeps > sessions / 500, "the sweep was not batched");
    assert_eq!(store.0.sessions(None, 10, WITHIN).await.unwrap().len(), 1);
}

/// L26: one session with ten thousand keys dies: it ends over several sweeps, and other keys are granted in between.
pub async fn case_l26_a_death_with_many_keys_holds_nobody_up(backend: &mut dyn Backend) {
    let store = store(backend);
    let keys = backend.rounds(10_000);
    store.open("alive", LONG).await;
    store.open("dies", T).await;
    let wanted: Vec<_> = (0..keys)
        .map(|n| acquire_request(&format!("k{n}"), "dies", &format!("r{n}"), LONG))
        .collect();
    for chunk in wanted.chunks(1000) {
        let beat = store.heartbeat("dies").await;
        assert!(matches!(beat, lock_api::HeartbeatOutcome::Alive { .. }), "{beat:?}");
        store.0.acquire(chunk.to_vec(), WITHIN).await.unwrap();
    }
    backend.pass(PAST_T).await;
    let (mut freed, mut sweeps) = (0, 0);
    loop {
        let report = store.0.expire_due(500, WITHIN).await.unwrap();
        let released: usize = report.sessions.iter().map(|session| session.released.len()).sum();
        assert!(
            report.grants.len() + released <= 500,
            "more than its limit in one sweep"
        );
        freed += report.grants.len() + released;
        sweeps += 1;
        store.grant(&format!("other{sweeps}"), "alive", "r", LONG).await;
        if !report.more {
            break;
        }
    }
    assert_eq!(freed, keys as usize);
    assert!(sweeps >= keys / 500, "it was not batched");
    assert!(store.close("dies").await.is_empty());
    assert_eq!(store.holder("k0").await, None);
}

/// L27: a hundred thousand keys, each used once: after the tombstones' and the events' retention the store is as small as
/// before, and tokens still rise.
pub async fn case_l27_keys_used_once_leave_nothing_behind(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let first = store.grant("first", "s1", "r", LONG).await.token;
    let baseline = backend.used_bytes().await;
    let keys = backend.rounds(100_000);
    let mut last = first;
    for chunk in 0..keys.div_ceil(1000) {
        let names: Vec<_> = (0..1000).map(|n| format!("once/{chunk}/{n}")).collect();
        let wanted = names.iter().map(|at| acquire_request(at, "s1", "r", LONG)).collect();
        let granted = store.0.acquire(wanted, WITHIN).await.unwrap();
        let mut release = Vec::new();
        for answer in granted {
            let AcquireOutcome::Granted { grant, .. } = answer else {
                panic!("{answer:?}")
            };
            assert!(grant.token > last || (grant.token == last && !backend.one_token_per_grant()));
            last = grant.token;
            release.push(ReleaseRequest {
                key: grant.key,
                session_id: sid("s1"),
                token: grant.token,
            });
        }
        store.0.release(release, WITHIN).await.unwrap();
    }
    assert_eq!(
        store.0.purge_tombstones(LONG, 1000, WITHIN).await.unwrap(),
        0,
        "all young"
    );
    backend.pass(PAST_T).await;
    let mut purged = 0;
    loop {
        let gone = store.0.purge_tombstones(T, 1000, WITHIN).await.unwrap();
        assert!(gone <= 1000);
        purged += gone;
        if gone == 0 {
            break;
        }
    }
    assert_eq!(purged, keys.div_ceil(1000) * 1000);
    while store.0.seal(10_000, WITHIN).await.unwrap().is_some() {}
    backend.pass(PAST_T).await;
    while store.0.drop_sealed(T, 20_000, WITHIN).await.unwrap() > 0 {}
    if let (Some(before), Some(after)) = (baseline, backend.used_bytes().await) {
        assert!(
            after <= before + 128 * 1024,
            "{before} bytes at first, {after} after retention"
        );
    }
    assert!(
        store.inspect("first").await.grant.is_some(),
        "what is held is no tombstone"
    );
    assert_eq!(store.0.list("once/".into(), None, 10, WITHIN).await.unwrap(), []);
    assert_eq!(store.inspect(key("once/0/0").as_str()).await.last_token, None);
    assert!(store.grant("once/0/0", "s1", "again", LONG).await.token > last);
}
