variable "project_id" {
  description = "The project that owns the secrets."
  type        = string
}

variable "region" {
  description = "Where the secrets are kept."
  type        = string
}

variable "workloads" {
  description = "Workload to the secrets that it may read."
  type = map(object({
    secrets = list(string)
  }))
}

variable "account_emails" {
  description = "Workload to the address of its service account."
  type        = map(string)
}

variable "labels" {
  description = "Labels of the secrets."
  type        = map(string)
}
