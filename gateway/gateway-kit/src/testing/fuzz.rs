//! Feeds every operation of an OpenAPI document what nobody should send.
//!
//! Per operation: requests that the document admits, to learn that they are understood; then the same with exactly one
//! fault each, so that the answer can be held against it (4xx, a whole problem, the field named); then chance. No answer may
//! be a server error, no request may be left without an answer.

use super::sample::{any_json, draw, is_closed, is_nullable, is_required, kind, valid, wrong};
use super::target::{Answer, Sent, Target};
use crate::openapi::{Operation, body_schema, not_null, operations, resolve};
use http_contract::{Code, header};
use proptest::arbitrary::any;
use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use utoipa::openapi::OpenApi;

/// How many failures are described before the rest is only counted.
const SHOWN_MAX: usize = 25;

const SERVER_ERROR: &str = "a server error";

/// The fuzzing of one document. Its seed is printed first; `FUZZ_SEED` sets it.
#[derive(Clone, Debug)]
pub struct Fuzz {
    document: Value,
    seed: u64,
    cases: u32,
    paths: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    queries: BTreeMap<(String, String), String>,
    bodies: BTreeMap<String, Map<String, Value>>,
    skipped: BTreeSet<String>,
}

/// What was sent, for the test to print.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How many operations.
    pub operations: usize,
    /// How many requests.
    pub requests: usize,
    /// How often each status came back.
    pub statuses: BTreeMap<u16, usize>,
}

/// What one fault has to be answered with.
#[derive(Clone, Debug, Default)]
struct Expected {
    statuses: &'static [u16],
    code: Option<Code>,
    field: Option<String>,
}

struct Case {
    what: String,
    request: Sent,
    expected: Expected,
}

impl Fuzz {
    /// For this document, with the seed of `FUZZ_SEED` or a new one and 24 random cases per operation.
    #[must_use]
    pub fn new(document: &OpenApi) -> Self {
        let seed = std::env::var("FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
        Self {
            document: serde_json::to_value(document).expect("an OpenAPI document is plain data"),
            seed: seed.unwrap_or_else(|| host_kit::Random::from_os().u64()),
            cases: 24,
            paths: BTreeMap::new(),
            headers: BTreeMap::new(),
            queries: BTreeMap::new(),
            bodies: BTreeMap::new(),
            skipped: BTreeSet::new(),
        }
    }

    /// This seed instead.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// This many random cases per operation.
    #[must_use]
    pub const fn cases(mut self, cases: u32) -> Self {
        self.cases = cases;
        self
    }

    /// What well-formed requests have in the path for `{name}`, instead of a value drawn from its schema.
    #[must_use]
    pub fn path(mut self, name: &str, value: &str) -> Self {
        self.paths.insert(name.to_owned(), value.to_owned());
        self
    }

    /// What well-formed requests have in this header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_ascii_lowercase(), value.to_owned());
        self
    }

    /// What well-formed requests of an operation have in this query parameter.
    #[must_use]
    pub fn query(mut self, operation: &str, name: &str, value: &str) -> Self {
        self.queries
            .insert((operation.to_owned(), name.to_owned()), value.to_owned());
        self
    }

    /// What well-formed requests of an operation have in these fields of the body, where the schema alone cannot say it.
    ///
    /// # Panics
    /// When `fields` is no object.
    #[must_use]
    pub fn body(mut self, operation: &str, fields: Value) -> Self {
        match fields {
            Value::Object(fields) => self.bodies.insert(operation.to_owned(), fields),
            other => panic!("the fields of a body are an object, not {other}"),
        };
        self
    }

    /// Leaves an operation out: for one that ends the very thing under test.
    #[must_use]
    pub fn skip(mut self, operation: &str) -> Self {
        self.skipped.insert(operation.to_owned());
        self
    }

    /// Leaves every other operation out.
    #[must_use]
    pub fn only(mut self, operation: &str) -> Self {
        let listed = operations(&self.document);
        let others = listed
            .iter()
            .filter_map(|known| known.body["operationId"].as_str())
            .filter(|id| *id != operation);
        self.skipped = others.map(str::to_owned).collect();
        self
    }

