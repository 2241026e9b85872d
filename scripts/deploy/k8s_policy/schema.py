"""Every object against its schema: Kubernetes' own, which kubernetes-validate carries, and two of ours for what it does not know."""

import json

import jsonschema
import kubernetes_validate
import yaml

from .world import K8S

# The version of the cluster that is aimed at, and its neighbours, through which it comes and goes.
VERSIONS = ("1.35", "1.36", "1.37")
OURS = {"PodMonitoring": "podmonitoring.json", "Rules": "rules.json", "SecretProviderClass": "secretproviderclass.json"}


def own(kind):
    return json.loads((K8S / "schemas" / OURS[kind]).read_text())


def check(thing, versions=VERSIONS):
    """What is wrong with one object, as sentences."""
    what = f"{thing.get('kind')} {thing.get('metadata', {}).get('name')}"
    if thing.get("kind") in OURS:
        schema = own(thing["kind"])
        for error in jsonschema.Draft202012Validator(schema).iter_errors(thing):
            yield f"{what}: {error.json_path}: {error.message}"
        if thing["kind"] == "SecretProviderClass":
            inner = yaml.safe_load(thing.get("spec", {}).get("parameters", {}).get("secrets", "")) or []
            for error in jsonschema.Draft202012Validator(schema["$defs"]["secrets"]).iter_errors(inner):
                yield f"{what}: secrets{error.json_path[1:]}: {error.message}"
        return
    for version in versions:
        try:
            kubernetes_validate.validate(thing, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{what} ({version}): {error.message}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"{what} ({version}): {error}"
