variable "project_id" {
  description = "The project that owns the repository."
  type        = string
}

variable "region" {
  description = "Where the repository is."
  type        = string
}

variable "name" {
  description = "The repository's id."
  type        = string
}

variable "keep_count" {
  description = "How many of the newest versions of each image are never deleted."
  type        = number
  default     = 10
}

variable "untagged_days" {
  description = "After how many days an image without a tag may be deleted."
  type        = number
  default     = 30

  validation {
    condition     = var.untagged_days >= 1
    error_message = "untagged_days is at least 1."
  }
}

variable "node_account_email" {
  description = "The nodes' service account, which pulls."
  type        = string
}

variable "publishers" {
  description = "Who pushes images: user:…, group:…, serviceAccount:… or principalSet:…."
  type        = list(string)

  validation {
    condition     = alltrue([for member in var.publishers : can(regex("^(user|group|serviceAccount|principal|principalSet):.+", member))])
    error_message = "Each publisher is user:…, group:…, serviceAccount:…, principal:… or principalSet:…, and nobody else."
  }
}

variable "labels" {
  description = "Labels of the repository."
  type        = map(string)
}
