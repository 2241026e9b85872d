variable "project_id" {
  description = "The project that owns the network."
  type        = string
}

variable "region" {
  description = "Where the subnet is."
  type        = string
}

variable "name" {
  description = "The network's name, with which the names of its parts begin."
  type        = string
}

variable "ranges" {
  description = "Private IPv4 ranges: of nodes, of pods, of Services, and of the databases. They must not overlap with each other."
  type = object({
    nodes     = string
    pods      = string
    services  = string
    databases = string
  })

  validation {
    condition     = alltrue([for range in values(var.ranges) : can(cidrhost(range, 1))])
    error_message = "Each range is written as a CIDR block, for example 10.20.0.0/20."
  }

  validation {
    condition     = length(distinct(values(var.ranges))) == length(values(var.ranges))
    error_message = "No range stands twice."
  }
}
