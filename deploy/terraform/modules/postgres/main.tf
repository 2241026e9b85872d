# One PostgreSQL instance with one database. Roles are not made here: a role that Cloud SQL's API makes is a member of cloudsqlsuperuser, which
# `dlock migrate` refuses, and its password would stand in Terraform's state. docs/terraform.md has the commands.

resource "google_sql_database_instance" "this" {
  project          = var.project_id
  region           = var.region
  name             = var.name
  database_version = "POSTGRES_16"
  instance_type    = "CLOUD_SQL_INSTANCE"

  # Terraform's own refusal; deletion_protection_enabled below is the refusal of Cloud SQL, whoever asks.
  deletion_protection = var.deletion_protection

  settings {
    tier    = var.tier
    edition = "ENTERPRISE"

    # REGIONAL: each commit is on the disks of two zones before it is answered, and a standby takes over in the other one.
    availability_type = var.availability_type

    disk_type             = "PD_SSD"
    disk_size             = var.disk_gb
    disk_autoresize       = true
    disk_autoresize_limit = var.disk_gb_max

    deletion_protection_enabled = var.deletion_protection

    ip_configuration {
      ipv4_enabled       = false
      private_network    = var.network_id
      allocated_ip_range = var.database_range_name
      ssl_mode           = "ENCRYPTED_ONLY"
      # An authority of this instance alone. Its certificates name no host, so clients use sslmode=verify-ca with that authority.
      server_ca_mode = "GOOGLE_MANAGED_INTERNAL_CA"
    }

    backup_configuration {
      enabled                        = true
      start_time                     = var.backup_start_time
      location                       = var.region
      point_in_time_recovery_enabled = var.point_in_time_recovery
      transaction_log_retention_days = var.point_in_time_recovery ? 7 : null

      backup_retention_settings {
        retained_backups = var.retained_backups
        retention_unit   = "COUNT"
      }
    }

    maintenance_window {
      day          = var.maintenance.day
      hour         = var.maintenance.hour
      update_track = "stable"
    }

    insights_config {
      query_insights_enabled  = true
      record_client_address   = false
      record_application_tags = false
    }

    # No text of a statement in the server's log: the statement that makes a role holds its password.
    database_flags {
      name  = "log_statement"
      value = "none"
    }

    database_flags {
      name  = "log_min_error_statement"
      value = "panic"
    }

    user_labels = var.labels
  }

  lifecycle {
    # Cloud SQL has grown the disk; it never shrinks.
    ignore_changes = [settings[0].disk_size]

    precondition {
      condition     = var.availability_type == "ZONAL" || var.point_in_time_recovery
      error_message = "A REGIONAL instance needs point-in-time recovery."
    }
  }
}

resource "google_sql_database" "this" {
  project  = var.project_id
  instance = google_sql_database_instance.this.name
  name     = var.database
  charset  = "UTF8"

  # A database goes with its instance and never alone: dropping it would fail while a component is connected.
  deletion_policy = "ABANDON"
}
