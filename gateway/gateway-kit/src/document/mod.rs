//! What a gateway answers at `/openapi.json`: the component's own document, completed.
//!
//! Owns: the routes that every component has, the refusals that the frame answers on every route, an example for every answer.
//! Does not own: the component's routes, and what they answer.
//! On failure: a document that cannot be completed is served as it is; `scripts/check-openapi` fails for what is missing.

mod problems;

use crate::openapi::{METHODS, resolve};
use http_contract::Code;
use http_contract::problem::PROBLEM_JSON;
use serde_json::{Map, Value, json};

/// The routes of every component, in the same form as those of its own; those of a lab are not in another build.
const BUILTIN: &[&str] = &[
    include_str!("builtin.json"),
    #[cfg(feature = "lab")]
    include_str!("builtin_lab.json"),
];

fn builtin() -> impl Iterator<Item = Value> {
    BUILTIN
        .iter()
        .map(|text| serde_json::from_str(text).expect("a file of this crate, read by a test"))
}

/// Adds what every component has and answers. `examples` has for each operation, by its id, answers that a real component
/// has given: `{"acquire": {"request": {…}, "200": {…}, "409": {"HELD_BY_OTHER": {…}}}}`, with the
/// media type behind the status where there are several. `served` says which routes of every component are served.
pub(crate) fn complete(document: &mut Value, examples: &Value, served: impl Fn(&str, &str) -> bool) {
    let whole = document.clone();
    for (template, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for method in METHODS {
            if let Some(operation) = item.get_mut(*method).and_then(Value::as_object_mut) {
                let api = template.starts_with("/v1/");
                describe(&whole, operation, examples, api);
            }
        }
    }
    for builtin in builtin() {
        for (template, item) in builtin["paths"].as_object().into_iter().flatten() {
            for (method, operation) in item.as_object().into_iter().flatten() {
                if served(&method.to_ascii_uppercase(), template) && document["paths"][template][method].is_null() {
                    let mut operation = operation.as_object().cloned().unwrap_or_default();
                    describe(&whole, &mut operation, &Value::Null, false);
                    document["paths"][template][method] = operation.into();
                }
            }
        }
    }
    if document["components"]["schemas"]["Problem"].is_null() {
        document["components"]["schemas"]["Problem"] = problems::schema();
    }
}

/// Completes one operation.
fn describe(document: &Value, operation: &mut Map<String, Value>, examples: &Value, api: bool) {
    let recorded = operation.get("operationId").and_then(Value::as_str);
    let recorded = recorded.map_or(&Value::Null, |id| &examples[id]);
    let body = operation.get_mut("requestBody");
    let body = body.and_then(|body| body.pointer_mut("/content/application~1json"));
    let takes_json = body.is_some();
    if let Some(body) = body.filter(|_| !recorded["request"].is_null()) {
        body["example"] = recorded["request"].clone();
    }
    let Some(answers) = operation.entry("responses").or_insert(json!({})).as_object_mut() else {
        return;
    };
    if api {
        let body = takes_json.then_some([Code::ForeignOrigin, Code::PayloadTooLarge, Code::UnsupportedMediaType]);
        let always = [
            Code::MisdirectedRequest,
            Code::Overloaded,
            Code::BackendUnavailable,
            Code::Internal,
        ];
        for code in always.into_iter().chain(body.into_iter().flatten()) {
            may_answer(answers, code);
        }
    }
    for (status, answer) in answers.iter_mut() {
        let refused = status.parse::<u16>().is_ok_and(|status| status >= 400);
        if refused && is_problem(document, answer) {
            let text = answer["description"].as_str().unwrap_or_default();
            let named: Map<String, Value> = codes_in(text)
                .map(|code| {
                    let real = &recorded[status.as_str()][code.as_str()];
                    let value = if real.is_null() {
                        problems::example(code)
                    } else {
                        real.clone()
                    };
                    (
                        code.as_str().to_owned(),
                        json!({"summary": code.title(), "value": value}),
                    )
                })
                .collect();
            let schema = json!({"$ref": "#/components/schemas/Problem"});
            answer["content"] = json!({PROBLEM_JSON: {"schema": schema, "examples": named}});
        } else if let Some(content) = answer.get_mut("content").and_then(Value::as_object_mut) {
            // An answer that comes as one of several media types has an example for each.
            let only = content.len() == 1;
            for (media, part) in content {
                let of_media = &recorded[format!("{status} {media}")];
                let real = if only { &recorded[status.as_str()] } else { of_media };
                if !real.is_null() {
                    part["example"] = real.clone();
                }
            }
        }
    }
}

