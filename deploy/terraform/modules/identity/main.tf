# One Google service account a workload, and the one Kubernetes service account that may act as it (NFR-13). No account has a key. None has a
# role on the project: what one may do stands beside the thing it may do it to, as with secrets.

resource "google_service_account" "this" {
  for_each = var.workloads

  project      = var.project_id
  account_id   = each.key
  display_name = "dlock ${each.key}"
}

resource "google_service_account_iam_member" "workload_identity" {
  for_each = var.workloads

  service_account_id = google_service_account.this[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.workload_pool}[${var.namespace}/${each.key}]"
}
