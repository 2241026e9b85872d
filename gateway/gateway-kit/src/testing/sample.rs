//! Values that a schema admits, and values that it does not.

use crate::openapi::{not_null, resolve};
use proptest::arbitrary::any;
use proptest::collection::vec;
use proptest::prelude::{Strategy, prop};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

/// Draws one value.
pub(super) fn draw<S: Strategy>(runner: &mut TestRunner, strategy: S) -> S::Value {
    strategy
        .new_tree(runner)
        .expect("the strategy filters nothing")
        .current()
}

/// Whether a field of this schema may be null.
pub(super) fn is_nullable(document: &Value, schema: &Value) -> bool {
    let schema = resolve(document, schema);
    let types = schema["type"]
        .as_array()
        .is_some_and(|types| types.iter().any(|kind| kind == "null"));
    let choices = ["oneOf", "anyOf"].iter().any(|any| {
        schema[*any]
            .as_array()
            .is_some_and(|choices| choices.iter().any(|choice| choice["type"] == "null"))
    });
    types || choices || kind(document, schema).is_none()
}

/// The one type of a schema besides null, if it has one.
pub(super) fn kind<'d>(document: &'d Value, schema: &'d Value) -> Option<&'d str> {
    let schema = not_null(document, schema);
    match &schema["type"] {
        Value::String(kind) => Some(kind),
        Value::Array(kinds) => {
            let mut kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            kinds.next().filter(|_| kinds.next().is_none())
        }
        _ if schema.get("properties").is_some() => Some("object"),
        _ => None,
    }
}

/// Whether it is an object whose fields are all named.
pub(super) fn is_closed(document: &Value, schema: &Value) -> bool {
    let schema = not_null(document, schema);
    schema["properties"].is_object() && schema["additionalProperties"] != true
}

/// A value that the schema admits. `fully`: with every optional field.
pub(super) fn valid(runner: &mut TestRunner, document: &Value, schema: &Value, fully: bool) -> Value {
    let schema = not_null(document, schema);
    if let Some(example) = schema.get("example").or_else(|| schema["examples"].get(0)) {
        return example.clone();
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<Value> = values.iter().filter(|value| !value.is_null()).cloned().collect();
        return draw(runner, prop::sample::select(values));
    }
    for any in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[any].as_array() {
            let choices: Vec<Value> = choices
                .iter()
                .filter(|choice| choice["type"] != "null")
                .cloned()
                .collect();
            let choice = draw(runner, prop::sample::select(choices));
            return valid(runner, document, &choice, fully);
        }
    }
    if let Some(parts) = schema["allOf"].as_array() {
        let mut whole = Map::new();
        for part in parts {
            if let Value::Object(fields) = valid(runner, document, part, fully) {
                whole.extend(fields);
            }
        }
        return Value::Object(whole);
    }
    let number = |name: &str, default: i64| schema[name].as_i64().unwrap_or(default);
    match kind(document, schema) {
        Some("string") => text(runner, schema).into(),
        Some("integer") => {
            let low = number("minimum", 0);
            let high = number("maximum", low.saturating_add(1_000)).max(low);
            draw(runner, low..=high).into()
        }
        Some("number") => json!(draw(runner, 0.0..1.0)),
        Some("boolean") => draw(runner, any::<bool>()).into(),
        Some("array") => {
            let low = usize::try_from(number("minItems", 0)).unwrap_or(0);
            let high = usize::try_from(number("maxItems", 3))
                .unwrap_or(3)
                .clamp(low, low.max(3));
            let count = draw(runner, low..=high);
            (0..count)
                .map(|_| valid(runner, document, &schema["items"], fully))
                .collect()
        }
        Some("object") if schema["properties"].is_object() => {
            let mut object = Map::new();
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if is_required(schema, name) || fully || draw(runner, any::<bool>()) {
                    object.insert(name.clone(), valid(runner, document, property, fully));
                }
            }
            Value::Object(object)
        }
        // Free-form: any small object does.
        _ => json!({"note": draw(runner, "[a-z]{0,8}")}),
    }
}

