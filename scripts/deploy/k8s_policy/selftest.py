"""Breaks a rendered overlay in memory, one thing at a time: the rule that is about it has to say so, and no other one may."""

import copy
import os
import pathlib
import shutil
import subprocess
import tempfile

import yaml

from . import placeholders, rules, schema
from .world import K8S, NAME, ROOT, Failure

BREAKS = []


def breaks(rule, overlay="dev", also=()):
    """The change breaks `rule`; `also` are rules that cannot help seeing the same."""
    def register(function):
        BREAKS.append((rule, overlay, frozenset(also), function))
        return function
    return register


def pod(world, name):
    return world.workload(name).pod


def main(world, name):
    return world.workload(name).main


def toml(world, name, old, new):
    data = world.config_map(world.workload(name))["data"]
    key = next(iter(data))
    if old not in data[key]:
        raise Failure(f"the self-test looks for {old!r} in {key}")
    data[key] = data[key].replace(old, new)


def spec(world, kind, name):
    return world.find(kind, name)["spec"]


@breaks("objects")
def another_namespace(world):
    world.find("Service", "console")["metadata"]["namespace"] = "default"


@breaks("objects")
def two_versions_of_one_policy(world):
    world.parts["migrate"][:] = copy.deepcopy(world.parts["migrate"])
    for thing in world.parts["migrate"]:
        if thing["metadata"]["name"] == "to-dns":
            thing["metadata"]["labels"] = {"version": "other"}


@breaks("pod-security")
def root(world):
    pod(world, "lock-server")["securityContext"]["runAsNonRoot"] = False


@breaks("pod-security")
def another_user(world):
    pod(world, "rail-proxy")["securityContext"]["runAsUser"] = 0


@breaks("pod-security")
def unconfined(world):
    pod(world, "console")["securityContext"]["seccompProfile"]["type"] = "Unconfined"


@breaks("pod-security")
def writable_root(world):
    del main(world, "payment-resource")["securityContext"]["readOnlyRootFilesystem"]


@breaks("pod-security")
def a_capability(world):
    main(world, "migrate-pay")["securityContext"]["capabilities"]["add"] = ["NET_ADMIN"]


@breaks("pod-security")
def growing_privileges(world):
    main(world, "payout-executor")["securityContext"]["allowPrivilegeEscalation"] = True


@breaks("pod-security")
def a_container_that_is_root_again(world):
    main(world, "payout-executor")["securityContext"]["runAsUser"] = 0


@breaks("pod-security")
def the_hosts_network(world):
    pod(world, "lock-server")["hostNetwork"] = True


@breaks("pod-security")
def a_lax_namespace(world):
    world.find("Namespace", "dlock")["metadata"]["labels"].pop("pod-security.kubernetes.io/enforce")
    for thing in world.parts["migrate"]:
        if thing["kind"] == "Namespace":
            thing["metadata"]["labels"].pop("pod-security.kubernetes.io/enforce")


@breaks("api-token")
def token_in_the_pod(world):
    del pod(world, "lock-server")["automountServiceAccountToken"]


@breaks("api-token")
def token_by_the_account(world):
    world.find("ServiceAccount", "console")["automountServiceAccountToken"] = True


@breaks("service-links", "dev-etcd")
def services_as_variables(world):
    del pod(world, "lock-server")["enableServiceLinks"]


@breaks("service-accounts")
def a_shared_account(world):
    pod(world, "payout-reconciler")["serviceAccountName"] = "payout-executor"


@breaks("service-accounts")
def an_account_that_does_not_exist(world):
    world.drop("ServiceAccount", "console")


@breaks("service-accounts")
def somebody_elses_google_account(world):
    world.find("ServiceAccount", "console")["metadata"]["annotations"]["iam.gke.io/gcp-service-account"] = \
        "lock-server@dlock-lab.iam.gserviceaccount.com"


@breaks("service-accounts")
def no_google_account(world):
    del world.find("ServiceAccount", "rail-proxy")["metadata"]["annotations"]


