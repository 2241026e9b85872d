"""An OpenAPI document: what is missing in it, and what of it real answers contradict."""

import copy
import re

from jsonschema import Draft202012Validator

METHODS = ("get", "put", "post", "delete", "patch")
PROBLEM = "application/problem+json"


class Document:
    def __init__(self, name: str, raw: dict):
        self.name, self.raw = name, raw
        self.operations = [
            (method.upper(), template, item[method])
            for template, item in raw["paths"].items()
            for method in METHODS
            if method in item
        ]
        self.strict = copy.deepcopy(raw)
        close(self.strict.get("components", {}))
        # Fields that an answer may leave out: an example need not have them.
        self.optional = set(optional(raw.get("components", {})))

    def find(self, method: str, path: str):
        """The operation of a request: (template, operation), the one with the fewest placeholders."""
        path = path.split("?")[0]
        fits = [
            (template, operation)
            for known, template, operation in self.operations
            if known == method and re.fullmatch(re.sub(r"\\\{[^/]+?\\\}", "[^/]+", re.escape(template)), path)
        ]
        return min(fits, key=lambda found: found[0].count("{"), default=None)

    def faults(self, schema: dict, value, strict: bool = False) -> list[str]:
        """Why the value is not valid."""
        whole = self.strict if strict else self.raw
        schema = dict(copy.deepcopy(schema), components=whole.get("components", {}))
        found = Draft202012Validator(schema).iter_errors(value)
        return [f"{'/'.join(map(str, fault.path)) or 'it'}: {fault.message[:200]}" for fault in found]


def close(node) -> None:
    """Lets no schema of an object admit fields that it does not name."""
    if isinstance(node, dict):
        for name, inner in node.items():
            if name not in ("allOf", "oneOf", "anyOf", "example", "examples"):
                close(inner)
        if isinstance(node.get("properties"), dict) and node.get("type") == "object" and "trace_id" not in node["properties"]:
            node.setdefault("additionalProperties", False)
    elif isinstance(node, list):
        for inner in node:
            close(inner)


