"""The rules. Each is a function of a world that yields a sentence for everything that breaks it; selftest.py breaks each of them."""

import json
import re

from . import alerts, arrows
from .world import NAME, SECRETS_DRIVER, flat, quantity, seconds, selects, setting_defaults

RULES = {}
USER = 10001
# What a process may take to end besides its drain: the other side's last packet, the runtime's own work.
END_MARGIN_S = 5
CONNECTIONS = 90
STUB_DRAIN_S = 2  # DRAIN_MAX of gateway/rail-stub
PRODUCTION = "prod"
LAB_IMAGE = re.compile(r"lab(:|@|$)")


def rule(name):
    def register(function):
        RULES[name] = function
        return function
    return register


def judge(world):
    """Rule → what breaks it."""
    broken = {}
    for name, function in RULES.items():
        found = list(function(world))
        if found:
            broken[name] = found
    return broken


def containers(world):
    for workload in world.workloads:
        for container in workload.containers:
            yield workload, container


@rule("objects")
def objects(world):
    yield from world.conflicts
    for thing in world.things:
        if thing["kind"] != "Namespace" and thing["metadata"].get("namespace") != "dlock":
            yield f"{thing['kind']} {thing['metadata']['name']} is not in the namespace dlock"


@rule("pod-security")
def pod_security(world):
    for workload in world.workloads:
        context, pod = workload.pod.get("securityContext") or {}, workload.pod
        for key, wanted in (("runAsNonRoot", True), ("runAsUser", USER), ("runAsGroup", USER), ("fsGroup", USER)):
            if context.get(key) != wanted:
                yield f"{workload.name}: securityContext.{key} is not {wanted}"
        if (context.get("seccompProfile") or {}).get("type") != "RuntimeDefault":
            yield f"{workload.name}: no seccomp profile RuntimeDefault"
        yield from (f"{workload.name}: {key}" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key))
        yield from (f"{workload.name}: mounts the host" for volume in pod.get("volumes") or [] if "hostPath" in volume)
    for workload, container in containers(world):
        context = container.get("securityContext") or {}
        where = f"{workload.name}/{container['name']}"
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{where}: privileges may grow"
        if context.get("readOnlyRootFilesystem") is not True:
            yield f"{where}: the root file system can be written"
        if context.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{where}: has capabilities"
        if context.get("privileged") or set(context) & {"runAsUser", "runAsNonRoot", "seccompProfile"}:
            yield f"{where}: takes back what the pod says"
    labels = (world.find("Namespace", "dlock") or {"metadata": {}})["metadata"].get("labels") or {}
    if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
        yield "the namespace does not enforce the standard `restricted`"


