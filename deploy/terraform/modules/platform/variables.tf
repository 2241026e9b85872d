variable "environment" {
  description = "The environment's name, for labels."
  type        = string

  validation {
    condition     = contains(["dev", "prod"], var.environment)
    error_message = "environment is dev or prod."
  }
}

variable "project_id" {
  description = "The project. It exists already and is linked to the billing account."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id is a project's id: 6 to 30 of a-z, 0-9 and -."
  }
}

variable "region" {
  description = "The region of everything."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region is a region, not a zone: all that is made here is regional."
  }
}

variable "billing_account" {
  description = "The id of the billing account."
  type        = string
}

variable "budget" {
  description = "What a month may cost, in the billing account's currency."
  type = object({
    currency       = string
    monthly_amount = number
  })
}

variable "alert_emails" {
  description = "Who is told when the budget is used up."
  type        = list(string)
}

variable "ranges" {
  description = "Private IPv4 ranges: of nodes, of pods, of Services, and of the databases."
  type = object({
    nodes     = string
    pods      = string
    services  = string
    databases = string
  })
}

variable "control_plane_networks" {
  description = "From where the control plane may be reached: name to CIDR block."
  type        = map(string)
}

variable "release_channel" {
  description = "The channel of GKE's upgrades."
  type        = string
}

variable "maintenance_window" {
  description = "When GKE may upgrade: the first window and how it recurs."
  type = object({
    start_time = string
    end_time   = string
    recurrence = string
  })
}

variable "pg_lock" {
  description = "The lock store's instance. REGIONAL with point-in-time recovery everywhere: no answered grant may be lost (NFR-05)."
  type = object({
    tier                   = string
    availability_type      = optional(string, "REGIONAL")
    point_in_time_recovery = optional(bool, true)
    retained_backups       = number
  })

  validation {
    condition     = var.pg_lock.availability_type == "REGIONAL" && var.pg_lock.point_in_time_recovery
    error_message = "The lock store is REGIONAL with point-in-time recovery."
  }
}

variable "pg_pay" {
  description = "The instance of paydb."
  type = object({
    tier                   = string
    availability_type      = string
    point_in_time_recovery = bool
    retained_backups       = number
  })
}

variable "deletion_protection" {
  description = "Whether cluster and databases refuse to be deleted."
  type        = bool
}

variable "image_publishers" {
  description = "Who pushes images."
  type        = list(string)
}

variable "lab" {
  description = "Whether the workloads of the lab (the rail stub, etcd beside the cluster's databases) have accounts."
  type        = bool
}

# The one list of workloads. Names are those of the Kubernetes service accounts in deploy/k8s.
variable "workloads" {
  description = "Workload to the secrets that it may read, and whether it is the lab's."
  type = map(object({
    secrets = list(string)
    lab     = optional(bool, false)
  }))
  default = {
    lock-server       = { secrets = ["lockdb-password", "lockdb-ca"] }
    migrate-lock      = { secrets = ["lockdb-password", "lockdb-ca"] }
    migrate-pay       = { secrets = ["paydb-owner-password", "paydb-ca"] }
    payment-resource  = { secrets = ["paydb-payment-password", "paydb-ca"] }
    rail-proxy        = { secrets = ["paydb-rail-password", "paydb-ca"] }
    payout-executor   = { secrets = [] }
    payout-reconciler = { secrets = [] }
    console           = { secrets = [] }
    dlock-etcd        = { secrets = [], lab = true }
    rail-stub         = { secrets = [], lab = true }
  }
}