@breaks("images")
def latest(world):
    main(world, "lock-server")["image"] = "europe-central2-docker.pkg.dev/dlock-lab/dlock/dlock:latest"


@breaks("images", "dev-etcd", also=("project",))
def a_registry_that_no_node_reaches(world):
    main(world, "dlock-etcd")["image"] = "quay.io/coreos/etcd:v3.5.16"


@breaks("images", "prod")
def a_tag_in_production(world):
    main(world, "lock-server")["image"] = "europe-central2-docker.pkg.dev/dlock-prod/dlock/dlock:0.1.0"


@breaks("images", "prod")
def migrations_of_another_release(world):
    main(world, "migrate-pay")["image"] = "europe-central2-docker.pkg.dev/dlock-prod/dlock/dlock@sha256:" + "1" * 64


@breaks("images")
def no_tag(world):
    main(world, "lock-server")["image"] = "europe-central2-docker.pkg.dev/dlock-lab/dlock/dlock"


@breaks("images")
def a_name_that_was_not_replaced(world):
    main(world, "lock-server")["image"] = "dlock"


@breaks("no-shell")
def a_migration_in_a_shell(world):
    main(world, "migrate-pay")["command"] = ["/bin/sh", "-euc"]


@breaks("resources")
def a_limit_above_the_request(world):
    main(world, "lock-server")["resources"]["limits"]["cpu"] = "1"


@breaks("resources")
def no_storage(world):
    for each in ("requests", "limits"):
        del main(world, "console")["resources"][each]["ephemeral-storage"]


