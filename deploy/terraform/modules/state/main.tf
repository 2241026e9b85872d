# The bucket of this environment's own Terraform state.

resource "google_storage_bucket" "state" {
  project  = var.project_id
  name     = "${var.project_id}-terraform-state"
  location = var.region

  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  # A bucket that holds a state is not deleted.
  force_destroy = false

  # An overwritten state is got back from its older versions.
  versioning {
    enabled = true
  }

  lifecycle_rule {
    condition {
      num_newer_versions = 50
      with_state         = "ARCHIVED"
    }

    action {
      type = "Delete"
    }
  }

  labels = var.labels
}
