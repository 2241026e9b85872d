"""Our own rules. Each is a function from a tree to problems; its name, with dashes, is the rule's name.

A rule that looks for something says so too where there is nothing to look at: a policy about databases on a tree without one would hold for nothing.
"""

import re

from .tree import UNKNOWN, Problem, reachable, references

# Free of charge, and the budget itself needs them.
BEFORE_BUDGET = {"google_billing_budget", "google_project_service", "google_monitoring_notification_channel"}
# Their values, or a key, would stand in the state.
SECRET_RESOURCES = {"google_sql_user", "google_secret_manager_secret_version", "google_storage_hmac_key", "google_apikeys_key"}
SECRET_ARGUMENTS = {"root_password", "password", "secret_data", "private_key", "auth_token", "service_key"}
KEY_RESOURCES = {"google_service_account_key", "tls_private_key", "google_iam_workload_identity_pool_provider_key"}
WORKLOAD_MEMBER = "serviceAccount:${var.workload_pool}[${var.namespace}/${each.key}]"
REGION = re.compile(r"\b(?:africa|asia|australia|europe|me|northamerica|southamerica|us)-[a-z]+\d+\b")


def blocks(tree, kind=None):
    """Folder, type, name, body of each resource as it is written."""
    for folder in tree.folders.values():
        for (type_, name), body in folder.resources.items():
            if kind is None or type_ == kind:
                yield folder, type_, name, body


def instances(tree, kind, environments=None):
    """Environment, instance, address, body of each resource of a kind as an environment has it."""
    for environment in environments or tree.environments:
        for instance, type_, name, body in tree.instance(environment).resources():
            if type_ == kind:
                yield environment, instance, f"{environment}: {instance.address(type_, name)}", body


def one(body, *path):
    """A value in nested blocks; None where it is not written."""
    for step in path:
        if isinstance(body, list):
            body = body[0] if len(body) == 1 else {}
        body = body.get(step) if isinstance(body, dict) else None
    return body


def walk(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from walk(inner, path + (key,))
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner, path)
    else:
        yield path, value


def expect(rule, found, wanted):
    """Holds values that an environment's instances have against the wanted ones: (kind, environments, {path: value})."""
    tree, kind, environments, only = found
    problems, seen = [], 0
    for environment, instance, where, body in instances(tree, kind, environments):
        if only is not None and instance.value(body.get("name", UNKNOWN)) != only:
            continue
        seen += 1
        for path, want in wanted.items():
            have = instance.value(one(body, *path.split(".")))
            if have != want:
                problems.append(Problem(rule, where, f"{path} is {have!r} and has to be {want!r}"))
    for environment in environments or tree.environments:
        if seen < len(environments or tree.environments):
            problems.append(Problem(rule, environment, f"some environment has no {kind}{' ' + only if only else ''}"))
            break
    return problems


def pinned(tree):
    problems = []
    for folder in tree.folders.values():
        exact = folder in tree.environments.values()
        terraform = folder.terraform[0] if len(folder.terraform) == 1 else {}
        version = str(one(terraform, "required_providers", "google", "version"))
        if not re.fullmatch(r"~> \d+\.\d+\.\d+", str(terraform.get("required_version"))):
            problems.append(Problem("pinned", folder.name, "required_version is not ~> with three numbers"))
        if exact and not re.fullmatch(r"\d+\.\d+\.\d+", version):
            problems.append(Problem("pinned", folder.name, f"an environment names one version of the provider, not {version}"))
        if not exact and not re.fullmatch(r">= \d+\.\d+\.\d+, < \d+\.\d+\.\d+", version):
            problems.append(Problem("pinned", folder.name, f"a module bounds the provider's version from both sides, not {version}"))
    return problems


def no_keys(tree):
    problems = []
    for folder, type_, name, _ in blocks(tree):
        if type_ in KEY_RESOURCES:
            problems.append(Problem("no-keys", f"{folder.name}: {type_}.{name}", "makes a key"))
    for folder in tree.folders.values():
        for path, _ in walk(folder.providers):
            if path[-1] in {"credentials", "access_token"}:
                problems.append(Problem("no-keys", folder.name, f"the provider is given {'.'.join(path)}"))
    return problems


