# Production: nothing is deleted without a change here, and paydb has its standby and its archive.

module "platform" {
  source = "../../modules/platform"

  environment            = "prod"
  project_id             = var.project_id
  region                 = var.region
  billing_account        = var.billing_account
  budget                 = var.budget
  alert_emails           = var.alert_emails
  control_plane_networks = var.control_plane_networks
  image_publishers       = var.image_publishers

  deletion_protection = true
  lab                 = false
  release_channel     = "STABLE"

  # Nights of Saturday and Sunday.
  maintenance_window = {
    start_time = "2026-01-03T00:00:00Z"
    end_time   = "2026-01-03T08:00:00Z"
    recurrence = "FREQ=WEEKLY;BYDAY=SA,SU"
  }

  ranges = {
    databases = "10.40.0.0/20"
    nodes     = "10.40.16.0/20"
    services  = "10.40.32.0/20"
    pods      = "10.41.0.0/16"
  }

  pg_lock = {
    tier             = "db-custom-2-7680"
    retained_backups = 30
  }

  # A payout that the rail executed and paydb forgot would be looked up and settled again by hand at best: so no answered row may be lost
  # (NFR-05), and a restore may cost seconds of them, not a day.
  pg_pay = {
    tier                   = "db-custom-2-7680"
    availability_type      = "REGIONAL"
    point_in_time_recovery = true
    retained_backups       = 30
  }
}