    /// Sends everything, and fails with what was answered wrongly.
    ///
    /// # Panics
    /// That is how it fails.
    pub async fn run(self, target: &impl Target) -> Report {
        println!("FUZZ_SEED={}", self.seed);
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let mut report = Report {
            seed: self.seed,
            ..Report::default()
        };
        let mut failures: Vec<String> = Vec::new();
        let listed = operations(&self.document);
        for operation in &listed {
            let id = operation.body["operationId"].as_str().unwrap_or_default();
            if self.skipped.contains(id) {
                continue;
            }
            report.operations += 1;
            for case in self.cases_of(operation, &mut runner) {
                let answer = target.send(&case.request).await;
                report.requests += 1;
                if let Ok(answer) = &answer {
                    *report.statuses.entry(answer.status).or_default() += 1;
                }
                if let Err(why) = judge(&case, &answer) {
                    let shown = match &answer {
                        Ok(answer) => format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body)),
                        Err(error) => error.clone(),
                    };
                    failures.push(format!(
                        "{id}: {}: {why}\n  sent {}\n  answered {}",
                        case.what,
                        case.request,
                        shown.chars().take(600).collect::<String>()
                    ));
                }
            }
        }
        for case in no_routes(&listed) {
            let answer = target.send(&case.request).await;
            report.requests += 1;
            if let Err(why) = judge(&case, &answer) {
                failures.push(format!(
                    "{}: {why}\n  sent {}\n  answered {answer:?}",
                    case.what, case.request
                ));
            }
        }
        assert!(report.operations > 0, "the document has no operation to fuzz");
        let count = failures.len();
        // Server errors first: they are defects whatever the document says.
        failures.sort_by_key(|failure| !failure.contains(SERVER_ERROR));
        failures.truncate(SHOWN_MAX);
        assert!(
            count == 0,
            "FUZZ_SEED={}: {count} of {} requests were answered wrongly:\n\n{}",
            self.seed,
            report.requests,
            failures.join("\n\n")
        );
        report
    }

    fn cases_of(&self, operation: &Operation<'_>, runner: &mut TestRunner) -> Vec<Case> {
        let document = &self.document;
        let base = self.base(operation, runner, true);
        let mut cases = Vec::new();
        for round in 0..self.cases.max(2) {
            cases.push(Case {
                what:
                    "a request that the document admits (where it does not say enough, say it in the document, or give \
                       the value with Fuzz::body, path, query or header)"
                        .to_owned(),
                request: self.base(operation, runner, round == 0).request(operation),
                expected: Expected::understood(),
            });
        }
        path_faults(&base, operation, &mut cases);
        query_faults(document, &base, operation, &mut cases);
        header_faults(&base, operation, &mut cases);
        if let Some(schema) = body_schema(document, operation.body) {
            let required = resolve(document, &operation.body["requestBody"])["required"] == true;
            body_faults(document, schema, required, &base, operation, &mut cases);
            for _ in 0..self.cases {
                let mut random = base.clone();
                random.body = Some(match draw(runner, 0..3) {
                    0 => draw(runner, any_json()).to_string().into_bytes(),
                    1 => draw(runner, vec(any::<u8>(), 0..200)),
                    _ => {
                        // A good body with one field replaced by anything.
                        let mut body = base.json();
                        let names: Vec<String> = schema["properties"]
                            .as_object()
                            .into_iter()
                            .flatten()
                            .map(|(name, _)| name.clone())
                            .collect();
                        if let (Some(fields), false) = (body.as_object_mut(), names.is_empty()) {
                            let name = &names[draw(runner, 0..names.len())];
                            fields.insert(name.clone(), draw(runner, any_json()));
                        }
                        body.to_string().into_bytes()
                    }
                });
                cases.push(Case {
                    what: "a random body".to_owned(),
                    request: random.request(operation),
                    expected: Expected::default(),
                });
            }
        }
        cases
    }

    /// A request that the document admits.
    fn base(&self, operation: &Operation<'_>, runner: &mut TestRunner, fully: bool) -> Base {
        let document = &self.document;
        let id = operation.body["operationId"].as_str().unwrap_or_default();
        let mut base = Base::default();
        for parameter in operation.body["parameters"].as_array().into_iter().flatten() {
            let parameter = resolve(document, parameter);
            let name = parameter["name"].as_str().unwrap_or_default().to_owned();
            let place = parameter["in"].as_str().unwrap_or_default();
            let given = match place {
                "path" => self.paths.get(&name),
                "header" => self.headers.get(&name.to_ascii_lowercase()),
                "query" => self.queries.get(&(id.to_owned(), name.clone())),
                _ => None,
            };
            let drawn = valid(runner, document, &parameter["schema"], fully);
            let value = given.cloned().unwrap_or_else(|| match (place, name.as_str(), drawn) {
                // A token is a number with bounds that a schema of its header seldom states.
                ("header", header::FENCING_TOKEN, Value::Number(number)) if number.as_u64() == Some(0) => {
                    "1".to_owned()
                }
                (_, _, Value::String(text)) => text,
                (_, _, other) => other.to_string(),
            });
            match place {
                "path" => {
                    base.path.insert(name, encode(&value));
                }
                "query" if parameter["required"] == true || given.is_some() || fully => {
                    base.query.push((name, encode(&value)))
                }
                "header" if parameter["required"] == true || given.is_some() || fully => {
                    base.headers.push((name, value.into_bytes()));
                }
                _ => {}
            }
        }
        if let Some(schema) = body_schema(document, operation.body) {
            let mut body = valid(runner, document, schema, fully);
            if let (Some(body), Some(given)) = (body.as_object_mut(), self.bodies.get(id)) {
                body.extend(given.clone());
            }
            base.headers
                .push(("Content-Type".to_owned(), b"application/json".to_vec()));
            base.body = Some(body.to_string().into_bytes());
        }
        base
    }
}

