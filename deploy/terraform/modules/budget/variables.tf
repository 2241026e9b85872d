variable "project_id" {
  description = "The project whose costs are watched."
  type        = string
}

variable "billing_account" {
  description = "The id of the billing account, XXXXXX-XXXXXX-XXXXXX."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$", var.billing_account))
    error_message = "billing_account is written XXXXXX-XXXXXX-XXXXXX."
  }
}

variable "currency" {
  description = "The currency of the billing account; a budget in another one is refused."
  type        = string

  validation {
    condition     = can(regex("^[A-Z]{3}$", var.currency))
    error_message = "currency is a code of three letters."
  }
}

variable "monthly_amount" {
  description = "What a month may cost, in whole units of the currency."
  type        = number

  validation {
    condition     = var.monthly_amount >= 1 && floor(var.monthly_amount) == var.monthly_amount
    error_message = "monthly_amount is a whole number of at least 1."
  }
}

variable "thresholds" {
  description = "Parts of the amount at which an alert is sent, by what was spent."
  type        = list(number)
  default     = [0.5, 0.9, 1.0]

  validation {
    condition     = length(var.thresholds) > 0 && alltrue([for part in var.thresholds : part > 0 && part <= 2])
    error_message = "There is at least one threshold, each above 0 and at most 2."
  }
}

variable "alert_emails" {
  description = "Who is told, beside the administrators of the billing account. At most 5, which is what a budget takes."
  type        = list(string)

  validation {
    condition     = length(var.alert_emails) >= 1 && length(var.alert_emails) <= 5
    error_message = "A budget that nobody hears of is no alert: name 1 to 5 addresses."
  }

  validation {
    condition     = alltrue([for address in var.alert_emails : can(regex("^[^@ ]+@[^@ ]+$", address))])
    error_message = "Each of alert_emails is an address."
  }
}