def no_secret_values(tree):
    problems = []
    for folder, type_, name, body in blocks(tree):
        where = f"{folder.name}: {type_}.{name}"
        if type_ in SECRET_RESOURCES or type_.startswith("random_"):
            problems.append(Problem("no-secret-values", where, "puts a secret into the state"))
        for path, _ in walk(body):
            if SECRET_ARGUMENTS & set(path):
                problems.append(Problem("no-secret-values", where, f"{'.'.join(path)} puts a secret into the state"))
    for folder in tree.folders.values():
        for type_, name in folder.data:
            if type_ in {"google_secret_manager_secret_version", "google_secret_manager_secret_version_access", "google_client_config"}:
                problems.append(Problem("no-secret-values", f"{folder.name}: data {type_}.{name}", "reads a secret into the state"))
    return problems


def sql_private(tree):
    base = "settings.ip_configuration."
    problems = expect("sql-private", (tree, "google_sql_database_instance", None, None), {base + "ipv4_enabled": False})
    for _, _, where, body in instances(tree, "google_sql_database_instance"):
        network = one(body, *(base + "private_network").split("."))
        if not network:
            problems.append(Problem("sql-private", where, "no private_network"))
        if one(body, *(base + "authorized_networks").split(".")):
            problems.append(Problem("sql-private", where, "has authorized_networks"))
    return problems


def sql_tls(tree):
    return expect("sql-tls", (tree, "google_sql_database_instance", None, None), {"settings.ip_configuration.ssl_mode": "ENCRYPTED_ONLY"})


def recovery(rule, tree, environments, instance):
    return expect(rule, (tree, "google_sql_database_instance", environments, instance), {
        "settings.availability_type": "REGIONAL",
        "settings.backup_configuration.enabled": True,
        "settings.backup_configuration.point_in_time_recovery_enabled": True,
    })


def lock_recovery(tree):
    return recovery("lock-recovery", tree, None, "dlock-pg-lock")


def prod_recovery(tree):
    return recovery("prod-recovery", tree, ["prod"], "dlock-pg-pay")


def prod_deletion(tree):
    return (
        expect("prod-deletion", (tree, "google_sql_database_instance", ["prod"], None),
               {"deletion_protection": True, "settings.deletion_protection_enabled": True})
        + expect("prod-deletion", (tree, "google_container_cluster", ["prod"], None), {"deletion_protection": True})
    )


def budget_first(tree):
    problems = []
    for environment in tree.environments:
        root = tree.instance(environment)
        graph = root.graph()
        budgets = {instance.address(type_, name) for instance, type_, name, _ in root.resources() if type_ == "google_billing_budget"}
        if len(budgets) != 1:
            problems.append(Problem("budget-first", environment, f"has {len(budgets)} budgets"))
            continue
        before = set().union(*(reachable(graph, budget) for budget in budgets)) | budgets
        for instance, type_, name, _ in root.resources():
            address = instance.address(type_, name)
            if address in before:
                if type_ not in BEFORE_BUDGET:
                    problems.append(Problem("budget-first", f"{environment}: {address}", "the budget waits for it"))
            # A mail channel is free, and the budget reads it; every other resource waits.
            elif not reachable(graph, address) & budgets:
                problems.append(Problem("budget-first", f"{environment}: {address}", "can be made before the budget"))
    return problems


def budget_alert(tree):
    problems = []
    for environment, instance, where, body in instances(tree, "google_billing_budget"):
        if not one(body, "amount", "specified_amount", "units"):
            problems.append(Problem("budget-alert", where, "no amount"))
        if "google_monitoring_notification_channel" not in str(one(body, "all_updates_rule", "monitoring_notification_channels")):
            problems.append(Problem("budget-alert", where, "nobody is told by mail"))
        if not any(rule.get("spend_basis") == "FORECASTED_SPEND" for rule in body.get("threshold_rules", [])):
            problems.append(Problem("budget-alert", where, "no alert on what is forecast"))
    return problems


def autopilot(tree):
    return expect("autopilot", (tree, "google_container_cluster", None, None), {
        "enable_autopilot": True,
        "private_cluster_config.enable_private_nodes": True,
        "monitoring_config.managed_prometheus.enabled": True,
        "master_authorized_networks_config.gcp_public_cidrs_access_enabled": False,
        "secret_manager_config.enabled": True,
    })


def roles(tree):
    problems = []
    for folder, type_, name, body in blocks(tree):
        where = f"{folder.name}: {type_}.{name}"
        if type_.endswith(("_iam_policy", "_iam_binding")):
            problems.append(Problem("roles", where, "takes rights from others: only _iam_member adds one"))
        if not type_.endswith(("_iam_member", "_iam_binding")):
            continue
        role = body.get("role", "")
        if re.fullmatch(r"roles/(owner|editor|viewer|browser)", role) or "${" in role or not role.startswith("roles/"):
            problems.append(Problem("roles", where, f"{role} is primitive or not written out"))
        if re.search(r"(?i)admin$", role):
            problems.append(Problem("roles", where, f"{role} administrates"))
        if type_.startswith("google_project_iam") and role != "roles/container.defaultNodeServiceAccount":
            problems.append(Problem("roles", where, f"{role} on the whole project"))
    return problems


