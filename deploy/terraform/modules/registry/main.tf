# Our images, and copies of the ones that are not ours: the nodes reach no other registry.

resource "google_artifact_registry_repository" "images" {
  project       = var.project_id
  location      = var.region
  repository_id = var.name
  description   = "Images of dlock and copies of what it runs beside"
  format        = "DOCKER"

  # What was tested under a tag is what runs under it.
  docker_config {
    immutable_tags = true
  }

  cleanup_policy_dry_run = false

  # A delete alone would also take what was pushed last.
  cleanup_policies {
    id     = "keep-recent"
    action = "KEEP"

    most_recent_versions {
      keep_count = var.keep_count
    }
  }

  cleanup_policies {
    id     = "delete-old-untagged"
    action = "DELETE"

    condition {
      tag_state  = "UNTAGGED"
      older_than = "${var.untagged_days * 86400}s"
    }
  }

  labels = var.labels
}

resource "google_artifact_registry_repository_iam_member" "nodes" {
  project    = var.project_id
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.reader"
  member     = "serviceAccount:${var.node_account_email}"
}

resource "google_artifact_registry_repository_iam_member" "publishers" {
  for_each = toset(var.publishers)

  project    = var.project_id
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.writer"
  member     = each.key
}
