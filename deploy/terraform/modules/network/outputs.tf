output "network_id" {
  description = "The network."
  value       = google_compute_network.this.id
}

output "subnetwork_id" {
  description = "The subnet of the nodes."
  value       = google_compute_subnetwork.nodes.id
}

output "pods_range_name" {
  description = "The name of the pods' range in the subnet."
  value       = google_compute_subnetwork.nodes.secondary_ip_range[0].range_name
}

output "services_range_name" {
  description = "The name of the Services' range in the subnet."
  value       = google_compute_subnetwork.nodes.secondary_ip_range[1].range_name
}

# Whoever places a database reads this output, and so waits for the connection: without it the instance is refused.
output "database_range_name" {
  description = "The range in which databases are placed, once it is connected."
  value       = google_compute_global_address.databases.name
  depends_on  = [google_service_networking_connection.databases]
}
