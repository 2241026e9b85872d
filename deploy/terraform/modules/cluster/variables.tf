variable "project_id" {
  description = "The project that owns the cluster."
  type        = string
}

variable "region" {
  description = "The cluster's region; an Autopilot cluster is regional."
  type        = string
}

variable "name" {
  description = "The cluster's name."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,22}[a-z0-9]$", var.name))
    error_message = "name has 3 to 24 of a-z, 0-9 and -, begins with a letter and does not end with -: the nodes' account is named after it."
  }
}

variable "network_id" {
  description = "The network."
  type        = string
}

variable "subnetwork_id" {
  description = "The subnet of the nodes."
  type        = string
}

variable "pods_range_name" {
  description = "The subnet's secondary range of the pods."
  type        = string
}

variable "services_range_name" {
  description = "The subnet's secondary range of the Services."
  type        = string
}

variable "control_plane_networks" {
  description = "From where the control plane may be reached: name to CIDR block."
  type        = map(string)

  validation {
    condition     = length(var.control_plane_networks) > 0
    error_message = "Without a network nobody can reach the control plane."
  }

  validation {
    condition = alltrue([
      for block in values(var.control_plane_networks) : can(cidrhost(block, 0)) && try(tonumber(split("/", block)[1]) >= 16, false)
    ])
    error_message = "Each is a CIDR block no wider than /16: the control plane is not opened to the internet."
  }
}

variable "release_channel" {
  description = "The channel of GKE's upgrades."
  type        = string

  validation {
    condition     = contains(["REGULAR", "STABLE"], var.release_channel)
    error_message = "release_channel is REGULAR or STABLE."
  }
}

variable "maintenance_window" {
  description = "When upgrades may run: the first window (RFC 3339) and how it recurs (RFC 5545). GKE wants at least 48 hours in any 32 days."
  type = object({
    start_time = string
    end_time   = string
    recurrence = string
  })

  validation {
    condition = (
      can(timecmp(var.maintenance_window.start_time, var.maintenance_window.end_time)) && startswith(var.maintenance_window.recurrence, "FREQ=")
    )
    error_message = "start_time and end_time are RFC 3339 times, and recurrence begins with FREQ=."
  }

  validation {
    condition     = try(timecmp(var.maintenance_window.start_time, var.maintenance_window.end_time) < 0, true)
    error_message = "The window ends after it starts."
  }
}

variable "deletion_protection" {
  description = "Whether Terraform refuses to delete the cluster."
  type        = bool
}

variable "labels" {
  description = "Labels of the cluster."
  type        = map(string)
}
