//! The console in a real browser: UC-03 told by its pages alone, pages that follow, a grant broken by hand, and what is
//! refused.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests run outside any runtime and wait for real processes"
)]

#[path = "common/browser.rs"]
mod browser;
mod common;

use browser::{Driver, Look, Window};
use common::{LONG, Process, binary, until, wait};
use host_kit::Reserved;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// How many locks a page has to cope with.
const MANY: usize = 5_000;

fn run<T>(work: impl Future<Output = T>) -> T {
    actix_rt::System::new().block_on(work)
}

/// A system without workers, with a console.
struct System {
    dir: TempDir,
    locks: Process,
    payments: Process,
    _rail: Process,
    console: Process,
    address: Reserved,
}

impl System {
    fn start(more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("sqlite:{}", dir.path().join(name).display());
        std::fs::create_dir(dir.path().join("pay")).unwrap();
        let locks = Process::start(&["lock-server", "--listen", "127.0.0.1:0", "--store", &at("lock.db")]);
        let payments = Process::start(&["payment-resource", "--listen", "127.0.0.1:0", "--store", &at("pay")]);
        let stub = "http://127.0.0.1:9";
        let rail = Process::start(&[
            "rail-proxy",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &at("pay"),
            "--rail",
            stub,
        ]);
        let address = test_servers::reserved();
        let console = console(&locks, &payments, &rail, &address, more);
        Self {
            dir,
            locks,
            payments,
            _rail: rail,
            console,
            address,
        }
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        post(&self.locks, path, &body).await
    }

    async fn session(&self, owner: &str) -> String {
        let opened = self
            .post("/v1/sessions", json!({"owner": owner, "ttl_ms": 120_000}))
            .await;
        opened["session_id"].as_str().unwrap().to_owned()
    }

    async fn acquire(&self, session: &str, key: &str) -> u64 {
        let path = format!("/v1/locks/{key}/acquire");
        let grant = self.post(&path, json!({"session_id": session})).await;
        grant["token"].as_u64().unwrap_or_else(|| panic!("{grant}"))
    }
}

fn console(locks: &Process, payments: &Process, rail: &Process, at: &Reserved, more: &[&str]) -> Process {
    let (locks, payments, rail) = (locks.url(), payments.url(), rail.url());
    let listen = at.address().to_string();
    let mut args = vec![
        "console",
        "--listen",
        &listen,
        "--lock-server",
        &locks,
        "--payments",
        &payments,
    ];
    args.extend(["--rail-proxy", &rail]);
    args.extend(more);
    Process::start(&args)
}

async fn post(to: &Process, path: &str, body: &Value) -> Value {
    let mut answer = awc::Client::default()
        .post(format!("{}{path}", to.url()))
        .timeout(LONG)
        .send_json(body)
        .await
        .unwrap();
    answer.json().await.unwrap()
}

/// Status and text of a page, as a program without JavaScript reads it.
async fn get(url: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let mut request = awc::Client::default().get(url).timeout(LONG);
    for (name, value) in headers {
        request = request.insert_header((*name, *value));
    }
    let mut answer = request.send().await.unwrap();
    let text = String::from_utf8(answer.body().limit(10 << 20).await.unwrap().to_vec()).unwrap();
    (answer.status().as_u16(), text)
}

/// `dlock scenario UC-03 --hold`, held at its end.
struct Held {
    child: std::process::Child,
    console: String,
}

impl Held {
    fn start() -> Self {
        let mut command = Command::new(binary());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_")) {
            command.env_remove(name);
        }
        let mut child = command
            .args(["scenario", "UC-03", "--hold", "--seed", "3"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().unwrap());
        let heard = said.clone();
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let mut said = heard.lock().unwrap();
                said.push_str(&line);
                said.push('\n');
            }
        });
        let address = || {
            let said = said.lock().unwrap();
            let rest = said.split("held; look at ").nth(1)?;
            Some(rest.split(',').next()?.to_owned())
        };
        until("the scenario is held", || {
            assert!(child.try_wait().unwrap().is_none(), "{}", said.lock().unwrap());
            address().is_some()
        });
        let console = address().unwrap();
        Self { child, console }
    }

    /// Ctrl-C ends the hold; the run is judged as ever.
    fn go_on(mut self) -> Option<i32> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, Signal::SIGINT).unwrap();
        wait(&mut self.child).code()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn number_after(text: &str, before: &str) -> u64 {
    let rest = text
        .split(before)
        .nth(1)
        .unwrap_or_else(|| panic!("{before:?} in {text:?}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{before:?} in {text:?}"))
}

