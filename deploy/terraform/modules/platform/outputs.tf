output "budget" {
  description = "The budget's resource name."
  value       = module.budget.name
}

output "state_bucket" {
  description = "The bucket of the state."
  value       = module.state.bucket
}

output "cluster" {
  description = "The cluster's name."
  value       = module.cluster.name
}

output "databases" {
  description = "Database to instance and address, for deploy/k8s."
  value = {
    (module.pg_lock.database) = { instance = module.pg_lock.instance, address = module.pg_lock.private_ip }
    (module.pg_pay.database)  = { instance = module.pg_pay.instance, address = module.pg_pay.private_ip }
  }
}

output "service_accounts" {
  description = "Workload to the address of its account."
  value       = module.identity.emails
}

output "secrets" {
  description = "The secrets that wait for a value."
  value       = module.secrets.names
}

output "image_registry" {
  description = "What the names of images begin with."
  value       = module.registry.url
}