@breaks("resources")
def too_little_memory_for_autopilot(world):
    for each in ("requests", "limits"):
        main(world, "console")["resources"][each] = {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"}


@breaks("resources", "dev-etcd")
def too_small_to_be_kept(world):
    for each in ("requests", "limits"):
        main(world, "dlock-etcd")["resources"][each] = {"cpu": "250m", "memory": "512Mi", "ephemeral-storage": "1Gi"}


@breaks("ports", also=("probes", "monitoring", "needs"))
def a_port_without_a_name(world):
    del main(world, "payout-executor")["ports"][0]["name"]


@breaks("ports")
def a_service_to_another_port(world):
    spec(world, "Service", "console")["ports"][0]["targetPort"] = "web"


@breaks("probes")
def no_readiness(world):
    del main(world, "rail-proxy")["readinessProbe"]


@breaks("probes")
def liveness_that_asks_the_database(world):
    main(world, "payment-resource")["livenessProbe"]["httpGet"]["path"] = "/readyz"


@breaks("probes")
def a_probe_at_a_number(world):
    main(world, "payment-resource")["startupProbe"]["httpGet"]["port"] = 7400


@breaks("grace")
def no_time_to_end(world):
    pod(world, "payout-executor")["terminationGracePeriodSeconds"] = 30


@breaks("grace")
def a_longer_drain(world):
    toml(world, "lock-server", 'drain-timeout = "10s"', 'drain-timeout = "25s"')


@breaks("grace")
def a_delay_on_top(world):
    toml(world, "lock-server", 'drain-timeout = "10s"', 'drain-timeout = "10s"\ndrain-delay = "20s"')


@breaks("grace", "dev-etcd")
def no_time_to_hand_over(world):
    pod(world, "dlock-etcd")["terminationGracePeriodSeconds"] = 10


@breaks("drain")
def a_drain_shorter_than_a_submission(world):
    toml(world, "rail-proxy", 'drain-timeout = "20s"', 'drain-timeout = "8s"')


@breaks("drain")
def a_worker_that_drops_its_payout(world):
    toml(world, "payout-executor", 'drain-timeout = "30s"', 'drain-timeout = "10s"')


@breaks("drain")
def sigterm_at_once(world):
    del main(world, "lock-server")["lifecycle"]


@breaks("spread")
def one_zone(world):
    pod(world, "lock-server")["topologySpreadConstraints"].pop(0)


@breaks("spread")
def spread_of_somebody_else(world):
    pod(world, "rail-proxy")["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"][NAME] = "console"


@breaks("spread", "dev-etcd")
def two_members_in_a_zone(world):
    pod(world, "dlock-etcd")["topologySpreadConstraints"][0]["whenUnsatisfiable"] = "ScheduleAnyway"


@breaks("disruption")
def no_budget(world):
    world.drop("PodDisruptionBudget", "rail-proxy")


@breaks("disruption")
def a_budget_that_blocks(world):
    spec(world, "PodDisruptionBudget", "console")["maxUnavailable"] = 0


@breaks("disruption")
def a_budget_that_blocks_by_its_other_word(world):
    one = spec(world, "PodDisruptionBudget", "console")
    del one["maxUnavailable"]
    one["minAvailable"] = 1


@breaks("disruption", "dev-etcd")
def the_majority_may_go(world):
    spec(world, "PodDisruptionBudget", "dlock-etcd")["maxUnavailable"] = 2


@breaks("eviction", also=("resources",))
def a_pod_that_holds_its_node(world):
    world.workload("payout-executor").annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "false"


@breaks("eviction", "dev-etcd")
def a_member_that_is_moved_at_will(world):
    world.workload("dlock-etcd").annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "true"


@breaks("selectors", also=("needs",))
def a_service_of_nobody(world):
    spec(world, "Service", "lock-server")["selector"][NAME] = "lock"


@breaks("selectors", also=("disruption",))
def a_budget_of_nobody(world):
    spec(world, "PodDisruptionBudget", "lock-server")["selector"]["matchLabels"][NAME] = "lock"


@breaks("selectors", also=("monitoring", "needs"))
def monitoring_of_nobody(world):
    spec(world, "PodMonitoring", "lock-server")["selector"]["matchLabels"][NAME] = "lock"


@breaks("selectors")
def a_policy_that_names_nobody(world):
    peer = spec(world, "NetworkPolicy", "lock-server")["ingress"][0]["from"][0]["podSelector"]
    peer["matchExpressions"][0]["values"].append("executor")


@breaks("selectors")
def an_autoscaler_of_nobody(world):
    world.parts["system"].append(copy.deepcopy(world.find("HorizontalPodAutoscaler", "payout-executor")))
    extra = world.parts["system"][-1]
    extra["metadata"]["name"] = extra["spec"]["scaleTargetRef"]["name"] = "worker"


@breaks("selectors", "dev-etcd")
def members_that_cannot_find_each_other(world):
    del spec(world, "Service", "dlock-etcd")["publishNotReadyAddresses"]


@breaks("references", also=("configuration", "needs", "secrets", "monitoring"))
def a_configuration_that_does_not_exist(world):
    volume = next(each for each in pod(world, "console")["volumes"] if "configMap" in each)
    volume["configMap"]["name"] = "console"


@breaks("references")
def a_file_of_another_name(world):
    args = main(world, "lock-server")["args"]
    args[args.index("/etc/dlock/lock-server.toml")] = "/etc/dlock/dlock.toml"


@breaks("references")
def an_unused_configuration(world):
    world.parts["system"].append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "old", "namespace": "dlock"}, "data": {}})


@breaks("references")
def a_volume_that_nobody_mounts(world):
    pod(world, "console")["volumes"].append({"name": "more", "emptyDir": {}})


@breaks("references")
def a_disk_that_does_not_exist(world):
    world.drop("PersistentVolumeClaim", "rail-stub")


@breaks("secrets")
def a_password_that_is_not_mounted(world):
    toml(world, "lock-server", "/lockdb-password", "/lock-password")


@breaks("secrets", also=("databases",))
def a_role_with_the_other_fences_password(world):
    provider = spec(world, "SecretProviderClass", "rail-proxy")["parameters"]
    provider["secrets"] = provider["secrets"].replace("/paydb-rail-password/", "/paydb-payment-password/")
    toml(world, "rail-proxy", "?sslmode=verify-ca", "?sslmode=require")