/// The parts of a request, before one of them is spoilt. Values of path and query are percent-encoded already.
#[derive(Clone, Default)]
struct Base {
    path: BTreeMap<String, String>,
    query: Vec<(String, String)>,
    headers: Vec<(String, Vec<u8>)>,
    body: Option<Vec<u8>>,
}

impl Base {
    fn json(&self) -> Value {
        self.body
            .as_ref()
            .and_then(|body| serde_json::from_slice(body).ok())
            .unwrap_or_default()
    }

    fn without_header(&self, name: &str) -> Self {
        let mut base = self.clone();
        base.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        base
    }

    fn with_header(&self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        let mut base = self.without_header(name);
        base.headers.push((name.to_owned(), value.into()));
        base
    }

    fn with_body(&self, body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: Some(body.into()),
            ..self.clone()
        }
    }

    fn request(&self, operation: &Operation<'_>) -> Sent {
        let path: Vec<&str> = operation
            .template
            .split('/')
            .map(
                |part| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                    Some(name) => self.path.get(name).map_or("undeclared", String::as_str),
                    None => part,
                },
            )
            .collect();
        let query: Vec<String> = self
            .query
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let mark = if query.is_empty() { "" } else { "?" };
        Sent {
            method: operation.method.clone(),
            target: format!("{}{mark}{}", path.join("/"), query.join("&")),
            headers: self.headers.clone(),
            body: self.body.clone(),
            chunked: false,
        }
    }
}

impl Expected {
    /// Anything but "you cannot speak": 4xx of another kind are the answers of a healthy system.
    fn understood() -> Self {
        Self {
            statuses: &[200, 201, 202, 204, 304, 403, 404, 409, 412, 422, 428, 429],
            ..Self::default()
        }
    }

    fn field(field: impl Into<String>) -> Self {
        Self {
            statuses: &[400],
            code: Some(Code::InvalidRequest),
            field: Some(field.into()),
        }
    }

    fn code(code: Code) -> Self {
        Self {
            statuses: &[],
            code: Some(code),
            field: None,
        }
    }
}

/// Percent-encodes everything but letters and digits.
fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn case(cases: &mut Vec<Case>, what: impl Into<String>, request: Sent, expected: Expected) {
    cases.push(Case {
        what: what.into(),
        request,
        expected,
    });
}

fn path_faults(base: &Base, operation: &Operation<'_>, cases: &mut Vec<Case>) {
    for name in base.path.keys() {
        let mut spoilt = |what: &str, value: &str, expected: Expected| {
            let mut base = base.clone();
            base.path.insert(name.clone(), value.to_owned());
            case(
                cases,
                format!("{what} in {{{name}}}"),
                base.request(operation),
                expected,
            );
        };
        for bad in ["%zz", "%", "a%2", "%FF", "%C3%28", "%ED%A0%80"] {
            spoilt(&format!("{bad}: a bad percent-encoding"), bad, Expected::field(name));
        }
        for bad in ["%00", "a%0Ab", "a%7Fb"] {
            spoilt(&format!("{bad}: a control character"), bad, Expected::field(name));
        }
        spoilt("2,000 characters", &"x".repeat(2_000), Expected::field(name));
        for odd in ["..", "%2E%2E%2F", "a%2Fb", "%25", "%F0%9F%94%92", "%20", "%3F%23"] {
            spoilt(&format!("{odd}: odd but well encoded"), odd, Expected::default());
        }
    }
}

