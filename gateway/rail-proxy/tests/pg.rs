//! The proxy on PostgreSQL: as a process of its own, beside another one, and after its database was restored.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test says what is wrong by panicking"
)]

mod support;

use futures_util::future::join_all;
use host_kit::Host;
use serde_json::json;
use support::pg::Paydb;
use support::process::Process;
use support::{World, await_verdict, with_world};

/// Not a test: the proxy as a process of its own, when this binary is started again as one.
#[test]
fn child() {
    support::process::child();
}

fn borrowed<'a, const N: usize>(settings: &'a [(&'static str, String); N]) -> [(&'static str, &'a str); N] {
    std::array::from_fn(|n| (settings[n].0, settings[n].1.as_str()))
}

/// Runs a test with a world whose proxies find paydb on a server.
fn on_postgres<F: Future<Output = ()>>(test: impl FnOnce(World, std::rc::Rc<Paydb>) -> F) {
    with_world(async |world| {
        let Some(paydb) = Paydb::fresh().await else { return };
        let paydb = std::rc::Rc::new(paydb);
        test(world, paydb.clone()).await;
        if let Some(paydb) = std::rc::Rc::into_inner(paydb) {
            paydb.end().await;
        }
    });
}

/// Submit, replay, fence, lookup, through a process that reads its password from a file.
#[test]
fn a_process_on_postgres_submits_replays_fences_and_looks_up() {
    on_postgres(async |world, paydb| {
        let settings = paydb.settings_with_file(world.directory.path());
        let process = Process::start(&world, "", &borrowed(&settings)).await;
        let proxy = &process.proxy;
        assert_eq!(proxy.get("/readyz").await.status, 200);

        paydb.claimed("p1", "a1", 7).await;
        let acked = proxy.submit("p1", "a1", 7).await;
        assert_eq!((acked.status, acked.outcome()), (200, "ACKED"), "{acked:?}");
        let again = proxy.submit("p1", "a1", 7).await;
        assert_eq!((again.status, again.replayed), (200, true), "{again:?}");
        assert_eq!(again.body, acked.body);

        let fenced = proxy.fence("p1", 9, false).await;
        assert_eq!(
            (
                fenced.status,
                &fenced.body["highest_token"],
                &fenced.body["submission"]["outcome"]
            ),
            (200, &json!(8), &json!("ACKED")),
            "{fenced:?}"
        );
        paydb.claimed("p2", "a1", 7).await;
        let stale = proxy.submit("p2", "a1", 7).await;
        assert_eq!((stale.status, stale.code()), (409, "FENCED_OUT"), "{stale:?}");

        // The rail does not answer: nothing is known until it is asked.
        world.rail.rule("p2", "timeout_executed", 60_000).await;
        paydb.claimed("p2", "a1", 9).await;
        let unknown = proxy.submit("p2", "a1", 9).await;
        assert_eq!((unknown.status, unknown.code()), (409, "RAIL_AMBIGUOUS"), "{unknown:?}");
        let found = await_verdict(proxy, "p2", "EXECUTED").await;
        assert_eq!(found["submission"]["outcome"], "ACKED");
        assert_eq!(proxy.submit("p2", "a1", 9).await.outcome(), "ACKED");
        assert_eq!(proxy.look_up("never").await.status, 404);

        for payout in ["p1", "p2"] {
            assert_eq!(world.rail.bodies_read(payout).await, 1, "{payout}");
        }
        assert_eq!(proxy.metric("rail_duplicate_attempted_total").await, 0.0);
        assert_eq!(proxy.exceptions().await.len(), 0);
    });
}

/// 100 first submissions of one payout at once, through two proxies: one row, and the rail reads one.
#[test]
fn case_p11_a_hundred_first_submissions_through_two_proxies_reach_the_rail_once() {
    on_postgres(async |world, paydb| {
        let settings = paydb.settings();
        let [url, schema] = borrowed(&settings);
        // What is shown is what becomes of them, not how fast this machine is.
        let settings = [url, schema, ("rail.store.timeout", "20s")];
        let proxies = [
            world.proxy_with(&settings, Host::system()).await,
            world.proxy_with(&settings, Host::system()).await,
        ];
        paydb.claimed("p1", "a1", 7).await;
        let answers = join_all((0..100).map(|n| proxies[n % 2].submit("p1", "a1", 7))).await;
        for answer in &answers {
            assert!(
                answer.status == 200 || answer.code() == "SUBMISSION_IN_FLIGHT",
                "neither the outcome nor under way: {answer:?}"
            );
        }
        let row = proxies[0].await_outcome("p1", "ACKED").await;
        assert_eq!(row["token"], 7);
        assert_eq!(paydb.number("SELECT count(*) FROM rail_submission").await, 1);
        assert_eq!(world.rail.bodies_read("p1").await, 1);
    });
}

/// Proxy 1 commits the intent and is stopped before it sends; two lookups through proxy 2 conclude that nothing was
/// received, and the payout fails; proxy 1 resumes and does not send.
#[cfg(feature = "lab")]
#[test]
fn case_d01_a_stopped_proxy_does_not_send_when_it_resumes() {
    use nix::sys::signal::Signal;
    use tokio::io::AsyncReadExt;

    on_postgres(async |world, paydb| {
        let settings = paydb.settings();
        let settings = borrowed(&settings);
        let second = world.proxy_with(&settings, Host::system()).await;
        paydb.claimed("p1", "a1", 7).await;
        let first = Process::start(&world, "rail_proxy.before_forwarded_at=stop", &settings).await;
        let mut caller = first.begin_submit("p1", "a1", 7).await;
        first.await_state('T').await;
        paydb.set("p1", "RAIL_AMBIGUOUS").await;
        await_verdict(&second, "p1", "NOT_RECEIVED").await;
        let lookups = "SELECT count(*) FROM rail_lookup WHERE saw_nothing";
        assert_eq!(paydb.number(lookups).await, 2, "one silence is not enough");
        paydb.set("p1", "FAILED").await;

        first.signal(Signal::SIGCONT);
        let mut answer = String::new();
        tokio::time::timeout(support::BOUND, caller.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert!(answer.contains("NOT_RECEIVED"), "{answer}");
        assert_eq!(world.rail.bodies_read("p1").await, 0, "it was sent after all");
        assert_eq!(second.submission("p1").await.outcome(), "NOT_RECEIVED");
    });
}

/// paydb is restored to before a payout that was paid: it is not sent again before the rail was asked, and then it is
/// settled by what the rail knows.
#[test]
fn case_d13_a_paid_payout_is_not_sent_again_after_a_restore() {
    on_postgres(async |world, paydb| {
        let settings = paydb.settings();
        let settings = borrowed(&settings);
        let (one, two) = (
            world.proxy_with(&settings, Host::system()).await,
            world.proxy_with(&settings, Host::system()).await,
        );
        for (payout, account) in [("paid", "a1"), ("unpaid", "a2")] {
            paydb.claimed(payout, account, 7).await;
        }
        let Some(programs) = paydb.programs() else {
            eprintln!("*** SKIPPED: no pg_dump of the server's version at hand ***");
            return;
        };
        let dump = programs.dump(&paydb.schema);
        assert_eq!(one.submit("paid", "a1", 7).await.outcome(), "ACKED");
        paydb.restore(&programs, &dump).await;

        // Workers try again, the claims' own and a newer one, through both proxies.
        for proxy in [&one, &two] {
            for (payout, account) in [("paid", "a1"), ("unpaid", "a2")] {
                let refused = proxy.submit(payout, account, 7).await;
                assert_eq!(
                    (refused.status, refused.code()),
                    (503, "SUBMISSIONS_IN_DOUBT"),
                    "{refused:?}"
                );
                assert_eq!(proxy.submission(payout).await.status, 404);
            }
        }
        paydb.claimed("paid", "a1", 8).await;
        assert_eq!(two.submit("paid", "a1", 8).await.code(), "SUBMISSIONS_IN_DOUBT");
        assert_eq!(
            paydb.number("SELECT epoch FROM pay_lineage").await,
            1,
            "one restore is one epoch"
        );

        // The executor has the rail asked, and goes on by what it says.
        let found = one.look_up("paid").await;
        assert_eq!(
            (found.status, &found.body["verdict"], &found.body["executions"]),
            (200, &json!("EXECUTED"), &json!(1)),
            "{found:?}"
        );
        let listed = two.get("/v1/rail/submissions/paid/lookups?limit=1").await.body;
        assert_eq!(listed["items"][0]["verdict"], "EXECUTED", "{listed}");
        let replay = two.submit("paid", "a1", 8).await;
        assert_eq!(
            (replay.status, replay.replayed, replay.outcome()),
            (200, true, "ACKED"),
            "{replay:?}"
        );
        let seen = two.fence("paid", 9, false).await;
        assert_eq!(seen.body["submission"]["outcome"], "ACKED", "{seen:?}");

        // What the rail never received is sent, once, after it has said so twice behind its horizon.
        await_verdict(&one, "unpaid", "NOT_RECEIVED").await;
        assert_eq!(two.submit("unpaid", "a2", 7).await.outcome(), "ACKED");
        for payout in ["paid", "unpaid"] {
            assert_eq!(world.rail.bodies_read(payout).await, 1, "{payout}");
            assert_eq!(world.rail.executions(payout).await, 1, "{payout}");
        }
        assert_eq!(one.exceptions().await.len(), 0);
    });
}

/// A database that is not there, or whose schema nobody has made, is said at the start.
#[test]
fn a_paydb_that_cannot_be_used_is_named_at_the_start() {
    on_postgres(async |world, paydb| {
        let mut settings = paydb.settings();
        settings[1].1 = "nobody_made_it".to_owned();
        let refused = rail_proxy::assemble(&world.settings(&borrowed(&settings)), &Host::system()).await;
        let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            said.contains("nobody_made_it") && said.contains("dlock migrate"),
            "{said}"
        );
        let error = rail_proxy::migrate(&world.settings(&borrowed(&settings)), &Host::system()).unwrap_err();
        assert!(error.to_string().contains("rail.store.url"), "{error}");
    });
}