@breaks("secrets")
def more_secrets_than_needed(world):
    provider = spec(world, "SecretProviderClass", "rail-proxy")["parameters"]
    listed = yaml.safe_load(provider["secrets"])
    listed.append({"resourceName": "projects/dlock-lab/secrets/lockdb-ca/versions/latest", "path": "lockdb-ca.pem"})
    provider["secrets"] = yaml.safe_dump(listed)


@breaks("secrets")
def a_component_that_owns_the_schema(world):
    toml(world, "payment-resource", "dlock_payment@", "dlock_pay_owner@")


@breaks("secrets")
def a_password_in_a_manifest(world):
    main(world, "lock-server").setdefault("env", []).append({"name": "PGPASSWORD", "value": "hunter2"})


@breaks("databases")
def any_server_will_do(world):
    toml(world, "lock-server", "sslmode=verify-ca", "sslmode=require")


@breaks("databases")
def a_migration_in_the_clear(world):
    data = world.find("ConfigMap", "migrate-lock")["data"]
    data["url"] = data["url"].replace("sslmode=verify-ca", "sslmode=prefer")


@breaks("connections")
def more_connections_than_there_are(world):
    toml(world, "lock-server", "[lock.store]\n", "[lock.store]\npool-max = 30\n")


@breaks("connections", "prod")
def the_defaults_pool(world):
    toml(world, "rail-proxy", "pool-max = 8\n", "")


@breaks("default-deny")
def nothing_denied(world):
    for things in world.parts.values():
        things[:] = [thing for thing in things if thing["metadata"]["name"] != "default-deny"]


@breaks("default-deny", also=("arrows",))
def everything_allowed(world):
    for things in world.parts.values():
        for thing in things:
            if thing["metadata"]["name"] == "default-deny":
                thing["spec"]["ingress"] = [{}]


@breaks("arrows")
def one_arrow_more(world):
    for name, kind, key, other in (("lock-server", "ingress", "from", "rail-stub"), ("rail-stub", "egress", "to", "lock-server")):
        rule = spec(world, "NetworkPolicy", name)[kind][0]
        rule[key].append({"podSelector": {"matchLabels": {NAME: other}}})


@breaks("arrows")
def a_half_arrow(world):
    rule = spec(world, "NetworkPolicy", "payment-resource")["ingress"][0]["from"][0]["podSelector"]["matchExpressions"][0]
    rule["values"].remove("payout-executor")


@breaks("arrows", "prod")
def one_arrow_less(world):
    world.drop("NetworkPolicy", "to-rail")


@breaks("arrows")
def all_ports(world):
    del spec(world, "NetworkPolicy", "rail-stub")["ingress"][0]["ports"]


@breaks("arrows")
def a_peer_outside_without_a_name(world):
    del world.find("NetworkPolicy", "from-scraper")["metadata"]["annotations"]


@breaks("needs")
def a_configuration_that_talks_to_somebody_else(world):
    toml(world, "rail-proxy", "http://rail-stub:7400", "http://payment-resource:7400")


@breaks("needs")
def a_configuration_that_talks_to_nobody(world):
    toml(world, "payout-executor", "http://lock-server:7400", "http://lock:7400")


@breaks("needs")
def another_port(world):
    toml(world, "console", "http://lock-server:7400", "http://lock-server:80")


@breaks("addresses")
def the_database_is_elsewhere(world):
    toml(world, "lock-server", "@10.20.0.3:", "@10.20.0.9:")


@breaks("addresses")
def let_out_everywhere(world):
    spec(world, "NetworkPolicy", "to-lockdb")["egress"][0]["to"][0]["ipBlock"]["cidr"] = "0.0.0.0/0"


@breaks("monitoring", also=("needs",))
def not_scraped(world):
    world.drop("PodMonitoring", "rail-proxy")