/// Somebody who has never seen the code finds the stale worker, its token, what refused it and who held the key, by
/// following links from the first page.
#[test]
fn in_uc03_the_pages_alone_tell_which_worker_was_stale() {
    if !browser::there_is_one() {
        return;
    }
    let held = Held::start();
    run(async {
        let driver = Driver::start();
        let window = driver.window(Look::WIDE).await;
        window.open(&held.console).await;
        // Its release is refused too, where it came that far before it was asked to end: that one is about the lock.
        let about = "#live table tbody td:last-child a[href*='/payouts/']";
        let there = format!("document.querySelector(\"{about}\")");
        window.until("the refusal is on the first page", &there).await;
        window.picture("console-overview").await;
        let row = window
            .text("#live table tbody tr:has(td:last-child a[href*='/payouts/'])")
            .await;
        assert!(
            row.contains("W1") && row.contains("rail-proxy") && row.contains("FENCED_OUT"),
            "{row}"
        );

        window.click(about).await;
        window
            .until("the payout's page", "document.querySelector('#stale li')")
            .await;
        let story = window.text("#stale li").await;
        let (shown, highest) = (
            number_after(&story, "showed token "),
            number_after(&story, "stood at token "),
        );
        assert!(shown < highest, "{story}");
        assert!(
            story.starts_with("W1 was stale: it showed token") && story.contains("to rail-proxy for its submit"),
            "{story}"
        );
        assert!(
            story.contains("refused with FENCED_OUT") && story.contains("granted to W2, who held payout:alpha"),
            "{story}"
        );
        let timeline = window.text("table.timeline tbody").await;
        for part in [
            "lock-server",
            "GRANTED",
            "EXPIRED",
            "payment-resource",
            "CLAIMED",
            "POSTED",
            "INTENT",
            "ACKED",
        ] {
            assert!(timeline.contains(part), "{part} in {timeline}");
        }
        window.picture("console-uc03-payout").await;

        window.click("#stale li a").await;
        window
            .until("the lock's page", "document.querySelector('#history')")
            .await;
        let history = window.text("h2#history ~ div tbody").await;
        assert!(
            history.contains(&shown.to_string()) && history.contains(&highest.to_string()),
            "{history}"
        );
        window.picture("console-uc03-lock").await;
        for (page, name) in [
            ("/scenario", "console-uc03-scenario"),
            ("/accounts", "console-uc03-accounts"),
        ] {
            window.open(&format!("{}{page}", held.console)).await;
            window
                .until(
                    "the page is live",
                    "document.getElementById('connection').textContent.includes('Live')",
                )
                .await;
            window.picture(name).await;
        }
        let steps = window_text(&held.console, "/scenario").await;
        assert!(steps.contains("W1 woke up") && steps.contains("woken"), "{steps}");
        window.close().await;
        for (look, name) in [(Look::DARK, "dark"), (Look::NARROW, "narrow")] {
            let window = driver.window(look).await;
            window.open(&format!("{}/payouts/uc03-payout", held.console)).await;
            window.until("the story", "document.querySelector('#stale li')").await;
            let wide = window
                .eval("return document.documentElement.scrollWidth > window.innerWidth;")
                .await;
            assert_eq!(wide, false, "{name}: the page must not scroll sideways");
            window.picture(&format!("console-uc03-payout-{name}")).await;
            window.close().await;
        }
    });
    assert_eq!(held.go_on(), Some(0), "a held run is judged as any other");
}

async fn window_text(console: &str, page: &str) -> String {
    get(&format!("{console}{page}"), &[]).await.1
}

/// A page follows without being loaded again, says when it is cut off and since when, and comes back.
/// Regression: of rows about the same worker only the last was known again, and the others stayed beside their successors.
#[test]
fn rows_about_the_same_worker_follow_and_leave_nothing_behind() {
    if !browser::there_is_one() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("status.json");
    let tell = |times: &[u64]| {
        let fault = |at: &u64| json!({"at_ms": at, "target": "W1", "what": "stopped", "active": false});
        let faults: Vec<Value> = times.iter().map(fault).collect();
        let status = json!({"name": "uc-03", "seed": 7, "state": "runs", "steps": [], "faults": faults});
        std::fs::write(&file, status.to_string()).unwrap();
    };
    tell(&[100, 200]);
    let system = System::start(&["--scenario", file.to_str().unwrap()]);
    run(async {
        let driver = Driver::start();
        let window = driver.window(Look::WIDE).await;
        window.open(&format!("{}/scenario", system.console.url())).await;
        let shows = |times: &str| {
            format!(
                "document.getElementById('connection').textContent.includes('Live') && \
                 [...document.querySelectorAll('tbody tr')].map(row => row.cells[0].innerText.replace(/.*\\((\\d+) ms\\)/, '$1')).join() === '{times}'"
            )
        };
        window.until("both are shown", &shows("100,200")).await;
        tell(&[50, 100, 200, 300]);
        window
            .until("four are shown, as they were told", &shows("50,100,200,300"))
            .await;
        window.close().await;
    });
}

