# The budget and the alert on it. Everything that can cost money depends on this module (NFR-14). What it makes itself is free.

resource "google_project_service" "needed_first" {
  for_each = toset(["billingbudgets.googleapis.com", "monitoring.googleapis.com"])

  project = var.project_id
  service = each.key

  # Switching an API off with this configuration could break what others run in the project.
  disable_on_destroy = false
}

# The filter of a budget is kept by number; with the id the provider would see a difference at each plan.
data "google_project" "this" {
  project_id = var.project_id
}

resource "google_monitoring_notification_channel" "mail" {
  for_each = toset(var.alert_emails)

  project      = var.project_id
  display_name = "dlock budget: ${each.key}"
  type         = "email"

  labels = {
    email_address = each.key
  }

  depends_on = [google_project_service.needed_first]
}

resource "google_billing_budget" "this" {
  billing_account = var.billing_account
  display_name    = "dlock ${var.project_id}"

  budget_filter {
    projects        = ["projects/${data.google_project.this.number}"]
    calendar_period = "MONTH"
  }

  amount {
    specified_amount {
      currency_code = var.currency
      units         = tostring(var.monthly_amount)
    }
  }

  dynamic "threshold_rules" {
    for_each = var.thresholds

    content {
      threshold_percent = threshold_rules.value
      spend_basis       = "CURRENT_SPEND"
    }
  }

  # Says it while there is still time to act.
  threshold_rules {
    threshold_percent = 1.0
    spend_basis       = "FORECASTED_SPEND"
  }

  all_updates_rule {
    monitoring_notification_channels = [for channel in google_monitoring_notification_channel.mail : channel.id]
    # The billing account's administrators hear of it too.
    disable_default_iam_recipients = false
  }

  depends_on = [google_project_service.needed_first]
}
