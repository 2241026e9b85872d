//! Which package may depend on which, as the layout says it (docs/STYLE.md). Each rule prints its reason when it is broken.
#![allow(clippy::unwrap_used, reason = "tests")]

use cargo_metadata::{DependencyKind, MetadataCommand};
use std::collections::{BTreeMap, BTreeSet};

/// Product edges between the packages of the workspace, features included; what only tests use is left out.
struct Edges {
    ours: BTreeMap<String, BTreeSet<String>>,
    folder: BTreeMap<String, String>,
    third_party: BTreeMap<String, BTreeSet<String>>,
    tests: BTreeMap<String, BTreeSet<String>>,
}

impl Edges {
    fn read() -> Self {
        let metadata = MetadataCommand::new()
            .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
            .no_deps()
            .other_options(["--offline".to_owned()])
            .exec()
            .unwrap();
        let packages = metadata.workspace_packages();
        let names: BTreeSet<String> = packages.iter().map(|package| package.name.to_string()).collect();
        let mut edges = Self {
            ours: BTreeMap::new(),
            folder: BTreeMap::new(),
            third_party: BTreeMap::new(),
            tests: BTreeMap::new(),
        };
        for package in packages {
            let name = package.name.to_string();
            let path = package.manifest_path.strip_prefix(&metadata.workspace_root).unwrap();
            edges
                .folder
                .insert(name.clone(), path.iter().next().unwrap().to_owned());
            edges.ours.entry(name.clone()).or_default();
            edges.third_party.entry(name.clone()).or_default();
            for dependency in &package.dependencies {
                let to = dependency.name.clone();
                let map = match (dependency.kind, names.contains(&to)) {
                    (DependencyKind::Development, true) => &mut edges.tests,
                    (DependencyKind::Development, false) => continue,
                    (_, true) => &mut edges.ours,
                    (_, false) => &mut edges.third_party,
                };
                map.entry(name.clone()).or_default().insert(to);
            }
        }
        edges
    }

    fn of(&self, package: &str) -> &BTreeSet<String> {
        self.ours
            .get(package)
            .unwrap_or_else(|| panic!("there is no package {package} in the workspace"))
    }

