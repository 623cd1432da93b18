"""`neo`, the command line. It speaks to the cloud only through `neocloud.client`."""