def public_members(tree):
    problems = []
    for folder in tree.folders.values():
        for path, value in walk([*folder.resources.values(), *folder.modules.values(), *folder.locals.values()]):
            if re.search(r"\ball(Authenticated)?Users\b", str(value)):
                problems.append(Problem("public-members", folder.name, f"{'.'.join(path)} opens something to everybody"))
        for path, value in walk(list(folder.modules.values())):
            if value == "0.0.0.0/0":
                problems.append(Problem("public-members", folder.name, f"{'.'.join(path)} opens something to the internet"))
    return problems


def region_variable(tree):
    problems = []
    for folder in tree.folders.values():
        rest = [*folder.resources.values(), *folder.data.values(), *folder.modules.values(), *folder.locals.values(), *folder.providers,
                *folder.outputs.values(), *folder.terraform]
        for path, value in walk(rest):
            if REGION.search(str(value)):
                problems.append(Problem("region-variable", folder.name, f"{'.'.join(path)} names a region"))
        if folder not in tree.environments.values():
            for name, body in folder.variables.items():
                if REGION.search(str(body.get("default", ""))):
                    problems.append(Problem("region-variable", folder.name, f"variable {name} of a module has a region of its own"))
    for folder, type_, name, body in blocks(tree):
        for key in ("region", "location"):
            if key in body and references(body[key])[:1] != [["var", "region"]] and not re.search(r"\.location\}", str(body[key])):
                problems.append(Problem("region-variable", f"{folder.name}: {type_}.{name}", f"{key} is not var.region"))
    return problems


def one_kubernetes_account(tree):
    problems, checked = [], 0
    for folder in tree.folders.values():
        nodes = {parts[1] for (type_, _), body in folder.resources.items() if type_ == "google_container_cluster" for parts in references(body)
                 if parts[0] == "google_service_account"}
        for (type_, name), body in folder.resources.items():
            if type_ != "google_service_account":
                continue
            where = f"{folder.name}: {type_}.{name}"
            bound = [other for (kind, _), other in folder.resources.items() if kind.startswith("google_service_account_iam")
                     and [type_, name] in [parts[:2] for parts in references(other.get("service_account_id", ""))]]
            if name in nodes:
                problems += [Problem("one-kubernetes-account", where, "somebody may act as the nodes' account")] if bound else []
                continue
            checked += 1
            if len(bound) != 1:
                problems.append(Problem("one-kubernetes-account", where, f"{len(bound)} bindings, not one"))
                continue
            for key, want in {"role": "roles/iam.workloadIdentityUser", "member": WORKLOAD_MEMBER, "for_each": body.get("for_each")}.items():
                if bound[0].get(key) != want:
                    problems.append(Problem("one-kubernetes-account", where, f"{key} of its binding is {bound[0].get(key)}, not {want}"))
            if body.get("account_id") != "${each.key}":
                problems.append(Problem("one-kubernetes-account", where, "its id is not the Kubernetes account's name"))
    return problems or ([] if checked else [Problem("one-kubernetes-account", "modules", "no account of a workload")])


def workloads(tree):
    """The platform's list: workload to (secrets, whether it is the lab's)."""
    for folder in tree.folders.values():
        if folder.path.name == "platform":
            found = folder.variables.get("workloads", {}).get("default")
            if isinstance(found, dict):
                return {name: (entry.get("secrets", []), entry.get("lab", False) is True) for name, entry in found.items()}
    return {}


