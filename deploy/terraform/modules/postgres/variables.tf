variable "project_id" {
  description = "The project that owns the instance."
  type        = string
}

variable "region" {
  description = "Where the instance and its backups are."
  type        = string
}

variable "name" {
  description = "The instance's name. Cloud SQL keeps a deleted one's name for a week."
  type        = string
}

variable "database" {
  description = "The database in it."
  type        = string

  validation {
    condition     = contains(["lockdb", "paydb"], var.database)
    error_message = "database is lockdb or paydb."
  }
}

variable "tier" {
  description = "The machine type, db-custom-CPUS-MEGABYTES or a shared core."
  type        = string

  validation {
    condition     = can(regex("^db-(custom-[0-9]+-[0-9]+|f1-micro|g1-small)$", var.tier))
    error_message = "tier is db-custom-CPUS-MEGABYTES, db-f1-micro or db-g1-small."
  }
}

variable "availability_type" {
  description = "REGIONAL, with a synchronous standby in another zone, or ZONAL."
  type        = string

  validation {
    condition     = contains(["REGIONAL", "ZONAL"], var.availability_type)
    error_message = "availability_type is REGIONAL or ZONAL."
  }
}

variable "point_in_time_recovery" {
  description = "Whether the log is archived, so that the database can be recovered to any moment of the last 7 days."
  type        = bool
}

variable "disk_gb" {
  description = "The disk's first size."
  type        = number
  default     = 10

  validation {
    condition     = var.disk_gb >= 10
    error_message = "disk_gb is at least 10."
  }
}

variable "disk_gb_max" {
  description = "How far the disk may grow by itself. A limit, so that a fault cannot buy disk without end."
  type        = number
  default     = 50
}

variable "backup_start_time" {
  description = "When the daily backup begins, HH:MM in UTC."
  type        = string
  default     = "02:00"

  validation {
    condition     = can(regex("^([01][0-9]|2[0-3]):[0-5][0-9]$", var.backup_start_time))
    error_message = "backup_start_time is HH:MM."
  }
}

variable "retained_backups" {
  description = "How many daily backups are kept."
  type        = number

  validation {
    condition     = var.retained_backups >= 1 && var.retained_backups <= 365
    error_message = "retained_backups is 1 to 365."
  }
}

variable "maintenance" {
  description = "When Cloud SQL may restart the instance: day (1 is Monday) and hour, UTC."
  type = object({
    day  = number
    hour = number
  })

  validation {
    condition     = var.maintenance.day >= 1 && var.maintenance.day <= 7 && var.maintenance.hour >= 0 && var.maintenance.hour <= 23
    error_message = "day is 1 to 7, hour 0 to 23."
  }
}

variable "network_id" {
  description = "The network from which the instance is reached."
  type        = string
}

variable "database_range_name" {
  description = "The range of the network in which the instance gets its address."
  type        = string
}

variable "deletion_protection" {
  description = "Whether the instance refuses to be deleted."
  type        = bool
}

variable "labels" {
  description = "Labels of the instance."
  type        = map(string)
}