@breaks("monitoring")
def scraped_under_another_name(world):
    world.find("PodMonitoring", "rail-proxy")["metadata"]["name"] = "rail"


@breaks("alerts")
def another_threshold_than_in_the_file(world):
    group = spec(world, "Rules", "dlock-processes")["groups"][0]
    group["rules"][0]["for"] = "1h"


@breaks("alerts")
def alerts_that_are_not_deployed(world):
    world.drop("Rules", "dlock-money")


@breaks("project")
def a_secret_of_another_project(world):
    provider = spec(world, "SecretProviderClass", "lock-server")["parameters"]
    provider["secrets"] = provider["secrets"].replace("projects/dlock-lab/", "projects/dlock-test/")


@breaks("jobs")
def a_job_that_stays(world):
    del world.workload("migrate-lock").thing["spec"]["ttlSecondsAfterFinished"]


@breaks("jobs")
def a_jobs_configuration_with_a_hash(world):
    main(world, "migrate-lock")["env"][0]["valueFrom"]["configMapKeyRef"]["name"] = "migrate-lock-abc"
    world.find("ConfigMap", "migrate-lock")["metadata"]["name"] = "migrate-lock-abc"


@breaks("jobs")
def a_migration_beside_the_system(world):
    for thing in list(world.parts["migrate"]):
        if thing["kind"] == "Job":
            world.parts["migrate"].remove(thing)
            world.parts["system"].append(thing)


@breaks("scaling")
def replicas_beside_an_autoscaler(world):
    world.workload("payout-executor").thing["spec"]["replicas"] = 12


@breaks("scaling")
def too_few_workers(world):
    spec(world, "HorizontalPodAutoscaler", "payout-executor")["minReplicas"] = 6


@breaks("scaling", "dev-etcd", also=("disruption",))
def two_members(world):
    world.workload("dlock-etcd").thing["spec"]["replicas"] = 2


@breaks("configuration")
def on_loopback(world):
    toml(world, "lock-server", "0.0.0.0:7400", "127.0.0.1:7400")


@breaks("configuration")
def an_unknown_setting(world):
    toml(world, "lock-server", "[http]\n", "[http]\nworker = 2\n")


@breaks("lab")
def a_lab_setting_for_a_program_without_it(world):
    toml(world, "lock-server", "[log]\n", "[debug]\ncontrol = true\n\n[log]\n")


@breaks("lab")
def a_lab_setting_by_the_environment(world):
    main(world, "rail-proxy").setdefault("env", []).append({"name": "DLOCK_RAIL_FENCING_ENABLED", "value": "false"})


@breaks("lab")
def a_lab_setting_by_an_argument(world):
    main(world, "rail-proxy")["args"].append("--set=rail.fencing.enabled=false")


@breaks("lab")
def a_component_with_the_lab(world):
    main(world, "payment-resource")["image"] = "europe-central2-docker.pkg.dev/dlock-lab/dlock/dlock-lab:0.1.0"


@breaks("lab", "prod", also=("production",))
def no_fence_in_production(world):
    toml(world, "payment-resource", "[log]\n", "[payment.fencing]\nenabled = false\n\n[log]\n")
    main(world, "payment-resource").setdefault("env", []).append({"name": "DLOCK_DEBUG_CONTROL", "value": "debug.control"})


@breaks("lab", "prod", also=("production",))
def the_labs_image_in_production(world):
    main(world, "lock-server")["image"] = main(world, "lock-server")["image"].replace("/dlock@", "/dlock-lab@")


@breaks("production", "prod")
def a_rail_in_the_clear(world):
    toml(world, "rail-proxy", "https://rail.example.com", "http://rail.example.com:443")


@breaks("production", "prod")
def an_authority_out_of_the_image(world):
    toml(world, "rail-proxy", "#[rail.tls]\n", '[rail.tls]\nca-file = "/etc/ssl/certs/ca-certificates.crt"\n')


