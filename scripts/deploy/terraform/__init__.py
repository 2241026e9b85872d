"""The checks of deploy/terraform; scripts/check-terraform runs them."""
