//! What a gateway reads out of its own OpenAPI document: which routes exist, and the bounds of a field.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) const METHODS: &[&str] = &["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// One operation of a document.
#[derive(Clone, Debug)]
pub(crate) struct Operation<'d> {
    /// In capitals.
    pub(crate) method: String,
    /// The path with `{placeholders}`.
    pub(crate) template: &'d str,
    /// Its object in the document.
    pub(crate) body: &'d Value,
}

/// Every operation of a document, in its order.
pub(crate) fn operations(document: &Value) -> Vec<Operation<'_>> {
    let paths = document["paths"].as_object().into_iter().flatten();
    paths
        .flat_map(|(template, item)| {
            METHODS.iter().filter_map(move |method| {
                let body = item.get(method)?;
                Some(Operation {
                    method: method.to_ascii_uppercase(),
                    template,
                    body,
                })
            })
        })
        .collect()
}

/// Follows `$ref`s inside the document.
pub(crate) fn resolve<'d>(document: &'d Value, mut node: &'d Value) -> &'d Value {
    // A document whose references form a circle is broken; eight hops are more than any real one has.
    for _ in 0..8 {
        let Some(pointer) = node["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) else {
            break;
        };
        match document.pointer(pointer) {
            Some(target) => node = target,
            None => break,
        }
    }
    node
}

/// The schema of an operation's JSON body.
pub(crate) fn body_schema<'d>(document: &'d Value, operation: &'d Value) -> Option<&'d Value> {
    let body = resolve(document, operation.get("requestBody")?);
    body["content"]["application/json"]
        .get("schema")
        .map(|schema| resolve(document, schema))
}

/// What a schema is besides null: utoipa writes an optional field as `oneOf [null, X]` or `type: ["X", "null"]`.
pub(crate) fn not_null<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    let schema = resolve(document, schema);
    for any in ["oneOf", "anyOf"] {
        let others = schema[any].as_array().into_iter().flatten();
        let mut others = others.filter(|schema| schema["type"] != "null");
        if let (Some(only), None) = (others.next(), others.next()) {
            return resolve(document, only);
        }
    }
    schema
}

/// The bounds of a field of a route's body in words, where the document has any: `between 1000 and 300000`.
pub(crate) fn bounds_of(document: &Value, template: &str, method: &str, field: &str) -> Option<String> {
    let listed = operations(document);
    let operation = listed
        .iter()
        .find(|known| known.template == template && known.method == method)?;
    let mut schema = body_schema(document, operation.body)?;
    for part in field.split('.') {
        let part = part.split('[').next().unwrap_or(part);
        schema = not_null(document, schema["properties"].get(part)?);
    }
    let mut words = String::new();
    let bound = |name: &str| schema.get(name).filter(|value| value.is_number());
    let (low, high) = (bound("minimum"), bound("maximum"));
    // Writing into a String cannot fail.
    let _ = match (low, high) {
        (Some(low), Some(high)) => write!(words, "must be between {low} and {high}"),
        (Some(low), None) => write!(words, "must be at least {low}"),
        (None, Some(high)) => write!(words, "must be at most {high}"),
        (None, None) => match (bound("minLength"), bound("maxLength")) {
            (Some(low), Some(high)) => write!(words, "must be {low} to {high} characters"),
            (None, Some(high)) => write!(words, "must be at most {high} characters"),
            (Some(low), None) => write!(words, "must be at least {low} characters"),
            (None, None) => return None,
        },
    };
    Some(words)
}

/// The routes of a gateway, to be found by a raw path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes(Vec<Arc<Route>>);

#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// The path with `{placeholders}`.
    pub(crate) template: String,
    /// In capitals.
    pub(crate) methods: Vec<String>,
    /// Method and template together, for each method: the route's name in traces.
    names: Vec<&'static str>,
    /// Whether a form may be sent to it.
    pub(crate) forms: bool,
    /// Whether GET reads a list, an export or the like: what may be large.
    pub(crate) list: bool,
}

impl Route {
    /// What may be asked for here: the methods of the document, and those that every route answers.
    pub(crate) fn allowed(&self) -> Vec<&str> {
        let mut allowed: Vec<&str> = self.methods.iter().map(String::as_str).collect();
        if allowed.contains(&"GET") && !allowed.contains(&"HEAD") {
            allowed.push("HEAD");
        }
        if !allowed.contains(&"OPTIONS") {
            allowed.push("OPTIONS");
        }
        allowed
    }

    /// The route's name under this method.
    pub(crate) fn name(&self, method: &str) -> Option<&'static str> {
        let at = self.methods.iter().position(|known| known == method)?;
        self.names.get(at).copied()
    }
}

/// A name that lives as long as the process, made once: routes are a closed set.
fn lasting(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.insert(name);
    name
}

