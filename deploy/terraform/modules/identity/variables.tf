variable "project_id" {
  description = "The project that owns the accounts."
  type        = string
}

variable "workloads" {
  description = "The workloads, by the name of their Kubernetes service account, which is the Google one's too."
  type = map(object({
    secrets = list(string)
  }))

  validation {
    condition     = alltrue([for name in keys(var.workloads) : can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", name))])
    error_message = "A workload's name has 6 to 30 of a-z, 0-9 and -, as a service account's id."
  }
}

variable "workload_pool" {
  description = "The cluster's pool of workload identities, PROJECT.svc.id.goog."
  type        = string
}

variable "namespace" {
  description = "The namespace of the Kubernetes service accounts."
  type        = string
}
