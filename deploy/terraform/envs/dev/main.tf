# The laboratory: everything may be deleted, paydb has no standby, the rail is our stub.

module "platform" {
  source = "../../modules/platform"

  environment            = "dev"
  project_id             = var.project_id
  region                 = var.region
  billing_account        = var.billing_account
  budget                 = var.budget
  alert_emails           = var.alert_emails
  control_plane_networks = var.control_plane_networks
  image_publishers       = var.image_publishers

  deletion_protection = false
  lab                 = true
  release_channel     = "REGULAR"

  # Nights of Saturday and Sunday.
  maintenance_window = {
    start_time = "2026-01-03T00:00:00Z"
    end_time   = "2026-01-03T08:00:00Z"
    recurrence = "FREQ=WEEKLY;BYDAY=SA,SU"
  }

  ranges = {
    databases = "10.20.0.0/20"
    nodes     = "10.20.16.0/20"
    services  = "10.20.32.0/20"
    pods      = "10.21.0.0/16"
  }

  # Its failover is what the laboratory shows, so it has its standby here too.
  pg_lock = {
    tier             = "db-custom-1-3840"
    retained_backups = 3
  }

  # No standby, no archive: its payouts are made up.
  pg_pay = {
    tier                   = "db-custom-1-3840"
    availability_type      = "ZONAL"
    point_in_time_recovery = false
    retained_backups       = 3
  }
}
