//! Which operations have a contract test.

use crate::openapi::operations;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use utoipa::openapi::OpenApi;

/// Fails unless every operation of the document is named by a test in the package's `tests/contract*.rs` (or in
/// `tests/contract/`): by a line `// operation: NAME` (several names separated by commas) right above the test's
/// attributes. Fails too for a name that the document does not know, so that no marker outlives its operation.
///
/// # Panics
/// That is how it fails.
pub fn assert_every_operation_is_tested(document: &OpenApi, manifest_dir: &str) {
    let mut source = String::new();
    let tests = Path::new(manifest_dir).join("tests");
    for folder in [tests.clone(), tests.join("contract")] {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let inside = path.parent().is_some_and(|parent| parent.ends_with("contract"));
            if name.ends_with(".rs") && (inside || name.starts_with("contract")) {
                source.push_str(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}")));
                source.push('\n');
            }
        }
    }
    let json = serde_json::to_value(document).expect("an OpenAPI document is plain data");
    let complaints = complaints(&json, &source);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn complaints(document: &serde_json::Value, source: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for operation in operations(document) {
        let route = format!("{} {}", operation.method, operation.template);
        match operation.body["operationId"].as_str() {
            None => complaints.push(format!("{route} has no operationId")),
            Some(id) => {
                if let Some(other) = known.insert(id.to_owned(), route.clone()) {
                    complaints.push(format!("{route} and {other} have the same operationId {id}"));
                }
            }
        }
    }
    if known.is_empty() {
        complaints.push("the document has no operation".to_owned());
    }
    let tested = tested(source);
    for (id, route) in &known {
        if !tested.contains(id.as_str()) {
            complaints.push(format!(
                "{id} ({route}) has no contract test: put `// operation: {id}` right above one"
            ));
        }
    }
    for id in tested.iter().filter(|id| !known.contains_key(**id)) {
        complaints.push(format!(
            "a test names the operation {id}, which the document does not have"
        ));
    }
    complaints
}

/// The operations that stand right above a test: a marker above anything else counts for nothing.
fn tested(source: &str) -> BTreeSet<&str> {
    let (mut tested, mut waiting) = (BTreeSet::new(), Vec::new());
    for line in source.lines().map(str::trim) {
        if let Some(names) = line.strip_prefix("// operation:") {
            waiting.extend(names.split(',').map(str::trim).filter(|name| !name.is_empty()));
        } else if line
            .strip_prefix("#[")
            .and_then(|rest| rest.split(['(', ']']).next())
            .is_some_and(is_test)
        {
            tested.append(&mut waiting.drain(..).collect());
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            waiting.clear();
        }
    }
    tested
}

/// `test`, `actix_web::test`, `tokio::test`.
fn is_test(attribute: &str) -> bool {
    attribute.trim().rsplit("::").next() == Some("test")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_operation_without_a_test_is_named() {
        let document = json!({"paths": {
            "/a": {"get": {"operationId": "get_a"}, "post": {"operationId": "post_a"}},
            "/b": {"get": {}},
            "/c": {"get": {"operationId": "get_a"}},
        }});
        let source = "
            // operation: get_a, gone
            // Says why.
            #[actix_web::test]
            async fn one() {}

            // operation: post_a
            fn no_test() {}
            #[test]
            fn two() {}
        ";
        let found = complaints(&document, source).join("\n");
        assert!(found.contains("post_a (POST /a) has no contract test"), "{found}");
        assert!(found.contains("the operation gone, which"), "{found}");
        assert!(found.contains("GET /b has no operationId"), "{found}");
        assert!(found.contains("same operationId get_a"), "{found}");
        assert_eq!(found.lines().count(), 4, "{found}");
        assert_eq!(complaints(&json!({"paths": {}}), "").len(), 1);
    }

    #[test]
    fn attributes_between_marker_and_test_do_not_matter() {
        let source = "// operation: a\n#[cfg(unix)]\n#[tokio::test(flavor = \"current_thread\")]\nasync fn x() {}\n// operation: b\n#[test]\nfn y() {}";
        assert!(tested(source).contains("b"));
        assert!(tested(source).contains("a"), "a test attribute with arguments is one");
    }
}