@breaks("secrets", "prod")
def a_rails_certificate_that_is_not_mounted(world):
    toml(world, "rail-proxy", "#[rail.tls]\n#ca-file", "[rail.tls]\nca-file")


@breaks("production", "prod")
def a_console_that_breaks_locks(world):
    toml(world, "console", "read-only = true", "read-only = false")


@breaks("production", "prod", also=("disruption",))
def a_single_server(world):
    world.workload("lock-server").thing["spec"]["replicas"] = 1


def run(worlds):
    """Every change; a sentence for each that was not seen as it should be, and how many there were."""
    wrong = []
    for rule, overlay, also, change in BREAKS:
        broken = set(rules.judge(worlds[overlay].mutated(change)))
        if rule not in broken:
            wrong.append(f"{change.__name__} was not reported by {rule}")
        if broken - also - {rule}:
            wrong.append(f"{change.__name__} was reported by {sorted(broken - also - {rule})} too")
    unproved = set(rules.RULES) - {rule for rule, _, _, _ in BREAKS}
    wrong += [f"nothing breaks the rule {rule}" for rule in sorted(unproved)]
    wrong += schemas(worlds["dev"])
    wrong += unfinished(worlds["prod"])
    return wrong, len(BREAKS)


def unfinished(world):
    """The overlay as it stands here may not be applied, for each of these reasons; told its own values, it may."""
    told = (("images", "no digest yet"), ("the rail's name", "rail.example.com is an example"), ("its address", "203.0.113.10 is an address"))
    found = list(placeholders.left(world))
    for what, part in told:
        if not any(part in sentence for sentence in found):
            yield f"prod may be applied without being told {what}"

    def tell(world):
        for workload in world.workloads:
            workload.main["image"] = workload.main["image"].replace("0" * 64, "1" * 64)
        toml(world, "rail-proxy", "rail.example.com", "rail.bank")
        spec(world, "NetworkPolicy", "to-rail")["egress"][0]["to"][0]["ipBlock"]["cidr"] = "20.30.40.50/32"

    yield from (f"prod, told everything, may not be applied: {sentence}" for sentence in placeholders.left(world.mutated(tell)))
    yield from pinning()


def pinning():
    """scripts/release/pin on a copy: the digest stands in both places, and what is none is refused."""
    files = ("kustomization.yaml", "migrate/kustomization.yaml")
    with tempfile.TemporaryDirectory(prefix="dlock-pin-") as folder:
        copied = pathlib.Path(folder)
        (copied / "migrate").mkdir()
        for name in files:
            shutil.copy(K8S / "overlays" / "prod" / name, copied / name)

        def pin(digest):
            command = [ROOT / "scripts" / "release" / "pin", digest]
            return subprocess.run(command, check=False, capture_output=True, env=os.environ | {"DLOCK_PROD_OVERLAY": folder}).returncode

        digest = "sha256:" + "1f" * 32
        if pin(digest) != 0 or any(f"digest: {digest}\n" not in (copied / name).read_text() for name in files):
            yield "scripts/release/pin does not write the digest"
        if 0 in (pin("0.1.0"), pin(placeholders.NO_DIGEST), pin("")) or any(digest not in (copied / name).read_text() for name in files):
            yield "scripts/release/pin takes what is no digest"


def schemas(world):
    """Each schema refuses an unknown field, in an object of each kind, which says so too that strict means strict."""
    seen = set()
    for thing in world.things:
        if thing["kind"] in seen:
            continue
        seen.add(thing["kind"])
        bad = copy.deepcopy(thing)
        bad["unknownField"] = 1
        if not list(schema.check(bad, schema.VERSIONS[:1])):
            yield f"the schema of {thing['kind']} takes an unknown field"
    bad = copy.deepcopy(world.find("SecretProviderClass", "lock-server"))
    bad["spec"]["parameters"]["secrets"] = "- resourceName: secrets/lockdb\n  path: x\n"
    if not list(schema.check(bad)):
        yield "the schema of SecretProviderClass takes a secret without a project"