#[test]
fn a_page_follows_says_when_it_is_cut_off_and_comes_back() {
    if !browser::there_is_one() {
        return;
    }
    let mut system = System::start(&[]);
    run(async {
        let driver = Driver::start();
        let window = driver.window(Look::WIDE).await;
        let console = system.console.url();
        window.open(&format!("{console}/locks/report%2Fdaily")).await;
        window
            .until(
                "it is live",
                "document.getElementById('connection').textContent.includes('Live')",
            )
            .await;
        window.eval("window.kept = true;").await;
        let session = system.session("W7").await;
        let token = system.acquire(&session, "report%2Fdaily").await;
        let holds =
            format!("document.getElementById('headline').textContent === 'W7 holds report/daily under token {token}.'");
        window.until("the grant shows", &holds).await;
        assert_eq!(
            window.eval("return window.kept === true;").await,
            true,
            "the page was not loaded again"
        );

        // The keyboard: the first stop is the way past the navigation, and the next ones are seen.
        window.keys("\u{e004}").await;
        let first = window
            .eval("const e = document.activeElement; return [e.className, e.getBoundingClientRect().left >= 0, getComputedStyle(e).outlineStyle];")
            .await;
        assert_eq!(first, json!(["skip", true, "solid"]), "the first stop is seen");
        let unnamed = window
            .eval("return [...document.querySelectorAll('a, button')].filter(e => !e.textContent.trim()).length;")
            .await;
        assert_eq!(unnamed, 0, "every link and button has a name");
        let headless = window
            .eval("return [...document.querySelectorAll('th')].filter(e => !e.scope).length;")
            .await;
        assert_eq!(headless, 0, "every head of a table says what it heads");

        // One component that is gone is shown as gone, and the rest goes on.
        system.payments.signal(Signal::SIGKILL);
        window
            .until(
                "it is shown as down",
                "document.querySelector('.components').innerText.includes('down payment-resource since')",
            )
            .await;
        let (status, page) = get(&format!("{console}/payouts"), &[]).await;
        assert_eq!(status, 200);
        assert!(page.contains("The list of payouts cannot be read"), "{page}");
        window.picture("console-down").await;

        // The console itself is gone, and comes back.
        system.console.signal(Signal::SIGKILL);
        wait(&mut system.console.child);
        window
            .until("it says that it is cut off", "!document.getElementById('cut').hidden")
            .await;
        let said = window.text("#cut").await;
        assert!(
            said.contains("Disconnected since 20") && said.contains("UTC ("),
            "{said}"
        );
        system.console = self::console(&system.locks, &system.payments, &system._rail, &system.address, &[]);
        window
            .until("it is back", "document.getElementById('cut').hidden")
            .await;
        let session = system.session("W8").await;
        let released = awc::Client::default()
            .delete(format!(
                "{}/v1/sessions/{}",
                system.locks.url(),
                window_holder(&window).await
            ))
            .send()
            .await
            .unwrap();
        assert_eq!(released.status().as_u16(), 200);
        let token = system.acquire(&session, "report%2Fdaily").await;
        let holds =
            format!("document.getElementById('headline').textContent === 'W8 holds report/daily under token {token}.'");
        window.until("it follows again", &holds).await;
        window.close().await;
    });
    drop(system.dir);
}

/// The session that the history on the page shows for the newest grant.
async fn window_holder(window: &Window) -> String {
    window.text("h2#history ~ div tbody tr td:last-child").await
}

