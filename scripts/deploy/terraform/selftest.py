"""Plants one mistake at a time in a copy of the tree: a rule that does not report its own is no rule.

Each entry: the rule, the file, what is replaced (None: the text is added at the end), by what.
"""

import pathlib
import shutil
import tempfile

PG, CLUSTER, PLATFORM, IDENTITY, SECRETS = (f"modules/{name}/main.tf" for name in ("postgres", "cluster", "platform", "identity", "secrets"))
PROD, DEV, BUDGET, VARIABLES = "envs/prod/main.tf", "envs/dev/main.tf", "modules/budget/main.tf", "modules/platform/variables.tf"
REGISTRY, STATE, REGISTRY_VARIABLES = "modules/registry/main.tf", "modules/state/main.tf", "modules/registry/variables.tf"
SERVICES_WAIT = "  project_id = var.project_id\n\n  depends_on = [module.budget]\n"
UNUSED = 'variable "planted" {\n  description = "Nobody reads it."\n  type        = string\n  default     = ""\n}\n'


def resource(type_, body):
    return f'\nresource "{type_}" "planted" {{\n{body}}}\n'


MISTAKES = [
    ("syntax", PG, "  settings {", "  settings = {{"),
    ("syntax", PG, None, resource("google_sql_database_instance", '  name = "a"\n').replace("planted", "this")),
    ("shape", PG, "  settings {", "\tsettings {"),
    ("shape", PG, "  settings {", "  settings {  "),
    ("reference", PG, "var.tier", "var.tyre"),
    ("reference", SECRETS, "local.readers", "local.reader"),
    ("reference", PLATFORM, "module.network.network_id", "module.network.network"),
    ("reference", SECRETS, "google_secret_manager_secret.this[", "google_secret_manager_secret.that["),
    ("reference", PLATFORM, '"../registry"', '"../registrar"'),
    ("reference", "modules/budget/main.tf", "data.google_project.this.number", "data.google_project.that.number"),
    ("variable", REGISTRY_VARIABLES, None, UNUSED),
    ("variable", REGISTRY_VARIABLES, '  description = "Where the repository is."\n', ""),
    ("variable", REGISTRY_VARIABLES, "  type        = map(string)\n", ""),
    ("input", PLATFORM, '  name       = "dlock"\n', ""),
    ("input", PLATFORM, '  name       = "dlock"\n', '  name       = "dlock"\n  nome       = "dlock"\n'),
    ("schema", PG, "    tier    = var.tier", "    tyre    = var.tier"),
    ("schema", PG, '  database_version = "POSTGRES_16"\n', ""),
    ("schema", CLUSTER, "  release_channel {\n", "  release_canal {\n"),
    ("schema", CLUSTER, "google_service_account.nodes.email\n", "google_service_account.nodes.mail\n"),
    ("schema", STATE, '"google_storage_bucket"', '"google_storage_bin"'),
    ("schema", STATE, "  versioning {\n    enabled = true\n  }", "  versioning = true"),
    ("pinned", "envs/prod/versions.tf", '"6.50.0"', '"~> 6.50"'),
    ("pinned", "modules/postgres/versions.tf", ", < 7.0.0", ""),
    ("pinned", "envs/dev/versions.tf", '"~> 1.11.4"', '">= 1.0"'),
    ("no-keys", IDENTITY, None, resource("google_service_account_key", '  service_account_id = google_service_account.this["console"].name\n')),
    ("no-keys", "envs/dev/versions.tf", '  region  = var.region\n', '  region  = var.region\n  credentials = "key"\n'),
    ("no-keys", DEV, "# The laboratory", '# "type": "service_account"\n# The laboratory'),
    ("no-secret-values", PG, None, resource("google_sql_user", '  instance = google_sql_database_instance.this.name\n  name     = "a"\n')),
    ("no-secret-values", SECRETS, None, resource("google_secret_manager_secret_version", '  secret      = "a"\n  secret_data = "b"\n')),
    ("no-secret-values", PG, None, resource("random_password", "  length = 20\n")),
    ("no-secret-values", PG, '  instance_type    = "CLOUD_SQL_INSTANCE"\n', '  root_password    = "a"\n'),
    ("no-secret-values", SECRETS, None, '\ndata "google_secret_manager_secret_version" "planted" {\n  secret = "a"\n}\n'),
    ("sql-private", PG, "ipv4_enabled       = false", "ipv4_enabled       = true"),
    ("sql-private", PG, "      private_network    = var.network_id\n", ""),
    ("sql-tls", PG, "ENCRYPTED_ONLY", "ALLOW_UNENCRYPTED_AND_ENCRYPTED"),
    ("sql-tls", PG, '      ssl_mode           = "ENCRYPTED_ONLY"\n', ""),
    ("lock-recovery", VARIABLES, "optional(bool, true)", "optional(bool, false)"),
    ("lock-recovery", DEV, '    retained_backups = 3\n', '    retained_backups  = 3\n    availability_type = "ZONAL"\n'),
    ("prod-recovery", PROD, '"REGIONAL"', '"ZONAL"'),
    ("prod-recovery", PROD, "point_in_time_recovery = true", "point_in_time_recovery = false"),
    ("prod-deletion", PROD, "deletion_protection = true", "deletion_protection = false"),
    ("prod-deletion", PG, "deletion_protection_enabled = var.deletion_protection", "deletion_protection_enabled = false"),
    ("prod-deletion", CLUSTER, "deletion_protection = var.deletion_protection", "deletion_protection = false"),
    ("budget-first", PLATFORM, SERVICES_WAIT, "  project_id = var.project_id\n"),
    ("budget-first", PLATFORM, '  ranges     = var.ranges\n\n  depends_on = [module.services]\n', "  ranges     = var.ranges\n"),
    ("budget-first", PLATFORM, "  labels     = local.labels\n\n  depends_on = [module.services]\n", "  labels     = local.labels\n"),
    ("budget-first", BUDGET, None, resource("google_compute_network", '  name = "a"\n')),
    ("budget-first", DEV, None, resource("google_compute_network", '  name = "a"\n')),
    ("budget-alert", BUDGET, 'spend_basis       = "FORECASTED_SPEND"', 'spend_basis       = "CURRENT_SPEND"'),
    ("budget-alert", BUDGET, "[for channel in google_monitoring_notification_channel.mail : channel.id]", "[]"),
    ("autopilot", CLUSTER, "  enable_autopilot    = true\n", ""),
    ("autopilot", CLUSTER, "enable_private_nodes = true", "enable_private_nodes = false"),
    ("autopilot", CLUSTER, "managed_prometheus {\n      enabled = true", "managed_prometheus {\n      enabled = false"),
    ("roles", CLUSTER, "roles/container.defaultNodeServiceAccount", "roles/editor"),
    ("roles", CLUSTER, "roles/container.defaultNodeServiceAccount", "roles/secretmanager.secretAccessor"),
    ("roles", REGISTRY, "roles/artifactregistry.writer", "roles/artifactregistry.admin"),
    ("roles", REGISTRY, "roles/artifactregistry.writer", "roles/owner"),
    ("roles", CLUSTER, "google_project_iam_member", "google_project_iam_policy"),
    ("public-members", REGISTRY, '"serviceAccount:${var.node_account_email}"', '"allUsers"'),
    ("public-members", DEV, "control_plane_networks = var.control_plane_networks", 'control_plane_networks = { all = "0.0.0.0/0" }'),
    ("region-variable", REGISTRY, "  location      = var.region\n", '  location      = "europe-west1"\n'),
    ("region-variable", DEV, "= var.region\n", '= "europe-west1"\n'),
    ("one-kubernetes-account", IDENTITY, "[${var.namespace}/${each.key}]", "[${var.namespace}/default]"),
    ("one-kubernetes-account", IDENTITY, "roles/iam.workloadIdentityUser", "roles/iam.serviceAccountTokenCreator"),
    ("one-kubernetes-account", IDENTITY, None, resource(
        "google_service_account_iam_member",
        '  service_account_id = google_service_account.this["console"].name\n  role = "roles/iam.workloadIdentityUser"\n  member = "user:a@b.c"\n')),
    ("one-kubernetes-account", CLUSTER, None, resource(
        "google_service_account_iam_member",
        '  service_account_id = google_service_account.nodes.name\n  role = "roles/iam.serviceAccountUser"\n  member = "user:a@b.c"\n')),
    ("secret-readers", VARIABLES, '{ secrets = ["paydb-rail-password"', '{ secrets = ["paydb-payment-password"'),
    ("secret-readers", VARIABLES, "console           = { secrets = [] }", 'console           = { secrets = ["lockdb-password"] }'),
    ("secret-readers", SECRETS, "roles/secretmanager.secretAccessor", "roles/secretmanager.secretVersionManager"),
    ("registry", REGISTRY, "immutable_tags = true", "immutable_tags = false"),
    ("registry", REGISTRY, 'action = "DELETE"', 'action = "KEEP"'),
    ("state-bucket", STATE, "versioning {\n    enabled = true", "versioning {\n    enabled = false"),
    ("state-bucket", "envs/prod/versions.tf", 'backend "gcs" {\n    prefix = "dlock"\n  }', 'backend "local" {}'),
    ("kubernetes", "../k8s/planted.yaml", None,
     "metadata:\n  name: nobody\n  annotations:\n    iam.gke.io/gcp-service-account: nobody@p.iam.example\n"),
    ("kubernetes", "../k8s/planted.yaml", None,
     "kind: SecretProviderClass\nmetadata:\n  name: console\nresourceName: projects/p/secrets/lockdb-password/versions/latest\n"),
]


def plant(copy, file, old, new):
    """False where the text that was to be replaced is not there exactly as the entry says."""
    path = copy / file
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text() if path.is_file() else ""
    if old is not None and old not in text:
        return False
    path.write_text(text + new if old is None else text.replace(old, new))
    return True


def run(root, check):
    """What was not noticed, as lines."""
    missed = []
    for number, (rule, file, old, new) in enumerate(MISTAKES):
        with tempfile.TemporaryDirectory(prefix="dlock-terraform-") as folder:
            copy = pathlib.Path(folder) / "terraform"
            shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".terraform"))
            if (root.parent / "k8s").is_dir():
                shutil.copytree(root.parent / "k8s", copy.parent / "k8s")
            if not plant(copy, file, old, new):
                missed.append(f"mistake {number} ({rule}): {file} has no {old!r}")
                continue
            found = [problem for problem in check(copy) if problem[0] == rule]
            if not found or all("../" in file and problem[1] == "deploy/k8s" for problem in found):
                missed.append(f"mistake {number}: {file}, {(old or 'added')!r} to {new!r}, is not reported by {rule}")
    return missed