    /// Everything that `package` reaches.
    fn closure(&self, package: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut open = vec![package.to_owned()];
        while let Some(next) = open.pop() {
            for to in self.of(&next) {
                if found.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        found
    }
}

const LOCK: &[&str] = &["lock-store", "lock-core", "lock-server"];
const PAYMENT: &[&str] = &["payment-store", "payment-core", "payment-resource"];
const RAIL: &[&str] = &["rail-store", "rail-core", "rail-proxy"];
const WORKER: &[&str] = &["lock-client", "executor-core", "payout-executor"];

/// Whether every package that the table names exists, and none is missing in it.
#[test]
fn the_inventory_is_complete() {
    let edges = Edges::read();
    let known: BTreeSet<String> = [LOCK, PAYMENT, RAIL, WORKER]
        .concat()
        .into_iter()
        .chain([
            "lock-api",
            "host-kit",
            "tls-kit",
            "sql-kit",
            "pg-kit",
            "money-kit",
            "pay-schema",
            "actor-kit",
            "trace-kit",
            "http-contract",
            "http-client",
            "gateway-kit",
        ])
        .chain([
            "operator-console",
            "fence-kit",
            "rail-stub",
            "dlock",
            "harness",
            "test-servers",
        ])
        .map(str::to_owned)
        .collect();
    let found: BTreeSet<String> = edges.ours.keys().cloned().collect();
    assert_eq!(
        found, known,
        "a package that no rule knows is a package without rules: give it its row in docs/STYLE.md and here"
    );
}

#[test]
fn every_rule_holds() {
    let edges = Edges::read();
    let mut broken = Vec::new();
    let mut rule = |holds: bool, what: String, reason: &str| {
        println!("{} {what}: {reason}", if holds { "ok    " } else { "BROKEN" });
        if !holds {
            broken.push(format!("{what}\n    because {reason}"));
        }
    };

    // No edge between rows.
    let rows = [("lock", LOCK), ("payment", PAYMENT), ("rail", RAIL)];
    for (row, packages) in rows {
        for (other, others) in rows {
            if row == other {
                continue;
            }
            for package in packages {
                let crossed: Vec<_> = edges
                    .closure(package)
                    .into_iter()
                    .filter(|to| others.contains(&to.as_str()))
                    .collect();
                rule(
                    crossed.is_empty(),
                    format!("{package} reaches nothing of the {other} row {crossed:?}"),
                    match (row, other) {
                        ("lock", _) => {
                            "the lock service knows nothing of what a key protects: it must not validate its own grants"
                        }
                        (_, "lock") => "a fence point trusts the token alone, never the service that minted it",
                        _ => "the two fence points are independent as a build fact (FR-17)",
                    },
                );
            }
        }
    }
    for package in ["lock-client", "executor-core", "payout-executor"] {
        let stores: Vec<_> = edges
            .closure(package)
            .into_iter()
            .filter(|to| to.ends_with("-store") || to == "sql-kit" || to == "pg-kit")
            .collect();
        rule(
            stores.is_empty(),
            format!("{package} reaches no store {stores:?}"),
            "a worker presents its token over HTTP like anybody else; it has no way past a fence point",
        );
    }

    let beyond: Vec<_> = edges
        .closure("operator-console")
        .into_iter()
        .filter(|to| {
            edges.folder[to] != "gateway"
                && !["lock-api", "host-kit", "actor-kit", "trace-kit", "money-kit"].contains(&to.as_str())
        })
        .collect();
    rule(
        beyond.is_empty(),
        format!("operator-console reaches no core and no store {beyond:?}"),
        "it shows what the components' own routes answer, and could not show anything else",
    );

    // Downwards only: gateway, core, store.
    for (from, to) in [
        ("stores", "actors"),
        ("stores", "gateway"),
        ("stores", "harness"),
        ("actors", "harness"),
    ] {
        for package in edges
            .folder
            .iter()
            .filter(|(_, folder)| *folder == from)
            .map(|(name, _)| name)
        {
            let up: Vec<_> = edges
                .of(package)
                .iter()
                .filter(|name| edges.folder[*name] == to)
                .collect();
            rule(
                up.is_empty(),
                format!("{package} ({from}/) depends on nothing in {to}/ {up:?}"),
                "edges go from gateway to core to store",
            );
        }
    }
    for package in edges
        .folder
        .iter()
        .filter(|(_, folder)| *folder == "actors")
        .map(|(name, _)| name)
    {
        let up: BTreeSet<_> = edges
            .of(package)
            .iter()
            .filter(|name| edges.folder[*name] == "gateway")
            .map(String::as_str)
            .collect();
        let allowed: BTreeSet<_> = match package.as_str() {
            "lock-client" => ["http-contract", "http-client"].into(),
            "executor-core" => ["http-contract"].into(),
            _ => BTreeSet::new(),
        };
        rule(
            up.is_subset(&allowed),
            format!("{package} knows of gateway/ at most {allowed:?}, has {up:?}"),
            "serving HTTP is unknown below gateway/; a core that calls out knows a port",
        );
    }
    rule(
        edges
            .of("lock-core")
            .iter()
            .all(|to| ["lock-api", "host-kit", "actor-kit"].contains(&to.as_str())),
        "lock-core sees the SPI of lock-api only".to_owned(),
        "the backend is chosen at start-up in one place, and the core is the same over each of them",
    );
    for (gateway, own) in [
        ("lock-server", LOCK),
        ("payment-resource", PAYMENT),
        ("rail-proxy", RAIL),
        ("payout-executor", WORKER),
    ] {
        let foreign: Vec<_> = edges
            .of(gateway)
            .iter()
            .filter(|to| edges.folder[*to] == "actors" && *to != "actor-kit" && !own.contains(&to.as_str()))
            .collect();
        rule(
            foreign.is_empty(),
            format!("{gateway} depends on its own core only {foreign:?}"),
            "one component, one row",
        );
    }

    // Leaves.
    rule(
        edges.of("lock-api").is_empty() && edges.third_party["lock-api"].is_empty(),
        "lock-api depends on nothing at all".to_owned(),
        "whoever embeds the contract inherits no version of anything (NFR-16)",
    );
    rule(
        edges.of("rail-stub").is_empty(),
        "rail-stub depends on no other package of the workspace".to_owned(),
        "it is the environment, not the system: its book must not be written by the judged code",
    );
    for (package, reason) in [
        ("http-contract", "both sides of a call share it, so it may know neither"),
        ("actor-kit", "every core stands on it"),
        ("host-kit", "everything takes its clock, chance and threads from it"),
        ("sql-kit", "every embedded store stands on it"),
        ("pg-kit", "every store on PostgreSQL stands on it"),
        ("tls-kit", "whoever encrypts reads its certificates by it"),
    ] {
        let allowed = ["lock-api", "host-kit", "tls-kit"];
        rule(
            edges.of(package).iter().all(|to| allowed.contains(&to.as_str())),
            format!("{package} never looks up {:?}", edges.of(package)),
            reason,
        );
    }
    rule(
        edges.of("money-kit").is_empty(),
        format!("money-kit depends on no other package {:?}", edges.of("money-kit")),
        "every row says its amounts by it, so it may know none",
    );
    rule(
        edges.of("trace-kit").is_empty(),
        format!("trace-kit depends on no other package {:?}", edges.of("trace-kit")),
        "whoever reads a dump, of whatever version, needs nothing that runs",
    );
    let above: Vec<_> = edges
        .ours
        .iter()
        .filter(|(name, to)| *name != "dlock" && to.contains("harness"))
        .map(|(name, _)| name)
        .collect();
    rule(
        above.is_empty(),
        format!("nothing but dlock depends on harness {above:?}"),
        "no product path runs through the laboratory",
    );
    let above: Vec<_> = edges
        .ours
        .iter()
        .filter(|(name, to)| *name != "dlock" && to.contains("pay-schema"))
        .map(|(name, _)| name)
        .collect();
    rule(
        above.is_empty(),
        format!("nothing but dlock depends on pay-schema {above:?}"),
        "the owner of paydb's schema is a third role: no fence point can change its own tables",
    );
    let above: Vec<_> = edges
        .ours
        .iter()
        .filter(|(name, to)| *name != "dlock" && to.contains("fence-kit"))
        .map(|(name, _)| name)
        .collect();
    let allowed = [
        "lock-api",
        "host-kit",
        "sql-kit",
        "actor-kit",
        "http-contract",
        // How an answer is read to its end; it reaches no row.
        "http-client",
        "gateway-kit",
    ];
    rule(
        above.is_empty() && edges.of("fence-kit").iter().all(|to| allowed.contains(&to.as_str())),
        format!(
            "nothing but dlock depends on fence-kit {above:?}, which knows no row {:?}",
            edges.of("fence-kit")
        ),
        "it is for side effects of others; the product's own fences stand in its own stores, and trust no token service",
    );
    let above: Vec<_> = edges
        .ours
        .iter()
        .filter(|(_, to)| to.contains("test-servers"))
        .map(|(name, _)| name)
        .collect();
    rule(
        above.is_empty() && edges.of("test-servers").iter().all(|to| to == "host-kit"),
        format!(
            "test-servers is for tests alone {above:?} and knows host-kit alone: {:?}",
            edges.of("test-servers")
        ),
        "what starts containers has no place in a product",
    );
    let binaries: Vec<_> = edges
        .ours
        .iter()
        .filter(|(_, to)| to.contains("dlock"))
        .map(|(name, _)| name)
        .collect();
    rule(
        binaries.is_empty(),
        format!("nothing depends on dlock {binaries:?}"),
        "it is the only binary, so the only main",
    );
    for (package, to) in &edges.ours {
        let web: Vec<_> = edges.third_party[package]
            .iter()
            .filter(|name| ["actix-web", "awc", "actix-http"].contains(&name.as_str()))
            .collect();
        let below = edges.folder[package] == "stores" || edges.folder[package] == "actors";
        rule(
            !below || web.is_empty(),
            format!("{package} speaks no HTTP itself {web:?} (of {} packages)", to.len()),
            "serving and calling over HTTP belong to gateway/",
        );
    }
    for (package, tests) in &edges.tests {
        // A test may reach wherever it needs to, but a store's or a contract's tests must not need the laboratory.
        rule(
            !tests.contains("harness") || edges.folder[package] == "gateway",
            format!("{package}'s tests do not need the laboratory"),
            "the harness judges the components; their own tests stand without it",
        );
    }

    assert!(broken.is_empty(), "dependency rules broken:\n{}", broken.join("\n"));
}
