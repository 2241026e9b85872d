output "platform" {
  description = "All that deploy/k8s and the operator need to know."
  value       = module.platform
}
