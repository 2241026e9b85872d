//! P25, P26 and P24 of the exports: periods, accounts, decimals, and an export that breaks in the middle.

use crate::support::{Api, problem};
use rusqlite::params;
use serde_json::json;

const DAY: i64 = 86_400_000;
/// 2026-01-01T00:00:00Z.
const JANUARY: i64 = 1_767_225_600_000;

/// Credits at chosen instants, as the store would have written them then.
fn credits(api: &Api, account_id: &str, currency: &str, at: &[(i64, i64)]) {
    let mut db = rusqlite::Connection::open(api.dir.join("payment.db")).unwrap();
    db.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
    let transaction = db.transaction().unwrap();
    let house = format!("house:credits:{currency}");
    let from: i64 = transaction
        .query_row("SELECT coalesce(max(entry_id), 0) FROM ledger_entry", [], |row| {
            row.get(0)
        })
        .unwrap();
    for (place, (at_ms, amount)) in (1_000_000 + from..).zip(at) {
        for (account, signed) in [(account_id, *amount), (house.as_str(), -*amount)] {
            transaction
                .execute(
                    "INSERT INTO ledger_entry (credit_id, account_id, currency, amount_minor, at) VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![place, account, currency, signed, at_ms],
                )
                .unwrap();
        }
        transaction
            .execute(
                "UPDATE account SET balance_minor = balance_minor + ?2 WHERE account_id = ?1",
                params![account_id, amount],
            )
            .unwrap();
    }
    transaction.commit().unwrap();
}

async fn export(api: &Api, query: &str) -> String {
    let answer = api.get(&format!("/v1/ledger/export?{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {}", String::from_utf8_lossy(&answer.body));
    String::from_utf8(answer.body.clone()).unwrap()
}

/// Two accounts with entries on 10 January, on the last millisecond of January, on 1 February and on 5 March.
async fn with_a_year() -> Api {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    api.account("B", 0).await;
    let at = [
        (JANUARY + 9 * DAY, 100),
        (JANUARY + 31 * DAY - 1, 20),
        (JANUARY + 31 * DAY, 3),
        (JANUARY + 63 * DAY, 40_000),
    ];
    credits(&api, "A", "EUR", &at);
    credits(&api, "B", "EUR", &[(JANUARY + 40 * DAY, 7)]);
    api.verified().await;
    api
}

/// The values of an element, in order.
fn values<'t>(text: &'t str, element: &str) -> Vec<&'t str> {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    text.split(&open)
        .skip(1)
        .map(|rest| rest.split(&close).next().unwrap())
        .collect()
}

#[actix_web::test]
async fn case_p25_a_statement_of_a_period_has_its_balances_its_dates_and_the_same_bytes() {
    let api = with_a_year().await;
    let ask = "format=camt053&account_id=A&from=2026-01-01&to=2026-02-01";
    let january = export(&api, ask).await;
    assert_eq!(january.matches("<Stmt>").count(), 1);
    assert_eq!(january.matches("<Ntry>").count(), 2);
    assert!(
        january.contains(
            "<FrToDt><FrDtTm>2026-01-01T00:00:00.000Z</FrDtTm><ToDtTm>2026-01-31T23:59:59.999Z</ToDtTm></FrToDt>"
        ),
        "{january}"
    );
    let balances = |text: &str| -> Vec<(String, String)> {
        let day = |part: &str| {
            part.split("<Dt><Dt>")
                .nth(1)
                .unwrap()
                .split('<')
                .next()
                .unwrap()
                .to_owned()
        };
        let money = |part: &str| {
            part.split("<Amt Ccy=\"EUR\">")
                .nth(1)
                .unwrap()
                .split('<')
                .next()
                .unwrap()
                .to_owned()
        };
        values(text, "Bal")
            .into_iter()
            .map(|part| (money(part), day(part)))
            .collect()
    };
    let told = |money: &str, day: &str| (money.to_owned(), day.to_owned());
    assert_eq!(
        balances(&january),
        [told("10.00", "2025-12-31"), told("11.20", "2026-01-31")]
    );
    // The opening balance of February is the closing balance of January, and lies before the first entry of February.
    let february = export(&api, "format=camt053&account_id=A&from=2026-02-01&to=2026-03-01").await;
    assert_eq!(
        balances(&february),
        [told("11.20", "2026-01-31"), told("11.23", "2026-02-28")]
    );
    // Without a period it begins the day before the first entry, and ends with the last one.
    let all = export(&api, "format=camt053&account_id=A").await;
    assert_eq!(
        balances(&all),
        [told("10.00", "2026-01-09"), told("411.23", "2026-03-05")]
    );
    // A day without entries: the balance stands.
    let quiet = export(&api, "format=camt053&account_id=A&from=2026-02-10&to=2026-02-11").await;
    assert_eq!(
        balances(&quiet),
        [told("11.23", "2026-02-09"), told("11.23", "2026-02-10")]
    );

    // The same again is the same, whatever was booked after it.
    credits(&api, "A", "EUR", &[(JANUARY + 70 * DAY, 9)]);
    assert_eq!(export(&api, ask).await, january);
    let zoned = "format=camt053&account_id=A&from=2026-01-01T01:00:00%2B01:00&to=2026-02-01T00:00:00Z";
    assert_eq!(export(&api, zoned).await, january);
    // Each statement has an id of its own, of at most 35 characters.
    let mut ids: Vec<String> = Vec::new();
    for text in [
        &january,
        &february,
        &all,
        &quiet,
        &export(&api, "format=camt053&account_id=A").await,
    ] {
        let head = values(text, "MsgId");
        ids.extend(head.into_iter().map(str::to_owned));
        ids.push(
            values(text, "Stmt")[0]
                .split("<Id>")
                .nth(1)
                .unwrap()
                .split('<')
                .next()
                .unwrap()
                .to_owned(),
        );
    }
    assert!(ids.iter().all(|id| (1..=35).contains(&id.len())), "{ids:?}");
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count, "{ids:?}");
    // All accounts: a statement of each.
    let both = export(&api, "format=camt053&from=2026-02-01&to=2026-03-01").await;
    assert_eq!(values(&both, "Nm"), ["A", "B"]);
}