pub(super) fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"]
        .as_array()
        .is_some_and(|required| required.iter().any(|known| known == name))
}

fn text(runner: &mut TestRunner, schema: &Value) -> String {
    if let Some(pattern) = schema["pattern"].as_str() {
        let pattern = pattern.trim_start_matches('^').trim_end_matches('$');
        let strategy = prop::string::string_regex(pattern).unwrap_or_else(|error| panic!("pattern {pattern}: {error}"));
        return draw(runner, strategy);
    }
    if schema["format"] == "date-time" {
        return "2026-01-02T03:04:05Z".to_owned();
    }
    let low = schema["minLength"]
        .as_u64()
        .map_or(1, |low| usize::try_from(low).unwrap_or(1));
    let high = schema["maxLength"]
        .as_u64()
        .map_or(low + 20, |high| usize::try_from(high).unwrap_or(low + 20));
    draw(
        runner,
        vec(prop::char::range('a', 'z'), low..=high.clamp(low, low + 40)),
    )
    .into_iter()
    .collect()
}

/// Values of another type, or that no schema of this one admits: each is to be refused with the field's name.
pub(super) fn wrong(document: &Value, schema: &Value) -> Vec<(String, Value)> {
    let schema = not_null(document, schema);
    let mut wrong: Vec<Value> = Vec::new();
    let mut labelled: Vec<(String, Value)> = Vec::new();
    match kind(document, schema) {
        Some("string") => {
            wrong.extend([json!(7), json!(true), json!([]), json!({"a": 1}), json!(["a"])]);
            if let Some(high) = schema["maxLength"].as_u64() {
                let long = "x".repeat(usize::try_from(high).unwrap_or(0).saturating_add(1).min(60_000));
                labelled.push((format!("{} characters", long.len()), long.into()));
            }
            if schema["minLength"].as_u64().is_some_and(|low| low > 0) {
                labelled.push(("an empty text".to_owned(), "".into()));
            }
            if schema.get("enum").is_some() {
                wrong.push("NO_SUCH_WORD".into());
            } else {
                labelled.push(("a control character".to_owned(), "abcdefgh\u{0}".into()));
            }
        }
        Some("integer") => {
            wrong.extend([json!("15"), json!("15s"), json!(1.5), json!(true), json!([]), json!({})]);
            // Beyond 64 bits; only text can say it.
            wrong.push(serde_json::from_str("1e30").unwrap_or_default());
            wrong.push(serde_json::from_str("18446744073709551616").unwrap_or_default());
            match schema["minimum"].as_i64() {
                Some(low) if low > i64::MIN => wrong.push((low - 1).into()),
                _ => {}
            }
            let unsigned = schema["format"]
                .as_str()
                .is_some_and(|format| format.starts_with("uint"));
            if unsigned || schema["minimum"].as_i64().is_some_and(|low| low >= 0) {
                wrong.push((-1).into());
            }
            match schema["maximum"].as_u64() {
                Some(high) if high < u64::MAX => wrong.push((high + 1).into()),
                _ => {}
            }
        }
        Some("boolean") => wrong.extend([json!("true"), json!(1), json!([])]),
        Some("array") => wrong.extend([json!("a"), json!(1), json!({})]),
        Some("object") => wrong.extend([json!("a"), json!(1), json!([]), json!(true)]),
        _ => {}
    }
    labelled.extend(wrong.into_iter().map(|value| (value.to_string(), value)));
    labelled
}

/// Any JSON at all, a few levels deep.
pub(super) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = proptest::prop_oneof![
        proptest::strategy::Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "\\PC{0,20}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        proptest::prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{0,10}", inner, 0..6).prop_map(|map| map.into_iter().collect()),
        ]
    })
}
