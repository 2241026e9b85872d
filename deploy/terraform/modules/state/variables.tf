variable "project_id" {
  description = "The project that owns the bucket; the bucket's name begins with it."
  type        = string
}

variable "region" {
  description = "Where the bucket is."
  type        = string
}

variable "labels" {
  description = "Labels of the bucket."
  type        = map(string)
}
