"""Files, folders and XML of tenants: read and written within bounds, without following links."""
