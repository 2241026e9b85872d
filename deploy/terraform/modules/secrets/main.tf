# Empty containers for secrets, each with the workloads that may read it. Values are added out of band, so that none stands in Terraform's state.

locals {
  names = toset(flatten([for workload in values(var.workloads) : workload.secrets]))

  readers = merge([
    for name, workload in var.workloads : {
      for secret in workload.secrets : "${secret}/${name}" => { secret = secret, workload = name }
    }
  ]...)
}

resource "google_secret_manager_secret" "this" {
  for_each = local.names

  project   = var.project_id
  secret_id = each.key

  replication {
    user_managed {
      replicas {
        location = var.region
      }
    }
  }

  labels = var.labels
}

resource "google_secret_manager_secret_iam_member" "reader" {
  for_each = local.readers

  project   = var.project_id
  secret_id = google_secret_manager_secret.this[each.value.secret].secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${var.account_emails[each.value.workload]}"
}
