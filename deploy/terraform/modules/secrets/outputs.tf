output "names" {
  description = "The secrets that wait for a value."
  value       = sort([for secret in google_secret_manager_secret.this : secret.secret_id])
}
