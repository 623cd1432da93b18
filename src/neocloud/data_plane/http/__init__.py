"""HTTP/1.1 for clients that are not trusted: servers, and the limits of connections and requests."""
