output "instance" {
  description = "The instance's name."
  value       = google_sql_database_instance.this.name
}

output "database" {
  description = "The database's name."
  value       = google_sql_database.this.name
}

output "private_ip" {
  description = "The instance's address, for the URLs and NetworkPolicies of deploy/k8s."
  value       = google_sql_database_instance.this.private_ip_address
}