/// A grant is broken in the browser: the key typed again, a name and a reason.
#[test]
fn a_grant_is_broken_by_hand_and_only_from_the_console() {
    if !browser::there_is_one() {
        return;
    }
    let system = System::start(&[]);
    run(async {
        let session = system.session("W9").await;
        let token = system.acquire(&session, "payout:beta").await;
        let driver = Driver::start();
        let window = driver.window(Look::WIDE).await;
        let console = system.console.url();
        window.open(&format!("{console}/locks/payout%3Abeta")).await;
        window.click("#revoke").await;
        window.fill("#key", "payout:Beta").await;
        window.fill("#operator", "ada").await;
        window.fill("#reason", "its worker hangs in a call").await;
        window.click("button.danger").await;
        window
            .until("the wrong key is named", "document.getElementById('wrong')")
            .await;
        assert!(window.text("#wrong").await.contains("key"));
        assert_eq!(
            window.eval("return document.getElementById('reason').value;").await,
            "its worker hangs in a call"
        );
        window.picture("console-revoke").await;
        window.fill("#key", "payout:beta").await;
        window.click("button.danger").await;
        window.until("it is done", "document.getElementById('done')").await;
        let done = window.text("#done").await;
        assert_eq!(number_after(&done, "Token "), token);
        assert!(number_after(&done, "minted token ") > token, "{done}");
        let (_, history) = get(&format!("{}/v1/locks/payout%3Abeta/history", system.locks.url()), &[]).await;
        assert!(
            history.contains("REVOKED") && history.contains("\"ada\"") && history.contains("its worker hangs"),
            "{history}"
        );
        window.close().await;

        // A page of another site, an unknown name, a form that was not given out: nothing is broken.
        let next = system.session("W10").await;
        let token = system.acquire(&next, "payout:beta").await;
        let url = format!("{console}/locks/payout%3Abeta/revoke");
        let body = format!("form=0123&token={token}&key=payout%3Abeta&operator=eve&reason=because+I+can");
        let host = system.console.addr.clone();
        let own = format!("http://{host}");
        for (headers, status) in [
            (vec![("origin", "http://evil.example")], 403),
            (vec![("sec-fetch-site", "cross-site")], 403),
            (vec![], 403),
            (vec![("origin", own.as_str()), ("host", "evil.example")], 421),
            (vec![("origin", own.as_str())], 403),
        ] {
            let mut request = awc::Client::default()
                .post(&url)
                .content_type("application/x-www-form-urlencoded");
            for (name, value) in &headers {
                request = request.insert_header((*name, *value));
            }
            let answer = request.send_body(body.clone()).await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{headers:?}");
        }
        let (_, lock) = get(&format!("{}/v1/locks/payout%3Abeta", system.locks.url()), &[]).await;
        assert!(lock.contains("W10"), "{lock}");
        let read_only = self::console(
            &system.locks,
            &system.payments,
            &system._rail,
            &test_servers::reserved(),
            &["--read-only"],
        );
        let (status, page) = get(&format!("{}/locks/payout%3Abeta/revoke", read_only.url()), &[]).await;
        assert!(status == 403 && page.contains("only reads"), "{status} {page}");
        let (_, page) = get(&format!("{}/locks/payout%3Abeta", read_only.url()), &[]).await;
        assert!(page.contains("W10") && !page.contains("Break this grant"), "{page}");
    });
    drop(system.dir);
}

/// A submission that the rail acknowledged, and says later that it declined.
async fn raise_an_exception(system: &System) {
    let send = async |to: &Process, path: &str, headers: &[(&str, &str)], body: Value| {
        let mut request = awc::Client::default()
            .post(format!("{}{path}", to.url()))
            .timeout(std::time::Duration::from_secs(30));
        for header in headers {
            request = request.insert_header(*header);
        }
        request.send_json(&body).await.unwrap().status().as_u16()
    };
    let token = ("X-Fencing-Token", "1");
    let key = ("X-Idempotency-Key", "P1");
    let account = json!({ "account_id": "A", "currency": "EUR", "opening_balance_minor": 5_000 });
    assert_eq!(send(&system.payments, "/v1/accounts", &[], account).await, 201);
    let payout = json!({ "payout_id": "P1", "account_id": "A", "amount_minor": 100, "currency": "EUR",
                         "creditor": { "name": "Ada", "account": "DE02" } });
    assert_eq!(send(&system.payments, "/v1/payouts", &[key], payout.clone()).await, 201);
    assert_eq!(
        send(&system.payments, "/v1/payouts/P1/claim", &[token], json!({})).await,
        200
    );
    // Nobody listens where the rail should be: the outcome is not known.
    assert_eq!(
        send(&system._rail, "/v1/rail/submissions", &[token, key], payout).await,
        409
    );
    let ack = |outcome: &str| {
        let mut ack = json!({ "client_reference": "P1", "outcome": outcome, "amount_minor": 100, "currency": "EUR" });
        if outcome == "ACKED" {
            ack["rail_reference"] = "R1".into();
        }
        ack
    };
    for outcome in ["ACKED", "DECLINED"] {
        assert_eq!(send(&system._rail, "/v1/rail/acks", &[], ack(outcome)).await, 200);
    }
}