/// Whether this refusal is a problem: its body says so, or it names a code.
fn is_problem(document: &Value, answer: &Value) -> bool {
    let content = answer["content"].as_object().into_iter().flatten().next();
    match content {
        Some((_, content)) => {
            let schema = resolve(document, &content["schema"]);
            content["schema"]["$ref"] == "#/components/schemas/Problem" || schema["properties"]["trace_id"].is_object()
        }
        None => codes_in(answer["description"].as_str().unwrap_or_default())
            .next()
            .is_some(),
    }
}

/// Names a code among the answers of its status.
fn may_answer(answers: &mut Map<String, Value>, code: Code) {
    let answer = answers.entry(code.status().to_string()).or_insert(json!({}));
    let text = answer["description"].as_str().unwrap_or_default();
    if codes_in(text).all(|known| known != code) {
        let all = if text.is_empty() {
            code.to_string()
        } else {
            format!("{text}; {code}")
        };
        answer["description"] = all.into();
    }
}

/// The codes that a description names, in its order.
fn codes_in(text: &str) -> impl Iterator<Item = Code> {
    text.split(|c: char| !c.is_ascii_uppercase() && c != '_')
        .filter_map(|word| Code::ALL.iter().copied().find(|code| code.as_str() == word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::{GET_ROUTES, POST_ROUTES};

    #[test]
    fn the_routes_of_every_component_are_those_that_are_served() {
        let mut documented: Vec<String> = builtin()
            .flat_map(|part| {
                let named = crate::openapi::operations(&part);
                let named = named
                    .iter()
                    .map(|operation| format!("{} {}", operation.method, operation.template));
                named.collect::<Vec<_>>()
            })
            .collect();
        let mut served: Vec<String> = GET_ROUTES.iter().map(|route| format!("GET {route}")).collect();
        served.extend(POST_ROUTES.iter().map(|route| format!("POST {route}")));
        documented.sort();
        served.sort();
        assert_eq!(documented, served);
    }

    #[test]
    fn an_operation_gets_an_example_for_each_code_it_names_and_for_what_was_recorded() {
        let problem = json!({"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
        let mut document = json!({"paths": {"/v1/a": {"post": {
            "operationId": "a",
            "requestBody": {"content": {"application/json": {"schema": {}}}},
            "responses": {
                "200": {"description": "Done", "content": {"application/json": {"schema": {}}}},
                "409": {"description": "HELD_BY_OTHER with holder, or NOT_HOLDER", "content": problem},
            },
        }}}});
        let held = json!({"code": "HELD_BY_OTHER", "holder": {"owner": "w"}});
        let recorded = json!({"a": {"request": {"n": 1}, "200": {"done": true}, "409": {"HELD_BY_OTHER": held}}});
        complete(&mut document, &recorded, |_, _| false);
        let operation = &document["paths"]["/v1/a"]["post"];
        assert_eq!(
            operation["requestBody"]["content"]["application/json"]["example"],
            json!({"n": 1})
        );
        let answers = &operation["responses"];
        assert_eq!(
            answers["200"]["content"]["application/json"]["example"],
            json!({"done": true})
        );
        let conflict = answers["409"]["content"].as_object().unwrap();
        assert_eq!(conflict.keys().collect::<Vec<_>>(), [PROBLEM_JSON]);
        let examples = &conflict[PROBLEM_JSON]["examples"];
        assert_eq!(examples["HELD_BY_OTHER"]["value"], held);
        assert_eq!(examples["NOT_HOLDER"]["value"]["code"], "NOT_HOLDER");
        for (status, code) in [
            ("413", "PAYLOAD_TOO_LARGE"),
            ("415", "UNSUPPORTED_MEDIA_TYPE"),
            ("500", "INTERNAL"),
        ] {
            assert!(
                answers[status]["content"][PROBLEM_JSON]["examples"][code].is_object(),
                "{status}"
            );
        }
        assert_eq!(answers["503"]["description"], "OVERLOADED; BACKEND_UNAVAILABLE");
    }
}