def optional(node):
    """The names of all fields that some schema has and does not require."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield from set(node["properties"]) - set(node.get("required", []))
        for inner in node.values():
            yield from optional(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from optional(inner)


def examples(content: dict) -> list[tuple[str, object]]:
    found = [(name, example["value"]) for name, example in content.get("examples", {}).items()]
    return found + ([("", content["example"])] if "example" in content else [])


def missing(document: Document) -> list[str]:
    """What the document does not say, or says wrong of itself."""
    told = []
    for method, template, operation in document.operations:
        where = f"{document.name} {method} {template}"
        if not operation.get("responses"):
            told.append(f"{where} has no answers")
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            if not examples(body):
                told.append(f"{where} has no example of its request")
            for _, value in examples(body):
                told += [f"{where}, its request's example: {fault}" for fault in document.faults(body["schema"], value)]
        for status, answer in operation.get("responses", {}).items():
            at = f"{where} {status}"
            if not answer.get("description"):
                told.append(f"{at} has no description")
            content = answer.get("content", {})
            if not content and not status.startswith("3"):
                told.append(f"{at} has no body in the document")
            for media, part in content.items():
                if not part.get("schema"):
                    told.append(f"{at} {media} has no schema")
                    continue
                if not examples(part):
                    told.append(f"{at} {media} has no example")
                for name, value in examples(part):
                    told += [f"{at} example {name}: {fault}" for fault in document.faults(part["schema"], value)]
                    if media == PROBLEM and (value.get("code") != name or str(value.get("status")) != status):
                        told.append(f"{at} example {name} is one of {value.get('status')} {value.get('code')}")
            if int(status) >= 400 and content and PROBLEM not in content and "text/html" not in content:
                told.append(f"{at} is no problem")
    return told


def shape_of(value, other, optional=frozenset()) -> str | None:
    """Where two values have other keys, those that may be missing aside; null and an empty list are like anything."""
    if isinstance(value, dict) and isinstance(other, dict):
        if differ := (set(value) ^ set(other)) - optional:
            return f"keys {sorted(differ)} stand in one of both"
        for name in set(value) & set(other):
            if found := shape_of(value[name], other[name], optional):
                return f"{name}: {found}"
    elif isinstance(value, list) and isinstance(other, list):
        if value and other:
            return shape_of(value[0], other[0], optional)
    elif value is not None and other is not None and isinstance(value, str) != isinstance(other, str):
        return f"{value!r} and {other!r}"
    return None


def contradicted(document: Document, method: str, path: str, status: int, media: str, body) -> list[str]:
    """What a real answer shows to be wrong."""
    where = f"{document.name} {method} {path} answered {status}"
    found = document.find(method, path)
    if found is None:
        return [f"{where}, and is not in the document"]
    answer = found[1]["responses"].get(str(status))
    if answer is None:
        return [f"{where}, which the document does not name"]
    part = answer.get("content", {}).get(media)
    if part is None:
        return [f"{where} {media}, not {', '.join(answer.get('content', {})) or 'nothing'}"]
    told = [f"{where}: {fault}" for fault in document.faults(part["schema"], body, strict=media != PROBLEM)]
    known = dict(examples(part))
    if media == PROBLEM:
        if body["code"] not in known:
            return told + [f"{where} {body['code']}, which the document does not name"]
        example = known[body["code"]]
    else:
        example = next(iter(known.values()), None)
    # What every component serves besides is free in its shape: a document, a drawing.
    if example is not None and found[0].startswith("/v1/") and (other := shape_of(body, example, document.optional)):
        told.append(f"{where}, and its example is another: {other}; scripts/check-openapi --record")
    return told


def complaints(component) -> list[str]:
    told = missing(component.document)
    for method, path, status, media, body in component.seen:
        told += contradicted(component.document, method, path, status, media, body)
    seen = {(method, component.document.find(method, path)[0]) for method, path, *_ in component.seen if component.document.find(method, path)}
    told += [
        f"{component.document.name} {method} {template} was never asked: scripts/openapi/tour.py leaves it out"
        for method, template, _ in component.document.operations
        if template.startswith("/v1/") and (method, template) not in seen
    ]
    return told


def self_test() -> int:
    def document() -> dict:
        answer = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
        problem = {"type": "object", "required": ["code", "status"], "properties": {"code": {}, "status": {}, "trace_id": {}}}
        example = {"code": "NOT_FOUND", "status": 404, "trace_id": "0"}
        return {
            "components": {"schemas": {"Answer": answer, "Problem": problem}},
            "paths": {"/v1/a/{id}": {"get": {"responses": {
                "200": {"description": "It", "content": {"application/json": {
                    "schema": {"$ref": "#/components/schemas/Answer"}, "example": {"n": 1}}}},
                "404": {"description": "NOT_FOUND", "content": {PROBLEM: {
                    "schema": {"$ref": "#/components/schemas/Problem"}, "examples": {"NOT_FOUND": {"value": example}}}}},
            }}}},
        }

    def answers(raw: dict) -> dict:
        return raw["paths"]["/v1/a/{id}"]["get"]["responses"]

    def of_200(raw: dict) -> dict:
        return answers(raw)["200"]["content"]["application/json"]

    planted = {
        "has no example": lambda raw: of_200(raw).pop("example"),
        "has no schema": lambda raw: of_200(raw).pop("schema"),
        "has no description": lambda raw: answers(raw)["200"].pop("description"),
        "has no body": lambda raw: answers(raw)["200"].pop("content"),
        "'n' is a required property": lambda raw: of_200(raw).update(example={}),
        "is one of 404 NOT_FOUND": lambda raw: answers(raw)["404"]["content"][PROBLEM].update(
            examples={"CONFLICT": answers(raw)["404"]["content"][PROBLEM]["examples"]["NOT_FOUND"]}),
    }
    real = {
        "is not in the document": ("GET", "/v1/b", 200, "application/json", {"n": 1}),
        "which the document does not name": ("GET", "/v1/a/7", 409, PROBLEM, {"code": "CONFLICT", "status": 409}),
        "CONFLICT, which the document": ("GET", "/v1/a/7", 404, PROBLEM, {"code": "CONFLICT", "status": 404}),
        "'m' was unexpected": ("GET", "/v1/a/7", 200, "application/json", {"n": 1, "m": 2}),
        "its example is another": ("GET", "/v1/a/7", 404, PROBLEM, {"code": "NOT_FOUND", "status": 404, "field": "id"}),
    }
    good = Document("test", document())
    wrong = [f"a good document: {text}" for text in missing(good)]
    wrong += [f"a good answer: {text}" for text in contradicted(good, "GET", "/v1/a/7", 200, "application/json", {"n": 5})]
    for words, plant in planted.items():
        raw = document()
        plant(raw)
        told = missing(Document("test", raw))
        if not any(words in text for text in told):
            wrong.append(f"not found: {words}: {told}")
    for words, answer in real.items():
        told = contradicted(good, *answer)
        if not any(words in text for text in told):
            wrong.append(f"not found: {words}: {told}")
    for text in wrong:
        print(f"!! {text}")
    print(f"check-openapi: {len(planted) + len(real) + 2 - len(wrong)} passed, {len(wrong)} failed")
    return 1 if wrong else 0