fn query_faults(document: &Value, base: &Base, operation: &Operation<'_>, cases: &mut Vec<Case>) {
    let parameters = operation.body["parameters"].as_array().into_iter().flatten();
    let parameters: Vec<&Value> = parameters
        .map(|parameter| resolve(document, parameter))
        .filter(|parameter| parameter["in"] == "query")
        .collect();
    if parameters.is_empty() {
        return;
    }
    let with = |name: &str, value: Option<&str>| {
        let mut base = base.clone();
        base.query.retain(|(known, _)| known != name);
        base.query
            .extend(value.map(|value| (name.to_owned(), value.to_owned())));
        base.request(operation)
    };
    case(
        cases,
        "an unknown query parameter",
        with("zz_unknown", Some("1")),
        Expected::field("zz_unknown"),
    );
    for parameter in parameters {
        let name = parameter["name"].as_str().unwrap_or_default();
        if parameter["required"] == true {
            case(cases, format!("no {name}"), with(name, None), Expected::field(name));
        }
        for bad in ["%zz", "%FF", "%"] {
            case(
                cases,
                format!("{bad} in {name}"),
                with(name, Some(bad)),
                Expected::field(name),
            );
        }
        if let Some((_, value)) = base.query.iter().find(|(known, _)| known == name) {
            let mut twice = base.clone();
            twice.query.push((name.to_owned(), value.clone()));
            case(
                cases,
                format!("{name} twice"),
                twice.request(operation),
                Expected::field(name),
            );
        }
        let schema = not_null(document, &parameter["schema"]);
        let mut wrong: Vec<String> = Vec::new();
        match kind(document, schema) {
            Some("integer") => {
                wrong.extend(["x", "1.5", "1e3", "", "99999999999999999999999", "0x1"].map(str::to_owned));
                wrong.extend(schema["minimum"].as_i64().map(|low| (i128::from(low) - 1).to_string()));
                wrong.extend(
                    schema["maximum"]
                        .as_u64()
                        .map(|high| (u128::from(high) + 1).to_string()),
                );
            }
            Some("boolean") => wrong.extend(["x", "", "2"].map(str::to_owned)),
            Some("string") if schema.get("enum").is_some() => wrong.push("NO_SUCH_WORD".to_owned()),
            Some("string") => wrong.extend(
                schema["maxLength"]
                    .as_u64()
                    .map(|high| "x".repeat(usize::try_from(high).unwrap_or(0).min(6_000) + 1)),
            ),
            _ => {}
        }
        for bad in wrong {
            let what = format!("{name}={}", bad.chars().take(30).collect::<String>());
            case(cases, what, with(name, Some(&bad)), Expected::field(name));
        }
    }
}

fn header_faults(base: &Base, operation: &Operation<'_>, cases: &mut Vec<Case>) {
    for parameter in operation.body["parameters"].as_array().into_iter().flatten() {
        if parameter["in"] != "header" {
            continue;
        }
        let name = parameter["name"].as_str().unwrap_or_default();
        let required = parameter["required"] == true;
        let is_token = name.eq_ignore_ascii_case(header::FENCING_TOKEN);
        if required {
            let expected = if is_token {
                Expected::code(Code::FencingTokenRequired)
            } else {
                Expected::field(name)
            };
            case(
                cases,
                format!("no {name}"),
                base.without_header(name).request(operation),
                expected,
            );
        }
        let malformed = || {
            if is_token {
                Expected::code(Code::FencingTokenInvalid)
            } else {
                Expected::field(name)
            }
        };
        let mut twice = base.with_header(name, "7");
        twice.headers.push((name.to_owned(), b"7".to_vec()));
        case(cases, format!("{name} twice"), twice.request(operation), malformed());
        let bad: &[&[u8]] = if is_token {
            &[
                b"",
                b"0",
                b"01",
                b"+1",
                b"-1",
                b"1.0",
                b"1e3",
                b"0x1",
                b"abc",
                b"1 1",
                b"1,2",
                b"9007199254740992",
                b"18446744073709551616",
                b"\xd9\xa3",
                b"\xff",
            ]
        } else {
            &[b"", b"\xff\xfe"]
        };
        for bad in bad {
            let what = format!("{name}: {:?}", String::from_utf8_lossy(bad));
            case(
                cases,
                what,
                base.with_header(name, *bad).request(operation),
                malformed(),
            );
        }
        let long = base.with_header(name, "7".repeat(1_000)).request(operation);
        case(cases, format!("{name} of 1,000 characters"), long, malformed());
    }
}