/// A page of a list has a `limit`; what is no JSON is an export or a page.
fn reads_a_list(operation: &Value) -> bool {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let mut pages = parameters.filter(|parameter| parameter["in"] == "query" && parameter["name"] == "limit");
    pages.next().is_some() || operation["responses"]["200"]["content"]["text/csv"].is_object()
}

fn takes_forms(operation: &Value) -> bool {
    operation["requestBody"]["content"]["application/x-www-form-urlencoded"].is_object()
}

impl Routes {
    pub(crate) fn of(document: &Value) -> Self {
        let mut routes = Self::default();
        for operation in operations(document) {
            routes.add(operation.template, &operation.method);
            let (list, forms) = (
                operation.method == "GET" && reads_a_list(operation.body),
                takes_forms(operation.body),
            );
            if let Some(route) = routes.0.iter_mut().find(|route| route.template == operation.template) {
                let route = Arc::make_mut(route);
                route.list |= list;
                route.forms |= forms;
            }
        }
        routes
    }

    pub(crate) fn add(&mut self, template: &str, method: &str) {
        match self.0.iter_mut().find(|route| route.template == template) {
            Some(route) => {
                let route = Arc::make_mut(route);
                route.methods.push(method.to_owned());
                route.names.push(lasting(format!("{method} {template}")));
            }
            None => self.0.push(Arc::new(Route {
                template: template.to_owned(),
                methods: vec![method.to_owned()],
                names: vec![lasting(format!("{method} {template}"))],
                forms: false,
                list: false,
            })),
        }
    }

    /// Says of which further routes GET may be large.
    pub(crate) fn lists(&mut self, templates: &[&str]) {
        for route in &mut self.0 {
            if templates.contains(&route.template.as_str()) {
                Arc::make_mut(route).list = true;
            }
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Route> {
        self.0.iter().map(|route| &**route)
    }

    /// The route of a raw path: the one with the most literal parts, as `/v1/locks/{key}` against `/v1/locks/all`.
    pub(crate) fn find(&self, path: &str) -> Option<&Arc<Route>> {
        self.0
            .iter()
            .filter(|route| fits(&route.template, path))
            .min_by_key(|route| route.template.split('/').filter(|part| part.starts_with('{')).count())
    }
}

fn fits(template: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted.starts_with('{') && !given.is_empty() || wanted == given => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_finds_its_route_however_it_is_encoded() {
        let document = json!({"paths": {
            "/v1/locks/{key}": {"get": {}, "delete": {}},
            "/v1/locks/{key}/acquire": {"post": {}},
            "/v1/locks/all": {"get": {}},
        }});
        let routes = Routes::of(&document);
        let template = |path| routes.find(path).map(|route| route.template.as_str());
        assert_eq!(template("/v1/locks/a%2Fb"), Some("/v1/locks/{key}"));
        assert_eq!(template("/v1/locks/%zz/acquire"), Some("/v1/locks/{key}/acquire"));
        assert_eq!(template("/v1/locks/.."), Some("/v1/locks/{key}"));
        assert_eq!(template("/v1/locks/all"), Some("/v1/locks/all"));
        for unknown in [
            "/v1/locks/",
            "/v1/locks",
            "/v1/locks/a/b",
            "//v1/locks/a",
            "/v1/locks/a/",
            "",
        ] {
            assert_eq!(template(unknown), None, "{unknown}");
        }
        let one = routes.find("/v1/locks/a").unwrap();
        assert_eq!(one.methods, ["GET", "DELETE"]);
        assert_eq!(
            (one.name("DELETE"), one.name("PUT")),
            (Some("DELETE /v1/locks/{key}"), None)
        );
    }

    #[test]
    fn bounds_are_found_through_references_and_nulls() {
        let document = json!({
            "paths": {"/a": {"post": {"requestBody": {"content": {"application/json": {"schema":
                {"$ref": "#/components/schemas/A"}}}}}}},
            "components": {"schemas": {
                "A": {"properties": {
                    "ttl_ms": {"type": ["integer", "null"], "minimum": 1000, "maximum": 300_000},
                    "owner": {"type": "string", "minLength": 1, "maxLength": 128},
                    "inner": {"oneOf": [{"type": "null"}, {"$ref": "#/components/schemas/B"}]},
                    "free": {"type": "string"},
                }},
                "B": {"properties": {"n": {"type": "integer", "minimum": 1}}},
            }},
        });
        let bounds = |field| bounds_of(&document, "/a", "POST", field);
        assert_eq!(bounds("ttl_ms").as_deref(), Some("must be between 1000 and 300000"));
        assert_eq!(bounds("owner").as_deref(), Some("must be 1 to 128 characters"));
        assert_eq!(bounds("inner.n").as_deref(), Some("must be at least 1"));
        assert_eq!(bounds("free"), None);
        assert_eq!(bounds("nothing"), None);
    }
}
