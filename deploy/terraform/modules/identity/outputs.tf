output "emails" {
  description = "Workload to the address of its account, for the annotation iam.gke.io/gcp-service-account."
  value       = { for name, account in google_service_account.this : name => account.email }
}