fn body_faults(
    document: &Value,
    schema: &Value,
    required: bool,
    base: &Base,
    operation: &Operation<'_>,
    cases: &mut Vec<Case>,
) {
    let good = base.body.clone().unwrap_or_default();
    let mut body = |what: &str, bytes: Vec<u8>, expected: Expected| {
        case(cases, what, base.with_body(bytes).request(operation), expected);
    };
    if required {
        body("an empty body", Vec::new(), Expected::field("body"));
    }
    body(
        "a body cut short",
        good[..good.len() - 1].to_vec(),
        Expected::field("body"),
    );
    body(
        "something after the body",
        [&good[..], b" x"].concat(),
        Expected::field("body"),
    );
    body("two bodies", [&good[..], &good[..]].concat(), Expected::field("body"));
    body(
        "a body that is not UTF-8",
        [&b"{\"\xff\":"[..], &good[..], b"}"].concat(),
        Expected::field("body"),
    );
    body(
        "[10,000 deep]",
        ["[".repeat(10_000), "]".repeat(10_000)].concat().into_bytes(),
        Expected::field("body"),
    );
    for bare in [
        "null",
        "7",
        "\"x\"",
        "[]",
        "[[]]",
        "[null]",
        "true",
        "NaN",
        "{",
        "\u{feff}{}",
    ] {
        body(bare, bare.as_bytes().to_vec(), Expected::field("body"));
    }
    let padded = [&good[..], &b" ".repeat(65_537)[..]].concat();
    body(
        "a body of more than 64 KiB",
        padded.clone(),
        Expected::code(Code::PayloadTooLarge),
    );
    let mut chunked = base.with_body(padded).request(operation);
    chunked.chunked = true;
    case(
        cases,
        "a body of more than 64 KiB in chunks",
        chunked,
        Expected::code(Code::PayloadTooLarge),
    );
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin1",
        "json",
        "",
    ] {
        let request = base.with_header("Content-Type", kind).request(operation);
        case(
            cases,
            format!("Content-Type {kind:?}"),
            request,
            Expected::code(Code::UnsupportedMediaType),
        );
    }
    let request = base.without_header("Content-Type").request(operation);
    case(
        cases,
        "no Content-Type",
        request,
        Expected::code(Code::UnsupportedMediaType),
    );
    let request = base.with_header("Content-Encoding", "gzip").request(operation);
    case(
        cases,
        "a compressed body",
        request,
        Expected::code(Code::UnsupportedMediaType),
    );
    field_faults(document, schema, &[], &base.json(), base, operation, cases);
}

/// Faults of the fields of the object that stands at `place` in `whole`.
fn field_faults(
    document: &Value,
    schema: &Value,
    place: &[String],
    whole: &Value,
    base: &Base,
    operation: &Operation<'_>,
    cases: &mut Vec<Case>,
) {
    let schema = not_null(document, schema);
    let named = |name: &str| {
        let mut path = place.to_vec();
        path.push(name.to_owned());
        path.join(".")
    };
    let mut edited = |what: String, field: &str, edit: &dyn Fn(&mut Map<String, Value>)| {
        let mut whole = whole.clone();
        let mut node = Some(&mut whole);
        for part in place {
            node = node.and_then(|node| node.get_mut(part));
        }
        if let Some(Value::Object(object)) = node {
            edit(object);
            let request = base.with_body(whole.to_string()).request(operation);
            case(cases, what, request, Expected::field(named(field)));
        }
    };
    if is_closed(document, schema) {
        edited(
            format!("an unknown field {}", named("zz_unknown")),
            "zz_unknown",
            &|object| {
                object.insert("zz_unknown".to_owned(), 1.into());
            },
        );
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if is_required(schema, name) {
            edited(format!("no {}", named(name)), name, &|object| {
                object.remove(name);
            });
        }
        if !is_nullable(document, property) {
            edited(format!("{}: null", named(name)), name, &|object| {
                object.insert(name.clone(), Value::Null);
            });
        }
        let mut wrong = wrong(document, property);
        if let (true, Some(inner)) = (is_closed(document, property), whole_at(whole, place)[name].as_object()) {
            // The very values, but by position.
            let by_position: Value = inner.values().cloned().collect();
            wrong.push((by_position.to_string(), by_position));
        }
        for (label, value) in wrong {
            edited(format!("{}: {label}", named(name)), name, &|object| {
                object.insert(name.clone(), value.clone());
            });
        }
    }
    if place.is_empty() {
        // A key given twice cannot be said with a JSON value.
        if let Some((name, value)) = whole.as_object().and_then(|object| object.iter().next()) {
            let text = whole.to_string();
            let key = Value::from(name.clone());
            let twice = format!("{{{key}:{value},{}", &text[1..]);
            let request = base.with_body(twice).request(operation);
            case(cases, format!("{name} twice"), request, Expected::field(name.clone()));
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if is_closed(document, property) {
            let place = [place, std::slice::from_ref(name)].concat();
            field_faults(document, property, &place, whole, base, operation, cases);
        }
    }
}

fn whole_at<'v>(whole: &'v Value, place: &[String]) -> &'v Value {
    place.iter().fold(whole, |node, part| &node[part.as_str()])
}