/// An exception of the rail is closed in the console: a name and what was done, from the console itself, once.
#[test]
fn case_p23_an_exception_is_closed_by_hand_and_only_from_the_console() {
    let system = System::start(&[]);
    run(async {
        let console = system.console.url();
        let host = system.console.addr.clone();
        let own = format!("http://{host}");
        let post = async |form: &str, origin: &str| {
            let mut answer = awc::Client::default()
                .post(format!("{console}/exceptions/1/close"))
                .content_type("application/x-www-form-urlencoded")
                .insert_header(("origin", origin))
                .send_body(form.to_owned())
                .await
                .unwrap();
            let text = String::from_utf8(answer.body().await.unwrap().to_vec()).unwrap();
            (answer.status().as_u16(), text)
        };
        let page = async || get(&format!("{console}/exceptions/1/close"), &[]).await;
        // Nothing is open yet.
        let (status, text) = page().await;
        assert!(status == 200 && text.contains("EXCEPTION_NOT_FOUND"), "{status} {text}");
        raise_an_exception(&system).await;
        let (_, queue) = get(&format!("{console}/queue"), &[]).await;
        assert!(queue.contains("/exceptions/1/close"), "{queue}");
        let (status, text) = page().await;
        assert!(status == 200 && text.contains("CONFLICTING_OUTCOME"), "{status} {text}");
        let secret = text
            .split("name=\"form\" value=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        let form = |operator: &str, reason: &str| format!("form={secret}&operator={operator}&reason={reason}");
        assert_eq!(
            post(&form("ada", "booked+back+by+it"), "http://evil.example").await.0,
            403
        );
        assert_eq!(post("form=0123&operator=eve&reason=because+I+can", &own).await.0, 403);
        let (status, text) = post(&form("ada", "booked+back+by+it"), &own).await;
        assert!(
            status == 200 && text.contains("id=\"done\"") && text.contains("booked back by it"),
            "{status} {text}"
        );
        // The form is used, and the exception closed.
        assert_eq!(post(&form("ada", "booked+back+by+it"), &own).await.0, 403);
        let (_, text) = page().await;
        assert!(
            text.contains("CLOSED") && text.contains("ada") && !text.contains("<form"),
            "{text}"
        );
        let read_only = self::console(
            &system.locks,
            &system.payments,
            &system._rail,
            &test_servers::reserved(),
            &["--read-only"],
        );
        let (status, text) = get(&format!("{}/exceptions/1/close", read_only.url()), &[]).await;
        assert!(status == 403 && text.contains("only reads"), "{status} {text}");
    });
    drop(system.dir);
}

/// Five thousand locks are a list in pages; the page is bounded and answers at once. What it took is printed.
#[test]
fn five_thousand_locks_are_shown_in_pages() {
    if !browser::there_is_one() {
        return;
    }
    let system = System::start(&[]);
    run(async {
        let session = system.session("bulk").await;
        for batch in (0..MANY).collect::<Vec<_>>().chunks(100) {
            let keys = batch.iter().map(|n| format!("bulk:{n:05}"));
            let granted = futures_util::future::join_all(keys.map(|key| {
                let (system, session) = (&system, &session);
                async move { system.acquire(session, &key).await }
            }))
            .await;
            assert_eq!(granted.len(), batch.len());
        }
        let driver = Driver::start();
        let window = driver.window(Look::WIDE).await;
        let console = system.console.url();
        window.open(&format!("{console}/locks?prefix=bulk%3A")).await;
        window
            .until(
                "it is live",
                "document.getElementById('connection').textContent.includes('Live')",
            )
            .await;
        let count = "return document.querySelectorAll('#live tbody tr').length;";
        assert_eq!(window.eval(count).await, 100);
        let took = window
            .eval("const [e] = performance.getEntriesByType('navigation'); return [e.responseStart, e.domContentLoadedEventEnd, e.encodedBodySize];")
            .await;
        println!("{MANY} locks: first byte and content after ms, bytes: {took}");
        window.click("#next-page").await;
        window
            .until(
                "the second page",
                "document.querySelector('#live tbody th').textContent === 'bulk:00100'",
            )
            .await;
        window
            .open(&format!("{console}/locks?prefix=bulk%3A049&state=held"))
            .await;
        window
            .until(
                "the filter",
                "document.querySelector('#live tbody th').textContent === 'bulk:04900'",
            )
            .await;
        window.open(&format!("{console}/locks?prefix=bulk%3A&state=free")).await;
        window
            .until(
                "none is free",
                "document.getElementById('live').textContent.includes('No lock fits.')",
            )
            .await;
        let long = window
            .eval("return performance.getEntriesByType('longtask').length;")
            .await;
        println!("tasks of the browser above 50 ms: {long}");
        window.close().await;
    });
    drop(system.dir);
}