#[actix_web::test]
async fn case_p25_every_form_is_of_the_period_and_the_account_that_were_asked_for() {
    let api = with_a_year().await;
    let lines = |text: &str| text.lines().count();
    // csv and jsonl: the account's own legs.
    assert_eq!(lines(&export(&api, "format=csv").await), 11);
    assert_eq!(lines(&export(&api, "format=csv&account_id=A").await), 5);
    assert_eq!(
        lines(&export(&api, "format=csv&from=2026-01-01&to=2026-02-01").await),
        5
    );
    let one = export(&api, "format=csv&account_id=A&to=2026-01-11").await;
    assert!(
        one.lines()
            .nth(1)
            .unwrap()
            .contains(",A,100,EUR,2,,2026-01-10T00:00:00.000Z,"),
        "{one}"
    );
    assert_eq!(lines(&export(&api, "format=jsonl&from=2026-02-01").await), 6);
    assert_eq!(
        lines(&export(&api, "format=jsonl&account_id=house:credits:EUR&from=2026-02-01").await),
        3
    );
    assert_eq!(export(&api, "format=jsonl&account_id=B&to=2026-01-01").await, "");

    // Plain-text accounting: whole facts, and balances brought forward from before the period.
    for (format, open, day) in [
        (
            "beancount",
            "  Assets:Clients:AA  11.20 EUR",
            "2026-01-31 * \"opening balance\"",
        ),
        (
            "hledger",
            "    assets:clients:A  11.20 EUR",
            "2026-01-31 * opening balance",
        ),
    ] {
        let text = export(
            &api,
            &format!("format={format}&account_id=A&from=2026-02-01&to=2026-03-01"),
        )
        .await;
        assert!(
            text.contains(
                "; days and times are UTC; from 2026-02-01T00:00:00.000Z on, before 2026-03-01T00:00:00.000Z\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("; of account A\n") && text.contains(open) && text.contains(day),
            "{text}"
        );
        assert_eq!(text.matches("\n2026-02-01 * ").count(), 1, "{text}");
        assert!(!text.contains("2026-03-05") && !text.contains("0.07"), "{text}");
        // Both legs of its one fact.
        assert_eq!(text.matches("0.03 EUR").count(), 2, "{text}");
        let whole = export(&api, &format!("format={format}")).await;
        assert!(
            whole.contains("; days and times are UTC; the whole ledger\n"),
            "{whole}"
        );
        assert!(
            whole.contains("10.00 EUR") && whole.contains("1970-01-01 * "),
            "{whole}"
        );
    }

    let refused = |answer: &gateway_kit::testing::Answer, field: &str| {
        assert_eq!(problem(answer, 400, "INVALID_REQUEST")["field"], field);
    };
    for (query, field) in [
        ("format=csv&from=yesterday", "from"),
        ("format=csv&from=2026-02-01&to=2026-02-01", "to"),
        ("format=csv&to=2026-13-01", "to"),
        ("format=csv&account_id=..", "account_id"),
        ("format=csv&account_id=a%2Fb", "account_id"),
        ("format=camt053&account_id=house:credits:EUR", "account_id"),
    ] {
        refused(&api.get(&format!("/v1/ledger/export?{query}")).await, field);
    }
    let nobody = api.get("/v1/ledger/export?format=csv&account_id=nobody").await;
    problem(&nobody, 404, "ACCOUNT_NOT_FOUND");
}

#[actix_web::test]
async fn case_p24_exports_and_problems_have_the_currencys_own_decimals() {
    let api = Api::start().await;
    for (account, currency) in [("yen", "JPY"), ("dinar", "KWD"), ("euro", "EUR")] {
        let body = json!({"account_id": account, "currency": currency, "opening_balance_minor": 12_345});
        assert_eq!(api.post("/v1/accounts", &[], body).await.status, 201);
    }
    let camt = export(&api, "format=camt053").await;
    for wanted in [
        "<Amt Ccy=\"JPY\">12345</Amt>",
        "<Amt Ccy=\"KWD\">12.345</Amt>",
        "<Amt Ccy=\"EUR\">123.45</Amt>",
    ] {
        assert!(camt.contains(wanted), "{camt}");
    }
    let hledger = export(&api, "format=hledger").await;
    for wanted in [
        "commodity 1000. JPY\n",
        "12345 JPY",
        "commodity 1000.000 KWD\n",
        "12.345 KWD",
        "123.45 EUR",
    ] {
        assert!(hledger.contains(wanted), "{hledger}");
    }
    for (account, currency, said) in [
        ("yen", "JPY", "available are 12345 JPY, the payout needs 12346 JPY"),
        ("dinar", "KWD", "available are 12.345 KWD, the payout needs 12.346 KWD"),
        ("euro", "EUR", "available are 123.45 EUR, the payout needs 123.46 EUR"),
    ] {
        let body = json!({
            "payout_id": account, "account_id": account, "amount_minor": 12_346, "currency": currency,
            "creditor": {"name": "n", "account": "a"},
        });
        assert_eq!(
            api.post("/v1/payouts", &[("X-Idempotency-Key", account)], body)
                .await
                .status,
            201
        );
        let refused = api.step(account, "claim", 5, json!({})).await;
        let refused = problem(&refused, 422, "INSUFFICIENT_FUNDS");
        assert_eq!(refused["detail"], said);
        assert_eq!(refused["available_minor"], 12_345);
    }
    let db = rusqlite::Connection::open(api.dir.join("payment.db")).unwrap();
    db.execute_batch("UPDATE account SET balance_minor = 12346 WHERE account_id IN ('yen', 'dinar')")
        .unwrap();
    let said = api.get("/v1/ledger/verify").await.json();
    let said = said["violations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|said| said.as_str().unwrap())
        .collect::<Vec<_>>();
    assert_eq!(
        said,
        [
            "account dinar has a stored balance of 12.346 KWD, its ledger says 12.345 KWD",
            "account yen has a stored balance of 12346 JPY, its ledger says 12345 JPY",
        ]
    );
}

#[actix_web::test]
async fn case_p26_an_export_that_breaks_in_the_middle_ends_as_a_broken_answer() {
    let api = Api::start().await;
    api.account("A", 0).await;
    // Two pages that are whole, then a sum that the schema of the statement cannot say.
    let many: Vec<(i64, i64)> = (0..2_500).map(|n| (JANUARY + n, 1)).collect();
    credits(&api, "A", "EUR", &many);
    let whole = export(&api, "format=camt053&account_id=A").await;
    assert_eq!(whole.matches("<Ntry>").count(), 2_500);
    let far = i64::MAX - 3_000;
    credits(&api, "A", "EUR", &[(JANUARY + 5_000, far)]);
    let db = rusqlite::Connection::open(api.dir.join("payment.db")).unwrap();
    db.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
    // Beyond 64 bits: a sum that wrapped would look like any other.
    for _ in 0..2 {
        db.execute(
            "INSERT INTO ledger_entry (credit_id, account_id, currency, amount_minor, at) VALUES (7, 'A', 'EUR', ?1, ?2)",
            params![far, JANUARY + 6_000],
        )
        .unwrap();
    }
    let broken = async |query: &str| {
        let request = gateway_kit::testing::Sent {
            method: "GET".to_owned(),
            target: format!("/v1/ledger/export?{query}"),
            headers: Vec::new(),
            body: None,
            chunked: false,
        };
        gateway_kit::testing::Target::send(&api.socket, &request)
            .await
            .unwrap_err()
    };
    let said = broken("format=camt053&account_id=A").await;
    assert!(said.starts_with("closed "), "{said}");
    // What lies before it is still to be had, and so is a form that adds nothing up.
    assert_eq!(
        export(&api, "format=camt053&account_id=A&to=2026-01-01T00:00:05Z")
            .await
            .matches("<Ntry>")
            .count(),
        2_500
    );
    assert_eq!(export(&api, "format=csv&account_id=A").await.lines().count(), 2_504);

    // A page that cannot be read, after two that could.
    db.execute_batch("PRAGMA ignore_check_constraints = ON; PRAGMA writable_schema = ON;")
        .unwrap();
    db.execute_batch(
        "UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '') WHERE name = 'ledger_entry'; PRAGMA writable_schema = OFF;",
    )
    .unwrap();
    drop(db);
    let db = rusqlite::Connection::open(api.dir.join("payment.db")).unwrap();
    db.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
    db.execute_batch(
        "INSERT INTO ledger_entry (credit_id, account_id, currency, amount_minor, at) VALUES (8, 'A', 'EUR', 'much', 1)",
    )
    .unwrap();
    for format in ["csv", "jsonl", "beancount", "hledger", "camt053"] {
        assert_eq!(
            broken(&format!("format={format}")).await,
            "closed within the body",
            "{format}"
        );
    }
}
