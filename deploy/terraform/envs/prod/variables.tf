variable "project_id" {
  description = "The project of this environment."
  type        = string
  default     = "dlock-prod"
}

variable "region" {
  description = "The region of this environment."
  type        = string
  default     = "europe-central2"
}

variable "billing_account" {
  description = "The id of the billing account, XXXXXX-XXXXXX-XXXXXX."
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

variable "control_plane_networks" {
  description = "From where kubectl may reach the control plane: name to CIDR block."
  type        = map(string)
}

variable "image_publishers" {
  description = "Who pushes images: user:…, group:…, serviceAccount:… or principalSet:…."
  type        = list(string)
}
