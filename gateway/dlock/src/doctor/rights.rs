//! The schema of a store on PostgreSQL, and what each role may do in it (C1.2).

use super::postgres::Store;
use super::report::Report;
use std::collections::BTreeMap;

/// Table, the payment resource's rights, the rail proxy's: S(elect), I(nsert), U(pdate), D(elete), T(runcate), R(eferences),
/// triGger as T too; lower case where only on some columns. The same table as the tests of the migrations.
const RIGHTS: &[(&str, &str, &str)] = &[
    ("account", "SIu", ""),
    ("idempotency", "SI", ""),
    ("ledger_entry", "SI", ""),
    ("pay_lineage", "S", "Su"),
    ("pay_schema", "S", "S"),
    ("pay_turnstile", "SU", ""),
    ("payment_event", "SI", ""),
    ("payout", "SIu", "S"),
    ("payout_tally", "S", ""),
    ("payout_transition", "SI", ""),
    ("rail_exception", "", "SIu"),
    ("rail_high_water", "", "SIu"),
    ("rail_lookup", "S", "SI"),
    ("rail_submission", "S", "SIu"),
];

/// A name as a text literal; names with a quote are refused before.
fn literal(name: &str) -> String {
    format!("'{name}'")
}

/// Whether the schema is there; says its version, and whether its guards are on.
pub async fn schema(store: &Store, schema: &str, table: &str, is_lock: bool, report: &mut Report) -> bool {
    let at = &store.subject;
    if let Err(error) = pg_kit::check_name("schema", schema) {
        report.wrong(at, "schema", error.to_string(), "name the schema as it is configured");
        return false;
    }
    let migrate = if is_lock {
        "dlock migrate --lock-store URL, or start a lock server"
    } else {
        "dlock migrate --store URL, as the schema's owner"
    };
    let found = store
        .rows(&format!(
            "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
              WHERE n.nspname = {} AND c.relname = '{table}'",
            literal(schema)
        ))
        .await;
    match found {
        Ok(rows) if rows.is_empty() => {
            report.wrong(
                at,
                "schema",
                format!("{schema} is missing, or none of dlock's"),
                migrate,
            );
            return false;
        }
        Ok(_) => {}
        Err(error) => {
            report.not_checked(at, "schema", error);
            return false;
        }
    }
    let version = store
        .rows(&format!(
            "SELECT coalesce(max(version), 0)::int FROM \"{schema}\".{table}"
        ))
        .await;
    match version.map(|rows| rows.first().map_or(0, |row| row.get::<_, i32>(0))) {
        Ok(version) if is_lock && version > 0 => report.ok(at, "schema", format!("{schema}, version {version}")),
        Ok(version) if version == pay_schema::VERSION && !is_lock => {
            report.ok(at, "schema", format!("{schema}, version {version}, this build's"));
        }
        Ok(version) if version > pay_schema::VERSION && !is_lock => report.wrong(
            at,
            "schema",
            format!(
                "{schema} is of version {version}, newer than this build's {}",
                pay_schema::VERSION
            ),
            "run the release that the schema was made for",
        ),
        Ok(version) => report.wrong(
            at,
            "schema",
            format!("{schema} is of version {version}, older than this build's"),
            migrate,
        ),
        Err(error) => report.not_checked(at, "schema", format!("its version: {error}")),
    }
    guards(store, schema, report).await;
    if !is_lock {
        lineage_stands(store, schema, report).await;
    }
    true
}

/// Triggers that make rows append-only even for the owner.
async fn guards(store: &Store, schema: &str, report: &mut Report) {
    let at = &store.subject;
    let sql = format!(
        "SELECT count(*), coalesce(string_agg(t.tgname, ', ') FILTER (WHERE t.tgenabled IN ('D', 'R')), '')
           FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
          WHERE n.nspname = {} AND NOT t.tgisinternal",
        literal(schema)
    );
    match store
        .rows(&sql)
        .await
        .map(|rows| rows.first().map(|row| (row.get::<_, i64>(0), row.get::<_, String>(1))))
    {
        Ok(Some((0, _)) | None) => report.wrong(
            at,
            "guards",
            "no trigger in the schema: rows of audit and ledger can be changed",
            "somebody dropped them: find out who and why, then restore the schema from the migrations",
        ),
        Ok(Some((count, off))) if off.is_empty() => report.ok(at, "guards", format!("{count} triggers, all on")),
        Ok(Some((_, off))) => report.wrong(
            at,
            "guards",
            format!("switched off: {off}"),
            "find out who and why, verify what was written meanwhile (dlock verify), then ALTER TABLE … ENABLE TRIGGER",
        ),
        Err(error) => report.not_checked(at, "guards", error),
    }
}