@rule("api-token")
def api_token(world):
    for workload in world.workloads:
        if workload.pod.get("automountServiceAccountToken") is not False:
            yield f"{workload.name}: mounts a token for the cluster's API"
    for account in world.of("ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount {account['metadata']['name']}: mounts a token for the cluster's API"


@rule("service-links")
def service_links(world):
    for workload in world.workloads:
        if workload.pod.get("enableServiceLinks") is not False:
            yield f"{workload.name}: Services come as variables, and one named dlock-… as a setting that nobody knows"


@rule("service-accounts")
def service_accounts(world):
    users = {}
    for workload in world.workloads:
        users.setdefault(workload.pod.get("serviceAccountName", "default"), []).append(workload.name)
    for account, names in users.items():
        if names != [account]:
            yield f"service account {account} is not that of {', '.join(names)} alone"
        if world.find("ServiceAccount", account) is None:
            yield f"service account {account} does not exist"
    for thing in world.of("ServiceAccount"):
        name = thing["metadata"]["name"]
        bound = (thing["metadata"].get("annotations") or {}).get("iam.gke.io/gcp-service-account", "")
        if not re.fullmatch(rf"{name}@[a-z0-9-]+\.iam\.gserviceaccount\.com", bound):
            yield f"service account {name} is not bound to a Google service account of its name"
        if name not in users:
            yield f"service account {name} is nobody's"


@rule("images")
def images(world):
    for workload, container in containers(world):
        image = container["image"]
        if not re.fullmatch(r"[a-z0-9.-]+\.[a-z]+(/[a-z0-9._-]+)+(:(?!latest$)[A-Za-z0-9_.-]+|@sha256:[0-9a-f]{64})", image):
            yield f"{workload.name}: {image} names no registry, or no tag or digest, or `latest`"
        elif not re.match(r"[a-z0-9-]+-docker\.pkg\.dev/", image):
            yield f"{workload.name}: {image} is in no Artifact Registry, and the nodes reach no other one"
    if world.overlay == PRODUCTION:
        pinned = {container["image"].partition("@")[2] for _, container in containers(world)}
        if "" in pinned or len(pinned) != 1:
            yield f"an image by its tag, or two releases at once: {sorted(pinned)}"


@rule("no-shell")
def no_shell(world):
    """The image of the components may be one without a shell, so none of them is started by one."""
    for workload, container in containers(world):
        if re.search(r"/dlock(-lab)?[:@]", container["image"]) and "command" in container:
            yield f"{workload.name}: starts {container['command'][0]} and not the image's own program"


@rule("resources")
def resources(world):
    for workload, container in containers(world):
        where, have = f"{workload.name}/{container['name']}", container.get("resources") or {}
        requests, limits = have.get("requests") or {}, have.get("limits") or {}
        if requests != limits:
            yield f"{where}: requests and limits differ"
        if set(requests) != {"cpu", "memory", "ephemeral-storage"}:
            yield f"{where}: cpu, memory and ephemeral-storage have to be said, or Autopilot says them"
            continue
        cpu, memory = quantity(requests["cpu"]), quantity(requests["memory"]) / 2**30
        kept = workload.annotations.get("cluster-autoscaler.kubernetes.io/safe-to-evict") == "false"
        if cpu < (0.5 if kept else 0.05) or round(cpu * 1000) % 50 or not 1 <= memory / cpu <= 6.5:
            yield f"{where}: {cpu} processors and {memory} GiB are outside of what Autopilot takes, so it would change them"


@rule("ports")
def ports(world):
    for workload, container in containers(world):
        have = container.get("ports") or []
        names = [port.get("name") for port in have]
        if None in names or len(set(names)) != len(names):
            yield f"{workload.name}: a port without a name, or two of one name"
        if workload.serves and not have:
            yield f"{workload.name}: serves and has no port"
    for service in world.of("Service"):
        for workload in world.selected({"matchLabels": service["spec"].get("selector") or {"": "nobody"}}):
            names = {port.get("name"): port["containerPort"] for port in workload.main.get("ports") or []}
            for port in service["spec"]["ports"]:
                if port.get("targetPort") not in names or not port.get("name"):
                    yield f"Service {service['metadata']['name']}: {port.get('targetPort')} is the name of no port of {workload.name}"
                elif names[port["targetPort"]] != port["port"]:
                    yield f"Service {service['metadata']['name']}: another port than the pod's, so that policies would speak of two"


@rule("probes")
def probes(world):
    for workload in world.workloads:
        names = {port.get("name") for port in workload.main.get("ports") or []}
        start = "/livez" if workload.kind == "StatefulSet" else "/startupz"
        for probe, path in (("startupProbe", start), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
            said = workload.main.get(probe)
            if not workload.serves:
                if said:
                    yield f"{workload.name}: a Job has no {probe}"
            elif not said or said.get("httpGet", {}).get("path") != path or said["httpGet"].get("port") not in names:
                yield f"{workload.name}: {probe} does not ask {path} at a port by its name"


def pre_stop_s(workload):
    return ((workload.main.get("lifecycle") or {}).get("preStop") or {}).get("sleep", {}).get("seconds", 0)


@rule("grace")
def grace(world):
    defaults = setting_defaults()
    for workload in world.workloads:
        settings = {name: default for name, (default, _) in defaults.items()} | world.settings(workload)
        said = workload.pod.get("terminationGracePeriodSeconds", 30)
        if workload.kind in ("StatefulSet", "Job"):
            if said < 30:
                yield f"{workload.name}: {said} s to end, less than 30"
            continue
        if workload.name == "rail-stub":
            drain = STUB_DRAIN_S
        else:
            drain = seconds(settings["http.drain-delay"]) + seconds(settings["http.drain-timeout"])
            drain += seconds(settings["otel.export-timeout"]) if settings["otel.endpoint"] else 0
        needs = pre_stop_s(workload) + drain + END_MARGIN_S
        if said < needs:
            yield f"{workload.name}: {said} s to end, but preStop and drain take up to {needs:g} s"


@rule("drain")
def drain(world):
    """What is under way when a process is told to end has to fit into its drain; and nobody sends to it any more by then."""
    defaults = setting_defaults()
    for workload in world.workloads:
        settings = {name: default for name, (default, _) in defaults.items()} | world.settings(workload)
        if not world.settings(workload):
            continue
        drain_s = seconds(settings["http.drain-timeout"])
        longest = {"rail-proxy": "rail.read-timeout", "payout-executor": "executor.rail-timeout",
                   "payout-reconciler": "executor.rail-timeout"}.get(workload.name)
        if longest and drain_s <= seconds(settings[longest]) + 2 * 2:
            yield f"{workload.name}: http.drain-timeout is not longer than {longest} and two calls of 2 s"
        sent_to = [thing for thing in world.of("Service") if selects({"matchLabels": thing["spec"].get("selector")}, workload.labels)]
        if sent_to and pre_stop_s(workload) < 5:
            yield f"{workload.name}: SIGTERM comes before others have learned to send elsewhere (preStop under 5 s)"


@rule("spread")
def spread(world):
    for workload in world.workloads:
        if not workload.serves:
            continue
        constraints = [each for each in workload.pod.get("topologySpreadConstraints") or []
                       if each["topologyKey"] == "topology.kubernetes.io/zone" and selects(each.get("labelSelector"), workload.labels)]
        wanted = "DoNotSchedule" if workload.kind == "StatefulSet" else "ScheduleAnyway"
        if [(each["maxSkew"], each["whenUnsatisfiable"]) for each in constraints] != [(1, wanted)]:
            yield f"{workload.name}: not spread over zones with maxSkew 1 and {wanted}"


@rule("disruption")
def disruption(world):
    for workload in world.workloads:
        budgets = [each for each in world.of("PodDisruptionBudget") if selects(each["spec"].get("selector"), workload.labels)]
        if not workload.serves:
            yield from (f"{workload.name}: a Job needs no PodDisruptionBudget" for _ in budgets)
            continue
        if len(budgets) != 1:
            yield f"{workload.name}: {len(budgets)} PodDisruptionBudgets"
            continue
        spec, replicas = budgets[0]["spec"], world.replicas(workload)
        may = spec.get("maxUnavailable")
        most = (replicas - 1) // 2 if workload.kind == "StatefulSet" else max(1, replicas // 2)
        if "minAvailable" in spec or not isinstance(may, int) or not 1 <= may <= most:
            yield f"{workload.name}: of {replicas} pods {may} may go at a time; it has to be 1 to {most}, as maxUnavailable"


@rule("eviction")
def eviction(world):
    for workload in world.workloads:
        wanted = "false" if workload.kind == "StatefulSet" else "true"
        if workload.annotations.get("cluster-autoscaler.kubernetes.io/safe-to-evict") != wanted:
            yield f"{workload.name}: safe-to-evict is not \"{wanted}\""


@rule("selectors")
def selectors(world):
    for workload in world.workloads:
        own = workload.thing["spec"].get("selector")
        if workload.serves and not selects(own, workload.labels):
            yield f"{workload.name} does not select its own pods"
        if workload.labels.get(NAME) != workload.name or workload.labels.get("app.kubernetes.io/part-of") != "dlock":
            yield f"{workload.name}: its pods do not carry its name"
    for thing in world.of("Service", "PodDisruptionBudget", "PodMonitoring", "NetworkPolicy", "HorizontalPodAutoscaler"):
        what, spec = f"{thing['kind']} {thing['metadata']['name']}", thing["spec"]
        if thing["kind"] == "Service":
            chosen = [{"matchLabels": spec.get("selector") or {"": "nobody"}}]
        elif thing["kind"] == "NetworkPolicy":
            chosen = [spec.get("podSelector")]
            for rules, key in ((spec.get("ingress"), "from"), (spec.get("egress"), "to")):
                chosen += [peer["podSelector"] for each in rules or [] for peer in each.get(key) or []
                           if "podSelector" in peer and "namespaceSelector" not in peer]
        elif thing["kind"] == "HorizontalPodAutoscaler":
            target = spec["scaleTargetRef"]
            if world.find(target["kind"], target["name"]) is None:
                yield f"{what} scales {target['kind']} {target['name']}, which does not exist"
            continue
        else:
            chosen = [spec.get("selector")]
        for selector in chosen:
            if not world.selected(selector):
                yield f"{what} selects no pod: {selector}"
            # A list that names somebody who is not there is a slip, or waits for somebody.
            for each in (selector or {}).get("matchExpressions") or []:
                for value in each.get("values") or []:
                    if each["key"] == NAME and value not in {workload.name for workload in world.workloads}:
                        yield f"{what} names {value}, which does not exist"
    for workload in world.workloads:
        if workload.kind == "StatefulSet":
            service = world.find("Service", workload.thing["spec"]["serviceName"])
            if service is None or service["spec"].get("clusterIP") != "None" or not service["spec"].get("publishNotReadyAddresses"):
                yield f"{workload.name}: no headless Service that names members before they are ready"


@rule("references")
def references(world):
    used = set()
    for workload in world.workloads:
        for volume in workload.pod.get("volumes") or []:
            if "configMap" in volume:
                used.add(("ConfigMap", volume["configMap"]["name"]))
            if (volume.get("csi") or {}).get("driver") == SECRETS_DRIVER:
                used.add(("SecretProviderClass", volume["csi"]["volumeAttributes"]["secretProviderClass"]))
            if "persistentVolumeClaim" in volume:
                used.add(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
            if "secret" in volume:
                used.add(("Secret", volume["secret"]["secretName"]))
        volumes = {volume["name"] for volume in workload.pod.get("volumes") or []}
        volumes |= {claim["metadata"]["name"] for claim in workload.thing["spec"].get("volumeClaimTemplates") or []}
        mounts = {mount["name"] for container in workload.containers for mount in container.get("volumeMounts") or []}
        if volumes != mounts:
            yield f"{workload.name}: volumes {sorted(volumes)}, mounts {sorted(mounts)}"
        for variable in workload.main.get("env") or []:
            source = (variable.get("valueFrom") or {}).get("configMapKeyRef")
            if source:
                used.add(("ConfigMap", source["name"]))
                if source["key"] not in ((world.find("ConfigMap", source["name"]) or {}).get("data") or {}):
                    yield f"{workload.name}: ConfigMap {source['name']} has no {source['key']}"
        told = [word for word in workload.main.get("args") or [] if word.endswith(".toml")]
        files = [f"{mount['mountPath']}/{key}" for mount in workload.main.get("volumeMounts") or []
                 for key in ((world.find("ConfigMap", ((workload.volume(mount["name"]) or {}).get("configMap") or {}).get("name")) or {})
                             .get("data") or {})]
        if told != files:
            yield f"{workload.name}: reads {told}, mounted are {files}"
    for kind, name in sorted(used):
        if world.find(kind, name) is None:
            yield f"{kind} {name} does not exist"
    for thing in world.of("ConfigMap", "SecretProviderClass", "PersistentVolumeClaim"):
        if (thing["kind"], thing["metadata"]["name"]) not in used:
            yield f"{thing['kind']} {thing['metadata']['name']} is used by nobody"


def roles(world, workload):
    """The database roles of the URLs that a process is told."""
    return {match.group(1) for _, url in arrows.urls(world, workload) for match in [re.match(r"postgres://([a-z_]+)@", url)] if match}


@rule("secrets")
def secrets(world):
    owners = {}
    for workload in world.workloads:
        mounted = world.secret_files(workload)
        asked = {path for text in world.texts(workload) for path in re.findall(r"/run/secrets/dlock/[a-z0-9.-]+", str(text))}
        for path in sorted(asked - set(mounted)):
            yield f"{workload.name}: {path} is mounted by nobody"
        for path in sorted(set(mounted) - asked):
            yield f"{workload.name}: {path} is mounted and not read"
        for secret in mounted.values():
            if secret.endswith("-password"):
                owners.setdefault(secret, {})[workload.name] = roles(world, workload)
    for secret, users in owners.items():
        if len({frozenset(each) for each in users.values()}) > 1:
            yield f"{secret} is read by {', '.join(sorted(users))}, which are different roles of the database"
    for workload in world.workloads:
        if workload.serves and "dlock_pay_owner" in roles(world, workload):
            yield f"{workload.name} serves as the owner of the schema"
    for thing in world.of("Secret"):
        yield f"Secret {thing['metadata']['name']}: a secret in a manifest"
    for workload, container in containers(world):
        for variable in container.get("env") or []:
            if re.search("PASSWORD|SECRET|TOKEN", variable["name"]) and "value" in variable:
                yield f"{workload.name}: {variable['name']} in a manifest"


@rule("databases")
def databases(world):
    for workload in world.workloads:
        for name, url in arrows.urls(world, workload):
            if not url.startswith("postgres"):
                continue
            if not re.search(r"[?&]sslmode=verify-(ca|full)(&|$)", url) or "sslrootcert=" not in url:
                yield f"{workload.name}: {name} does not check whom it talks to"
            if re.match(r"[a-z]+://[^@/]*:[^@/]*@", url):
                yield f"{workload.name}: {name} holds a password"


@rule("connections")
def connections(world):
    """What all replicas may open at once, one more of each during a rollout, against the usual limit of 100 less what is kept for others."""
    open_at_once = {}
    for workload in world.workloads:
        settings = world.settings(workload)
        for store, database, more in (("lock", "lockdb", 2), ("payment", "paydb", 0), ("rail", "paydb", 0)):
            if settings.get(f"{store}.store.url", "").startswith("postgres"):
                pool = settings.get(f"{store}.store.pool-max", int(setting_defaults()[f"{store}.store.pool-max"][0]))
                open_at_once[database] = open_at_once.get(database, 0) + (world.replicas(workload) + 1) * (pool + more)
    for database, count in open_at_once.items():
        if count > CONNECTIONS:
            yield f"{database}: up to {count} connections, more than {CONNECTIONS}"


@rule("default-deny")
def default_deny(world):
    for part in world.parts:
        if not any(thing["kind"] == "NetworkPolicy" and thing["spec"].get("podSelector") == {} and "ingress" not in thing["spec"]
                   and "egress" not in thing["spec"] and set(thing["spec"].get("policyTypes") or []) == {"Ingress", "Egress"}
                   for thing in world.parts[part]):
            yield f"{part}: no policy denies what no other one allows"
    for policy in world.of("NetworkPolicy"):
        for kind in ("ingress", "egress"):
            if policy["spec"].get(kind) and kind.capitalize() not in policy["spec"].get("policyTypes", []):
                yield f"policy {policy['metadata']['name']}: has {kind} rules and is not of that type"


@rule("arrows")
def arrows_of_policies(world):
    have, wrong = arrows.allowed(world)
    yield from wrong
    told = arrows.documented(world.overlay, world)
    yield from (f"allowed and not in docs/kubernetes.md: {source} → {target}:{port}" for source, target, port in sorted(have - told, key=str))
    yield from (f"in docs/kubernetes.md and not allowed: {source} → {target}:{port}" for source, target, port in sorted(told - have, key=str))
    yield from arrows.against_compose(told)


@rule("needs")
def needs(world):
    """Against the document as well, so that a configuration is judged although the policies have gone wrong."""
    want, wrong = arrows.needed(world)
    yield from wrong
    told = arrows.documented(world.overlay, world)
    yield from (f"needed and not in docs/kubernetes.md: {source} → {target}:{port}" for source, target, port in sorted(want - told, key=str))
    yield from (f"in docs/kubernetes.md, and no configuration needs it: {source} → {target}:{port}"
                for source, target, port in sorted(told - want, key=str))


@rule("addresses")
def addresses(world):
    for name, outside, blocks, said in arrows.addresses(world):
        if any(not block.endswith("/32") for block in blocks):
            yield f"policy {name}: more than one address: {sorted(blocks)}"
        numbers = {host for host in said if re.fullmatch(r"[0-9.]+", host)}
        if not said or (numbers and {f"{host}/32" for host in numbers} != blocks):
            yield f"policy {name}: {outside} is at {sorted(said)}, and let out is {sorted(blocks)}"


@rule("monitoring")
def monitoring(world):
    for workload in world.workloads:
        found = [each for each in world.of("PodMonitoring") if selects(each["spec"]["selector"], workload.labels)]
        has = any(port.get("name") == "http-metrics" for port in workload.main.get("ports") or [])
        if has != (len(found) == 1) or any(each["metadata"]["name"] != workload.name for each in found):
            yield f"{workload.name}: not scraped once under its own name, which becomes the label `job`"
        for each in found:
            if [endpoint["port"] for endpoint in each["spec"]["endpoints"]] != ["http-metrics"]:
                yield f"{workload.name}: scraped at another port than http-metrics"


@rule("alerts")
def alerts_as_in_their_files(world):
    yield from alerts.compare(world)


@rule("project")
def project(world):
    found = {}
    for account in world.of("ServiceAccount"):
        match = re.search(r"@([a-z0-9-]+)\.iam", str(account["metadata"].get("annotations")))
        if match:
            found.setdefault(match.group(1), f"service account {account['metadata']['name']}")
    for provider in world.of("SecretProviderClass"):
        for name in re.findall(r"projects/([a-z0-9-]+)/", provider["spec"]["parameters"]["secrets"]):
            found.setdefault(name, f"secrets of {provider['metadata']['name']}")
    for workload, container in containers(world):
        match = re.match(r"[a-z0-9-]+-docker\.pkg\.dev/([a-z0-9-]+)/", container["image"])
        if match:
            found.setdefault(match.group(1), f"image of {workload.name}")
    if len(found) != 1:
        yield f"several Google projects in one overlay: {found}"


@rule("jobs")
def jobs(world):
    for workload in world.workloads:
        if workload.serves:
            continue
        spec = workload.thing["spec"]
        if not {"ttlSecondsAfterFinished", "backoffLimit", "activeDeadlineSeconds"} <= set(spec):
            yield f"{workload.name}: a Job that stays, or never gives up"
        if workload.pod.get("restartPolicy") != "Never":
            yield f"{workload.name}: a failed pod's log has to stay (restartPolicy Never)"
        sources = [each["valueFrom"]["configMapKeyRef"]["name"] for each in workload.main.get("env") or []
                   if "configMapKeyRef" in (each.get("valueFrom") or {})]
        if sources != [workload.name]:
            yield f"{workload.name}: its ConfigMap's name must not change with the content, since a Job's template cannot"
    for thing in world.parts["system"]:
        if thing["kind"] == "Job":
            yield f"Job {thing['metadata']['name']}: migrations are applied before the system, not with it"


@rule("scaling")
def scaling(world):
    for workload in world.workloads:
        scaler = world.autoscaler(workload)
        if scaler and "replicas" in workload.thing["spec"]:
            yield f"{workload.name}: `replicas` here would set back what the autoscaler chose"
        if scaler and not 2 <= scaler["spec"]["minReplicas"] < scaler["spec"]["maxReplicas"]:
            yield f"{workload.name}: nothing to scale between {scaler['spec']['minReplicas']} and {scaler['spec']['maxReplicas']}"
    executor = world.autoscaler(world.workload("payout-executor"))
    if executor is None or executor["spec"]["minReplicas"] != 12:
        yield "payout-executor: 12 pods at the assumed peak (A-05)"
    etcd = [workload for workload in world.workloads if workload.kind == "StatefulSet"]
    yield from (f"{workload.name}: a majority of {world.replicas(workload)}" for workload in etcd if world.replicas(workload) != 3)
    if (world.overlay == "dev-etcd") != bool(etcd):
        yield "etcd belongs into dev-etcd, and there alone"


@rule("configuration")
def configuration(world):
    for workload in world.workloads:
        if not world.settings(workload):
            continue
        settings = world.settings(workload)
        port = workload.main["ports"][0]["containerPort"]
        if settings.get("http.listen") != f"0.0.0.0:{port}":
            yield f"{workload.name}: http.listen is not 0.0.0.0:{port}"
        if settings.get("log.format") != "json":
            yield f"{workload.name}: logs that are no JSON"
        unknown = sorted(set(settings) - set(setting_defaults()))
        if unknown:
            yield f"{workload.name}: unknown settings {unknown}"


@rule("lab")
def lab(world):
    """What exists for the lab alone is told to no program that is built without it, and to none at all in production."""
    names = {name for name, (_, meaning) in setting_defaults().items() if "Lab builds only" in meaning}
    variables = {"DLOCK_" + re.sub("[.-]", "_", name).upper() for name in names}
    for workload in world.workloads:
        image = workload.main["image"].split("@")[0]
        with_lab = bool(LAB_IMAGE.search(image))
        if with_lab != (workload.name == "rail-stub"):
            yield f"{workload.name}: {'the image with the lab' if with_lab else 'an image without the lab'}"
        said = set(world.settings(workload)) | set(flat({name: "" for name in world.environment(workload)}))
        text = " ".join(str(word) for word in workload.main.get("args") or [])
        found = sorted((said & (names | variables)) | {name for name in names if f"{name}=" in text})
        if found:
            yield f"{workload.name}: {', '.join(found)}"


@rule("production")
def production(world):
    if world.overlay != PRODUCTION:
        return
    for workload in world.workloads:
        if workload.name == "rail-stub":
            yield "the rail stub in production"
        if workload.serves and workload.name != "console" and world.replicas(workload) < 2:
            yield f"{workload.name}: one replica in production"
    settings = world.settings(world.workload("rail-proxy"))
    rail = settings.get("rail.url", "")
    if not rail.startswith("https://"):
        yield f"rail-proxy: the rail is {rail}, not https"
    for name, path in settings.items():
        if name.startswith("rail.tls.") and not path.startswith("/run/secrets/dlock/"):
            yield f"rail-proxy: {name} is {path}, not a mounted secret"
    console = world.settings(world.workload("console"))
    if console.get("console.read-only") is not True:
        yield "console: nobody is authenticated, so in production it only shows"
    # An alert may say what it is about.
    text = json.dumps([thing for thing in world.things if thing["kind"] != "Rules"])
    yield from (f"{word} in production" for word in ("dlock-lab", "debug.control", "fencing.enabled", "fault-points") if word in text)
