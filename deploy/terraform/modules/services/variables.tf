variable "project_id" {
  description = "The project in which the APIs are switched on."
  type        = string
}
