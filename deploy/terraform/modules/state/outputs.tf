output "bucket" {
  description = "The bucket's name, for `terraform init -backend-config=bucket=…`."
  value       = google_storage_bucket.state.name
}