/// Routes and methods that the document does not have.
fn no_routes(listed: &[Operation<'_>]) -> Vec<Case> {
    let mut cases = Vec::new();
    let templates: BTreeSet<&str> = listed.iter().map(|operation| operation.template).collect();
    for template in templates {
        let target: Vec<&str> = template
            .split('/')
            .map(|part| if part.starts_with('{') { "x1" } else { part })
            .collect();
        let target = target.join("/");
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH", "BREW"] {
            if listed
                .iter()
                .any(|known| known.template == template && known.method == method)
            {
                continue;
            }
            let request = Sent {
                method: method.to_owned(),
                target: target.clone(),
                ..Sent::default()
            };
            case(
                &mut cases,
                format!("{method} on {template}"),
                request,
                Expected::code(Code::MethodNotAllowed),
            );
        }
        for target in [
            format!("{target}/"),
            format!("{target}/zz_unknown/zz"),
            format!("/{target}"),
        ] {
            let request = Sent {
                method: "GET".to_owned(),
                target,
                ..Sent::default()
            };
            case(&mut cases, "an unknown path", request, Expected::code(Code::NotFound));
        }
    }
    cases
}

fn judge(case: &Case, answer: &Result<Answer, String>) -> Result<(), String> {
    let answer = answer.as_ref().map_err(|error| format!("no answer: {error}"))?;
    let expected = &case.expected;
    if answer.status >= 500 {
        return Err(SERVER_ERROR.to_owned());
    }
    if answer.header("x-request-id").is_none() {
        return Err("the answer has no X-Request-Id".to_owned());
    }
    if answer.status >= 400 {
        let problem = problem(answer)?;
        if let (Some(code), Some(found)) = (expected.code, problem["code"].as_str())
            && code.as_str() != found
        {
            return Err(format!("expected {code}, got {found}"));
        }
        if let Some(field) = &expected.field {
            let named = problem["field"].as_str().unwrap_or_default();
            if named != field {
                return Err(format!("expected the field {field:?} to be named, not {named:?}"));
            }
            if problem["reason"].as_str().is_none_or(str::is_empty) {
                return Err("no reason is given".to_owned());
            }
        }
    } else if expected.code.is_some() {
        return Err(format!("expected {}", expected.code.map_or("", Code::as_str)));
    }
    if !expected.statuses.is_empty() && !expected.statuses.contains(&answer.status) {
        return Err(format!("expected one of {:?}", expected.statuses));
    }
    Ok(())
}

/// The problem of a refusal, whole or not at all.
fn problem(answer: &Answer) -> Result<Value, String> {
    if answer.header("content-type") != Some("application/problem+json") {
        return Err(format!("a refusal of type {:?}", answer.header("content-type")));
    }
    let problem: Value = serde_json::from_slice(&answer.body).map_err(|error| format!("no JSON: {error}"))?;
    let text = |name: &str| problem[name].as_str().filter(|text| !text.is_empty());
    let code = text("code").and_then(|code| Code::ALL.iter().find(|known| known.as_str() == code));
    let code = code.ok_or("the problem has no code of the list")?;
    if problem["status"] != answer.status || code.status() != answer.status {
        return Err(format!("{code} is not answered with {}", answer.status));
    }
    if text("type") != Some(&format!("/docs/errors/{code}")) {
        return Err("the type does not point to the code's page".to_owned());
    }
    if text("title").is_none() || text("detail").is_none() || !problem["retryable"].is_boolean() {
        return Err("title, detail or retryable is missing".to_owned());
    }
    let trace = text("trace_id").unwrap_or_default();
    if trace.len() != 32 || !trace.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("trace_id {trace:?}"));
    }
    Ok(problem)
}
