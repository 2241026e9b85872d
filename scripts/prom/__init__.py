"""The parts of scripts/check-prometheus: kit (tools and files), static, scrape (what is said and asked), live."""
