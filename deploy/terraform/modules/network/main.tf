# One network, one subnet, and the range in which Google places the databases. There is no NAT and no firewall rule of ours: nodes have no
# public address, images come from Artifact Registry over Private Google Access, and nothing of dlock calls the internet.

resource "google_compute_network" "this" {
  project                 = var.project_id
  name                    = var.name
  auto_create_subnetworks = false
  routing_mode            = "REGIONAL"
}

resource "google_compute_subnetwork" "nodes" {
  project       = var.project_id
  name          = "${var.name}-nodes"
  region        = var.region
  network       = google_compute_network.this.id
  ip_cidr_range = var.ranges.nodes

  # How nodes without a public address reach Google's APIs.
  private_ip_google_access = true

  secondary_ip_range {
    range_name    = "pods"
    ip_cidr_range = var.ranges.pods
  }

  secondary_ip_range {
    range_name    = "services"
    ip_cidr_range = var.ranges.services
  }
}

resource "google_compute_global_address" "databases" {
  project       = var.project_id
  name          = "${var.name}-databases"
  purpose       = "VPC_PEERING"
  address_type  = "INTERNAL"
  address       = split("/", var.ranges.databases)[0]
  prefix_length = tonumber(split("/", var.ranges.databases)[1])
  network       = google_compute_network.this.id
}

resource "google_service_networking_connection" "databases" {
  network                 = google_compute_network.this.id
  service                 = "servicenetworking.googleapis.com"
  reserved_peering_ranges = [google_compute_global_address.databases.name]
}
