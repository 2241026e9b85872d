# Everything of one environment, in the order in which it comes to be: budget, APIs, the rest. The two depends_on lines are what keeps money from
# being spent before its alert exists (NFR-14): each later module waits for the APIs, and these for the budget.

locals {
  labels    = { app = "dlock", environment = var.environment }
  namespace = "dlock"

  workloads = {
    for name, workload in var.workloads : name => { secrets = workload.secrets } if var.lab || !workload.lab
  }
}

module "budget" {
  source = "../budget"

  project_id      = var.project_id
  billing_account = var.billing_account
  currency        = var.budget.currency
  monthly_amount  = var.budget.monthly_amount
  alert_emails    = var.alert_emails
}

module "services" {
  source = "../services"

  project_id = var.project_id

  depends_on = [module.budget]
}

module "state" {
  source = "../state"

  project_id = var.project_id
  region     = var.region
  labels     = local.labels

  depends_on = [module.services]
}

module "network" {
  source = "../network"

  project_id = var.project_id
  region     = var.region
  name       = "dlock"
  ranges     = var.ranges

  depends_on = [module.services]
}

module "cluster" {
  source = "../cluster"

  project_id             = var.project_id
  region                 = var.region
  name                   = "dlock"
  network_id             = module.network.network_id
  subnetwork_id          = module.network.subnetwork_id
  pods_range_name        = module.network.pods_range_name
  services_range_name    = module.network.services_range_name
  control_plane_networks = var.control_plane_networks
  release_channel        = var.release_channel
  maintenance_window     = var.maintenance_window
  deletion_protection    = var.deletion_protection
  labels                 = local.labels

  depends_on = [module.services]
}

# Two instances: one would take the locks and what they protect down together.
module "pg_lock" {
  source = "../postgres"

  project_id             = var.project_id
  region                 = var.region
  name                   = "dlock-pg-lock"
  database               = "lockdb"
  tier                   = var.pg_lock.tier
  availability_type      = var.pg_lock.availability_type
  point_in_time_recovery = var.pg_lock.point_in_time_recovery
  retained_backups       = var.pg_lock.retained_backups
  maintenance            = { day = 7, hour = 3 }
  network_id             = module.network.network_id
  database_range_name    = module.network.database_range_name
  deletion_protection    = var.deletion_protection
  labels                 = local.labels

  depends_on = [module.services]
}

module "pg_pay" {
  source = "../postgres"

  project_id             = var.project_id
  region                 = var.region
  name                   = "dlock-pg-pay"
  database               = "paydb"
  tier                   = var.pg_pay.tier
  availability_type      = var.pg_pay.availability_type
  point_in_time_recovery = var.pg_pay.point_in_time_recovery
  retained_backups       = var.pg_pay.retained_backups
  # Not in the hour of the lock store: a restart of both at once is an outage that neither fence point needs.
  maintenance         = { day = 7, hour = 5 }
  network_id          = module.network.network_id
  database_range_name = module.network.database_range_name
  deletion_protection = var.deletion_protection
  labels              = local.labels

  depends_on = [module.services]
}

module "identity" {
  source = "../identity"

  project_id    = var.project_id
  workloads     = local.workloads
  workload_pool = module.cluster.workload_pool
  namespace     = local.namespace

  depends_on = [module.services]
}

module "secrets" {
  source = "../secrets"

  project_id     = var.project_id
  region         = var.region
  workloads      = local.workloads
  account_emails = module.identity.emails
  labels         = local.labels

  depends_on = [module.services]
}

module "registry" {
  source = "../registry"

  project_id         = var.project_id
  region             = var.region
  name               = "dlock"
  node_account_email = module.cluster.node_account_email
  publishers         = var.image_publishers
  labels             = local.labels

  depends_on = [module.services]
}