async fn lineage_stands(store: &Store, schema: &str, report: &mut Report) {
    let at = &store.subject;
    let sql = format!(
        "SELECT \"{schema}\".pay_lineage_stands(), (SELECT lineage FROM \"{schema}\".pay_lineage WHERE id = 1)"
    );
    match store
        .rows(&sql)
        .await
        .map(|rows| rows.first().map(|row| (row.get::<_, bool>(0), row.get::<_, String>(1))))
    {
        Ok(Some((true, lineage))) => report.ok(at, "lineage", format!("{lineage}, stands")),
        Ok(Some((false, lineage))) => report.warning(
            at,
            "lineage",
            format!("{lineage}: restored or moved, and no proxy has seen it yet"),
            "start a rail proxy, which opens a new epoch; docs/postgresql.md, After a restore",
        ),
        Ok(None) => report.wrong(
            at,
            "lineage",
            "the row is gone",
            "restore paydb: it has lost its identity",
        ),
        Err(error) => report.not_checked(at, "lineage", error),
    }
}

/// That the two fence points are two roles, and each may do what it must and nothing else.
pub async fn roles(store: &Store, schema: &str, payment: &str, rail: &str, report: &mut Report) {
    let at = &store.subject;
    for name in [payment, rail] {
        if let Err(error) = pg_kit::check_name("role", name) {
            report.wrong(
                at,
                "roles",
                error.to_string(),
                "name the role as it was given to dlock migrate",
            );
            return;
        }
    }
    let remake = "dlock migrate --store URL --create-roles, as the schema's owner, with --payment-role and --rail-role";
    let both = format!("{}, {}", literal(payment), literal(rail));
    let found = store
        .rows(&format!(
            "SELECT r.rolname::text, r.rolsuper OR r.rolbypassrls, r.rolcreaterole,
                    pg_has_role(r.oid, n.nspowner, 'MEMBER'),
                    EXISTS (SELECT 1 FROM pg_roles o WHERE o.rolname IN ({both}) AND o.oid <> r.oid
                            AND pg_has_role(r.oid, o.oid, 'MEMBER'))
               FROM pg_roles r, pg_namespace n WHERE r.rolname IN ({both}) AND n.nspname = {}",
            literal(schema)
        ))
        .await;
    let found = match found {
        Ok(rows) => rows,
        Err(error) => {
            report.not_checked(at, "roles", error);
            return;
        }
    };
    let mut bad = Vec::new();
    for row in &found {
        let name: String = row.get(0);
        for (place, why) in [
            (1, "a superuser, whom no right holds back"),
            (2, "able to make roles, and so to become another one"),
            (3, "the schema's owner or a member of it"),
            (4, "a member of the other fence point's role"),
        ] {
            if row.get::<_, bool>(place) {
                bad.push(format!("{name} is {why}"));
            }
        }
    }
    for name in [payment, rail] {
        if !found.iter().any(|row| row.get::<_, String>(0) == name) {
            bad.push(format!("{name} is missing"));
        }
    }
    if bad.is_empty() {
        report.ok(
            at,
            "roles",
            format!("{payment} and {rail}, apart from each other and from the owner"),
        );
    } else {
        report.wrong(at, "roles", bad.join("; "), remake);
    }
    if found.len() == 2 {
        rights(store, schema, (payment, rail), report).await;
    }
}

async fn rights(store: &Store, schema: &str, (payment, rail): (&str, &str), report: &mut Report) {
    let at = &store.subject;
    let sql = format!(
        "SELECT c.relname::text, r.role, string_agg(
             CASE WHEN has_table_privilege(r.role, c.oid, p.name) THEN upper(left(p.name, 1))
                  WHEN p.name IN ('SELECT', 'INSERT', 'UPDATE') AND has_any_column_privilege(r.role, c.oid, p.name)
                  THEN lower(left(p.name, 1)) ELSE '' END, '' ORDER BY p.n)
           FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, unnest(ARRAY[{}, {}]) AS r (role),
                unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'])
                    WITH ORDINALITY AS p (name, n)
          WHERE n.nspname = {} AND c.relkind IN ('r', 'p', 'v', 'm') GROUP BY 1, 2",
        literal(payment),
        literal(rail),
        literal(schema)
    );
    let mut found: BTreeMap<(String, bool), String> = match store.rows(&sql).await {
        Ok(rows) => rows
            .iter()
            .map(|row| ((row.get(0), row.get::<_, String>(1) == rail), row.get(2)))
            .collect(),
        Err(error) => {
            report.not_checked(at, "rights", error);
            return;
        }
    };
    let mut wrong = Vec::new();
    for (table, of_payment, of_rail) in RIGHTS {
        for (is_rail, role, wanted) in [(false, payment, of_payment), (true, rail, of_rail)] {
            match found.remove(&((*table).to_owned(), is_rail)) {
                Some(has) if has == **wanted => {}
                Some(has) => wrong.push(format!("{role} has {has:?} on {table}, wanted {wanted:?}")),
                None => wrong.push(format!("{table} is missing")),
            }
        }
    }
    for ((table, is_rail), has) in found {
        if !has.is_empty() {
            let role = if is_rail { rail } else { payment };
            wrong.push(format!("{role} has {has:?} on {table}, about which nobody decided"));
        }
    }
    if wrong.is_empty() {
        report.ok(
            at,
            "rights",
            format!("of both roles on {} tables, as C1.2 says", RIGHTS.len()),
        );
    } else {
        report.wrong(
            at,
            "rights",
            wrong.join("; "),
            "GRANT or REVOKE these as the schema's owner: docs/postgresql.md, paydb",
        );
    }
}
