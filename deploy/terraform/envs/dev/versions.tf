terraform {
  required_version = "~> 1.11.4"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "6.50.0"
    }
  }

  # The bucket is named when Terraform is initialised: `terraform init -backend-config=bucket=PROJECT-terraform-state`.
  backend "gcs" {
    prefix = "dlock"
  }
}

provider "google" {
  project = var.project_id
  region  = var.region

  # The API of budgets wants to know whose quota a person's own credentials use.
  billing_project       = var.project_id
  user_project_override = true
}