def secret_readers(tree):
    """A secret's reader is a workload's account, on the secret itself; a password of a role has at most the component and its migration."""
    problems, bound = [], 0
    for folder, type_, name, body in blocks(tree):
        where = f"{folder.name}: {type_}.{name}"
        if str(body.get("role", "")).startswith("roles/secretmanager"):
            if type_ != "google_secret_manager_secret_iam_member" or body["role"] != "roles/secretmanager.secretAccessor":
                problems.append(Problem("secret-readers", where, "more than reading one secret"))
            elif body.get("member") != "serviceAccount:${var.account_emails[each.value.workload]}" or body.get("for_each") != "${local.readers}":
                problems.append(Problem("secret-readers", where, "not for the workloads of the list alone"))
            else:
                bound += 1
    if bound != 1:
        problems.append(Problem("secret-readers", "modules", f"{bound} bindings that give the listed workloads their secrets"))
    readers = {}
    for name, (secrets, _) in workloads(tree).items():
        for secret in secrets:
            readers.setdefault(secret, set()).add(name)
    wanted = {
        "lockdb-password": {"lock-server", "migrate-lock"},
        "paydb-owner-password": {"migrate-pay"},
        "paydb-payment-password": {"payment-resource"},
        "paydb-rail-password": {"rail-proxy"},
    }
    for secret, names in wanted.items():
        if readers.get(secret, set()) != names:
            problems.append(Problem("secret-readers", secret, f"is read by {sorted(readers.get(secret, ()))}, not by {sorted(names)}"))
    for secret in sorted(set(readers) - set(wanted)):
        if secret.endswith("password"):
            problems.append(Problem("secret-readers", secret, "a password of which this check does not know whose it is"))
    return problems


def registry(tree):
    problems = expect("registry", (tree, "google_artifact_registry_repository", None, None),
                      {"docker_config.immutable_tags": True, "cleanup_policy_dry_run": False})
    for _, _, where, body in instances(tree, "google_artifact_registry_repository"):
        actions = {policy.get("action") for policy in body.get("cleanup_policies", [])}
        if actions != {"KEEP", "DELETE"}:
            problems.append(Problem("registry", where, "needs a policy that deletes and one that keeps"))
    return problems


def state_bucket(tree):
    problems = expect("state-bucket", (tree, "google_storage_bucket", None, None), {
        "versioning.enabled": True,
        "uniform_bucket_level_access": True,
        "public_access_prevention": "enforced",
        "force_destroy": False,
    })
    for name, folder in tree.environments.items():
        backend = one(folder.terraform, "backend", "gcs")
        if not backend:
            problems.append(Problem("state-bucket", folder.name, "its state is not kept in a bucket"))
        elif set(backend) & {"credentials", "access_token", "encryption_key"}:
            problems.append(Problem("state-bucket", folder.name, "a secret in the backend"))
    return problems


def kubernetes(tree):
    """deploy/k8s and the list of workloads name the same accounts, and each workload mounts what it may read."""
    folder = tree.root.parent / "k8s"
    if not folder.is_dir():
        return []
    problems, annotated, listed = [], set(), workloads(tree)
    for file in sorted(folder.rglob("*.y*ml")):
        where = str(file.relative_to(tree.root.parent))
        for document in re.split(r"^---\s*$", file.read_text(), flags=re.M):
            for name in re.findall(r"iam\.gke\.io/gcp-service-account:\s*[\"']?([\w-]+)@", document):
                annotated.add(name)
                own = re.search(r"^  name:\s*([\w-]+)\s*$", document, flags=re.M)
                if own and own[1] != name:
                    problems.append(Problem("kubernetes", where, f"the account {own[1]} acts as {name}"))
                if name not in listed:
                    problems.append(Problem("kubernetes", where, f"{name} is no workload of the list"))
                elif listed[name][1] and "prod" in file.parts:
                    problems.append(Problem("kubernetes", where, f"{name} is the lab's and has no account in prod"))
            if "kind: SecretProviderClass" in document:
                name = re.search(r"^  name:\s*([\w-]+)\s*$", document, flags=re.M)[1]
                # What is only proposed, in a comment, is mounted by nobody.
                mounted = re.sub(r"(?m)^\s*#.*$", "", document)
                for secret in re.findall(r"/secrets/([\w-]+)/versions/", mounted):
                    if secret not in listed.get(name, ([], False))[0]:
                        problems.append(Problem("kubernetes", where, f"{name} mounts {secret}, which it may not read"))
    problems += [Problem("kubernetes", "deploy/k8s", f"no account acts as {name}") for name in sorted(set(listed) - annotated)]
    return problems


ALL = [pinned, no_keys, no_secret_values, sql_private, sql_tls, lock_recovery, prod_recovery, prod_deletion, budget_first, budget_alert, autopilot,
       roles, public_members, region_variable, one_kubernetes_account, secret_readers, registry, state_bucket, kubernetes]


def check(tree):
    if sorted(tree.environments) != ["dev", "prod"]:
        return [Problem("reference", "envs", f"the environments are {sorted(tree.environments)}, not dev and prod")]
    return [problem for policy in ALL for problem in policy(tree)]
