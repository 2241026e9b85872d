output "name" {
  description = "The cluster's name."
  value       = google_container_cluster.this.name
}

# Read from the cluster, so that whoever binds to it waits for the cluster: without one the project has no such pool, and a binding is refused.
output "workload_pool" {
  description = "The pool of the cluster's workload identities."
  value       = google_container_cluster.this.workload_identity_config[0].workload_pool
}

output "node_account_email" {
  description = "The nodes' service account."
  value       = google_service_account.nodes.email
}
